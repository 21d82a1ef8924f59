//! Lines on stdout, and a block that is drawn over itself on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use crossterm::terminal;
use tokio::time::Instant;

/// Lines of a terminal whose size is not known.
const DEFAULT_HEIGHT: u16 = 24;

/// Where `dev` talks to its user.
#[derive(Debug)]
pub(super) struct Console {
    begin: Instant,
    last: Instant,
    is_terminal: bool,
    /// Lines of the block that was drawn last.
    drawn: usize,
}

impl Console {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            last: now,
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

    /// Prints a line with the seconds since the start and since the last such line.
    pub(super) fn timed(&mut self, text: &str) -> io::Result<()> {
        let now = Instant::now();
        let total = (now - self.begin).as_secs_f64();
        let took = (now - self.last).as_secs_f64();
        self.last = now;
        self.line(&format!("[{total:5.1}s, +{took:.1}s] {text}"))
    }

    /// Draws a block over the one drawn before; what the terminal has no room for is counted.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let height = terminal::size().map_or(DEFAULT_HEIGHT, |(_, height)| height);
        let lines = fit(lines, usize::from(height));
        let text = frame(self.drawn, &lines);
        self.drawn = lines.len();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The lines that fit above the cursor; a block that scrolls could not be drawn over.
fn fit(lines: &[String], height: usize) -> Vec<String> {
    let room = height.saturating_sub(1).max(1);
    if lines.len() <= room {
        return lines.to_vec();
    }
    let mut shown = lines[..room - 1].to_vec();
    shown.push(format!("... {} more lines", lines.len() - shown.len()));
    shown
}

/// Control sequences around a block: up over the old one, no wrapping while it is drawn.
fn frame(drawn: usize, lines: &[String]) -> String {
    const NO_WRAP: &str = "\x1b[?7l";
    const WRAP: &str = "\x1b[?7h";
    const CLEAR_BELOW: &str = "\x1b[J";
    let up = if drawn > 0 {
        format!("\x1b[{drawn}A\r")
    } else {
        String::new()
    };
    let block: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("{NO_WRAP}{up}{CLEAR_BELOW}{block}{WRAP}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: usize) -> Vec<String> {
        (0..n).map(|i| i.to_string()).collect()
    }

    #[test]
    fn a_block_is_drawn_over_the_one_before() {
        assert_eq!(frame(0, &lines(2)), "\x1b[?7l\x1b[J0\n1\n\x1b[?7h");
        assert_eq!(frame(3, &lines(1)), "\x1b[?7l\x1b[3A\r\x1b[J0\n\x1b[?7h");
    }

    #[test]
    fn a_block_never_scrolls_the_terminal() {
        assert_eq!(fit(&lines(3), 4), lines(3));
        assert_eq!(fit(&lines(4), 4), ["0", "1", "... 2 more lines"]);
        assert_eq!(fit(&lines(4), 0), ["... 4 more lines"]);
        assert_eq!(fit(&[], 0), lines(0));
    }
}
