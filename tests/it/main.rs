//! The operator end to end on the embedded API server, and the rules that the whole tree obeys.

#[path = "../common/mod.rs"]
mod common;

mod dev;
mod kubectl;
mod policy;
mod random_kills;
mod readme;

use common::world::World;

async fn embedded() -> Option<World> {
    Some(World::embedded().await)
}

for_every_scenario!(crate::embedded);
