//! The protocol between an informer and an API server: the same scenarios on the embedded server and, where it
//! is built, on a real one, both behind a proxy that brings the faults that no server shows on demand.
//!
//! `INFORMER_KILL_ROUNDS` sets how many rounds of kills are made (2), `INFORMER_KILL_SEED` the seed of the first.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper that fails fails its test; a skipped test says so"
)]

mod follower;
mod scenarios;
mod world;

/// The scenarios on the embedded API server.
mod embedded {
    async fn world(_use: crate::world::Use) -> Option<crate::world::World> {
        Some(crate::world::World::embedded().await)
    }

    crate::for_every_scenario!(crate::embedded::world);
}

/// The scenarios on a real kube-apiserver, where its program is built; else each says that it was skipped.
mod real {
    async fn world(uses: crate::world::Use) -> Option<crate::world::World> {
        crate::world::World::real(uses).await
    }

    crate::for_every_scenario!(crate::real::world);
}
