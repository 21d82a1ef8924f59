//! A controller from event to result, on paused time with scripted sources.

#[cfg(test)]
mod applied;
#[cfg(test)]
mod authorized;
#[cfg(test)]
mod contender;
#[cfg(test)]
mod events;
#[cfg(test)]
mod feeds;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod leading;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod manager;
#[cfg(test)]
mod mirror;
#[cfg(test)]
mod own_writes;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod real;
#[cfg(test)]
mod results;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod sharding;
#[cfg(test)]
mod shutdown;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod site;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod support;
#[cfg(test)]
mod sync;
#[cfg(test)]
mod workers;
#[cfg(test)]
mod writes;
