//! Loads the configuration of a proxy from a file of either kind.

use super::config_value::ConfigValue;
use super::table_reader::ConfigReport;
use super::{nutcracker_file, proxy_file};
use crate::CommandFailure;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use todana_server::ProxyOptions;

/// The longest file. A list of 10,000 servers, the longest one, has less than 1 MiB.
const FILE_LEN_MAX: u64 = 16 << 20;

/// The kinds of configuration files.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProxyFileKind {
    /// Our own, in TOML.
    Todana,
    /// That of twemproxy, in YAML.
    Nutcracker,
}

/// Reads a file, and prints the notes about it. The failure lists all problems of the file.
pub(super) fn load(path: &Path, kind: ProxyFileKind) -> Result<ProxyOptions, CommandFailure> {
    parse(path, &text_of(path).map_err(CommandFailure::usage)?, kind)
}

/// Checks the file of a proxy. Returns false if the file is not one.
pub(crate) fn check(path: &Path) -> Result<bool, CommandFailure> {
    let is_yaml = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    let text = text_of(path).map_err(CommandFailure::usage)?;
    let kind = if is_yaml { ProxyFileKind::Nutcracker } else { ProxyFileKind::Todana };
    let is_proxy = is_yaml || ConfigValue::of_toml(&text).is_ok_and(|file| proxy_file::is_of_proxy(&file));
    if is_proxy {
        parse(path, &text, kind)?;
    }
    Ok(is_proxy)
}

/// Returns the content of a file. Fails if it is unreadable or too long.
pub(super) fn text_of(path: &Path) -> Result<String, String> {
    let unreadable =
        |problem: &dyn std::fmt::Display| format!("{}: cannot read it: {problem}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    file.take(FILE_LEN_MAX + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(unreadable(&"it is longer than 16 MiB"));
    }
    Ok(text)
}

fn parse(path: &Path, text: &str, kind: ProxyFileKind) -> Result<ProxyOptions, CommandFailure> {
    let report = ConfigReport::default();
    let options = match kind {
        ProxyFileKind::Todana => ConfigValue::of_toml(text).map(|file| proxy_file::read(file, &report)),
        ProxyFileKind::Nutcracker => {
            ConfigValue::of_yaml(text).map(|file| nutcracker_file::read(file, &report))
        }
    };
    if let Err((line, problem)) = &options {
        report.problem(*line, problem);
    }
    let (problems, notes) = report.lines(&path.display());
    match options {
        Ok(options) if problems.is_empty() => {
            for note in notes {
                eprintln!("todana: {note}");
            }
            Ok(options)
        }
        _ => Err(CommandFailure::usage(problems.join("\ntodana: "))),
    }
}
