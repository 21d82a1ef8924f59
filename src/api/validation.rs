//! The admission rules applied to a typed object.
//!
//! The API server refuses an object that breaks a rule; an object that came in under an older
//! definition is still there. The operator reports it with the same text in a condition, and
//! `validate -f` says it before anything is sent. Field and text come from [`rules`]; that both
//! forms of each rule decide alike is tested over a table of manifests.

use std::fmt;
use std::net::IpAddr;

use super::rules::{self, Rule, Text};
use super::v1alpha1::{HealthCheck, Mode, Protocol, Proxy, ProxySpec};

/// A rule that an object breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the rule, such as `V1`.
    pub rule: &'static str,
    /// Path of the field, such as `spec.healthCheck.urls[0]`.
    pub field: String,
    /// What is wrong and what to write instead; it starts with the field and repeats no text that
    /// the user wrote.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The rules that an object breaks by itself, in the order of [`rules::ALL`]; empty for a good one.
///
/// Needs no defaults filled in: reading the object did that. Costs no more than reading its texts.
pub fn validate(proxy: &Proxy) -> Vec<Violation> {
    let mut found = Findings::default();
    check_mode(&proxy.spec, &mut found);
    check_sources(&proxy.spec, &mut found);
    check_health(&proxy.spec.health_check, &mut found);
    found.broken(
        rules::V9,
        proxy.spec.tls.is_some() && proxy.spec.protocol != Protocol::Https,
    );
    let mut keys = proxy.spec.tags.keys();
    found.broken(rules::TAG_KEYS, !keys.clone().all(|key| is_tag_key(key)));
    found.broken(rules::V10, keys.any(|key| key.starts_with("pxo-")));
    if let Some(endpoint) = &proxy.spec.endpoint {
        let is_no_host = endpoint.host.chars().any(is_foreign_to_hosts);
        found.broken(rules::V11, is_no_host);
        found.broken(
            rules::V11_FORM,
            !is_no_host && !is_name_or_address(&endpoint.host),
        );
    }
    check_urls(&proxy.spec.health_check.urls, &mut found);
    let name = proxy.metadata.name.as_deref().unwrap_or_default();
    found.broken(rules::V13, name.chars().count() > 63);
    found.0
}

/// The rules that a change from `old` to `new` breaks, beside those of [`validate`].
pub fn validate_update(old: &Proxy, new: &Proxy) -> Vec<Violation> {
    let mut found = Findings::default();
    let stays_managed = old.spec.mode == Mode::Managed && new.spec.mode == Mode::Managed;
    let is_other = match (&old.spec.provider, &new.spec.provider) {
        (Some(old), Some(new)) => old != new,
        _ => false,
    };
    found.broken(rules::V7, stays_managed && is_other);
    found.0
}

/// One text for a condition, or `None` where nothing is broken.
pub fn summary(violations: &[Violation]) -> Option<String> {
    let (first, rest) = violations.split_first()?;
    let texts = rest.iter().map(|violation| violation.message.as_str());
    Some(
        std::iter::once(first.message.as_str())
            .chain(texts)
            .collect::<Vec<_>>()
            .join(". "),
    )
}

/// Collects what is broken.
#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn broken(&mut self, rule: Rule, is_broken: bool) {
        if let (true, Text::Fixed(text)) = (is_broken, rule.text) {
            self.add(&rule, rule.field(), text.to_owned());
        }
    }

    fn broken_item(&mut self, rule: Rule, index: usize, is_broken: bool) {
        if let (true, Text::Fixed(text)) = (is_broken, rule.text) {
            let field = rule.field().replace("[]", &format!("[{index}]"));
            self.add(&rule, field, text.to_owned());
        }
    }

    fn add(&mut self, rule: &Rule, field: String, message: String) {
        self.0.push(Violation {
            rule: rule.id,
            field,
            message,
        });
    }
}

fn check_mode(spec: &ProxySpec, found: &mut Findings) {
    let is_managed = spec.mode == Mode::Managed;
    let is_external = spec.mode == Mode::External;
    found.broken(rules::V1, is_managed && spec.provider.is_none());
    found.broken(rules::V2, is_external && spec.endpoint.is_none());
    found.broken(rules::V3_PROVIDER, is_external && spec.provider.is_some());
    found.broken(rules::V3_MACHINE, is_external && spec.machine.is_some());
    found.broken(
        rules::V3_CLOUD_INIT,
        is_external && spec.cloud_init.is_some(),
    );
    found.broken(rules::V3_ROTATION, is_external && spec.rotation.is_some());
    found.broken(rules::V3_PORT, is_external && spec.port.is_some());
    found.broken(rules::V4, is_managed && spec.endpoint.is_some());
}

fn check_sources(spec: &ProxySpec, found: &mut Findings) {
    if let Some(cloud_init) = &spec.cloud_init {
        let is_one = cloud_init.inline.is_some() != cloud_init.secret_ref.is_some();
        found.broken(rules::V5, !is_one);
    }
    if let Some(machine) = &spec.machine {
        found.broken(
            rules::V6,
            machine.kubernetes.is_some() && machine.gce.is_some(),
        );
    }
}

fn check_health(check: &HealthCheck, found: &mut Findings) {
    let HealthCheck {
        timeout_seconds: timeout,
        interval_seconds: interval,
        ..
    } = check;
    if timeout > interval {
        let message = format!(
            "spec.healthCheck.timeoutSeconds is {timeout}, more than spec.healthCheck.intervalSeconds, which is {interval}; write a shorter timeout or a longer interval"
        );
        found.add(&rules::V8, rules::V8.field(), message);
    }
}

fn check_urls(urls: &[String], found: &mut Findings) {
    for (n, url) in urls.iter().enumerate() {
        found.broken_item(rules::V12, n, !is_web_url(url));
        found.broken_item(rules::V12_USERINFO, n, has_userinfo(url));
    }
}

/// `^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$`
fn is_tag_key(key: &str) -> bool {
    let is_inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    let bytes = key.as_bytes();
    let is_end = |byte: &u8| is_inner(byte) && byte.is_ascii_alphanumeric();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(is_end)
        && bytes.iter().all(is_inner)
}

fn is_foreign_to_hosts(character: char) -> bool {
    matches!(character, '/' | '[' | ']') || character.is_ascii_whitespace()
}

fn is_name_or_address(host: &str) -> bool {
    is_address(host) || is_name(host)
}

/// The API server takes neither zones nor IPv4 addresses in IPv6 form for addresses.
fn is_address(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => true,
        Ok(IpAddr::V6(address)) => address.to_ipv4_mapped().is_none(),
        Err(_) => false,
    }
}

/// `^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?[.]?$`
fn is_name(host: &str) -> bool {
    let bytes = host.strip_suffix('.').unwrap_or(host).as_bytes();
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(is_inner)
}

/// `^https?://[^/?#\s]`, in any case
fn is_web_url(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let starts_host = |c: char| !matches!(c, '/' | '?' | '#') && !c.is_ascii_whitespace();
    is_web && rest.starts_with(starts_host)
}

/// `^[^/?#]*//[^/?#]*@`
fn has_userinfo(url: &str) -> bool {
    let ends_authority = |c: char| matches!(c, '/' | '?' | '#');
    let Some((before, after)) = url.split_once("//") else {
        return false;
    };
    let authority = after.split(ends_authority).next().unwrap_or_default();
    !before.contains(ends_authority) && authority.contains('@')
}
