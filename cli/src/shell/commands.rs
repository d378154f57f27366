//! The commands of a shell: those of the command line on records and databases, and those of the
//! shell itself.

use crate::command_target::CommandTarget;
use crate::database::DatabaseCommand;
use crate::record_commands::RecordCommand;
use crate::server_options::ServerOptions;
use crate::time_to_live::seconds;
use crate::{CommandFailure, checkpoint, replicas, suggestions};
use clap::builder::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;

/// The text of `help`.
pub(super) const HELP: &str = "\
Records    get set delete incr decr touch    read and change records by key
           list count load dump flush        list, import, export, remove all
Server     ping stats replicas checkpoint    check and watch it
Databases  copy merge compact                on disk, while no server uses them
Shell      connect PLACE                     use another server or database
           watch [-n TIME] COMMAND           repeat a command until Ctrl-C
           time COMMAND                      print its duration
           help [COMMAND]   exit             as Ctrl-D

Words are separated by spaces. 'a b' and \"a b\\n\" are one word; \\xHH is any byte.
JSON needs no quotes and may have several lines: set k {\"a\": [1, 2]}
Tab completes commands, options and keys. A line that begins with a space is not
stored in the history. PAGER= switches off paging.
";

/// A command of a shell.
#[derive(Debug, Parser)]
#[command(multicall = true, disable_help_subcommand = true, args_override_self = true)]
pub(super) enum ShellCommand {
    #[command(flatten)]
    Data(Box<RecordCommand>),
    #[command(flatten)]
    Database(Box<DatabaseCommand>),
    /// Request the server to write a checkpoint of its data now
    Checkpoint(checkpoint::CheckpointArguments),
    /// Print the replicas of the server and its master, and their lag
    Replicas(replicas::ReplicasArguments),
    /// Use another server or database in all following commands
    #[command(after_help = "Examples:\n  connect 127.0.0.1:11311\n  connect ./carts.hash")]
    Connect {
        /// The server or the database, as for -S
        #[arg(value_name = "PLACE")]
        place: CommandTarget,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Repeat a command until Ctrl-C
    #[command(after_help = "Example:\n  watch -n 5 count")]
    Watch {
        /// The time between two runs, in seconds or as 1m ...
        #[arg(short = 'n', long, default_value = "2", value_parser = seconds, value_name = "TIME")]
        interval: i64,
        /// End after this number of runs
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run a command, and print its duration; in a batch, on standard error
    #[command(after_help = "Example:\n  time get hello")]
    Time {
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Print the commands, or the options of one
    Help {
        /// The command
        command: Option<String>,
    },
    /// End the shell
    #[command(visible_alias = "quit")]
    Exit,
}

/// The options that name a server. Help texts do not show them, because the shell has a server.
const PLACE_OPTIONS: [&str; 7] =
    ["server", "database", "user", "password_file", "tls_ca", "tls_cert", "tls_key"];

/// Returns clap's description of the commands.
pub(super) fn description() -> Command {
    let command = ShellCommand::command();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().into()).collect();
    names.iter().fold(command, |all, name| {
        all.mut_subcommand(name, |command| {
            command.mut_args(|option| match PLACE_OPTIONS.contains(&option.get_id().as_str()) {
                true => option.hide(true),
                false => option,
            })
        })
    })
}

/// The result of parsing: a command, or a text to print.
pub(super) enum ParsedCommand {
    /// A command to run.
    Command(Box<ShellCommand>),
    /// The help of a command.
    Help(String),
}

/// Parses a command. Commands may be in capitals, and after the word `todana`.
pub(super) fn parse(mut words: Vec<OsString>) -> Result<ParsedCommand, CommandFailure> {
    if words.len() > 1 && words[0] == "todana" {
        words.remove(0);
    }
    let name = words[0].to_string_lossy().to_ascii_lowercase();
    let mut description = description();
    match description.find_subcommand(&name) {
        Some(command) if !command.is_hide_set() => words[0] = name.into(),
        _ => {
            let tip = suggestions::suggestion(&name, &description, "")
                .map_or_else(|| "; `help` lists the commands".to_string(), |tip| format!("; {tip}"));
            return Err(CommandFailure::usage(format!("{name}: unknown command{tip}")));
        }
    }
    match description.try_get_matches_from_mut(words) {
        Ok(matches) => ShellCommand::from_arg_matches(&matches)
            .map(|command| ParsedCommand::Command(Box::new(command)))
            .map_err(|error| CommandFailure::usage(error.to_string())),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            Ok(ParsedCommand::Help(without_program(&error.to_string())))
        }
        Err(error) => Err(CommandFailure::usage(message(&error))),
    }
}

/// Returns the help of a command.
pub(super) fn help(name: &str) -> Result<String, CommandFailure> {
    let name = name.to_ascii_lowercase();
    match parse(vec![name.clone().into(), "--help".into()])? {
        ParsedCommand::Help(text) => Ok(text),
        ParsedCommand::Command(_) => Err(CommandFailure::usage(format!("{name}: has no help"))),
    }
}

/// Returns the help text with examples for a shell.
fn without_program(text: &str) -> String {
    text.replace("\n  todana ", "\n  ").replace("`todana ", "`")
}

/// Returns the first paragraph of a message of clap, without the value if that is a URL, which may
/// contain a password.
fn message(error: &clap::Error) -> String {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.contains("://")
    {
        return "the address is not valid".into();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|end| text.find(end)).min();
    let paragraphs = text[..end.unwrap_or(text.len())].trim_end();
    paragraphs.replace("\n\n  tip: ", "; ").replace("\n  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_command() {
        assert!(HELP.lines().count() <= 24);
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
        for command in description().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let is_named = HELP.lines().take(8).flat_map(str::split_whitespace).any(|word| word == name);
            assert!(is_named, "{name}");
            let text = help(name).unwrap();
            assert!(!text.contains("--password-file"), "{name}: {text}");
        }
    }

    #[test]
    fn mistakes_are_explained_in_one_line() {
        for (words, expected) in [
            (&["gte", "a"][..], "gte: unknown command; did you mean `get`?"),
            (&["scan"], "scan: unknown command; use `list`"),
            (&["import"], "import: unknown command; `help` lists the commands"),
            (&["get"], "the following required arguments were not provided: <KEYS>..."),
            (&["incr", "a", "x"], "invalid value 'x' for '[BY]': invalid digit found in string"),
        ] {
            let words = words.iter().map(OsString::from).collect();
            assert_eq!(parse(words).err().unwrap().message(), expected);
        }
        assert!(matches!(
            parse(vec!["todana".into(), "GET".into(), "a".into()]),
            Ok(ParsedCommand::Command(_))
        ));
    }
}
