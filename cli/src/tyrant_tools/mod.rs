//! Tools under the names of Tokyo Tyrant's and Tokyo Cabinet's: their command lines, output and
//! exit codes.
//!
//! ```text
//! tcrmgr         commands to a server of Tokyo Tyrant's protocol
//! ttulmgr        update logs of Tokyo Tyrant as text, and back
//! tchmgr ...     commands on a database that no server uses (cabinet_manager)
//! ttservctl      start, stop and signal a server
//! connection     the connection of tcrmgr
//! tool_output    values as text or hexadecimal pairs
//! tsv_input      records on lines, for importtsv
//! ```
//!
//! Scripts parse the output, so it follows the originals'. Exit code 1 stands for any failure.
//!
//! Not here: the encoding of requests (`todana_protocol::tyrant`).

mod cabinet_manager;
mod connection;
mod number;
mod tcrmgr;
mod tool_output;
mod tsv_input;
mod ttservctl;
mod ttulmgr;

use crate::serving::{ServerPersonality, StartAction};
use cabinet_manager::CabinetTool;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// A failure of a tool: the text that is printed after the tool's name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ToolFailure(String);

impl ToolFailure {
    /// Returns the failure of a wrong command line. Its text explains the usage.
    fn usage(program: &str, title: &str, lines: &[&str]) -> ToolFailure {
        let lines: Vec<String> = lines.iter().map(|line| format!("  {program} {line}\n")).collect();
        ToolFailure(format!(": {title}\n\nusage:\n{}", lines.concat()))
    }
}

impl From<std::io::Error> for ToolFailure {
    fn from(error: std::io::Error) -> ToolFailure {
        ToolFailure(format!(": error: {error}"))
    }
}

fn finish(program: &str, outcome: Result<(), ToolFailure>) -> StartAction {
    StartAction::Finish(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(ToolFailure(text)) => {
            eprintln!("{program}{text}");
            ExitCode::FAILURE
        }
    })
}

/// Converts words to text. Bytes that are not UTF-8 are replaced, so a value with such bytes must
/// be given in hexadecimal (`-sx`).
fn texts(words: Vec<OsString>) -> Vec<String> {
    words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the personality of a tool.
macro_rules! tool {
    ($name:literal, $run:expr) => {
        ServerPersonality {
            name: $name,
            is_name: |program: &OsStr| Path::new(program).file_name().is_some_and(|name| name == $name),
            read: |program, words| Ok(finish(program, ($run)(program, texts(words)))),
        }
    };
}

pub(crate) const TCRMGR: ServerPersonality = tool!("tcrmgr", tcrmgr::run);
pub(crate) const TTULMGR: ServerPersonality = tool!("ttulmgr", ttulmgr::run);
pub(crate) const TTSERVCTL: ServerPersonality = tool!("ttservctl", ttservctl::run);

/// Returns the personality of a tool of Tokyo Cabinet.
macro_rules! cabinet_tool {
    ($name:literal, $kind:ident) => {
        tool!($name, |program, words| cabinet_manager::run(CabinetTool::$kind, program, words))
    };
}

pub(crate) const TCHMGR: ServerPersonality = cabinet_tool!("tchmgr", Hash);
pub(crate) const TCBMGR: ServerPersonality = cabinet_tool!("tcbmgr", Tree);
pub(crate) const TCFMGR: ServerPersonality = cabinet_tool!("tcfmgr", Fixed);
pub(crate) const TCTMGR: ServerPersonality = cabinet_tool!("tctmgr", Table);
pub(crate) const TCAMGR: ServerPersonality = cabinet_tool!("tcamgr", Abstract);
