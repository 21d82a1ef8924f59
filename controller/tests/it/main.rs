//! A controller from event to result, on paused time with scripted sources.

mod manager;
mod mirror;
mod properties;
mod results;
mod signals;
mod sources;
mod support;
mod sync;
mod workers;
