//! P-07: what every provider must do alike, as tests that run against any of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    CloudInit, CreateRequest, Creation, Hint, Incarnation, Instance, Owner, Provider, ProviderId,
    Redacted,
};
use crate::api::{Machine, Protocol, ProxySpec, spec_hash};

/// The request that the suite begins with, for the Proxy with this UID.
pub(crate) fn request(uid: &str) -> CreateRequest {
    CreateRequest {
        owner: owner(uid),
        spec_hash: spec_hash(&ProxySpec::default(), None, None),
        attempt: 1,
        resent: false,
        machine: Machine::default(),
        protocol: Protocol::Http,
        port: 3128,
        cloud_init: None,
        credentials: None,
        tags: BTreeMap::from([("team".to_owned(), "crawl".to_owned())]),
    }
}

/// The same with user data that stands in the Proxy.
pub(crate) fn request_with_data(uid: &str, data: &str) -> CreateRequest {
    let bytes = Redacted::new(data.as_bytes().to_vec());
    CreateRequest {
        cloud_init: Some(CloudInit {
            bytes,
            source: None,
        }),
        ..request(uid)
    }
}

pub(crate) fn owner(uid: &str) -> Owner {
    Owner {
        cluster_id: Arc::from("cluster-1"),
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        proxy: format!("proxy-{uid}"),
    }
}

async fn get(provider: &dyn Provider, id: &ProviderId, owner: &Owner) -> Option<Instance> {
    match provider.get(id, owner, &Hint::default()).await {
        Ok(instance) => Some(instance),
        Err(error) => {
            assert!(error.is_not_found(), "{error}");
            None
        }
    }
}

/// T84, P-05: tags that pretend another owner, in the spelling of the provider, change nothing
/// about whose an instance is.
pub(crate) async fn tags_of_users_forge_no_owner(provider: &dyn Provider, tags: &[(&str, &str)]) {
    let mut forged = request("u-1");
    for (key, value) in tags {
        forged.tags.insert((*key).to_owned(), (*value).to_owned());
    }
    provider.create(&forged).await.expect("made");
    let own = provider.list_by_tag("cluster-1", None).await;
    let own = own.expect("lists").instances;
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(own[0].owner.uid, "u-1");
    assert!(own[0].instance.created.is_some(), "with its age");
    let others = provider.list_by_tag("cluster-2", None).await;
    assert!(others.expect("lists").instances.is_empty());
    let other = Owner {
        cluster_id: Arc::from("cluster-2"),
        ..owner("u-2")
    };
    let id = &own[0].instance.id;
    let incarnation = &own[0].instance.incarnation;
    assert!(get(provider, id, &other).await.is_none());
    assert_eq!(provider.delete(id, &other, incarnation).await, Ok(()));
    let kept = get(provider, id, &forged.owner).await;
    assert!(kept.is_some_and(|kept| !kept.deleting));
}

/// Tags that pretend an owner, as pods and simulated machines spell them.
pub(crate) const FORGED_LABELS: [(&str, &str); 3] = [
    ("crawl.proxyoperator.dev/cluster", "cluster-2"),
    ("crawl.proxyoperator.dev/proxy-uid", "u-2"),
    ("app.kubernetes.io/managed-by", "somebody"),
];

/// Create, adopt, find, read, list, delete: the life of an instance as callers rely on it.
///
/// `settle` lets deletions that were accepted come to their end.
pub(crate) async fn life_of_an_instance(provider: &dyn Provider, settle: impl AsyncFn()) {
    let first = request("u-1");
    let owner = &first.owner;
    assert_eq!(
        provider.find(owner).await,
        Ok(None),
        "nothing there before the create"
    );

    let created = match provider.create(&first).await {
        Ok(Creation::Created(instance)) => instance,
        other => panic!("not created: {other:?}"),
    };
    let hash = created.spec_hash.clone().expect("stamped");
    assert_eq!(
        hash.tag(),
        first.spec_hash.tag(),
        "the hash is readable on the instance"
    );

    let edited = ProxySpec {
        port: Some(9),
        ..ProxySpec::default()
    };
    let again = CreateRequest {
        spec_hash: spec_hash(&edited, None, None),
        ..first.clone()
    };
    match provider.create(&again).await {
        Ok(Creation::Adopted(found)) => {
            assert_eq!(found.incarnation, created.incarnation, "no second instance");
            assert_eq!(
                found.spec_hash, created.spec_hash,
                "with the hash it was made from"
            );
        }
        other => panic!("not adopted: {other:?}"),
    }

    let found = provider
        .find(owner)
        .await
        .expect("found")
        .expect("by its name");
    assert_eq!(
        (&found.id, &found.incarnation),
        (&created.id, &created.incarnation)
    );
    let read = get(provider, &created.id, owner)
        .await
        .expect("still there");
    assert_eq!(
        (read.deleting, &read.incarnation),
        (false, &created.incarnation)
    );

    let stranger = self::owner("u-2");
    assert!(
        get(provider, &created.id, &stranger).await.is_none(),
        "not another Proxy's"
    );
    let other_cluster = Owner {
        cluster_id: Arc::from("cluster-2"),
        ..owner.clone()
    };
    provider
        .create(&request("u-3"))
        .await
        .expect("a second Proxy");
    let mut listed = Vec::new();
    let mut page: Option<String> = None;
    loop {
        let answer = provider
            .list_by_tag(&owner.cluster_id, page.as_deref())
            .await
            .expect("lists");
        listed.extend(answer.instances);
        page = answer.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(listed.len(), 2, "{listed:?}");
    let own = listed.iter().find(|one| one.owner.uid == owner.uid);
    let own = own.expect("a listing says whose each instance is");
    assert_eq!(own.owner, *owner);
    assert_eq!(
        (&own.instance.id, &own.instance.incarnation),
        (&created.id, &created.incarnation)
    );
    assert_eq!(own.instance.id.name(), owner.instance_name());
    let elsewhere = provider
        .list_by_tag(&other_cluster.cluster_id, None)
        .await
        .expect("lists");
    assert!(
        elsewhere.instances.is_empty(),
        "clusters do not see each other"
    );

    let wrong = Incarnation::new("some-other-life");
    assert_eq!(provider.delete(&created.id, owner, &wrong).await, Ok(()));
    settle().await;
    let kept = get(provider, &created.id, owner)
        .await
        .expect("S-11: another incarnation stays");
    assert!(!kept.deleting);
    assert_eq!(
        provider
            .delete(&created.id, &stranger, &created.incarnation)
            .await,
        Ok(())
    );
    settle().await;
    assert!(
        get(provider, &created.id, owner)
            .await
            .is_some_and(|kept| !kept.deleting)
    );

    for _ in 0..2 {
        assert_eq!(
            provider
                .delete(&created.id, owner, &created.incarnation)
                .await,
            Ok(())
        );
    }
    settle().await;
    assert!(get(provider, &created.id, owner).await.is_none());
    assert_eq!(provider.find(owner).await, Ok(None));
    assert_eq!(
        provider
            .delete(&created.id, owner, &created.incarnation)
            .await,
        Ok(()),
        "gone"
    );

    let next_attempt = CreateRequest {
        attempt: 2,
        ..again
    };
    match provider.create(&next_attempt).await {
        Ok(Creation::Created(next)) => {
            assert_eq!(next.id, created.id, "the same name");
            assert_ne!(next.incarnation, created.incarnation, "another life");
        }
        other => panic!("not created anew: {other:?}"),
    }
}
