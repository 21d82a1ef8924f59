//! One VM and its life.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::settings::Settings;

/// Status of a VM, as the API names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Resources are being reserved.
    Provisioning,
    /// It is being prepared to boot.
    Staging,
    /// It boots or runs.
    Running,
    /// The host has a fault and is being replaced; the VM comes back.
    Repairing,
    /// It has been asked to stop, and may still finish.
    PendingStop,
    /// It is being stopped or deleted.
    Stopping,
    /// It is being suspended.
    Suspending,
    /// Its memory is kept, it does not run.
    Suspended,
    /// It does not run; disks and addresses are kept and billed.
    Terminated,
    /// Its resources are being given back.
    Deprovisioning,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) zone: String,
    /// As it was inserted.
    resource: Value,
    inserted: Timestamp,
    made: Instant,
    boot: Duration,
    loopback: bool,
    /// Does not show in reads before.
    pub(crate) shows: Instant,
    /// What somebody put it into.
    pub(crate) forced: Option<Status>,
    /// When it is no longer there.
    pub(crate) gone: Option<Instant>,
    /// Its insert fails at that moment, and it was never there.
    pub(crate) fails: Option<Instant>,
    /// A deletion goes on.
    pub(crate) deleting: bool,
}

impl Machine {
    pub(crate) fn new(id: u64, zone: &str, resource: Value, settings: &Settings) -> Self {
        let made = Instant::now();
        Self {
            id,
            name: resource["name"].as_str().unwrap_or_default().to_owned(),
            zone: zone.to_owned(),
            resource,
            inserted: Timestamp::now(),
            made,
            boot: settings.boot,
            loopback: settings.loopback,
            shows: made + settings.hidden_for,
            forced: None,
            gone: None,
            fails: None,
            deleting: false,
        }
    }

    pub(crate) fn status(&self, now: Instant) -> Status {
        let age = now.duration_since(self.made);
        match self.forced {
            _ if self.deleting => Status::Stopping,
            Some(status) => status,
            // What fails for want of machines never gets further.
            None if self.fails.is_some() || age < self.boot / 2 => Status::Provisioning,
            None if age < self.boot => Status::Staging,
            None => Status::Running,
        }
    }

    /// Deleted by the cloud when its place is needed by others.
    pub(crate) fn goes_when_preempted(&self) -> bool {
        self.resource["scheduling"]["instanceTerminationAction"] == "DELETE"
    }

    /// Whether it may be preempted at all.
    pub(crate) fn is_spot(&self) -> bool {
        self.resource["scheduling"]["provisioningModel"] == "SPOT"
    }

    /// The value of a metadata item.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        let items = self.resource["metadata"]["items"].as_array()?;
        let item = items.iter().find(|item| item["key"] == key)?;
        item["value"].as_str()
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.resource["labels"].as_object().into_iter().flatten();
        labels
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    }

    pub(crate) fn set_label(&mut self, key: &str, value: &str) {
        self.resource["labels"][key] = json!(value);
    }

    pub(crate) fn path(&self, project: &str) -> String {
        format!(
            "projects/{project}/zones/{}/instances/{}",
            self.zone, self.name
        )
    }

    /// The resource as the API shows it.
    pub(crate) fn show(&self, project: &str, now: Instant) -> Value {
        let mut shown = self.resource.clone();
        let status = self.status(now);
        shown["kind"] = json!("compute#instance");
        shown["id"] = json!(self.id.to_string());
        shown["status"] = json!(status);
        shown["creationTimestamp"] = json!(self.inserted.to_string());
        shown["zone"] = json!(url(&format!("projects/{project}/zones/{}", self.zone)));
        shown["selfLink"] = json!(url(&self.path(project)));
        shown["labelFingerprint"] = json!("42WmSpB8rSM=");
        let interface = &mut shown["networkInterfaces"][0];
        interface["name"] = json!("nic0");
        interface["networkIP"] = json!(self.private_address());
        // Handed out when the VM is staged, and given back when it stops.
        let has_address = matches!(status, Status::Running | Status::Repairing);
        if has_address && interface["accessConfigs"][0].is_object() {
            interface["accessConfigs"][0]["natIP"] = json!(self.public_address());
        }
        shown
    }

    fn private_address(&self) -> String {
        let [.., b, c] = self.id.to_be_bytes();
        format!("10.132.{b}.{c}")
    }

    fn public_address(&self) -> String {
        let [.., a, b, c] = self.id.to_be_bytes();
        if self.loopback {
            format!("127.{}.{b}.{c}", 128 + (a & 63))
        } else {
            format!("198.51.{b}.{c}")
        }
    }
}

/// The full address of a resource.
pub(crate) fn url(path: &str) -> String {
    format!("https://www.googleapis.com/compute/v1/{path}")
}
