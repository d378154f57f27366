//! Reads the values of the options of a server from the environment and the configuration file.
//!
//! ```text
//! command line     options, read by clap
//! TODANA_NAME      the variable of an option; an empty variable counts as not set
//! name = value     the file of --config
//! built-in         the defaults in the table of options
//! ```
//!
//! A source takes precedence over those below it. Each value is checked by the rules of its option,
//! so that an error names the variable, or the file and the line. A valid value becomes the default
//! of the option, which the command line overrides.
//!
//! Not here: the options themselves (`serve`, `proxy`).

use crate::CommandFailure;
use crate::suggestions::distance;
use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A value from the environment or the file.
pub(crate) struct ConfiguredValue {
    /// The long name of the option.
    pub(crate) name: String,
    pub(crate) origin: &'static str,
    /// The source, for messages: `TODANA_PORT`, or `todana.toml, line 3`.
    pub(crate) place: String,
    /// The value as words of a command line.
    pub(crate) flags: Vec<OsString>,
}

/// Returns the command without its variables, which are read here instead. clap's messages would
/// not name the variable.
pub(crate) fn flags_only(command: Command) -> Command {
    command.mut_args(|argument| argument.env(None::<&str>))
}

/// Returns the configuration file that the option `--config` or its variable names.
pub(crate) fn file(command: &Command, flag: Option<&PathBuf>) -> Option<PathBuf> {
    let variable = || {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some("config"))?;
        Some(variable(argument)?.1.into())
    };
    flag.cloned().or_else(variable)
}

/// Returns the variable of an option, unless it is empty: compose files write `TODANA_PORT=` for a
/// variable that is not set.
fn variable(argument: &Arg) -> Option<(String, OsString)> {
    let name = argument.get_env()?;
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some((name.to_string_lossy().into_owned(), value))
}

/// Returns the command with the values of the environment and of a file, `listed`, as its defaults,
/// and the effective value of each option that one of them sets.
pub(crate) fn with_configuration(
    command: Command,
    listed: &[ConfigEntry],
) -> Result<(Command, Vec<ConfiguredValue>), CommandFailure> {
    let mut layered = flags_only(command.clone());
    let mut all = Vec::new();
    for argument in command.get_arguments() {
        let Some(name) = argument.get_long().filter(|&name| name != "help") else { continue };
        let in_file = listed.iter().find(|entry| entry.name == name).map(|entry| (entry.clone(), "file"));
        let in_environment = variable(argument).map(|(place, value)| {
            (ConfigEntry { name: name.to_string(), place, values: vec![value] }, "environment")
        });
        // A value in the file is checked even if the environment overrides it.
        for (entry, origin) in in_file.into_iter().chain(in_environment) {
            let (defaults, flags) = checked(&layered, argument, &entry)?;
            layered = layered
                .mut_arg(argument.get_id().as_str(), |argument| argument.default_values(defaults.clone()));
            all.retain(|configured: &ConfiguredValue| configured.name != name);
            all.push(ConfiguredValue { name: entry.name, origin, place: entry.place, flags });
        }
    }
    Ok((layered, all))
}

/// Checks the values of an option, and returns them as defaults and as words of a command line.
fn checked(
    command: &Command,
    argument: &Arg,
    entry: &ConfigEntry,
) -> Result<(Vec<OsString>, Vec<OsString>), CommandFailure> {
    let wrong = |what: &str| CommandFailure::usage(format!("{}: {what}", entry.place));
    let flag = |ending: &str| OsString::from(format!("--{}{ending}", entry.name));
    let [value] = entry.values.as_slice() else {
        if entry.values.is_empty() {
            return Err(wrong(&format!("{} must have a value in its list", entry.name)));
        }
        if !matches!(argument.get_action(), ArgAction::Append) {
            return Err(wrong(&format!("{} must be a single value, not a list", entry.name)));
        }
        return checked_values(command, argument, entry);
    };
    let text = value.to_string_lossy();
    match argument.get_action() {
        ArgAction::SetTrue => {
            let is_set = switch(&text).ok_or_else(|| {
                wrong(&format!("{} must be one of true, yes, 1, false, no, 0, not {text:?}", entry.name))
            })?;
            let flags = if is_set { vec![flag("")] } else { Vec::new() };
            Ok((vec![is_set.to_string().into()], flags))
        }
        ArgAction::Count => {
            let count: u8 = text
                .trim()
                .parse()
                .map_err(|_| wrong(&format!("{} must be a number from 0, not {text:?}", entry.name)))?;
            Ok((vec![count.to_string().into()], vec![flag(""); usize::from(count)]))
        }
        _ => checked_values(command, argument, entry),
    }
}

fn checked_values(
    command: &Command,
    argument: &Arg,
    entry: &ConfigEntry,
) -> Result<(Vec<OsString>, Vec<OsString>), CommandFailure> {
    let mut values = Vec::new();
    for value in &entry.values {
        // clap divides the words of the command line at the delimiter, but not default values.
        match (argument.get_value_delimiter(), value.to_str()) {
            (Some(delimiter), Some(text)) => values.extend(text.split(delimiter).map(OsString::from)),
            _ => values.push(value.clone()),
        }
    }
    let with_value = |value: &OsString| {
        let mut flag = OsString::from(format!("--{}=", entry.name));
        flag.push(value);
        flag
    };
    let flags: Vec<OsString> = values.iter().map(with_value).collect();
    command
        .clone()
        .try_get_matches_from(std::iter::once(OsString::from("serve")).chain(flags.iter().cloned()))
        .map_err(|error| CommandFailure::usage(format!("{}: {}", entry.place, first_paragraph(&error))))?;
    Ok((values, flags))
}

/// Returns clap's message without its prefix and its advice.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}

fn switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Some(true),
        "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// An option that the file or the environment sets.
#[derive(Clone, Debug)]
pub(crate) struct ConfigEntry {
    /// The long name of the option.
    pub(crate) name: String,
    /// The source, for messages.
    pub(crate) place: String,
    pub(crate) values: Vec<OsString>,
}

/// Reads the configuration file. Fails if it is unreadable or names an unknown option.
pub(crate) fn read(command: &Command, path: &Path) -> Result<Vec<ConfigEntry>, CommandFailure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CommandFailure::usage(format!("{shown}: cannot read it: {error}")))?;
    let table: toml::Table = text
        .parse()
        .map_err(|error| CommandFailure::usage(format!("{shown}: {}", format!("{error}").trim_end())))?;
    let mut entries = Vec::new();
    for (key, value) in table {
        let names_key = |line: &str| {
            let line = line.trim_start().trim_start_matches(['"', '\'']);
            let rest = line.strip_prefix(&key).map(|rest| rest.trim_start_matches(['"', '\'']).trim_start());
            rest.is_some_and(|rest| rest.starts_with('='))
        };
        let line = text.lines().position(names_key);
        let place = line.map_or_else(|| shown.to_string(), |line| format!("{shown}, line {}", line + 1));
        if key == "config" {
            return Err(CommandFailure::usage(format!(
                "{place}: config is not allowed in a file; use the command line or the environment"
            )));
        }
        let known: Vec<&str> = command
            .get_arguments()
            .filter_map(Arg::get_long)
            .filter(|&long| long != "config" && long != "help")
            .collect();
        if !known.contains(&key.as_str()) {
            let nearest = known.iter().min_by_key(|name| distance(name, &key)).copied().unwrap_or_default();
            return Err(CommandFailure::usage(format!(
                "{place}: unknown option {key:?}; did you mean {nearest:?}?"
            )));
        }
        let values = texts(&value).ok_or_else(|| {
            CommandFailure::usage(format!("{place}: {key} must be text, a number, true or false"))
        })?;
        entries.push(ConfigEntry {
            name: key,
            place,
            values: values.into_iter().map(OsString::from).collect(),
        });
    }
    Ok(entries)
}

/// Converts a TOML value to the values of an option.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    Some(match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Integer(number) => vec![number.to_string()],
        toml::Value::Boolean(flag) => vec![flag.to_string()],
        toml::Value::Array(values) => {
            values.iter().map(texts).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_words_or_digits() {
        for (text, is_set) in [("1", true), ("true", true), ("YES", true), ("0", false), ("no ", false)] {
            assert_eq!(switch(text), Some(is_set));
        }
        for text in ["", "2", "maybe", "y"] {
            assert_eq!(switch(text), None, "{text:?}");
        }
    }
}
