//! How the cloud behaves while no rule says otherwise.

use std::time::Duration;

/// How a fake cloud behaves; [`Settings::default`] is a quick one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The only project. Default `test-project`.
    pub project: String,
    /// Its zones; a call to any other is refused. Default three in two regions.
    pub zones: Vec<String>,
    /// How long an insert's operation takes. Default 50 ms.
    pub insert: Duration,
    /// How long a VM takes to run, from its insert. Default 100 ms.
    pub boot: Duration,
    /// How long a VM takes to stop and go, and a delete's operation with it. Default 100 ms.
    pub deletion: Duration,
    /// How long a VM that was inserted does not show in reads. Default none.
    pub hidden_for: Duration,
    /// How long a request id brings back its operation. Default 1 h.
    pub request_memory: Duration,
    /// Most VMs at a time; further inserts are refused with 403. Default without limit.
    pub quota: Option<usize>,
    /// Most VMs on one page of a list, whatever the client asks for. Default 500.
    pub page: usize,
    /// Addresses handed out: `127.0.0.0/8` where true, so that something can listen there;
    /// documentation addresses otherwise. Default true.
    pub loopback: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            project: "test-project".to_owned(),
            zones: ["europe-west1-b", "europe-west1-c", "us-central1-a"]
                .map(str::to_owned)
                .to_vec(),
            insert: Duration::from_millis(50),
            boot: Duration::from_millis(100),
            deletion: Duration::from_millis(100),
            hidden_for: Duration::ZERO,
            request_memory: Duration::from_secs(3600),
            quota: None,
            page: 500,
            loopback: true,
        }
    }
}
