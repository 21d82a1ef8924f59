//! The VM of a proxy (P-22), built without any call.

use std::collections::BTreeMap;
use std::fmt;

use google_cloud_compute_v1::model;
use google_cloud_compute_v1::model::access_config::NetworkTier as Tier;
use google_cloud_compute_v1::model::scheduling::{InstanceTerminationAction, ProvisioningModel};
use zeroize::Zeroizing;

use super::settings::{Settings, Zone};
use super::wiping::Wiping;
use crate::api::{GceMachine, Machine, NetworkTier, Protocol};
use crate::provider::{CreateRequest, Error, MANAGED_BY, Owner, Reason};

/// Label: who made the VM.
pub const LABEL_MANAGED: &str = "pxo-managed";
/// Label: the cluster id.
pub const LABEL_CLUSTER: &str = "pxo-cluster";
/// Label: UID of the Proxy.
pub const LABEL_UID: &str = "pxo-uid";
/// Label: hash of the inputs that the VM was made from.
pub const LABEL_HASH: &str = "pxo-hash";
/// Metadata: namespace of the Proxy.
pub const META_NAMESPACE: &str = "pxo-namespace";
/// Metadata: name of the Proxy.
pub const META_PROXY: &str = "pxo-proxy";
/// Metadata: the port to listen on.
pub const META_PORT: &str = "pxo-port";
/// Metadata: the protocol to speak.
pub const META_PROTOCOL: &str = "pxo-protocol";
/// Metadata: user name that clients must give.
pub const META_USERNAME: &str = "pxo-username";
/// Metadata: password that clients must give.
pub const META_PASSWORD: &str = "pxo-password";
/// Metadata: user data that cloud-init reads.
pub const META_USER_DATA: &str = "user-data";
/// Metadata: a script that the guest agent runs at each start.
pub const META_STARTUP_SCRIPT: &str = "startup-script";

/// Most bytes of one metadata value.
pub const MAX_METADATA_VALUE: usize = 256 * 1024;
/// Most bytes of all metadata.
const MAX_METADATA: usize = 512 * 1024;
const MAX_LABELS: usize = 64;
/// The access that Google advises for a service account: what it may do is for IAM to say.
const DEFAULT_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// What an insert sends, and where to.
#[derive(Clone)]
pub struct Insert {
    /// The zone.
    pub zone: Zone,
    /// Machine type, for messages.
    pub size: String,
    /// The VM; its metadata is wiped unless it is sent.
    pub vm: Wiping<model::Instance>,
}

impl fmt::Debug for Insert {
    /// Without the VM, whose metadata holds user data and credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insert")
            .field("zone", &self.zone)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Builds the VM of a proxy; the operator's labels stand over the user's tags (P-05).
///
/// # Errors
///
/// [`Reason::InvalidInput`] for a region without its zone, too many labels, or user data that is no
/// text or too large.
pub fn build(request: &CreateRequest, settings: &Settings) -> Result<Insert, Error> {
    let machine = &request.machine;
    let zone = zone(machine, settings)?;
    let gce = machine.gce.clone().unwrap_or_default();
    let size = machine
        .size
        .clone()
        .unwrap_or_else(|| settings.size.clone());
    let mut vm = model::Instance::new()
        .set_name(request.owner.instance_name())
        .set_machine_type(format!("zones/{}/machineTypes/{size}", zone.as_str()))
        .set_disks([boot_disk(machine, &gce, &zone, settings)])
        .set_network_interfaces([interface(machine, &gce, &zone)])
        .set_labels(labels(request)?)
        .set_metadata(metadata(request)?);
    if !gce.network_tags.is_empty() {
        vm = vm.set_tags(model::Tags::new().set_items(gce.network_tags));
    }
    if machine.spot {
        let scheduling = model::Scheduling::new()
            .set_provisioning_model(ProvisioningModel::Spot)
            .set_instance_termination_action(InstanceTerminationAction::Delete)
            .set_automatic_restart(false);
        vm = vm.set_scheduling(scheduling);
    }
    if let Some(email) = gce.service_account_email {
        let scopes = match gce.scopes {
            scopes if scopes.is_empty() => vec![DEFAULT_SCOPE.to_owned()],
            scopes => scopes,
        };
        let account = model::ServiceAccount::new()
            .set_email(email)
            .set_scopes(scopes);
        vm = vm.set_service_accounts([account]);
    }
    if let Some(platform) = gce.min_cpu_platform {
        vm = vm.set_min_cpu_platform(platform);
    }
    Ok(Insert {
        zone,
        size,
        vm: Wiping::new(vm),
    })
}

/// The labels that say whose a VM is.
#[must_use]
pub fn owner_labels(owner: &Owner) -> [(&'static str, String); 3] {
    [
        (LABEL_MANAGED, MANAGED_BY.to_owned()),
        (LABEL_CLUSTER, owner.cluster_id.to_string()),
        (LABEL_UID, owner.uid.to_ascii_lowercase()),
    ]
}

/// Spells a filter for the VMs of a cluster.
#[must_use]
pub fn cluster_filter(cluster_id: &str) -> String {
    format!(
        r#"(labels.{LABEL_CLUSTER} = "{cluster_id}") (labels.{LABEL_MANAGED} = "{MANAGED_BY}")"#
    )
}

/// Spells a filter for the VMs of one name, in any zone.
#[must_use]
pub fn name_filter(name: &str) -> String {
    format!(r#"name = "{name}""#)
}

fn zone(machine: &Machine, settings: &Settings) -> Result<Zone, Error> {
    let invalid = |text: String| Error::new(Reason::InvalidInput, text);
    let zone = match &machine.zone {
        Some(text) => {
            Zone::new(text.as_str()).map_err(|why| invalid(format!("spec.machine: {why}")))?
        }
        None => settings.zone.clone(),
    };
    match &machine.region {
        Some(region) if region != zone.region() => Err(invalid(format!(
            "spec.machine.region is {region}, and zone {} ({}) does not lie in it; set \
             spec.machine.zone to a zone of that region",
            zone.as_str(),
            if machine.zone.is_some() {
                "of spec.machine.zone"
            } else {
                "the provider's own"
            },
        ))),
        _ => Ok(zone),
    }
}

fn boot_disk(
    machine: &Machine,
    gce: &GceMachine,
    zone: &Zone,
    settings: &Settings,
) -> model::AttachedDisk {
    let image = machine.image.as_deref().unwrap_or(&settings.image);
    let mut params = model::AttachedDiskInitializeParams::new()
        .set_source_image(path_or(image, |name| format!("global/images/{name}")))
        .set_disk_size_gb(i64::from(machine.disk_size_gib));
    if let Some(kind) = &gce.disk_type {
        let kind = path_or(kind, |name| {
            format!("zones/{}/diskTypes/{name}", zone.as_str())
        });
        params = params.set_disk_type(kind);
    }
    model::AttachedDisk::new()
        .set_boot(true)
        .set_auto_delete(true)
        .set_initialize_params(params)
}

fn interface(machine: &Machine, gce: &GceMachine, zone: &Zone) -> model::NetworkInterface {
    let mut interface = model::NetworkInterface::new().set_network(path_or(&gce.network, |name| {
        format!("global/networks/{name}")
    }));
    if let Some(subnetwork) = &gce.subnetwork {
        let path = |name: &str| format!("regions/{}/subnetworks/{name}", zone.region());
        interface = interface.set_subnetwork(path_or(subnetwork, path));
    }
    if machine.public_ip {
        let tier = match gce.network_tier {
            NetworkTier::Premium => Tier::Premium,
            NetworkTier::Standard => Tier::Standard,
        };
        let access = model::AccessConfig::new()
            .set_name("External NAT")
            .set_network_tier(tier);
        interface = interface.set_access_configs([access]);
    }
    interface
}

/// A reference that has a path stands as it is; a bare name is one of the project's own.
fn path_or(reference: &str, of_name: impl FnOnce(&str) -> String) -> String {
    if reference.contains('/') {
        reference.to_owned()
    } else {
        of_name(reference)
    }
}

fn labels(request: &CreateRequest) -> Result<BTreeMap<String, String>, Error> {
    let mut labels = request.tags.clone();
    for (key, value) in owner_labels(&request.owner) {
        labels.insert(key.to_owned(), value);
    }
    labels.insert(LABEL_HASH.to_owned(), request.spec_hash.tag());
    if labels.len() > MAX_LABELS {
        let text = format!(
            "spec.tags makes {} labels with the operator's own, and a VM takes at most {MAX_LABELS}; \
             remove some",
            labels.len()
        );
        return Err(Error::new(Reason::InvalidInput, text));
    }
    Ok(labels)
}

fn metadata(request: &CreateRequest) -> Result<model::Metadata, Error> {
    let owner = &request.owner;
    let protocol = match request.protocol {
        Protocol::Http => "http",
        Protocol::Https => "https",
        Protocol::Socks5 => "socks5",
    };
    // Wiped where one of the others is refused.
    let mut items = vec![
        (META_NAMESPACE, Zeroizing::new(owner.namespace.clone())),
        (META_PROXY, Zeroizing::new(owner.proxy.clone())),
        (META_PORT, Zeroizing::new(request.port.to_string())),
        (META_PROTOCOL, Zeroizing::new(protocol.to_owned())),
    ];
    if let Some(credentials) = &request.credentials {
        items.push((
            META_USERNAME,
            text(credentials.username.expose(), "spec.auth: the user name")?,
        ));
        items.push((
            META_PASSWORD,
            text(credentials.password.expose(), "spec.auth: the password")?,
        ));
    }
    if let Some(data) = &request.cloud_init {
        let bytes = data.bytes.expose();
        let key = if bytes.starts_with(b"#cloud-config") {
            META_USER_DATA
        } else {
            META_STARTUP_SCRIPT
        };
        items.push((key, text(bytes, "spec.cloudInit")?));
    }
    let total: usize = items
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if total > MAX_METADATA {
        let text = format!(
            "spec.cloudInit and spec.auth make {total} bytes of metadata, and a VM takes at most \
             {MAX_METADATA}"
        );
        return Err(Error::new(Reason::InvalidInput, text));
    }
    let items = items.into_iter().map(|(key, mut value)| {
        let value = std::mem::take(&mut *value);
        model::metadata::Items::new().set_key(key).set_value(value)
    });
    Ok(model::Metadata::new().set_items(items))
}

fn text(bytes: &[u8], what: &str) -> Result<Zeroizing<String>, Error> {
    let invalid = |why: String| Error::new(Reason::InvalidInput, format!("{what} {why}"));
    if bytes.len() > MAX_METADATA_VALUE {
        let len = bytes.len();
        return Err(invalid(format!(
            "has {len} bytes, and a VM takes at most {MAX_METADATA_VALUE}"
        )));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("is not UTF-8".to_owned()))?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
