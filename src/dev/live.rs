//! `dev` without `--once`: the fleet as it lives, until a signal ends it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Error;
use super::console::Console;
use super::fleet::{self, CLOUD_INIT_SECRET, Member, NAMESPACE, VICTIM};
use super::machines::SIM;
use super::stage::Stage;
use super::table;
use super::visit::visit;

/// How often the fleet is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Shows the fleet for ever; ends only with an error.
pub(super) async fn run(stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
    for line in hints(stage) {
        console.line(&line)?;
    }
    let mut view = View::default();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            error = stage.operator_ended() => return Err(error),
        }
        view.look(stage, console).await?;
    }
}

/// What to try.
fn hints(stage: &Stage) -> Vec<String> {
    let kubeconfig = stage.folder().kubeconfig();
    let lose = match stage.sim_admin() {
        Some(admin) => {
            format!("curl -X POST http://{admin}/{SIM}/machines/{NAMESPACE}/{VICTIM}/vanish")
        }
        None => {
            format!("kubectl -n {NAMESPACE} delete pod -l crawl.proxyoperator.dev/proxy={VICTIM}")
        }
    };
    let text = format!(
        "\nTry in another terminal:\n\
         \n  export KUBECONFIG={}\
         \n  kubectl get proxies -A -o wide -w\
         \n  kubectl -n {NAMESPACE} describe proxy {VICTIM}\
         \n  {lose}\
         \n  kubectl -n {NAMESPACE} patch proxy {VICTIM} --type merge \
         -p '{{\"spec\":{{\"tags\":{{\"pool\":\"news\"}}}}}}'\
         \n  kubectl -n {NAMESPACE} patch secret {CLOUD_INIT_SECRET} \
         -p '{{\"stringData\":{{\"user-data\":\"#!/bin/sh\"}}}}'\
         \n  kubectl -n {NAMESPACE} delete proxies --all\
         \n\nA page through a proxy (IP from the table): curl -x http://IP:3128 {}/\
         \nThe operator's log: {}\
         \nCtrl-C ends all of it.\n",
        kubeconfig.display(),
        stage.echo.url(),
        stage.folder().log().display(),
    );
    text.lines().map(str::to_owned).collect()
}

/// What was shown so far.
#[derive(Debug, Default)]
struct View {
    /// The line of each Proxy without its age, for output that is no terminal.
    rows: BTreeMap<String, String>,
    /// For each Proxy the incarnation that was visited, and how that went.
    visits: BTreeMap<String, (String, String)>,
    /// The last look that failed, so that it is told once.
    failure: Option<String>,
}

impl View {
    async fn look(&mut self, stage: &Stage, console: &mut Console) -> Result<(), Error> {
        let looked = async {
            let table = table::fetch(&stage.client).await?;
            let members = fleet::members(&stage.client, &stage.machines, None).await?;
            Ok::<_, kube_client::Error>((table, members))
        };
        let (table, members) = match looked.await {
            Ok(looked) => looked,
            Err(error) => {
                let failure = error.to_string();
                if self.failure.as_ref() != Some(&failure) {
                    console.timed(&format!("the fleet cannot be read: {failure}"))?;
                    self.failure = Some(failure);
                }
                return Ok(());
            }
        };
        self.failure = None;
        let fresh = self.visit(stage, &members).await;
        if console.is_terminal() {
            let mut lines = table.lines();
            lines.push(String::new());
            lines.push(format!("Requests to {} through each:", stage.echo.url()));
            lines.extend(
                self.visits
                    .iter()
                    .map(|(key, (_, told))| format!("  {key}: {told}")),
            );
            lines.push(String::new());
            lines.push(format!("{} Ctrl-C ends.", stage.url()));
            console.draw(&lines)?;
            return Ok(());
        }
        for line in self.changes(&members) {
            console.timed(&line)?;
        }
        for key in fresh {
            if let Some((_, told)) = self.visits.get(&key) {
                console.timed(&format!("{key}: {told}"))?;
            }
        }
        Ok(())
    }

    /// Fetches a page through each Ready proxy that was not visited in this incarnation.
    async fn visit(&mut self, stage: &Stage, members: &[Member]) -> Vec<String> {
        self.visits
            .retain(|key, _| members.iter().any(|member| member.key() == *key));
        let mut fresh = Vec::new();
        for member in members.iter().filter(|member| member.is_ready()) {
            let incarnation = format!("{} {}", member.machine().unwrap_or("-"), member.ip());
            if self
                .visits
                .get(&member.key())
                .is_some_and(|(seen, _)| *seen == incarnation)
            {
                continue;
            }
            let told = match visit(&stage.client, &member.proxy, &stage.echo).await {
                Ok(visit) => format!("via {}: {}", visit.proxy, visit.line()),
                Err(problem) => format!("failed: {problem}"),
            };
            self.visits.insert(member.key(), (incarnation, told));
            fresh.push(member.key());
        }
        fresh
    }

    /// A line for each Proxy that differs from what was shown, and for each that is gone.
    fn changes(&mut self, members: &[Member]) -> Vec<String> {
        let now: BTreeMap<String, String> = members
            .iter()
            .map(|member| (member.key(), member.line()))
            .collect();
        let mut lines: Vec<String> = self
            .rows
            .keys()
            .filter(|key| !now.contains_key(*key))
            .map(|key| format!("{key} is gone"))
            .collect();
        lines.extend(
            now.iter()
                .filter(|(key, line)| self.rows.get(*key) != Some(*line))
                .map(|(_, line)| line.clone()),
        );
        self.rows = now;
        lines
    }
}
