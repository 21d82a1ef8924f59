//! The Prometheus text format.

use std::fmt::{self, Write};

/// Families of metrics, one after the other, in the Prometheus text format; what a program adds to
/// [`MetricsPage`](crate::server::MetricsPage) is written with it.
///
/// ```
/// use controller::metrics::Text;
///
/// let mut text = Text::default();
/// text.family("mirror_bytes_total", "counter", "Bytes that were copied");
/// text.sample("mirror_bytes_total", &[("direction", "out")], 7.0);
/// assert!(text.finish().ends_with("mirror_bytes_total{direction=\"out\"} 7\n"));
/// ```
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a family; its samples follow. `kind` is `counter`, `gauge` or `histogram`, `help` a
    /// sentence without its full stop.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.put(format_args!(
            "# HELP {name} {help}.\n# TYPE {name} {kind}\n"
        ));
    }

    /// A sample of the family begun last. Values of labels may be any text.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.put(format_args!("{name}"));
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            self.put(format_args!("{before}{label}=\"{}\"", escaped(value)));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        self.put(format_args!("{after} {value}\n"));
    }

    /// The text so far.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a string takes everything");
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_left_out_where_there_are_none() {
        let mut text = Text::default();
        text.family("a_total", "counter", "Things");
        text.sample("a_total", &[], 1.5);
        text.sample("a_total", &[("x", "q\"\\\n"), ("y", "")], 2.0);
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\na_total 1.5\n\
                        a_total{x=\"q\\\"\\\\\\n\",y=\"\"} 2\n";
        assert_eq!(text.finish(), expected);
    }
}
