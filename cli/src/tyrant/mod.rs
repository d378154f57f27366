//! The program under the name `ttserver`: command line, log, exit codes, signals and files of Tokyo
//! Tyrant's server.
//!
//! ```text
//! command line --settings--> TyrantSettings --mapping--> todana_server::ServerOptions
//!                                \--serving--> daemon, log file, pid file, signals
//! ```
//!
//! Invariants: if ttserver accepts a command line, this program starts too, or refuses with a
//! message that names the option. Options without effect are logged. Only `mapping` knows what the
//! server can do.
//!
//! Not here: the server itself (crate `todana_server`).

mod mapping;
mod pid_file;
mod serving;
mod settings;
mod usage;

pub(crate) use usage::version;

use crate::serving::{ServerFailure, ServerPersonality, StartAction};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name of the executable of Tokyo Tyrant's server.
const NAME: &str = "ttserver";

/// Returns true if a program of this name should act as ttserver.
fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// The ttserver personality.
pub(crate) const PERSONALITY: ServerPersonality = ServerPersonality { name: NAME, is_name, read };

fn read(program: &str, words: Vec<OsString>) -> Result<StartAction, ServerFailure> {
    match settings::TyrantStart::read(words) {
        Ok(settings::TyrantStart::Print(text)) => Ok(StartAction::Print(text)),
        Ok(settings::TyrantStart::Serve(settings)) => {
            Ok(StartAction::Serve(Box::new(serving::TokyoTyrantProgram::new(program, *settings))))
        }
        Err(problem) => Err(refusal(program, &problem)),
    }
}

/// Returns a failure with exit code 1, the only code that ttserver uses for failures.
fn refusal(program: &str, problem: &str) -> ServerFailure {
    ServerFailure::new(1, format!("{program}: {problem}"))
}
