//! `/fake/…`: how another process steers the world that a test in this process holds directly.
//!
//! | call | does |
//! |---|---|
//! | GET `instances` | all VMs, also hidden ones |
//! | GET `calls` | the calls since the last look |
//! | POST `rules` | adds a rule; DELETE drops all |
//! | POST `instances/NAME/(stop, preempt, vanish)` | does that to a VM |
//! | POST `quota` with a number or null | most VMs at a time |
//! | POST `unreachable` with a list of zones | zones that do not answer |

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::{Refusal, Reply};
use crate::world::World;

pub(crate) fn respond(world: &World, method: &Method, path: &str, body: &[u8]) -> Reply {
    steer(world, method, path, body).into()
}

fn steer(world: &World, method: &Method, path: &str, body: &[u8]) -> Result<Value, Box<Refusal>> {
    let segments: Vec<_> = path.split('/').collect();
    match (method, segments.as_slice()) {
        (&Method::GET, ["instances"]) => Ok(json!(world.machines())),
        (&Method::GET, ["calls"]) => Ok(json!(world.take_calls())),
        (&Method::POST, ["rules"]) => {
            world.add_rule(read(body)?);
            Ok(json!({}))
        }
        (&Method::DELETE, ["rules"]) => {
            world.clear_rules();
            Ok(json!({}))
        }
        (&Method::POST, ["quota"]) => {
            world.set_quota(read(body)?);
            Ok(json!({}))
        }
        (&Method::POST, ["unreachable"]) => {
            let zones: Vec<String> = read(body)?;
            world.set_unreachable(zones.iter().map(String::as_str));
            Ok(json!({}))
        }
        (&Method::POST, ["instances", name, what]) => {
            let found = match *what {
                "stop" => world.stop(name),
                "preempt" => world.preempt(name),
                "vanish" => world.vanish(name),
                _ => return Err(unknown(method, path)),
            };
            if found {
                Ok(json!({}))
            } else {
                Err(Refusal::not_found(name))
            }
        }
        _ => Err(unknown(method, path)),
    }
}

fn unknown(method: &Method, path: &str) -> Box<Refusal> {
    Refusal::boxed(404, "notFound", format!("No method {method} /fake/{path}"))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Refusal>> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::boxed(400, "parseError", format!("Parse Error: {error}")))
}
