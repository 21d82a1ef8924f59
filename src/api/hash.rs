//! Spec hash: whether a running machine is still what the spec asks for.
//!
//! The hash covers what a machine is made from, and nothing else: provider, protocol, resolved
//! port, machine, tags, rotation nonce, and digests of user data and credentials. It is SHA-256
//! over canonical JSON: UTF-8, keys sorted by code point, no white space, whole numbers plain,
//! absent and default-valued fields left out — so a new optional field with a default leaves the
//! hashes of old objects as they are. The resolved port is always in, as the machine listens on
//! it whether or not the spec names it.
//!
//! A machine carries the hash as a tag of 40 digits only, so hashes are compared by version and
//! by those digits. A hash of another version says nothing about the machine: it is written anew
//! and never a reason to replace.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::defaults;
use super::v1alpha1::{GceMachine, Machine, ProxySpec};

/// Version of the hash that this operator computes.
pub const VERSION: &str = "v1";
/// Digits that a tag has room for, and that count in a comparison.
pub const COMPARED_DIGITS: usize = 40;
const FULL_DIGITS: usize = 64;

/// A text that is no spec hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a spec hash: write vN:, then at least 40 lower-case hexadecimal digits")]
pub struct Malformed(pub String);

/// User name and password as bytes.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// Bytes of the user name.
    pub username: &'a [u8],
    /// Bytes of the password.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Hash of what a machine is made from.
///
/// Written `v1:` + digits in the annotation (also by `Display`), `v1-` + 40 digits as a tag.
/// `==` compares every digit; [`SpecHash::compare`] is the one for decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecHash {
    version: String,
    digits: String,
}

/// How a recorded hash stands to the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The machine is what the spec asks for.
    Same,
    /// The machine is to be replaced.
    Differs,
    /// The record is of another version or unreadable: write it anew, replace nothing.
    OtherVersion,
}

impl SpecHash {
    /// The hash as the annotation holds it: version, colon, every digit that is known.
    pub fn annotation(&self) -> String {
        format!("{}:{}", self.version, self.digits)
    }

    /// The hash as a machine's tag: version, hyphen, 40 digits. Valid as a label everywhere.
    pub fn tag(&self) -> String {
        format!("{}-{}", self.version, self.compared())
    }

    /// Reads a machine's tag; what is missing of the digits stays missing.
    ///
    /// # Errors
    /// When the text is no hash.
    pub fn from_tag(tag: &str) -> Result<SpecHash, Malformed> {
        SpecHash::read(tag, '-')
    }

    /// How the hash in an annotation or read from a tag stands to this wanted one.
    pub fn compare(&self, recorded: &str) -> Comparison {
        match recorded.parse::<SpecHash>() {
            Ok(recorded) if recorded.version == self.version => {
                if recorded.compared() == self.compared() {
                    Comparison::Same
                } else {
                    Comparison::Differs
                }
            }
            Ok(_) | Err(_) => Comparison::OtherVersion,
        }
    }

    fn compared(&self) -> &str {
        &self.digits[..COMPARED_DIGITS]
    }

    fn read(text: &str, separator: char) -> Result<SpecHash, Malformed> {
        let malformed = || Malformed(text.chars().take(FULL_DIGITS * 2).collect());
        let (version, digits) = text.split_once(separator).ok_or_else(malformed)?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_version = version.strip_prefix('v').is_some_and(is_number);
        let is_hex = digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_long_enough = (COMPARED_DIGITS..=FULL_DIGITS).contains(&digits.len());
        if !(is_version && is_hex && is_long_enough) {
            return Err(malformed());
        }
        Ok(SpecHash {
            version: version.to_owned(),
            digits: digits.to_owned(),
        })
    }
}

impl fmt::Display for SpecHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.digits)
    }
}

impl FromStr for SpecHash {
    type Err = Malformed;

    /// Reads what [`SpecHash::annotation`] wrote, or `vN:` with the 40 digits of a tag.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        SpecHash::read(text, ':')
    }
}

/// Hash of what the machine of this spec is made from.
///
/// `cloud_init` are the bytes of the user data if the spec has any, `credentials` those of user
/// name and password if the spec has `auth`; only their digests go in. Costs one serialization of
/// the machine, tens of microseconds.
pub fn spec_hash(
    spec: &ProxySpec,
    cloud_init: Option<&[u8]>,
    credentials: Option<Credentials<'_>>,
) -> SpecHash {
    let text = canonical_json(&input(spec, cloud_init, credentials));
    SpecHash {
        version: VERSION.to_owned(),
        digits: hex(&Sha256::digest(text.as_bytes())),
    }
}

fn input(
    spec: &ProxySpec,
    cloud_init: Option<&[u8]>,
    credentials: Option<Credentials<'_>>,
) -> Value {
    let mut fields = Map::new();
    if let Some(provider) = &spec.provider {
        fields.insert("provider".to_owned(), provider.as_str().into());
    }
    let defaults = ProxySpec::default();
    if spec.protocol != defaults.protocol {
        fields.insert("protocol".to_owned(), spec.protocol.as_str().into());
    }
    fields.insert("port".to_owned(), defaults::resolved_port(spec).into());
    if let Some(machine) = &spec.machine {
        fields.insert("machine".to_owned(), without_defaults(machine));
    }
    fields.insert("tags".to_owned(), plain(&spec.tags));
    let nonce = spec
        .rotation
        .as_ref()
        .and_then(|rotation| rotation.nonce.as_deref());
    if let Some(nonce) = nonce.filter(|nonce| !nonce.is_empty()) {
        fields.insert("rotation".to_owned(), serde_json::json!({ "nonce": nonce }));
    }
    if let Some(bytes) = cloud_init {
        fields.insert("cloudInit".to_owned(), hex(&Sha256::digest(bytes)).into());
    }
    if let Some(Credentials { username, password }) = credentials {
        let mut digest = Sha256::new();
        digest.update(username);
        digest.update([0]);
        digest.update(password);
        fields.insert("auth".to_owned(), hex(&digest.finalize()).into());
    }
    let mut input = Value::Object(fields);
    drop_absent(&mut input);
    input
}

fn without_defaults(machine: &Machine) -> Value {
    let mut value = plain(machine);
    subtract(&mut value, &plain(&Machine::default()));
    if let Some(gce) = value.get_mut("gce") {
        subtract(gce, &plain(&GceMachine::default()));
    }
    value
}

/// Takes away the fields that equal those of `defaults`.
fn subtract(value: &mut Value, defaults: &Value) {
    if let (Value::Object(fields), Value::Object(defaults)) = (value, defaults) {
        fields.retain(|name, field| defaults.get(name) != Some(field));
    }
}

/// Takes away the fields that say no more than an absent one: null, `{}` and `[]`.
///
/// Items of a list stay, since an empty item may mean something (a toleration of every taint).
fn drop_absent(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_absent);
            fields.retain(|_, field| match field {
                Value::Null => false,
                Value::Object(fields) => !fields.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_absent),
        _ => {}
    }
}

fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("types of the spec have string keys only")
}

/// Keys are sorted here: the order of a `Map` depends on features of other crates.
fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            // Byte order of UTF-8 is the order of code points.
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_bytes());
            text.push('{');
            for (n, (name, field)) in sorted.into_iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write_canonical(field, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes any text");
            text
        })
}

#[cfg(test)]
mod tests;
