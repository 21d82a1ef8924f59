//! The command line: flags, their environment twins, and what they turn into.
//!
//! A flag that is unknown or has a bad value ends the process with exit code 2 and a text that
//! names flag, value and what is allowed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{CommandFactory, Parser, Subcommand};
use controller::Signals;
use controller::informer::client::ConfigSource;
use k8s_openapi::jiff::SignedDuration;
use tracing_subscriber::EnvFilter;

use crate::Options;
use crate::commands::{CrdArgs, ManifestsArgs, ValidateArgs};
use crate::controller::Timing;
use crate::effective::effective;
use crate::operations::OperationsArgs;
use crate::orphans;
use crate::provider::config::Providers;
use crate::telemetry::{self, LogFormat};

/// Runs fleets of forward proxies on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "proxy-operator", version)]
#[cfg_attr(feature = "dev", command(after_help = "Without a command: dev."))]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator against a cluster.
    ///
    /// The cluster is the one that --kubeconfig names, else the one this process runs in, else
    /// that of KUBECONFIG or ~/.kube/config.
    Run(Box<RunArgs>),
    /// Run everything on an embedded development cluster.
    #[cfg(feature = "dev")]
    Dev(crate::dev::Args),
    /// Show the instances that no Proxy stands behind any more, or delete them.
    Gc(Box<orphans::command::Args>),
    /// Print the CustomResourceDefinition, or bring it into a cluster (apply).
    Crd(CrdArgs),
    /// Print every object that installs the operator in a cluster.
    Manifests(ManifestsArgs),
    /// Say what an API server would refuse in manifests of Proxies, without one.
    Validate(ValidateArgs),
}

impl Args {
    /// Reads the command line of this process; prints help or a fault and exits if need be.
    #[must_use]
    pub fn read() -> Command {
        Self::try_parse()
            .unwrap_or_else(|error| with_commands(error).exit())
            .into_command()
    }

    fn into_command(self) -> Command {
        if let Some(command) = self.command {
            return command;
        }
        #[cfg(feature = "dev")]
        return Command::Dev(crate::dev::Args::default());
        #[cfg(not(feature = "dev"))]
        Self::command()
            .error(
                clap::error::ErrorKind::MissingSubcommand,
                "a command is needed, see --help; for example `proxy-operator run`",
            )
            .exit()
    }
}

/// Flags of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Kubeconfig of the cluster; wins over the cluster that this process runs in.
    #[arg(long, value_name = "FILE", env = "PXO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// How many Proxies are worked on at the same time.
    #[arg(long, value_name = "N", env = "PXO_WORKERS", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: u16,

    /// Times.
    #[command(flatten)]
    times: Times,

    /// Marks the instances of this cluster; default is the UID of namespace kube-system.
    #[arg(long, value_name = "ID", env = "PXO_CLUSTER_ID", value_parser = cluster_id)]
    cluster_id: Option<String>,

    /// Look after the Proxies of these namespaces alone, divided by commas, without any right on
    /// the whole cluster; default is all namespaces.
    #[arg(long, value_name = "NAMESPACES", env = "PXO_NAMESPACES", value_delimiter = ',',
          requires = "cluster_id", value_parser = namespace)]
    namespaces: Vec<String>,

    /// Container image of the Proxies on pods that set no spec.machine.image.
    #[arg(long, value_name = "IMAGE", env = "PXO_DEFAULT_PROXY_IMAGE",
          value_parser = image)]
    default_proxy_image: Option<String>,

    /// YAML file of providers (name: {kind: …}); default is one, kubernetes, of kind kubernetes.
    #[arg(long, value_name = "FILE", env = "PXO_PROVIDERS", value_parser = providers)]
    providers: Option<Providers>,

    /// Orphans.
    #[command(flatten)]
    orphans: OrphanArgs,

    /// Loopback address and port at which simulated providers can be told to fail; default is none.
    #[arg(long, value_name = "ADDRESS", env = "PXO_SIM_ADMIN", value_parser = loopback)]
    sim_admin: Option<SocketAddr>,

    /// Leader election and endpoints.
    #[command(flatten)]
    operations: OperationsArgs,

    /// Logging.
    #[command(flatten)]
    log: LogArgs,

    /// Print what all flags and their environment twins come to, without secrets, and exit.
    #[arg(long, env = "PXO_PRINT_CONFIG")]
    print_config: bool,

    /// Abort at a crash point, CP1 to CP10; for tests.
    #[cfg(any(test, debug_assertions, feature = "testing"))]
    #[arg(long, value_name = "CPn", env = "PXO_CRASH_AT")]
    crash_at: Option<crate::crash::Cp>,
}

/// Flags about logging.
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// How log lines look.
    #[arg(long, value_name = "FORMAT", env = "PXO_LOG_FORMAT", default_value_t)]
    pub log_format: LogFormat,

    /// What is logged: off, error, warn, info, debug, trace, or target=level pairs.
    #[arg(long, value_name = "FILTER", env = "PXO_LOG", default_value = "info",
          value_parser = log_filter)]
    pub log: LogFilter,
}

/// Flags about times, such as 500ms, 10s, 5m or 1h30m.
#[derive(Debug, clap::Args)]
pub struct Times {
    /// Wait between two looks at an instance that comes up.
    #[arg(long, value_name = "TIME", env = "PXO_PROVISIONING_POLL", default_value = "10s",
          value_parser = between("100ms", "1h"))]
    provisioning_poll: Duration,

    /// Wait between two looks at an instance that goes away.
    #[arg(long, value_name = "TIME", env = "PXO_DELETION_POLL", default_value = "10s",
          value_parser = between("100ms", "1h"))]
    deletion_poll: Duration,

    /// Wait between two looks at an instance that runs, give or take 10 %.
    #[arg(long, value_name = "TIME", env = "PXO_DRIFT_POLL", default_value = "5m",
          value_parser = between("100ms", "24h"))]
    drift_poll: Duration,

    /// Age at which an instance that did not come up is deleted and made again.
    #[arg(long, value_name = "TIME", env = "PXO_PROVISIONING_TIMEOUT", default_value = "15m",
          value_parser = between("1s", "24h"))]
    provisioning_timeout: Duration,

    /// Wait before the next step of work that goes on.
    #[arg(long, value_name = "TIME", env = "PXO_REQUEUE_NOW", default_value = "50ms",
          value_parser = between("1ms", "10s"))]
    requeue_now: Duration,

    /// Wait after a quota or stock refusal, give or take 20 %.
    #[arg(long, value_name = "TIME", env = "PXO_QUOTA_RETRY", default_value = "10m",
          value_parser = between("100ms", "24h"))]
    quota_retry: Duration,

    /// Wait of a replacement that the disruption budget put off, give or take 20 %.
    #[arg(long, value_name = "TIME", env = "PXO_BUDGET_RETRY", default_value = "30s",
          value_parser = between("100ms", "1h"))]
    budget_retry: Duration,

    /// Wait after the first failure of a Proxy; doubles with each further one.
    #[arg(long, value_name = "TIME", env = "PXO_BACKOFF_BASE", default_value = "500ms",
          value_parser = between("1ms", "1h"))]
    backoff_base: Duration,

    /// Longest wait of a Proxy that fails; no less than --backoff-base.
    #[arg(long, value_name = "TIME", env = "PXO_BACKOFF_MAX", default_value = "5m",
          value_parser = between("1ms", "24h"))]
    backoff_max: Duration,
}

/// Flags about instances that no Proxy stands behind any more.
#[derive(Debug, clap::Args)]
pub struct OrphanArgs {
    /// What becomes of instances without a Proxy.
    #[arg(long, value_name = "MODE", env = "PXO_GC_MODE", default_value_t)]
    gc_mode: orphans::Mode,

    /// Time from one look for orphans to the next.
    #[arg(long, value_name = "TIME", env = "PXO_GC_INTERVAL", default_value = "10m",
          value_parser = between("100ms", "24h"))]
    gc_interval: Duration,

    /// Age below which an instance without a Proxy is left alone.
    #[arg(long, value_name = "TIME", env = "PXO_GC_MIN_AGE", default_value = "15m",
          value_parser = between("0s", "24h"))]
    gc_min_age: Duration,

    /// How long the API server must have answered without a break before an orphan is deleted.
    #[arg(long, value_name = "TIME", env = "PXO_GC_CALM", default_value = "5m",
          value_parser = between("0s", "24h"))]
    gc_calm: Duration,
}

/// A log filter that was checked; [`EnvFilter`] itself cannot be cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter to log with.
    #[must_use]
    pub fn to_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl RunArgs {
    /// The options of the operator.
    ///
    /// # Errors
    ///
    /// A usage error (exit code 2) for flags that do not go together.
    pub fn into_options(self) -> Result<Options, clap::Error> {
        let times = self.times;
        if times.backoff_max < times.backoff_base {
            return Err(Args::command().error(
                clap::error::ErrorKind::ValueValidation,
                format!(
                    "--backoff-max is {:?}, less than --backoff-base, which is {:?}; allowed is \
                     any time from --backoff-base to 24h",
                    times.backoff_max, times.backoff_base
                ),
            ));
        }
        let providers = self.providers.unwrap_or_default();
        if self.sim_admin.is_some() && providers.clone().worlds().is_empty() {
            return Err(Args::command().error(
                clap::error::ErrorKind::ValueValidation,
                "--sim-admin is of use with a provider of kind sim in --providers, and there is \
                 none",
            ));
        }
        let operations = self.operations.into_operations().map_err(|fault| {
            Args::command().error(clap::error::ErrorKind::ValueValidation, fault)
        })?;
        Ok(Options {
            cluster: ConfigSource {
                kubeconfig: self.kubeconfig,
                context: None,
            },
            workers: usize::from(self.workers),
            timing: Timing {
                provisioning_poll: times.provisioning_poll,
                deletion_poll: times.deletion_poll,
                drift_poll: times.drift_poll,
                requeue_now: times.requeue_now,
                quota_retry: times.quota_retry,
                budget_retry: times.budget_retry,
                backoff_base: times.backoff_base,
                backoff_max: times.backoff_max,
                provisioning_timeout: times.provisioning_timeout,
            },
            cluster_id: self.cluster_id,
            default_proxy_image: self.default_proxy_image,
            providers,
            operations,
            orphans: orphans::Settings {
                mode: self.orphans.gc_mode,
                interval: self.orphans.gc_interval,
                min_age: self.orphans.gc_min_age,
                calm: self.orphans.gc_calm,
            },
            namespaces: self.namespaces,
            sim_admin: self.sim_admin,
            ..Options::default()
        })
    }
}

/// Adds to the refusal of an unknown command the ones that there are.
fn with_commands(error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    // One below another command: clap's own text has what is alike there.
    let first = std::env::args().nth(1).unwrap_or_default();
    if Args::command().find_subcommand(&first).is_some() {
        return error;
    }
    let command = Args::command();
    let known: Vec<_> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    let asked = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => name.clone(),
        _ => String::new(),
    };
    Args::command().error(
        ErrorKind::InvalidSubcommand,
        format!(
            "there is no command {asked:?}; there are {}",
            known.join(", ")
        ),
    )
}

/// Does what the command line asks for; returns when it is done or was stopped by a signal.
///
/// # Errors
///
/// Whatever the command failed with; the process should end with exit code 1. A usage error does
/// not return: it ends the process with exit code 2.
pub async fn execute(command: Command) -> Result<(), crate::Error> {
    match command {
        Command::Run(args) if args.print_config => {
            args.into_options().unwrap_or_else(|error| error.exit());
            print_config()
        }
        Command::Run(args) => {
            telemetry::init(args.log.log_format, args.log.log.to_filter())?;
            #[cfg(any(test, debug_assertions, feature = "testing"))]
            if let Some(cp) = args.crash_at {
                crate::crash::arm(cp);
            }
            let options = args.into_options().unwrap_or_else(|error| error.exit());
            let signals = Signals::install()?;
            crate::run(options, signals.stop()).await
        }
        #[cfg(feature = "dev")]
        Command::Dev(args) => Ok(crate::dev::run(args).await.map_err(Box::new)?),
        Command::Gc(args) => Ok(orphans::command::run(*args).await.map_err(Box::new)?),
        Command::Crd(args) => Ok(args.execute().await?),
        Command::Manifests(args) => Ok(args.execute()?),
        Command::Validate(args) => Ok(args.execute()?),
    }
}

/// O-01: prints the flags of `run` that this process was started with.
fn print_config() -> Result<(), crate::Error> {
    let mut command = Args::command();
    let matches = command.get_matches_mut();
    let both = command
        .find_subcommand("run")
        .zip(matches.subcommand_matches("run"));
    let text = both.map_or_else(String::new, |(run, matches)| effective(run, matches));
    Ok(crate::commands::print(&text)?)
}

pub(crate) fn between(
    least: &'static str,
    most: &'static str,
) -> impl TypedValueParser<Value = Duration> {
    clap::builder::StringValueParser::new().try_map(move |text| {
        let allowed = || format!("allowed is {least} to {most}, written as 500ms, 10s, 5m or 1h");
        let time = duration(&text).ok_or_else(allowed)?;
        let range = duration(least)..=duration(most);
        if range.contains(&Some(time)) {
            Ok(time)
        } else {
            Err(allowed())
        }
    })
}

fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}

/// It becomes a pod label and a cloud label.
pub(crate) fn cluster_id(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    if bytes.len() <= 63
        && bytes.iter().copied().all(inner)
        && end(bytes.first())
        && end(bytes.last())
    {
        Ok(text.to_owned())
    } else {
        Err(
            "allowed are 1 to 63 of a-z, 0-9, - and _, beginning and ending with a letter or \
             digit"
                .to_owned(),
        )
    }
}

/// A DNS label.
pub(crate) fn namespace(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_label = (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_label {
        Ok(text.to_owned())
    } else {
        Err("allowed are names of namespaces divided by commas, such as crawl,search".to_owned())
    }
}

/// What the API server would refuse in every pod, and so for the whole fleet.
pub(crate) fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_whitespace) {
        Err(
            "allowed is a reference without white space, such as registry.example/proxy:1"
                .to_owned(),
        )
    } else {
        Ok(text.to_owned())
    }
}

/// The control API of simulated providers has no authentication.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok();
    address
        .filter(|address| address.ip().is_loopback())
        .ok_or_else(|| {
            "allowed is a loopback address and a port, such as 127.0.0.1:8090 or [::1]:8090"
                .to_owned()
        })
}

pub(crate) fn providers(path: &str) -> Result<Providers, String> {
    Providers::read(path.as_ref()).map_err(|error| error.to_string())
}

fn log_filter(text: &str) -> Result<LogFilter, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(LogFilter(text.to_owned())),
        Err(error) => Err(format!(
            "{error}; allowed are off, error, warn, info, debug, trace, or target=level pairs \
             divided by commas"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(flags: &[&str]) -> Result<Options, clap::Error> {
        let args = ["proxy-operator", "run"].iter().chain(flags);
        match Args::try_parse_from(args)?.command {
            Some(Command::Run(args)) => args.into_options(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn o01_defaults_are_those_of_the_library() {
        let options = run(&[]).expect("no flag is needed");
        assert_eq!(options.timing, Timing::default());
        assert_eq!(options.workers, Options::default().workers);
        assert_eq!(options.providers, Providers::default());
    }

    #[test]
    fn o01_a_bad_value_names_flag_value_and_what_is_allowed() {
        for (flags, parts) in [
            (&["--workers", "0"][..], &["--workers", "0", "1..=1000"][..]),
            (&["--workers", "many"], &["--workers", "many"]),
            (
                &["--drift-poll", "7"],
                &["--drift-poll", "7", "100ms to 24h"],
            ),
            (
                &["--drift-poll=-1s"],
                &["--drift-poll", "-1s", "100ms to 24h"],
            ),
            (
                &["--requeue-now", "1h"],
                &["--requeue-now", "1h", "1ms to 10s"],
            ),
            (
                &["--default-proxy-image", "a b"],
                &["--default-proxy-image", "a b", "registry.example/proxy:1"],
            ),
            (&["--cluster-id", "A"], &["--cluster-id", "A", "1 to 63"]),
            (
                &["--log-format", "xml"],
                &["--log-format", "xml", "json", "text"],
            ),
            (&["--log", "a=b=c"], &["--log", "a=b=c", "info"]),
            (
                &["--providers", "/none.yaml"],
                &["--providers", "/none.yaml"],
            ),
            (
                &["--crash-at", "CP11"],
                &["--crash-at", "CP11", "CP1 to CP10"],
            ),
            (
                &["--backoff-base", "10s", "--backoff-max", "1s"],
                &["--backoff-max", "1s", "10s"],
            ),
            (
                &["--gc-mode", "purge"],
                &["--gc-mode", "purge", "off", "dry-run", "delete"],
            ),
            (
                &["--sim-admin", "10.0.0.1:8090"],
                &["--sim-admin", "10.0.0.1:8090", "127.0.0.1:8090"],
            ),
            (&["--wrkers", "1"], &["--wrkers", "--workers"]),
            (
                &["--namespaces", "a,B", "--cluster-id", "c"],
                &["--namespaces", "B", "crawl,search"],
            ),
            (&["--namespaces", "a"], &["--cluster-id"]),
            (
                &["--health-address", "8081"],
                &["--health-address", "8081", "0.0.0.0:8081"],
            ),
            (
                &["--leader-elect-lease-duration", "1500ms"],
                &["lease_duration", "1.5s", "whole seconds"],
            ),
            (
                &["--leader-elect-renew-deadline", "20s"],
                &["--leader-elect", "lease_duration is 15s", "20s"],
            ),
            (
                &["--metrics-address", "127.0.0.1:0", "--metrics-auth"],
                &["--metrics-tls"],
            ),
            (
                &["--sim-admin", "127.0.0.1:8090"],
                &["--sim-admin", "--providers", "kind sim"],
            ),
        ] {
            let error = run(flags).expect_err("a bad flag");
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{text}");
            for part in parts {
                assert!(text.contains(part), "{flags:?} should name {part}: {text}");
            }
        }
    }

    #[test]
    fn d10_gc_asks_what_to_do_and_to_delete_for_the_number() {
        for (flags, part) in [
            (&[][..], "--dry-run"),
            (&["--delete"], "--count"),
            (&["--delete", "--count", "0"], "--count"),
            (&["--count", "3"], "--dry-run"),
            (&["--dry-run", "--count", "3"], "--count"),
            (&["--dry-run", "--delete", "--count", "3"], "--delete"),
            (&["--dry-run", "-o", "xml"], "json"),
        ] {
            let args = ["proxy-operator", "gc"].iter().chain(flags);
            let error = Args::try_parse_from(args).expect_err("refused");
            assert_eq!(error.exit_code(), 2, "{flags:?}");
            assert!(error.to_string().contains(part), "{flags:?}: {error}");
        }
        for flags in [&["--dry-run"][..], &["--delete", "--count", "3"]] {
            let args = ["proxy-operator", "gc"].iter().chain(flags);
            assert!(Args::try_parse_from(args).is_ok(), "{flags:?}");
        }
    }

    #[test]
    fn o01_every_flag_of_run_has_an_environment_twin() {
        let command = Args::command();
        let run = command.find_subcommand("run").expect("there");
        for flag in run.get_arguments().filter(|flag| flag.get_id() != "help") {
            let long = flag.get_long().expect("only long flags");
            let twin = format!("PXO_{}", long.to_uppercase().replace('-', "_"));
            let env = flag.get_env().and_then(|name| name.to_str());
            assert_eq!(env, Some(twin.as_str()), "--{long}");
        }
    }

    #[test]
    fn gc_reads_variables_of_run_and_the_documentation_names_the_flags_to_repeat() {
        let command = Args::command();
        let variables = |name: &str| -> Vec<_> {
            let command = command.find_subcommand(name).expect("there");
            let flags = command.get_arguments();
            flags.filter_map(|flag| flag.get_env()).collect()
        };
        let of_run = variables("run");
        for variable in variables("gc") {
            assert!(of_run.contains(&variable), "{}", variable.display());
        }
        let text = include_str!("../docs/run.md");
        let of_gc = text.split_once(ORPHANS_BY_HAND).expect("a section of gc").1;
        let prose = of_gc.split_once("\n| ").expect("a table").0;
        for flag in ["--namespaces", "--providers", "--cluster-id"] {
            assert!(prose.contains(&format!("`{flag}`")), "{flag}: {prose}");
        }
    }

    /// The flags of a command must stand in a part of the documentation, with their defaults.
    fn is_explained(command: &str, text: &str) {
        let all = Args::command();
        let command = all.find_subcommand(command).expect("there");
        for flag in command
            .get_arguments()
            .filter(|flag| flag.get_id() != "help")
        {
            let long = flag.get_long().expect("only long flags");
            // With the name of its value, or without one.
            let starts = [format!("| `--{long} "), format!("| `--{long}` ")];
            let line = text
                .lines()
                .find(|line| starts.iter().any(|start| line.starts_with(start)));
            let line = line.unwrap_or_else(|| panic!("docs/run.md has no line for --{long}"));
            for default in flag.get_default_values() {
                let default = default.to_str().expect("text");
                assert!(
                    line.contains(&format!("| {default} |")),
                    "--{long}: {default}: {line}"
                );
            }
            if let Some(twin) = flag.get_env().and_then(|name| name.to_str()) {
                let by_rule = format!("PXO_{}", long.to_uppercase().replace('-', "_"));
                let is_named = line.contains(&format!("`{twin}`"));
                assert!(
                    is_named || text == of_run() && twin == by_rule,
                    "--{long}: {twin}"
                );
            }
        }
    }

    const ORPHANS_BY_HAND: &str = "### Orphans by hand";

    fn of_run() -> &'static str {
        let text = include_str!("../docs/run.md");
        text.split_once(ORPHANS_BY_HAND).expect("a section of gc").0
    }

    #[test]
    fn every_flag_of_run_and_gc_is_explained_with_its_default_in_the_documentation() {
        is_explained("run", of_run());
        let text = include_str!("../docs/run.md");
        let of_gc = text.split_once(ORPHANS_BY_HAND).expect("a section of gc").1;
        is_explained("gc", of_gc);
    }

    #[test]
    fn times_are_written_with_a_unit() {
        for (text, want) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("10s", Some(Duration::from_secs(10))),
            ("1h30m", Some(Duration::from_secs(5400))),
            ("5", None),
            ("", None),
            ("-5s", None),
        ] {
            assert_eq!(duration(text), want, "{text:?}");
        }
    }
}
