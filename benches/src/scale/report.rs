//! Figures as JSON lines, and whether they meet their goals.

use serde_json::{Map, Value, json};

use crate::Error;

/// What a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

/// All figures so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    missed: Vec<String>,
}

impl Report {
    /// Prints a figure that has no goal.
    pub(super) fn figure(&mut self, scenario: &str, n: usize, metric: &str, value: f64) {
        self.line(scenario, n, metric, value, None);
    }

    /// Prints what a figure comes to in words.
    #[expect(clippy::print_stdout, reason = "figures go to standard output")]
    pub(super) fn text(&mut self, scenario: &str, n: usize, metric: &str, text: &str) {
        let mut line = heading(scenario, n, metric);
        line.insert("value".to_owned(), json!(text));
        println!("{}", Value::Object(line));
    }

    /// Prints a figure with its goal.
    pub(super) fn goal(&mut self, scenario: &str, n: usize, metric: &str, value: f64, goal: Goal) {
        self.line(scenario, n, metric, value, Some(goal));
    }

    #[expect(clippy::print_stdout, reason = "figures go to standard output")]
    fn line(&mut self, scenario: &str, n: usize, metric: &str, value: f64, goal: Option<Goal>) {
        let rounded = (value * 1000.0).round() / 1000.0;
        let mut line = heading(scenario, n, metric);
        line.insert("value".to_owned(), crate::measure::number(rounded));
        if let Some(goal) = goal {
            let met = goal.is_met_by(value);
            line.insert("goal".to_owned(), json!(goal.text()));
            line.insert("met".to_owned(), json!(met));
            if !met {
                let missed = format!("{scenario} of {n}: {metric} is {rounded}, {}", goal.text());
                self.missed.push(missed);
            }
        }
        println!("{}", Value::Object(line));
    }

    /// An error that names the goals that were missed.
    pub(super) fn verdict(self) -> Result<(), Error> {
        if self.missed.is_empty() {
            Ok(())
        } else {
            Err(Error::Failed(format!("missed: {}", self.missed.join("; "))))
        }
    }
}

/// How every line begins.
fn heading(scenario: &str, n: usize, metric: &str) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("bench".to_owned(), json!("scale"));
    line.insert("scenario".to_owned(), json!(scenario));
    line.insert("n".to_owned(), json!(n));
    line.insert("metric".to_owned(), json!(metric));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_that_is_missed_fails_the_run_and_names_the_figure() {
        let mut report = Report::default();
        report.figure("create", 1, "seconds", 2.0);
        report.goal("create", 1, "proxies_per_s", 500.0, Goal::AtLeast(500.0));
        report.goal("create", 1, "rest_cpu_percent", 1.0, Goal::AtMost(1.0));
        assert_eq!(report.missed, [""; 0]);
        report.goal("restart", 7, "writes", 1.0, Goal::AtMost(0.0));
        let missed = report.verdict().expect_err("one is missed");
        assert_eq!(
            missed.to_string(),
            "missed: restart of 7: writes is 1, <= 0"
        );
    }
}
