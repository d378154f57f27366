//! Selects the program to run as: by the name of the executable, or by `todana as NAME`.

use super::{ServerFailure, ServerProgram, serve};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// A server that this program can replace.
pub(crate) struct ServerPersonality {
    /// The argument of `todana as`.
    pub(crate) name: &'static str,
    /// Returns true if the path names this program.
    pub(crate) is_name: fn(&OsStr) -> bool,
    /// Parses a command line. The first argument is the program's name for messages.
    pub(crate) read: fn(&str, Vec<OsString>) -> Result<StartAction, ServerFailure>,
}

/// The action that a command line asks for.
pub(crate) enum StartAction {
    /// Print a text on standard output.
    Print(String),
    Serve(Box<dyn ServerProgram<StartError = ServerFailure>>),
}

impl ServerPersonality {
    fn run(&self, program: &OsStr, words: Vec<OsString>) -> ExitCode {
        let outcome = (self.read)(&program.to_string_lossy(), words).and_then(|asked| match asked {
            StartAction::Print(text) => {
                // A reader that has closed the pipe needs no more.
                let mut out = std::io::stdout();
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                Ok(())
            }
            StartAction::Serve(mut program) => serve(&mut *program),
        });
        outcome.map_or_else(ServerFailure::report, |()| ExitCode::SUCCESS)
    }
}

/// Runs as one of the personalities if the process was called by its name.
pub(crate) fn called_as(all: &[ServerPersonality]) -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let program = words.next()?;
    if let Some(personality) = all.iter().find(|personality| (personality.is_name)(&program)) {
        return Some(personality.run(&program, words.collect()));
    }
    // Must precede clap, which would take `-h` and `-V` for its own.
    let named = words.next().filter(|word| word == "as").and_then(|_| words.next())?;
    let personality = all.iter().find(|personality| named == personality.name)?;
    Some(personality.run(&named, words.collect()))
}
