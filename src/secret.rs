//! Bytes of Secrets in this process: seen by nobody, and wiped once they were used.
//!
//! [`Redacted`] holds one value on its way from the API server to a provider. [`Held`] holds a whole
//! Secret as the client library decoded it, whose own types neither hide nor wipe. What this cannot
//! reach are the buffers of the HTTP client and of TLS, and the body that the client library of a
//! cloud makes of a request or reads an answer from, which are freed as they stand.

use std::fmt;
use std::ops::Deref;

use k8s_openapi::api::core::v1::Secret;
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

/// Bytes that must not be seen: prints its length only, and is wiped when it is dropped.
///
/// Clones are wiped each for itself.
///
/// ```
/// use proxy_operator::provider::Redacted;
///
/// let password = Redacted::new(b"hunter2".to_vec());
/// assert_eq!(format!("{password:?}"), "[7 bytes redacted]");
/// assert_eq!(password.expose(), b"hunter2");
/// ```
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct Redacted(Zeroizing<Vec<u8>>);

impl Redacted {
    /// Takes the bytes in; give it the only copy.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes themselves. What copies them has to wipe the copy.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes redacted]", self.0.len())
    }
}

/// A Secret whose values are wiped when it is dropped, and which prints its name only.
///
/// The annotation in which `kubectl apply` repeats the values goes with them.
pub(crate) struct Held(Secret);

impl Held {
    pub(crate) fn new(secret: Secret) -> Self {
        Self(secret)
    }

    fn wipe(&mut self) {
        for value in self.0.data.iter_mut().flat_map(|data| data.values_mut()) {
            value.0.zeroize();
        }
        let texts = self
            .0
            .string_data
            .iter_mut()
            .flat_map(|data| data.values_mut());
        let annotations = self.0.metadata.annotations.iter_mut();
        for text in texts.chain(annotations.flat_map(|all| all.values_mut())) {
            text.zeroize();
        }
    }
}

impl Deref for Held {
    type Target = Secret;

    fn deref(&self) -> &Secret {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {:?}", self.0.metadata.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held() -> Held {
        let secret = json!({
            "metadata": { "name": "boot", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "planted-annotation",
            } },
            "data": { "user-data": "cGxhbnRlZC1kYXRh" },
            "stringData": { "more": "planted-text" },
        });
        Held::new(serde_json::from_value(secret).expect("a Secret"))
    }

    #[test]
    fn neither_a_value_nor_a_secret_shows_in_debug_output() {
        let shown = format!("{:?} {:?}", Redacted::new(b"planted-data".to_vec()), held());
        assert!(!shown.contains("planted"), "{shown}");
        assert_eq!(shown, "[12 bytes redacted] Secret Some(\"boot\")");
    }

    #[test]
    fn a_secret_that_was_used_is_wiped_with_the_copy_that_kubectl_left_in_it() {
        let mut held = held();
        assert!(json!(*held).to_string().contains("planted-annotation"));
        held.wipe();
        let data = held.data.as_ref().expect("the keys stay");
        assert!(data["user-data"].0.is_empty());
        let left = json!(*held).to_string();
        assert!(
            !left.contains("planted") && !left.contains("cGxhbnRl"),
            "{left}"
        );
    }

    #[test]
    fn a_value_is_wiped_when_it_is_dropped() {
        fn is_wiped_by_its_drop<T: ZeroizeOnDrop>(_: &T) {}
        is_wiped_by_its_drop(&Redacted::new(Vec::new()));
    }
}
