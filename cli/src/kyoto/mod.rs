//! Todana under the name of Kyoto Tycoon's server: its command line, log, exit codes, signals and files.
//!
//! ```text
//! words --settings--> Settings --mapping--> todana_server::Options
//!                          \--serving--> daemon, log file, pid file, signals
//! ```
//!
//! Always true: a command line that starts ktserver either starts this or is refused with a message that names the option;
//! an option without meaning here is told in the log. What the server can do is known in `mapping` alone: what is asked for
//! of update logs, replication, snapshots and scripts stands in parts of [`settings::Settings`] of their own.
//! Not here: what the server does with its options (`todana_server`).

mod mapping;
mod number;
mod plugin;
mod serving;
mod settings;
mod usage;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The name under which the executable is Kyoto Tycoon's server.
const NAME: &str = "ktserver";

/// Whether a program called by this name is to be Kyoto Tycoon's server.
pub(crate) fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// Runs as Kyoto Tycoon's server. `program` is what messages call it, `words` what follows on the command line.
pub(crate) fn run(program: &OsStr, words: Vec<OsString>) -> ExitCode {
    let program = program.to_string_lossy();
    let outcome = settings::Asked::read(words).and_then(|asked| match asked {
        settings::Asked::Print(text) => {
            // Whoever closed it has enough.
            let mut out = std::io::stdout();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            Ok(())
        }
        settings::Asked::Serve(settings) => serving::serve(&settings),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            // The original knows no other code for what has failed.
            eprintln!("{program}: {refusal}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_file_not_of_its_folder() {
        for name in ["ktserver", "./ktserver", "/usr/bin/ktserver"] {
            assert!(is_name(OsStr::new(name)), "{name}");
        }
        for name in ["todana", "ktserver/todana", "ktserver2", "ktremotemgr", ""] {
            assert!(!is_name(OsStr::new(name)), "{name}");
        }
    }
}
