//! What the queue promises, case by case. Names carry the ids of the specification's rows.

#[cfg(test)]
mod core;
#[cfg(test)]
mod delayed;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod fair;
#[cfg(test)]
mod limited;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod model;
#[cfg(test)]
mod priority;
#[cfg(test)]
mod shards;
#[cfg(test)]
mod support;
