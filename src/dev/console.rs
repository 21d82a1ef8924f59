//! Lines on stdout, and a block that is drawn over itself on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use tokio::time::Instant;

/// Where `dev` talks to its user.
#[derive(Debug)]
pub(super) struct Console {
    begin: Instant,
    is_terminal: bool,
    /// Lines of the block that was drawn last.
    drawn: usize,
}

impl Console {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            is_terminal: io::stdout().is_terminal(),
            drawn: 0,
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Prints a line as it is.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        self.drawn = 0;
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Prints a line with the seconds since the start.
    pub(super) fn timed(&mut self, text: &str) -> io::Result<()> {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.line(&format!("[{seconds:5.1}s] {text}"))
    }

    /// Draws a block over the one drawn before; nothing else was printed in between.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let text = frame(self.drawn, lines);
        self.drawn = lines.len();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Control sequences around a block: up over the old one, no wrapping while it is drawn.
fn frame(drawn: usize, lines: &[String]) -> String {
    const NO_WRAP: &str = "\x1b[?7l";
    const WRAP: &str = "\x1b[?7h";
    const CLEAR_BELOW: &str = "\x1b[J";
    let mut text = String::from(NO_WRAP);
    if drawn > 0 {
        text.push_str(&format!("\x1b[{drawn}A\r"));
    }
    text.push_str(CLEAR_BELOW);
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(WRAP);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_drawn_over_the_one_before() {
        let lines = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(frame(0, &lines), "\x1b[?7l\x1b[Ja\nb\n\x1b[?7h");
        assert_eq!(frame(3, &lines), "\x1b[?7l\x1b[3A\r\x1b[Ja\nb\n\x1b[?7h");
    }
}
