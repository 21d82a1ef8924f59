//! O-01: the flags that a command runs with, wherever they came from, for `--print-config`.

use clap::ArgMatches;
use clap::parser::ValueSource;

/// The flags of `command` as YAML: each with its value and, in a comment, where that came from.
///
/// Flags name files and never hold a secret themselves; should the value of one be an address with
/// a user and a password in it, these are left out.
pub(crate) fn effective(command: &clap::Command, matches: &ArgMatches) -> String {
    let flags = command.get_arguments().filter_map(|flag| {
        let id = flag.get_id().as_str();
        let long = flag.get_long()?;
        if matches!(id, "help" | "print_config") {
            return None;
        }
        let values = matches.get_raw(id).map(|values| {
            let values = values.map(|value| without_login(&value.to_string_lossy()));
            values.collect::<Vec<_>>().join(",")
        });
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => format!("--{long}"),
            Some(ValueSource::EnvVariable) => flag
                .get_env()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            Some(_) => "default".to_owned(),
            None => "not set".to_owned(),
        };
        let value = serde_json::Value::from(values);
        Some(format!("{long}: {value} # {source}\n"))
    });
    flags.collect()
}

/// An address without what stands before the @ of its host, and without its query.
fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    // A password may have any sign in it, a slash or an @ too, and a query may have one of its own.
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::*;

    fn command() -> Command {
        Command::new("run").args([
            Arg::new("workers").long("workers").default_value("3"),
            Arg::new("store").long("store"),
            Arg::new("file").long("file"),
            Arg::new("print_config")
                .long("print-config")
                .action(ArgAction::SetTrue),
            Arg::new("elect").long("elect").action(ArgAction::SetTrue),
        ])
    }

    #[test]
    fn o01_every_flag_is_shown_with_its_value_and_where_that_came_from() {
        let args = [
            "run",
            "--store",
            "redis://me:hun/t@er2@host:1/2?password=hunter2",
            "--print-config",
        ];
        let matches = command().try_get_matches_from(args).expect("valid");
        let mut command = command();
        command.build();
        let shown = effective(&command, &matches);
        assert_eq!(
            shown,
            "workers: \"3\" # default\n\
             store: \"redis://host:1/2\" # --store\n\
             file: null # not set\n\
             elect: \"false\" # default\n"
        );
    }
}
