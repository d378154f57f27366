//! Selects the program as which this executable runs, by its own name or by `todana as NAME`.

use super::{ServerFailure, ServerProgram, serve};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// A program that this executable can replace.
pub(crate) struct ServerPersonality {
    /// The word after `todana as`.
    pub(crate) name: &'static str,
    /// Returns true if an executable with this path should run as this program.
    pub(crate) is_name: fn(&OsStr) -> bool,
    /// Parses a command line. The first argument is the name of the program, for messages.
    pub(crate) read: fn(&str, Vec<OsString>) -> Result<StartAction, ServerFailure>,
}

/// The action that a command line requests.
pub(crate) enum StartAction {
    /// Print a text on standard output.
    Print(String),
    Serve(Box<dyn ServerProgram<StartError = ServerFailure>>),
    /// Exit: a tool has done its work.
    Finish(ExitCode),
}

impl ServerPersonality {
    fn run(&self, program: &OsStr, words: Vec<OsString>) -> ExitCode {
        let outcome = (self.read)(&program.to_string_lossy(), words).and_then(|asked| match asked {
            StartAction::Print(text) => {
                // If the reader has closed the pipe, the failure is ignored.
                let mut out = std::io::stdout();
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                Ok(ExitCode::SUCCESS)
            }
            StartAction::Serve(mut program) => serve(&mut *program).map(|()| ExitCode::SUCCESS),
            StartAction::Finish(code) => Ok(code),
        });
        outcome.unwrap_or_else(ServerFailure::report)
    }
}

/// Runs as one of the personalities if the executable or `todana as` names it.
pub(crate) fn called_as(all: &[ServerPersonality]) -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let program = words.next()?;
    if let Some(personality) = all.iter().find(|personality| (personality.is_name)(&program)) {
        return Some(personality.run(&program, words.collect()));
    }
    // This precedes clap, which would handle `-h` and `-V` itself.
    let named = words.next().filter(|word| word == "as").and_then(|_| words.next())?;
    let personality = all.iter().find(|personality| named == personality.name)?;
    Some(personality.run(&named, words.collect()))
}
