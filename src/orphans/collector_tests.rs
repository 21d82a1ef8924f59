use serde_json::json;

use super::*;
use crate::cluster::CONFIG_MAP;
use crate::controller::testing::virtual_now;
use crate::orphans::testing::{
    CLUSTER, CYCLE, Mood, Stage, client, owner, put_proxy, recorded, uid, world,
};
use crate::provider::sim::{Op, Rule, SimProvider};
use crate::provider::{CreateRequest, Owner, Provider, Reason, conformance};

#[tokio::test(start_paused = true)]
async fn t82_an_orphan_goes_in_its_second_cycle_in_mode_delete() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    // Too young in the first cycle that sees it, and old enough in the second.
    let first = stage.cycle().await;
    assert_eq!(first.decision.orphans.len(), 1);
    assert!(first.outcome.deleted.is_empty() && stage.is_kept("orphan"));
    assert_eq!(stage.take_told(), ["OrphanFound orphan"]);
    let second = stage.cycle().await;
    assert_eq!(second.outcome.deleted.len(), 1);
    assert!(!stage.is_kept("orphan") && stage.is_kept("alive"));
    assert_eq!(stage.take_told(), ["OrphanDeleted orphan"]);
    let third = stage.cycle().await;
    assert!(third.decision.orphans.is_empty() && stage.take_told().is_empty());
    for line in [
        "pxo_orphans{provider=\"sim\"} 0",
        "pxo_orphans_found_total{provider=\"sim\"} 1",
        "pxo_orphans_deleted_total{provider=\"sim\"} 1",
        "pxo_orphans_skipped_total{cause=\"young\"} 1",
        "pxo_orphan_cycle_duration_seconds_count 3",
    ] {
        assert!(
            stage.metric(line),
            "{line}: {}",
            stage.collector.metrics.render()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn t82_in_mode_dry_run_an_orphan_is_reported_once_and_stays() {
    let mut stage = Stage::new(Mode::DryRun);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    assert_eq!(stage.cycles_until_deleted(5).await, None);
    assert!(stage.is_kept("orphan"));
    assert_eq!(stage.take_told(), ["OrphanFound orphan"]);
    assert!(stage.metric("pxo_orphans{provider=\"sim\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn t83_nothing_goes_while_what_is_live_is_not_known_and_an_event_says_so() {
    for (mood, cause) in [
        (Mood::Fails, "unread"),
        (Mood::FailsHalfWay, "unread"),
        (Mood::NoDefinition, "definition-missing"),
        (Mood::Empty, "no-proxies"),
    ] {
        let mut stage = Stage::new(Mode::Delete);
        stage.live("alive").await;
        stage.make("orphan", "zone-a").await;
        stage.turn(mood);
        assert_eq!(stage.cycles_until_deleted(4).await, None, "{mood:?}");
        assert!(
            stage.is_kept("alive") && stage.is_kept("orphan"),
            "{mood:?}"
        );
        let told = stage.take_told();
        let kept = |line: &&String| line.as_str() == "OrphansKept proxy-operator";
        assert_eq!(told.iter().filter(kept).count(), 1, "{mood:?}: {told:?}");
        let line = format!("pxo_orphan_cycles_guarded_total{{cause=\"{cause}\"}} 4");
        assert!(
            stage.metric(&line),
            "{line}: {}",
            stage.collector.metrics.render()
        );
        // Once it is known again, the count of cycles and the calm begin anew.
        stage.turn(Mood::Well);
        let cycles = stage.cycles_until_deleted(4).await;
        assert!(
            cycles.is_some_and(|cycles| cycles <= 2),
            "{mood:?}: {cycles:?}"
        );
        assert!(stage.is_kept("alive"), "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g02_a_live_read_of_the_proxy_saves_what_a_list_left_out() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    // With the guard of an empty list out of the way.
    stage.turn(Mood::HidesInLists);
    let first = stage.cycle().await;
    assert_eq!(
        first.decision.guard.map(|guard| guard.cause()),
        Some("no-proxies")
    );
    tokio::time::sleep(CYCLE).await;
    let approved = first
        .decision
        .orphans
        .iter()
        .map(|orphan| orphan.sighting.life());
    let approved: HashSet<_> = approved.collect();
    let second = stage.cycle_now(Some(&approved)).await;
    assert_eq!(second.decision.guard, None);
    assert_eq!(
        second.decision.orphans[0].verdict,
        Verdict::Keep(Skip::Claimed)
    );
    assert!(stage.is_kept("alive"));
}

#[tokio::test(start_paused = true)]
async fn t84_two_clusters_in_one_project_never_touch_each_others_instances() {
    let project = world();
    let mut one = Stage::of("cluster-1", Mode::Delete, project.clone());
    let mut two = Stage::of("cluster-2", Mode::Delete, project.clone());
    for stage in [&one, &two] {
        stage
            .live(&format!("of-{}", stage.collector.cluster_id))
            .await;
    }
    // What the other cluster's users write into tags makes it nobody else's.
    let mut forged = CreateRequest {
        owner: owner("cluster-2", "forged"),
        ..conformance::request("forged")
    };
    forged
        .tags
        .insert("pxo-cluster".to_owned(), "cluster-1".to_owned());
    forged.tags.insert("pxo-uid".to_owned(), uid("nobody"));
    let provider = SimProvider::new(project.clone());
    let made = provider.create(&forged).await.expect("made");
    two.record("forged", made.instance());
    project.put_stranger("px-stranger");
    one.make("orphan", "zone-a").await;
    for _ in 0..4 {
        let (seen, other) = (one.cycle().await, two.cycle_now(None).await);
        assert!(seen.decision.listed <= 2, "{seen:?}");
        assert_eq!(other.decision.listed, 2);
        assert!(other.decision.orphans.is_empty(), "{other:?}");
    }
    assert!(!one.is_kept("orphan"));
    assert!(one.is_kept("of-cluster-1") && two.is_kept("of-cluster-2") && two.is_kept("forged"));
    assert_eq!(project.count(), 4, "the stranger is there, too");
}

#[tokio::test(start_paused = true)]
async fn t85_instances_of_a_zone_that_does_not_answer_are_neither_orphans_nor_gone() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("here", "zone-a").await;
    stage.make("there", "zone-b").await;
    stage.world.cut_off("zone-b");
    stage.cycle().await;
    let second = stage.cycle().await;
    assert_eq!(second.unknown, ["sim/zone-b"]);
    assert!(!stage.is_kept("here"));
    stage.world.reconnect();
    assert!(stage.is_kept("there"));
    // It begins to count with the first look that it answers.
    assert_eq!(stage.cycles_until_deleted(3).await, Some(2));
    assert!(!stage.is_kept("there") && stage.is_kept("alive"));
}

#[tokio::test(start_paused = true)]
async fn t85_a_provider_that_cannot_list_keeps_nobody_else_from_being_looked_at() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.cycle().await;
    stage.world.add_rule(Rule {
        op: Some(Op::List),
        error: Some(Reason::Unavailable),
        times: Some(1),
        ..Rule::default()
    });
    let silent = stage.cycle().await;
    assert!(
        silent.unknown[0].starts_with("sim: "),
        "{:?}",
        silent.unknown
    );
    assert_eq!(silent.decision.listed, 0);
    assert_eq!(stage.cycles_until_deleted(3).await, Some(2), "two in a row");
}

#[tokio::test(start_paused = true)]
async fn t86_thirty_orphans_at_once_stop_the_collection_and_a_count_lets_five_go_per_cycle() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    for n in 0..30 {
        stage.make(&format!("orphan-{n}"), "zone-a").await;
    }
    assert_eq!(stage.cycles_until_deleted(4).await, None);
    assert_eq!(stage.world.count(), 31);
    assert!(stage.metric("pxo_orphan_cycles_guarded_total{cause=\"too-many\"} 4"));
    let told = stage.take_told();
    assert!(
        told.contains(&"OrphansKept proxy-operator".to_owned()),
        "{told:?}"
    );

    let report = stage.cycle().await;
    let lives = report
        .decision
        .orphans
        .iter()
        .map(|orphan| orphan.sighting.life());
    let approved: HashSet<_> = lives.collect();
    assert_eq!(approved.len(), 30);
    stage.make("late", "zone-a").await;
    for cycle in 1..=6 {
        tokio::time::sleep(CYCLE).await;
        let began = Instant::now();
        let report = stage.cycle_now(Some(&approved)).await;
        assert_eq!(report.outcome.deleted.len(), 5, "cycle {cycle}");
        assert_eq!(began.elapsed().as_secs(), 4, "one a second");
    }
    tokio::time::sleep(CYCLE).await;
    assert_eq!(stage.world.count(), 2);
    assert!(stage.is_kept("alive") && stage.is_kept("late"));
}

#[tokio::test(start_paused = true)]
async fn g01_an_instance_of_a_live_proxy_without_a_record_is_handed_over_and_never_deleted() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("forgotten", "zone-a").await;
    stage.proxy("forgotten", &json!({ "phase": "Failed" }));
    assert_eq!(stage.cycles_until_deleted(4).await, None);
    assert!(stage.is_kept("forgotten"));
    let handed = stage.handed.lock().expect("not poisoned").clone();
    assert_eq!(handed, vec!["crawl/forgotten u-forgotten sim"; 4]);
    assert!(stage.take_told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn g01_what_belongs_to_a_namespace_that_is_not_looked_into_is_nobodys_business() {
    let mut stage = Stage::new(Mode::Delete);
    let client = client(stage.server.clone(), Arc::clone(&stage.mood));
    stage.collector.fleet = Fleet::new(client, vec!["crawl".to_owned()]);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    let elsewhere = CreateRequest {
        owner: Owner {
            namespace: "elsewhere".to_owned(),
            ..owner(CLUSTER, "elsewhere")
        },
        ..conformance::request("elsewhere")
    };
    let provider = SimProvider::new(stage.world.clone());
    provider.create(&elsewhere).await.expect("made");
    assert_eq!(stage.cycles_until_deleted(3).await, Some(2));
    assert!(!stage.is_kept("orphan") && stage.is_kept("elsewhere"));
}

#[tokio::test(start_paused = true)]
async fn g01_an_instance_beside_the_recorded_one_is_an_orphan() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("stray", "zone-a").await;
    stage.proxy(
        "stray",
        &json!({ "providerID": "other://px-u-stray", "instanceUID": "1" }),
    );
    assert_eq!(stage.cycles_until_deleted(3).await, Some(2));
    assert!(!stage.is_kept("stray") && stage.is_kept("alive"));
}

#[tokio::test(start_paused = true)]
async fn g02_a_stray_that_its_proxy_takes_over_while_it_is_read_again_stays() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    let stray = stage.make("stray", "zone-a").await;
    stage.proxy(
        "stray",
        &json!({ "providerID": "other://px-u-stray", "instanceUID": "1" }),
    );
    stage.cycle().await;
    stage.world.add_rule(Rule {
        op: Some(Op::Get),
        delay: Duration::from_secs(10),
        ..Rule::default()
    });
    let server = stage.server.clone();
    let take_over = async {
        tokio::time::sleep(CYCLE + Duration::from_secs(5)).await;
        put_proxy(&server, "stray", &recorded(&stray));
    };
    let (second, ()) = tokio::join!(stage.cycle(), take_over);
    assert_eq!(
        second.decision.orphans[0].verdict,
        Verdict::Keep(Skip::Claimed)
    );
    assert!(stage.is_kept("stray"));
}

#[tokio::test(start_paused = true)]
async fn g02_an_orphan_that_another_life_took_the_place_of_stays() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.cycle().await;
    stage
        .world
        .vanish(&owner(CLUSTER, "orphan").instance_name());
    stage.make("orphan", "zone-a").await;
    let second = stage.cycle().await;
    assert!(second.outcome.deleted.is_empty() && stage.is_kept("orphan"));
    assert_eq!(
        second.decision.orphans[0].cycles, 1,
        "it counts from its own first cycle"
    );
}

#[tokio::test(start_paused = true)]
async fn g02_what_cannot_be_read_again_or_is_refused_stays_until_the_next_cycle() {
    for (op, error) in [
        (Op::Get, Reason::Unavailable),
        (Op::Delete, Reason::Credentials),
    ] {
        let mut stage = Stage::new(Mode::Delete);
        stage.live("alive").await;
        stage.make("orphan", "zone-a").await;
        stage.cycle().await;
        stage.world.add_rule(Rule {
            op: Some(op),
            error: Some(error),
            times: Some(1),
            ..Rule::default()
        });
        let refused = stage.cycle().await;
        assert_eq!(
            refused.decision.orphans[0].verdict,
            Verdict::Keep(Skip::Refused)
        );
        assert_eq!(refused.outcome.refusals.len(), 1, "{op:?}");
        assert_eq!(stage.cycles_until_deleted(2).await, Some(1), "{op:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g05_orphans_that_are_never_deleted_do_not_keep_a_younger_one() {
    let mut stage = Stage::new(Mode::Delete);
    // So many that six orphans hold no guard.
    for n in 0..30 {
        stage.live(&format!("alive-{n}")).await;
    }
    for n in 0..5 {
        stage.make(&format!("kept-{n}"), "zone-a").await;
    }
    stage.world.add_rule(Rule {
        op: Some(Op::Delete),
        matching: Some("crawl/kept-".to_owned()),
        error: Some(Reason::Credentials),
        ..Rule::default()
    });
    tokio::time::sleep(CYCLE).await;
    stage.make("young", "zone-a").await;
    assert!(stage.cycles_until_deleted(5).await.is_some());
    assert!(!stage.is_kept("young"));
    assert!((0..5).all(|n| stage.is_kept(&format!("kept-{n}"))));
    assert_eq!(stage.cycle().await.outcome.refusals.len(), 5, "asked again");
}

#[tokio::test(start_paused = true)]
async fn g03_nothing_goes_until_the_server_has_answered_for_five_minutes() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.cycle().await;
    tokio::time::sleep(CYCLE).await;
    stage.collector.calm.broken();
    let shaken = stage.cycle_now(None).await;
    assert_eq!(
        shaken.decision.guard.map(|guard| guard.cause()),
        Some("server-unreachable")
    );
    tokio::time::sleep(Duration::from_secs(5 * 60)).await;
    assert_eq!(stage.cycle_now(None).await.outcome.deleted.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn g03_a_stored_cluster_id_that_differs_or_is_gone_keeps_everything() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.keep_id("cluster-9");
    assert_eq!(stage.cycles_until_deleted(3).await, None);
    stage.server.delete(&format!("configmaps/{CONFIG_MAP}"));
    let report = stage.cycle().await;
    assert_eq!(
        report.decision.guard.map(|guard| guard.cause()),
        Some("cluster-id")
    );
    stage.keep_id(CLUSTER);
    assert_eq!(stage.cycles_until_deleted(2).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn s12_who_cannot_be_sure_to_lead_deletes_nothing_and_unfilled_caches_keep_all() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.collector.leads = Arc::new(|| false);
    assert_eq!(stage.cycles_until_deleted(3).await, None);
    stage.collector.leads = Arc::new(|| true);
    stage.collector.synced = Box::new(|| false);
    let report = stage.cycle().await;
    assert_eq!(report.decision.guard, Some(Guard::NotSynced));
    assert!(stage.is_kept("orphan"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_cycles_and_a_cycle_between_two_deletions() {
    let stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    for name in ["o1", "o2", "o3"] {
        stage.make(name, "zone-a").await;
    }
    let world = stage.world.clone();
    let stop = CancellationToken::new();
    let run = Arc::new(stage.collector).run(stop.clone());
    let watch = async {
        tokio::time::sleep(2 * CYCLE + Duration::from_millis(500)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(run, watch);
    assert_eq!(ended, Ok(()));
    let going = world.all().iter().filter(|(_, seen)| seen.deleting).count();
    assert_eq!(going, 1, "the second would have come a second later");
}

#[tokio::test(start_paused = true)]
async fn g07_a_collection_that_is_held_from_the_start_says_since_when() {
    let stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    stage.turn(Mood::Fails);
    let began = virtual_now().as_second();
    let (collector, stop) = (Arc::new(stage.collector), CancellationToken::new());
    let held = async {
        tokio::time::sleep(3 * CYCLE + Duration::from_secs(60)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(Arc::clone(&collector).run(stop.clone()), held);
    assert_eq!(ended, Ok(()));
    let page = collector.metrics.render();
    for line in [
        format!("pxo_orphan_last_success_timestamp_seconds {began}"),
        "pxo_orphan_cycles_guarded_total{cause=\"unread\"} 3".to_owned(),
    ] {
        assert!(page.lines().any(|one| one == line), "{line}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn g07_a_number_that_a_cycle_does_not_find_out_stays_what_it_was() {
    let mut stage = Stage::new(Mode::DryRun);
    stage.live("alive").await;
    stage.make("here", "zone-a").await;
    stage.make("there", "zone-b").await;
    stage.cycle().await;
    let two = "pxo_orphans{provider=\"sim\"} 2";
    assert!(stage.metric(two));
    for mood in [Mood::Fails, Mood::NoDefinition] {
        stage.turn(mood);
        stage.cycle().await;
        assert!(stage.metric(two), "{mood:?}");
    }
    stage.turn(Mood::Well);
    stage.world.cut_off("zone-b");
    stage.cycle().await;
    assert!(stage.metric(two), "one zone does not answer");
    stage.world.add_rule(Rule {
        op: Some(Op::List),
        error: Some(Reason::Unavailable),
        times: Some(1),
        ..Rule::default()
    });
    stage.cycle().await;
    assert!(stage.metric(two), "the provider does not answer");
    stage.world.reconnect();
    for name in ["here", "there"] {
        stage.world.vanish(&owner(CLUSTER, name).instance_name());
    }
    stage.cycle().await;
    assert!(stage.metric("pxo_orphans{provider=\"sim\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn g07_each_orphan_is_told_of_also_where_several_name_one_proxy_or_none() {
    let mut stage = Stage::new(Mode::DryRun);
    stage.live("alive").await;
    let provider = SimProvider::new(stage.world.clone());
    for name in ["n1", "n2"] {
        let nameless = CreateRequest {
            owner: Owner {
                proxy: String::new(),
                ..owner(CLUSTER, name)
            },
            ..conformance::request(name)
        };
        provider.create(&nameless).await.expect("made");
    }
    stage.make("gone", "zone-a").await;
    stage.cycle().await;
    // Another life of the same name.
    stage.world.vanish(&owner(CLUSTER, "gone").instance_name());
    stage.make("gone", "zone-a").await;
    stage.cycle_now(None).await;
    let mut told = stage.take_told();
    told.sort();
    assert_eq!(
        told,
        [
            "OrphanFound gone",
            "OrphanFound gone",
            &format!("OrphanFound {CONFIG_MAP}"),
            &format!("OrphanFound {CONFIG_MAP}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn g07_every_family_is_documented() {
    let mut stage = Stage::new(Mode::Delete);
    stage.live("alive").await;
    stage.make("orphan", "zone-a").await;
    for _ in 0..2 {
        stage.cycle().await;
    }
    let text = include_str!("../../docs/operations.md");
    let page = stage.collector.metrics.render();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut number = 0;
    for name in families.filter_map(|family| family.split(' ').next()) {
        number += 1;
        let is_named =
            |line: &str| line.starts_with("| `pxo_") && line.contains(&format!("`{name}`"));
        assert!(text.lines().any(is_named), "docs/operations.md: {name}");
    }
    assert_eq!(number, 8, "{page}");
}
