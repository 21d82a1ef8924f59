use serde_json::json;

use super::*;
use crate::orphans::testing::{CLUSTER, CYCLE, Stage, owner};
use crate::provider::sim::{Op, Rule, SimProvider};
use crate::provider::{CreateRequest, Owner, Provider as _, Reason, conformance};

/// What a deletion said and how it ended.
async fn deletion(stage: &Stage, count: u32, output: Output) -> (String, Result<(), Error>) {
    let mut out = Vec::new();
    let stop = CancellationToken::new();
    let outcome = delete(&stage.collector, count, output, &mut out, &stop).await;
    (String::from_utf8(out).expect("text"), outcome)
}

/// What a look said.
async fn shown(stage: &Stage, output: Output) -> String {
    let mut out = Vec::new();
    let stop = CancellationToken::new();
    let outcome = show(&stage.collector, output, &mut out, &stop).await;
    outcome.expect("nothing holds it");
    String::from_utf8(out).expect("text")
}

/// As the command sets it up: a count goes before the guards by numbers, and there is no calm.
async fn stage(orphans: &[&str]) -> Stage {
    let mut stage = Stage::new(Mode::Delete);
    stage.collector.settings.calm = Duration::ZERO;
    stage.live("alive").await;
    for name in orphans {
        stage.make(name, "zone-a").await;
    }
    tokio::time::sleep(2 * CYCLE).await;
    stage
}

/// An instance whose tags name no Proxy.
async fn make_nameless(stage: &Stage) {
    let nameless = CreateRequest {
        owner: Owner {
            proxy: String::new(),
            ..owner(CLUSTER, "nameless")
        },
        ..conformance::request("nameless")
    };
    let provider = SimProvider::new(stage.world.clone());
    provider.create(&nameless).await.expect("made");
}

fn instance(name: &str) -> String {
    format!("sim://{}", owner(CLUSTER, name).instance_name())
}

#[tokio::test(start_paused = true)]
async fn g03_the_number_that_a_look_tells_is_the_one_that_a_deletion_takes() {
    let stage = stage(&["a", "b", "c", "d"]).await;
    make_nameless(&stage).await;
    let table = shown(&stage, Output::Table).await;
    let total = "orphans: 5 of 6 instances, 4 may go: --count 4; nothing was deleted";
    assert!(table.contains(total), "{table}");
    let look: Value = serde_json::from_str(&shown(&stage, Output::Json).await).expect("JSON");
    assert_eq!(look["count"], 4);
    assert_eq!(look["orphans"].as_array().map(Vec::len), Some(5));

    let (said, refused) = deletion(&stage, 5, Output::Table).await;
    let words = refused.expect_err("one of them is held").to_string();
    assert!(
        words.starts_with("4 orphans may go, not 5 (and 1 is held)"),
        "{words}"
    );
    assert!(words.ends_with("give --count 4"), "{words}");
    assert_eq!((said.as_str(), stage.world.count()), ("", 6));

    let (said, outcome) = deletion(&stage, 4, Output::Table).await;
    outcome.expect("all of the four went");
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(stage.is_kept("alive") && stage.is_kept("nameless"));
}

#[tokio::test(start_paused = true)]
async fn d10_a_refusal_is_told_in_json_too() {
    let stage = stage(&["a"]).await;
    let (said, refused) = deletion(&stage, 2, Output::Json).await;
    let words = refused.expect_err("there is one").to_string();
    let told: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(told, json!({ "deleted": [], "error": words }));

    stage.keep_id("cluster-9");
    let (said, refused) = deletion(&stage, 1, Output::Json).await;
    let words = refused.expect_err("the stored id differs").to_string();
    assert!(words.contains("cluster-9"), "{words}");
    let told: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(told, json!({ "deleted": [], "error": words }));

    stage.keep_id(CLUSTER);
    let (said, outcome) = deletion(&stage, 1, Output::Json).await;
    outcome.expect("it went");
    let told: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(told, json!({ "deleted": [instance("a")], "error": null }));
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_its_provider_refuses_to_delete_is_left_once_with_the_cause() {
    let stage = stage(&["a", "b"]).await;
    stage.world.add_rule(Rule {
        op: Some(Op::Delete),
        error: Some(Reason::Credentials),
        times: Some(1),
        ..Rule::default()
    });
    let (_, outcome) = deletion(&stage, 2, Output::Table).await;
    let words = outcome.expect_err("one is there still").to_string();
    assert!(words.starts_with("1 of them is left: sim://"), "{words}");
    assert_eq!(words.matches("sim://").count(), 1, "{words}");
    assert!(words.contains("(refused: "), "{words}");
}

/// A provider that does not delete what belongs to the Proxy of this name.
fn protect(stage: &Stage, name: &str) {
    stage.world.add_rule(Rule {
        op: Some(Op::Delete),
        matching: Some(format!("crawl/{name}")),
        error: Some(Reason::Credentials),
        ..Rule::default()
    });
}

#[test]
fn a_wrong_number_is_answered_in_the_right_number_and_with_advice_that_can_be_followed() {
    for (found, held, asked, want) in [
        (
            0,
            0,
            1,
            "0 orphans may go, not 1: nothing is deleted; `gc --dry-run` shows what there is",
        ),
        (
            0,
            1,
            1,
            "0 orphans may go, not 1 (and 1 is held): nothing is deleted; `gc --dry-run` shows what \
             there is",
        ),
        (
            1,
            2,
            4,
            "1 orphan may go, not 4 (and 2 are held): nothing is deleted; look at it with `gc \
             --dry-run`, and if it is to go give --count 1",
        ),
        (
            30,
            0,
            29,
            "30 orphans may go, not 29: nothing is deleted; look at them with `gc --dry-run`, and if \
             they are to go give --count 30",
        ),
    ] {
        let error = Error::Count { found, held, asked };
        assert_eq!(error.to_string(), want);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_gives_each_orphan_its_turn_and_ends_when_only_refused_ones_are_left() {
    // Seven that are never deleted are older than the two that are.
    let stage = stage(&[]).await;
    for n in 0..7 {
        stage.make(&format!("kept-{n}"), "zone-a").await;
        protect(&stage, &format!("kept-{n}"));
    }
    tokio::time::sleep(CYCLE).await;
    for name in ["free-0", "free-1"] {
        stage.make(name, "zone-a").await;
    }
    tokio::time::sleep(2 * CYCLE).await;
    let began = tokio::time::Instant::now();
    let deletion = deletion(&stage, 9, Output::Table);
    let (said, outcome) = tokio::time::timeout(20 * CYCLE, deletion)
        .await
        .expect("it ends");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(!stage.is_kept("free-0") && !stage.is_kept("free-1"));
    let words = outcome.expect_err("seven are there still").to_string();
    assert!(words.starts_with("7 of them are left: sim://"), "{words}");
    // Each with its cause, also those whose turn was not in the latest cycle.
    assert_eq!(words.matches("(refused: ").count(), 7, "{words}");
    assert_eq!(
        began.elapsed().as_secs() / CYCLE.as_secs(),
        2,
        "nine take two cycles after the look"
    );
}

#[tokio::test(start_paused = true)]
async fn an_orphan_of_an_age_that_nobody_tells_is_left_and_not_waited_for() {
    let stage = stage(&["a"]).await;
    let mut report = {
        let (mut past, stop) = (Past::default(), CancellationToken::new());
        let report = stage.collector.cycle(&mut past, None, &stop).await;
        report.expect("nobody stops it")
    };
    let orphan = &mut report.decision.orphans[0];
    orphan.verdict = Verdict::Keep(Skip::Young);
    let all = HashSet::from([orphan.sighting.life()]);
    assert_eq!(Counted::new(all.clone()).rest(&report), Rest::Waits);
    report.decision.orphans[0].sighting.instance.created = None;
    let rest = Counted::new(all).rest(&report);
    assert!(matches!(rest, Rest::Stuck(_)), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_another_hand_deletes_between_list_and_read_is_no_failure() {
    let stage = stage(&["a", "b"]).await;
    stage.world.add_rule(Rule {
        op: Some(Op::Get),
        delay: Duration::from_secs(10),
        ..Rule::default()
    });
    let world = stage.world.clone();
    let other_hand = async {
        tokio::time::sleep(CYCLE + Duration::from_secs(5)).await;
        for name in ["a", "b"] {
            assert!(world.vanish(&owner(CLUSTER, name).instance_name()));
        }
    };
    let ((said, outcome), ()) = tokio::join!(deletion(&stage, 2, Output::Table), other_hand);
    outcome.expect("both are gone");
    assert_eq!(said, "", "nothing was deleted by this hand");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_does_not_answer_matters_while_a_counted_orphan_may_lie_there() {
    let one = stage(&["a"]).await;
    one.make("b", "zone-b").await;
    let world = one.world.clone();
    let cut = async {
        tokio::time::sleep(CYCLE / 2).await;
        world.cut_off("zone-b");
    };
    let ((_, outcome), ()) = tokio::join!(deletion(&one, 2, Output::Table), cut);
    let words = outcome.expect_err("b may be there").to_string();
    let start = "what became of 1 of them is not known";
    assert!(
        words.starts_with(start) && words.contains("sim/zone-b"),
        "{words}"
    );

    // Five go in the cycle before the cut, and what comes last lies elsewhere.
    let other = stage(&[]).await;
    for n in 0..5 {
        other.make(&format!("b{n}"), "zone-b").await;
    }
    tokio::time::sleep(CYCLE).await;
    other.make("last", "zone-a").await;
    tokio::time::sleep(2 * CYCLE).await;
    let world = other.world.clone();
    let cut = async {
        tokio::time::sleep(CYCLE + CYCLE / 2).await;
        world.cut_off("zone-b");
    };
    let ((said, outcome), ()) = tokio::join!(deletion(&other, 6, Output::Table), cut);
    outcome.expect("all were seen to go");
    assert_eq!(said.lines().count(), 6, "{said}");
}

#[test]
fn a_cluster_id_that_nothing_keeps_leads_to_the_namespace_that_was_asked() {
    let guard = |stored: Option<&str>| Guard::ClusterId {
        store: "proxy-operator/proxy-operator".into(),
        stored: stored.map(Into::into),
        own: "here".into(),
    };
    assert!(told(&guard(None)).contains("--namespace"));
    assert!(!told(&guard(Some("there"))).contains("--namespace"));
}
