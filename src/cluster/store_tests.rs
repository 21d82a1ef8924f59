use std::sync::Arc;

use devcluster::DevCluster;

use super::*;
use crate::provider::sim::{Op, Rule, Settings, SimProvider, World};
use crate::provider::{Provider, conformance};

const PATIENCE: Duration = Duration::from_millis(500);

struct Stage {
    _cluster: DevCluster,
    world: World,
    store: Store,
    providers: Registry,
}

async fn stage() -> Stage {
    let cluster = DevCluster::builder().start().await;
    let cluster = cluster.expect("a cluster in this process");
    let world = World::new(Settings::default());
    let provider: Arc<dyn Provider> = Arc::new(SimProvider::new(world.clone()));
    Stage {
        store: Store::new(cluster.client(), "default"),
        _cluster: cluster,
        world,
        providers: Registry::new(BTreeMap::from([("sim".to_owned(), provider)])),
    }
}

impl Stage {
    async fn settle(&self, id: &str) -> Result<Option<()>, Error> {
        let stop = CancellationToken::new();
        let settled = self.store.settle(id, &self.providers, PATIENCE, &stop);
        settled.await
    }

    async fn stored(&self) -> Option<String> {
        self.store.read().await.expect("readable")
    }
}

/// An instance of the cluster `cluster-1`.
async fn instance(stage: &Stage) {
    let sim = SimProvider::new(stage.world.clone());
    sim.create(&conformance::request("u-1"))
        .await
        .expect("made");
}

#[tokio::test]
async fn g06_the_first_start_keeps_the_id_and_later_ones_find_it() {
    let stage = stage().await;
    for _ in 0..2 {
        assert_eq!(stage.settle("cluster-1").await.expect("settled"), Some(()));
        assert_eq!(stage.stored().await.as_deref(), Some("cluster-1"));
    }
}

#[tokio::test]
async fn g06_a_changed_id_is_refused_while_instances_carry_the_old_one() {
    let stage = stage().await;
    stage.settle("cluster-1").await.expect("kept");
    instance(&stage).await;
    let refused = stage.settle("cluster-2").await.expect_err("refused");
    assert!(matches!(refused, Error::Changed { .. }), "{refused}");
    let text = refused.to_string();
    for part in [
        "cluster-1",
        "cluster-2",
        "1 instance ",
        "sim://px-u-1",
        "default/proxy-operator",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(stage.stored().await.as_deref(), Some("cluster-1"));
    stage.world.vanish(&provider::name_from_uid("u-1"));
    assert_eq!(
        stage.settle("cluster-2").await.expect("nothing is left"),
        Some(())
    );
    assert_eq!(stage.stored().await.as_deref(), Some("cluster-2"));
}

#[tokio::test]
async fn g06_a_changed_id_is_refused_while_a_provider_or_a_zone_cannot_tell() {
    let stage = stage().await;
    stage.settle("cluster-1").await.expect("kept");
    stage.world.cut_off("zone-a");
    let refused = stage
        .settle("cluster-2")
        .await
        .expect_err("a zone is silent");
    assert!(
        crate::refused::chain(&refused).contains("zone-a"),
        "{refused}"
    );
    stage.world.reconnect();
    stage.world.add_rule(Rule {
        op: Some(Op::List),
        error: Some(Reason::Credentials),
        ..Rule::default()
    });
    let refused = stage
        .settle("cluster-2")
        .await
        .expect_err("the provider is");
    assert!(matches!(refused, Error::ChangeUnproven { .. }), "{refused}");
    assert_eq!(stage.stored().await.as_deref(), Some("cluster-1"));
}

#[tokio::test]
async fn without_rights_or_namespace_the_error_says_what_to_allow() {
    let stage = stage().await;
    let elsewhere = Store::new(stage._cluster.client(), "nowhere");
    let stop = CancellationToken::new();
    let settled = elsewhere.settle("cluster-1", &stage.providers, PATIENCE, &stop);
    let text = settled.await.expect_err("no such namespace").to_string();
    for part in [
        "nowhere/proxy-operator",
        "create",
        "update",
        "--leader-elect-namespace",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
