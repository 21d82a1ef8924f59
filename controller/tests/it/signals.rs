//! Signals, tested on a child process: this test binary itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use controller::Signals;

/// Set in the child.
const CHILD: &str = "CONTROLLER_TEST_SIGNALS";

/// Waits for the stop, says so, and ends well or hangs.
#[expect(clippy::print_stderr, reason = "how the child talks to the test")]
fn child(mode: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let signals = Signals::install().unwrap();
        eprintln!("ready");
        signals.stop().cancelled().await;
        eprintln!("stopping");
        if mode == "hang" {
            std::future::pending::<()>().await;
        }
    });
}

struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Running {
    fn start(mode: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "signals::c33_the_child_side", "--nocapture"])
            .env(CHILD, mode)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut running = Self { child, lines };
        running.wait_for("ready");
        running
    }

    /// Blocks until the child has said `line`; its end is the end of the wait as well.
    fn wait_for(&mut self, line: &str) {
        let said = self
            .lines
            .by_ref()
            .map(Result::unwrap)
            .any(|said| said == line);
        assert!(said, "the child ended without {line:?}");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// Nothing by itself; the other tests start it in a process of its own.
#[test]
fn c33_the_child_side() {
    if let Ok(mode) = std::env::var(CHILD) {
        child(&mode);
    }
}

#[test]
fn c33_the_first_signal_stops_gracefully() {
    for name in ["TERM", "INT"] {
        let mut running = Running::start("end");
        running.signal(name);
        running.wait_for("stopping");
        assert_eq!(running.exit_code(), Some(0), "{name}");
    }
}

#[test]
fn c33_the_second_signal_ends_the_process_with_code_1() {
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "INT")] {
        let mut running = Running::start("hang");
        running.signal(first);
        running.wait_for("stopping");
        running.signal(second);
        assert_eq!(running.exit_code(), Some(1), "{first} then {second}");
    }
}
