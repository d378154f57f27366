//! Loads the configuration of a proxy from a file of either kind.

use super::config_value::ConfigValue;
use super::proxy_file::ProxyFile;
use super::table_reader::ConfigReport;
use super::{nutcracker_file, proxy_file};
use crate::CommandFailure;
use crate::option_sources::ConfigEntry;
use std::ffi::OsString;
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

/// The content of a file.
pub(super) struct LoadedFile {
    pub(super) options: ProxyOptions,
    /// The options that a proxy shares with `todana serve`.
    pub(super) entries: Vec<ConfigEntry>,
    /// True if the file has listeners that serve the routes.
    pub(super) has_listen: bool,
}

/// Reads a file, and prints the notes about it. The failure lists all problems of the file.
pub(super) fn load(path: &Path, kind: ProxyFileKind) -> Result<LoadedFile, CommandFailure> {
    parse(path, &text_of(path).map_err(CommandFailure::usage)?, kind)
}

/// Reads a file. Returns `None` if it is not that of a proxy.
pub(super) fn load_if_of_proxy(path: &Path) -> Result<Option<LoadedFile>, CommandFailure> {
    let is_yaml = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    let text = text_of(path).map_err(CommandFailure::usage)?;
    let kind = if is_yaml { ProxyFileKind::Nutcracker } else { ProxyFileKind::Todana };
    let is_proxy = is_yaml || ConfigValue::of_toml(&text).is_ok_and(|file| proxy_file::is_of_proxy(&file));
    is_proxy.then(|| parse(path, &text, kind)).transpose()
}

/// Returns the content of a file. Fails if it is unreadable or too long.
pub(crate) fn text_of(path: &Path) -> Result<String, String> {
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

fn parse(path: &Path, text: &str, kind: ProxyFileKind) -> Result<LoadedFile, CommandFailure> {
    let report = ConfigReport::default();
    let read = match kind {
        ProxyFileKind::Todana => ConfigValue::of_toml(text).map(|file| proxy_file::read(file, &report)),
        ProxyFileKind::Nutcracker => ConfigValue::of_yaml(text)
            .map(|file| ProxyFile { options: nutcracker_file::read(file, &report), ..ProxyFile::default() }),
    };
    if let Err((line, problem)) = &read {
        report.problem(*line, problem);
    }
    let (problems, notes) = report.lines(&path.display());
    match read {
        Ok(read) if problems.is_empty() => {
            for note in notes {
                eprintln!("todana: {note}");
            }
            let entries = read.shared.into_iter().map(|(line, name, values)| ConfigEntry {
                name: name.to_string(),
                place: format!("{}, line {line}", path.display()),
                values: values.into_iter().map(OsString::from).collect(),
            });
            Ok(LoadedFile { options: read.options, entries: entries.collect(), has_listen: read.has_listen })
        }
        _ => Err(CommandFailure::usage(problems.join("\ntodana: "))),
    }
}
