//! Named checks behind one path, one path each below it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use tracing::warn;

use super::page::{Endpoint, Page, PageRequest};
use crate::error::Chain;
use crate::reconcile::BoxError;

type Test = Box<dyn Fn() -> Result<(), BoxError> + Send + Sync>;

/// Checks with names, answered the way the probes of Kubernetes components are.
///
/// | request | answer |
/// |---|---|
/// | `/healthz` | 200 `ok`, or 500 with a line for each check |
/// | `/healthz?verbose` | a line for each check in either case |
/// | `/healthz?exclude=a&exclude=b` | as if `a` and `b` held; they are not run |
/// | `/healthz/a` | `a` alone; 404 if there is none of that name |
///
/// Why a check fails stands in the log (at the 1st, 2nd, 4th, 8th … time in a row), never in the
/// answer, which anybody may read. Without any check the answer is 200.
///
/// ```
/// use controller::server::{Endpoint, Health, PageRequest};
///
/// let health = Health::new().check("disk", || Err("disk is full".into()));
/// let page = health.answer(&PageRequest { subpath: "", query: "" });
/// assert_eq!(page.status, 500);
/// assert_eq!(page.body, "[-]disk failed: reason withheld\nhealth check failed\n");
/// ```
#[derive(Default)]
pub struct Health {
    checks: Vec<Check>,
}

struct Check {
    name: String,
    test: Test,
    /// Failures in a row.
    failures: AtomicU64,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.checks.iter().map(|check| &check.name);
        f.debug_set().entries(names).finish()
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    Failed,
    Excluded,
}

impl Health {
    /// No check.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check; one of the same name is replaced. `test` must not block; its panic is a failure.
    #[must_use]
    pub fn check<F>(mut self, name: impl Into<String>, test: F) -> Self
    where
        F: Fn() -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let name = name.into();
        self.checks.retain(|check| check.name != name);
        self.checks.push(Check {
            name,
            test: Box::new(test),
            failures: AtomicU64::new(0),
        });
        self
    }
}

impl Check {
    fn run(&self) -> Outcome {
        // A check that has panicked says itself what that left behind.
        let result = catch_unwind(AssertUnwindSafe(|| (self.test)()))
            .unwrap_or_else(|_| Err("the check panicked".into()));
        let Err(error) = result else {
            self.failures.store(0, Ordering::Relaxed);
            return Outcome::Ok;
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures.is_power_of_two() {
            let (check, error) = (self.name.as_str(), Chain(&*error));
            warn!(check, %error, failures, "health check failed");
        }
        Outcome::Failed
    }
}

impl Endpoint for Health {
    fn answer(&self, request: &PageRequest<'_>) -> Page {
        if !request.subpath.is_empty() {
            let check = self.checks.iter().find(|one| one.name == request.subpath);
            return match check.map(Check::run) {
                None => Page::not_found(),
                Some(Outcome::Failed) => failed("reason withheld\n"),
                Some(_) => Page::text(StatusCode::OK, "ok"),
            };
        }
        let excluded = request.values("exclude");
        let outcomes: Vec<_> = self
            .checks
            .iter()
            .map(|check| {
                let outcome = if excluded.contains(&check.name) {
                    Outcome::Excluded
                } else {
                    check.run()
                };
                (check.name.as_str(), outcome)
            })
            .collect();
        let unknown = excluded
            .iter()
            .filter(|name| self.checks.iter().all(|check| check.name != **name))
            .count();
        report(&outcomes, unknown, request.has("verbose"))
    }
}

fn failed(body: &str) -> Page {
    Page::text(StatusCode::INTERNAL_SERVER_ERROR, body)
}

/// The answer for all checks together. `unknown` counts exclusions that name no check.
fn report(outcomes: &[(&str, Outcome)], unknown: usize, verbose: bool) -> Page {
    let healthy = outcomes
        .iter()
        .all(|(_, outcome)| *outcome != Outcome::Failed);
    if healthy && !verbose {
        return Page::text(StatusCode::OK, "ok");
    }
    let mut body = String::new();
    for (name, outcome) in outcomes {
        body.push_str(&match outcome {
            Outcome::Ok => format!("[+]{name} ok\n"),
            Outcome::Excluded => format!("[+]{name} excluded: ok\n"),
            Outcome::Failed => format!("[-]{name} failed: reason withheld\n"),
        });
    }
    if unknown > 0 {
        // Their names came with the request and are not repeated.
        body.push_str(&format!("warn: {unknown} excluded names match no check\n"));
    }
    if healthy {
        body.push_str("health check passed\n");
        return Page::text(StatusCode::OK, body);
    }
    body.push_str("health check failed\n");
    failed(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health::new()
            .check("ping", || Ok(()))
            .check("disk", || Err("the secret reason".into()))
            .check("net", || panic!("the secret reason"))
    }

    #[test]
    fn k6_probes_ok_failing_excluded_verbose_single_and_unknown() {
        let bad = "[+]ping ok\n[-]disk failed: reason withheld\n[-]net failed: reason withheld\n\
                   health check failed\n";
        let excluded =
            "[+]ping ok\n[+]disk excluded: ok\n[+]net excluded: ok\nhealth check passed\n";
        let warned = "[+]ping ok\n[+]disk excluded: ok\n[+]net excluded: ok\n\
                      warn: 1 excluded names match no check\nhealth check passed\n";
        let half = "[+]ping ok\n[+]disk excluded: ok\n[-]net failed: reason withheld\n\
                    health check failed\n";
        let table = [
            ("", "", 500, bad),
            ("", "verbose", 500, bad),
            ("", "exclude=disk", 500, half),
            ("", "exclude=disk&exclude=net", 200, "ok"),
            ("", "verbose&exclude=disk&exclude=net", 200, excluded),
            ("", "verbose=1&exclude=di%73k&exclude=net", 200, excluded),
            (
                "",
                "verbose&exclude=disk&exclude=net&exclude=x",
                200,
                warned,
            ),
            ("ping", "", 200, "ok"),
            ("disk", "", 500, "reason withheld\n"),
            ("disk", "exclude=disk", 500, "reason withheld\n"),
            ("net", "", 500, "reason withheld\n"),
            ("x", "", 404, "404 not found\n"),
            ("ping/x", "", 404, "404 not found\n"),
        ];
        let health = health();
        for (subpath, query, status, body) in table {
            let page = health.answer(&PageRequest { subpath, query });
            assert_eq!(
                (page.status.as_u16(), page.body.as_str()),
                (status, body),
                "/{subpath}?{query}"
            );
            assert!(!page.body.contains("secret"), "reasons stay in the log");
        }
    }

    #[test]
    fn without_checks_all_is_well() {
        let page = Health::new().answer(&PageRequest {
            subpath: "",
            query: "",
        });
        assert_eq!((page.status.as_u16(), page.body.as_str()), (200, "ok"));
    }

    #[test]
    fn a_later_check_of_a_name_replaces_the_earlier() {
        let health = health().check("disk", || Ok(())).check("net", || Ok(()));
        let page = health.answer(&PageRequest {
            subpath: "",
            query: "",
        });
        assert_eq!(page.status, StatusCode::OK);
    }
}
