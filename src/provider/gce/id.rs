//! The names by which a VM and the requests about it are known (P-23, P-24).

use uuid::Uuid;

use crate::provider::{Error, Incarnation, ProviderId, Reason};

/// What every provider id of a VM begins with.
pub const SCHEME: &str = "gce://";

/// Where a VM lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Its project.
    pub project: &'a str,
    /// Its zone.
    pub zone: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Place<'a> {
    /// Reads `gce://project/zone/name`.
    ///
    /// # Errors
    ///
    /// [`Reason::Unavailable`] for anything else: such an id belongs to another provider, and what
    /// it names is unknown here, not gone.
    pub fn parse(id: &'a ProviderId) -> Result<Self, Error> {
        let mut parts = id
            .as_str()
            .strip_prefix(SCHEME)
            .into_iter()
            .flat_map(|path| path.split('/'));
        let place = (parts.next(), parts.next(), parts.next(), parts.next());
        match place {
            (Some(project), Some(zone), Some(name), None)
                if ![project, zone, name].contains(&"") =>
            {
                Ok(Self {
                    project,
                    zone,
                    name,
                })
            }
            _ => Err(Error::new(
                Reason::Unavailable,
                format!("{id} is no instance of this provider; want gce://project/zone/name"),
            )),
        }
    }

    /// The id of what lies there.
    #[must_use]
    pub fn id(&self) -> ProviderId {
        let Self {
            project,
            zone,
            name,
        } = self;
        ProviderId::new(format!("{SCHEME}{project}/{zone}/{name}"))
    }
}

/// The request id of an attempt to make the VM of a Proxy: a retry of the attempt, also by another
/// process, meets the operation that the first try began.
#[must_use]
pub fn insert_request(uid: &str, attempt: i64) -> String {
    Uuid::new_v5(&namespace(uid), attempt.to_string().as_bytes()).to_string()
}

/// The request id of the deletion of one life of a VM; `after` is the operation of an earlier
/// deletion that failed, which must not be replayed.
#[must_use]
pub fn delete_request(uid: &str, incarnation: &Incarnation, after: Option<&str>) -> String {
    let text = format!("delete/{incarnation}/{}", after.unwrap_or_default());
    Uuid::new_v5(&namespace(uid), text.as_bytes()).to_string()
}

/// A UID is a UUID at every API server known; any other text gets one that follows from it.
fn namespace(uid: &str) -> Uuid {
    Uuid::parse_str(uid).unwrap_or_else(|_| Uuid::new_v5(&Uuid::NAMESPACE_OID, uid.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6f9619ff-8b86-4011-b42d-00c04fc964ff";

    #[test]
    fn p23_a_provider_id_names_project_zone_and_name() {
        let place = Place {
            project: "my-project-1",
            zone: "europe-west1-b",
            name: "px-1",
        };
        let id = place.id();
        assert_eq!(id.as_str(), "gce://my-project-1/europe-west1-b/px-1");
        assert_eq!(Place::parse(&id), Ok(place));
        for other in [
            "kubernetes://a/b",
            "gce://a/b",
            "gce://a/b/c/d",
            "gce:///b/c",
            "gce://a/b/",
        ] {
            let error = Place::parse(&ProviderId::new(other))
                .expect_err("no VM")
                .to_string();
            assert!(error.contains("gce://project/zone/name"), "{error}");
        }
    }

    #[test]
    fn p24_an_attempt_has_one_request_id_in_every_process_and_each_attempt_its_own() {
        assert_eq!(
            insert_request(UID, 1),
            "94b0194c-ee82-5a70-993a-5a16be0c0fd6"
        );
        assert_eq!(
            insert_request(UID, 1),
            insert_request(&UID.to_uppercase(), 1)
        );
        let ids: std::collections::BTreeSet<_> = (1..100)
            .map(|attempt| insert_request(UID, attempt))
            .chain([insert_request("u-1", 1), insert_request("u-2", 1)])
            .collect();
        assert_eq!(ids.len(), 101);
    }

    #[test]
    fn p26_a_deletion_keeps_its_request_id_until_its_operation_fails() {
        let life = Incarnation::new("17");
        let first = delete_request(UID, &life, None);
        assert_eq!(first, delete_request(UID, &life, None));
        assert_ne!(first, delete_request(UID, &Incarnation::new("18"), None));
        assert_ne!(first, delete_request(UID, &life, Some("operation-1")));
    }
}
