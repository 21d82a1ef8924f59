//! What every end-to-end test needs: an API server with simulated nodes, the operator as a process, and the
//! scenarios, which are the same on the embedded and on the real API server.

pub(crate) mod eventually;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod manifests;
pub(crate) mod operator;
pub(crate) mod page;
pub(crate) mod pods;
pub(crate) mod scenarios;
pub(crate) mod through;
pub(crate) mod world;

/// Says why a test proves nothing on this machine.
pub(crate) fn skipped(why: &str) {
    say(&format!("skipped: {why}"));
}

/// Shows a text with the test that it belongs to.
#[expect(
    clippy::print_stderr,
    reason = "the test harness shows it with the test"
)]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}
