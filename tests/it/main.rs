//! The operator end to end, on the embedded and on the real API server, and the rules that the whole tree obeys.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod dev;
#[cfg(feature = "gce")]
mod gce;
#[cfg(feature = "gce")]
mod gce_orphans;
mod install;
mod kubectl;
mod numbers;
mod policy;
mod readme;
mod rest;
mod rights;
mod start;
mod stop;

/// The scenarios on the embedded API server.
mod embedded {
    use crate::common::world::World;

    pub(crate) async fn world() -> Option<World> {
        Some(World::embedded().await)
    }

    crate::for_every_scenario!(crate::embedded::world);
}

/// The scenarios on a real kube-apiserver, where its program is built; else each says that it was skipped.
mod conformance {
    use crate::common::world::World;

    pub(crate) async fn world() -> Option<World> {
        let world = World::real().await;
        if world.is_none() {
            crate::common::skipped(&format!(
                "no real API server at {} (see tests/realcluster)",
                realcluster::RealCluster::path().display()
            ));
        }
        world
    }

    crate::for_every_scenario!(crate::conformance::world);
}
