//! The program under the name `ktserver`: command line, log, exit codes, signals and files of Kyoto
//! Tycoon's server.
//!
//! ```text
//! command line --settings--> KyotoSettings --mapping--> todana_server::ServerOptions
//!                                \--serving--> daemon, log file, pid file, signals
//! ```
//!
//! Invariants: if ktserver accepts a command line, this program starts too, or refuses with a
//! message that names the option. Options without effect are logged. Only `mapping` knows what the
//! server can do.
//!
//! Not here: the server itself (crate `todana_server`).

mod mapping;
mod number;
mod plugin;
mod serving;
mod settings;
mod usage;

use crate::serving::{ServerFailure, ServerPersonality, StartAction};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name of the executable of Kyoto Tycoon's server.
const NAME: &str = "ktserver";

/// Returns true if a program of this name should act as ktserver.
fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// The ktserver personality.
pub(crate) const PERSONALITY: ServerPersonality = ServerPersonality { name: NAME, is_name, read };

fn read(program: &str, words: Vec<OsString>) -> Result<StartAction, ServerFailure> {
    match settings::KyotoStart::read(words) {
        Ok(settings::KyotoStart::Print(text)) => Ok(StartAction::Print(text)),
        Ok(settings::KyotoStart::Serve(settings)) => {
            Ok(StartAction::Serve(Box::new(serving::KyotoTycoonProgram::new(program, *settings))))
        }
        Err(problem) => Err(refusal(program, &problem)),
    }
}

/// Returns a failure with exit code 1, the only code that ktserver uses for failures.
fn refusal(program: &str, problem: &str) -> ServerFailure {
    ServerFailure::new(1, format!("{program}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_the_file_name_of_the_program() {
        for name in ["ktserver", "./ktserver", "/usr/bin/ktserver"] {
            assert!(is_name(OsStr::new(name)), "{name}");
        }
        for name in ["todana", "ktserver/todana", "ktserver2", "ktremotemgr", ""] {
            assert!(!is_name(OsStr::new(name)), "{name}");
        }
    }
}
