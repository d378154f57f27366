//! Which program this process is: known by the name it is called by, or by `todana as NAME`.

use super::{ServerFailure, ServerProgram, serve};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// A server whose place this program takes.
pub(crate) struct ServerPersonality {
    /// The word of `todana as`.
    pub(crate) name: &'static str,
    /// Returns true for the path of a program of that name.
    pub(crate) is_name: fn(&OsStr) -> bool,
    /// Reads a command line; the first is what messages call the program.
    pub(crate) read: fn(&str, Vec<OsString>) -> Result<StartAction, ServerFailure>,
}

/// What a command line asks for.
pub(crate) enum StartAction {
    /// A text on standard output.
    Print(String),
    Serve(Box<dyn ServerProgram<StartError = ServerFailure>>),
}

impl ServerPersonality {
    fn run(&self, program: &OsStr, words: Vec<OsString>) -> ExitCode {
        let outcome = (self.read)(&program.to_string_lossy(), words).and_then(|asked| match asked {
            StartAction::Print(text) => {
                // A reader that has closed the pipe has enough.
                let mut out = std::io::stdout();
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                Ok(())
            }
            StartAction::Serve(mut program) => serve(&mut *program),
        });
        outcome.map_or_else(ServerFailure::report, |()| ExitCode::SUCCESS)
    }
}

/// Runs as one of the personalities, if the process was called as one.
pub(crate) fn called_as(all: &[ServerPersonality]) -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let program = words.next()?;
    if let Some(personality) = all.iter().find(|personality| (personality.is_name)(&program)) {
        return Some(personality.run(&program, words.collect()));
    }
    // Before clap, which would take `-h` and `-V` for its own.
    let named = words.next().filter(|word| word == "as").and_then(|_| words.next())?;
    let personality = all.iter().find(|personality| named == personality.name)?;
    Some(personality.run(&named, words.collect()))
}
