//! Static defaults of the schema, and the values that are resolved in code.
//!
//! A default that never depends on another field stands in the schema (the API server fills it
//! in). What does depend on another field is left unset in the object and resolved here.

use super::v1alpha1::{Endpoint, LeasePolicy, Machine, Mode, Protocol, ProxySpec, StatusEndpoint};
use std::borrow::Cow;

/// Port of an http or https proxy that names none.
pub const HTTP_PORT: u16 = 3128;
/// Port of a socks5 proxy that names none.
pub const SOCKS5_PORT: u16 = 1080;
/// Default of `spec.machine.diskSizeGiB`.
pub const DISK_SIZE_GIB: u32 = 10;
/// Default of `spec.machine.gce.network`.
pub const GCE_NETWORK: &str = "default";
/// Default of `spec.healthCheck.expectedStatus`.
pub const EXPECTED_STATUS: [u16; 2] = [200, 204];
/// Default of `spec.healthCheck.intervalSeconds`.
pub const INTERVAL_SECONDS: u32 = 30;
/// Default of `spec.healthCheck.timeoutSeconds`.
pub const TIMEOUT_SECONDS: u32 = 10;
/// Default of `spec.healthCheck.successThreshold`.
pub const SUCCESS_THRESHOLD: u32 = 2;
/// Default of `spec.healthCheck.failureThreshold`.
pub const FAILURE_THRESHOLD: u32 = 3;
/// Default of `spec.healthCheck.startupGraceSeconds`.
pub const STARTUP_GRACE_SECONDS: u32 = 300;
/// Default of `spec.healthCheck.unhealthyPolicy.afterSeconds`.
pub const UNHEALTHY_AFTER_SECONDS: u32 = 600;
/// Default of `spec.healthCheck.unhealthyPolicy.maxPerDay`.
pub const UNHEALTHY_MAX_PER_DAY: u32 = 3;
/// Default of `spec.lease.maxConcurrent`.
pub const LEASE_MAX_CONCURRENT: u32 = 1;
/// Default of `spec.lease.weight`.
pub const LEASE_WEIGHT: u32 = 1;
/// Default of `spec.lease.maxTTLSeconds`.
pub const LEASE_MAX_TTL_SECONDS: u32 = 600;
/// Default of `spec.lease.cooldownSeconds`.
pub const LEASE_COOLDOWN_SECONDS: u32 = 0;
/// Default of `spec.lease.drainSeconds`.
pub const LEASE_DRAIN_SECONDS: u32 = 30;
/// Default of `spec.lease.perTarget.cooldownSeconds`.
pub const PER_TARGET_COOLDOWN_SECONDS: u32 = 600;
/// Default of `spec.cloudInit.secretRef.key`.
pub const CLOUD_INIT_KEY: &str = "user-data";
/// Default of `spec.auth.secretRef.usernameKey`.
pub const USERNAME_KEY: &str = "username";
/// Default of `spec.auth.secretRef.passwordKey`.
pub const PASSWORD_KEY: &str = "password";
/// Default of `spec.tls.caSecretRef.key`.
pub const CA_KEY: &str = "ca.crt";

pub(super) fn cloud_init_key() -> String {
    CLOUD_INIT_KEY.to_owned()
}

pub(super) fn username_key() -> String {
    USERNAME_KEY.to_owned()
}

pub(super) fn password_key() -> String {
    PASSWORD_KEY.to_owned()
}

pub(super) fn ca_key() -> String {
    CA_KEY.to_owned()
}

/// The port a proxy listens on.
///
/// A Managed proxy without `spec.port` gets the protocol's own; an External one has the port of
/// its endpoint (and the protocol's own if an invalid object has no endpoint).
pub fn resolved_port(spec: &ProxySpec) -> u16 {
    let given = match spec.mode {
        Mode::Managed => spec.port,
        Mode::External => spec.endpoint.as_ref().map(|endpoint| endpoint.port),
    };
    given.unwrap_or(match spec.protocol {
        Protocol::Http | Protocol::Https => HTTP_PORT,
        Protocol::Socks5 => SOCKS5_PORT,
    })
}

/// Where clients reach a Managed proxy whose machine has the address `ip`.
pub fn managed_endpoint(spec: &ProxySpec, ip: &str) -> StatusEndpoint {
    StatusEndpoint {
        host: ip.to_owned(),
        port: resolved_port(spec),
        protocol: spec.protocol,
    }
}

/// Where clients reach an External proxy; `None` if an invalid object names no endpoint.
pub fn external_endpoint(spec: &ProxySpec) -> Option<StatusEndpoint> {
    let Endpoint { host, port } = spec.endpoint.as_ref()?;
    Some(StatusEndpoint {
        host: host.clone(),
        port: *port,
        protocol: spec.protocol,
    })
}

/// The machine with every static default, also where the object has no `spec.machine` at all.
pub fn resolved_machine(spec: &ProxySpec) -> Cow<'_, Machine> {
    match &spec.machine {
        Some(machine) => Cow::Borrowed(machine),
        None => Cow::Owned(Machine::default()),
    }
}

/// Leases at one time for one target: the proxy's own limit unless one is set for targets.
pub fn per_target_max_concurrent(lease: &LeasePolicy) -> u32 {
    lease
        .per_target
        .max_concurrent
        .unwrap_or(lease.max_concurrent)
}

/// Region that consumers see: that of `spec.location`, else that of the machine.
pub fn resolved_region(spec: &ProxySpec) -> Option<&str> {
    let located = spec
        .location
        .as_ref()
        .and_then(|location| location.region.as_deref());
    located.or_else(|| {
        spec.machine
            .as_ref()
            .and_then(|machine| machine.region.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(protocol: Protocol) -> ProxySpec {
        ProxySpec {
            protocol,
            ..ProxySpec::default()
        }
    }

    #[test]
    fn c04_the_port_follows_the_protocol_unless_it_is_set() {
        for (protocol, port) in [
            (Protocol::Http, 3128),
            (Protocol::Https, 3128),
            (Protocol::Socks5, 1080),
        ] {
            assert_eq!(resolved_port(&spec(protocol)), port, "{protocol}");
            let set = ProxySpec {
                port: Some(8080),
                ..spec(protocol)
            };
            assert_eq!(resolved_port(&set), 8080, "{protocol}");
        }
    }

    #[test]
    fn c04_an_external_proxy_is_reached_at_its_endpoint() {
        let endpoint = Endpoint {
            host: "proxy.example.com".to_owned(),
            port: 9000,
        };
        let spec = ProxySpec {
            mode: Mode::External,
            endpoint: Some(endpoint),
            port: Some(1),
            ..spec(Protocol::Socks5)
        };
        assert_eq!(resolved_port(&spec), 9000);
        let shown = external_endpoint(&spec).expect("the endpoint is set");
        assert_eq!(
            (shown.host.as_str(), shown.port),
            ("proxy.example.com", 9000)
        );
        assert_eq!(shown.protocol, Protocol::Socks5);
    }

    #[test]
    fn c04_a_managed_proxy_is_reached_at_its_machine() {
        let shown = managed_endpoint(&spec(Protocol::Http), "2001:db8::7");
        assert_eq!((shown.host.as_str(), shown.port), ("2001:db8::7", 3128));
    }

    #[test]
    fn limits_and_places_fall_back_to_the_wider_field() {
        let mut lease = LeasePolicy {
            max_concurrent: 7,
            ..LeasePolicy::default()
        };
        assert_eq!(per_target_max_concurrent(&lease), 7);
        lease.per_target.max_concurrent = Some(2);
        assert_eq!(per_target_max_concurrent(&lease), 2);

        let machine = Machine {
            region: Some("eu-1".to_owned()),
            ..Machine::default()
        };
        let spec = ProxySpec {
            machine: Some(machine),
            ..ProxySpec::default()
        };
        assert_eq!(resolved_region(&spec), Some("eu-1"));
        assert_eq!(
            resolved_machine(&ProxySpec::default()).disk_size_gib,
            DISK_SIZE_GIB
        );
    }
}
