//! Todana under memcached's name: its command line, messages, exit codes, signals and files.
//!
//! ```text
//! words --getopt--> switches --settings, extended--> Settings --mapping--> todana_server::Options
//!                                                        \--serving--> privileges, sockets, daemon, pid and port file
//! ```
//!
//! Always true: a command line that starts memcached either starts this or is refused with a message that names what
//! is missing; nothing that was asked for is left out without a word under `-v`. What the server can do is known in
//! `mapping` alone. Where memcached refuses something only because of its slabs, this does not.
//! Not here: what the server does with its options (`todana_server`).

mod admin;
mod data_place;
mod environment;
mod extended;
mod getopt;
mod listen;
mod mapping;
mod number;
mod pid_file;
mod port_file;
mod process;
mod refusal;
mod serving;
mod settings;
mod usage;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Names under which the executable is memcached. The second is that of memcached's own build for tests.
const NAMES: [&str; 2] = ["memcached", "memcached-debug"];

/// Whether a program called by this name is to be memcached.
pub(crate) fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// Runs as memcached. `program` is what messages call it, `words` what follows on the command line.
pub(crate) fn run(program: &OsStr, words: Vec<OsString>) -> ExitCode {
    let asked = match settings::Settings::read(&program.to_string_lossy(), words) {
        Ok(asked) => asked,
        Err(refusal) => return refusal.report(),
    };
    let outcome = match asked {
        settings::Asked::Print(text) => usage::print(&text),
        settings::Asked::Serve(settings) => serving::serve(&settings),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => refusal.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_file_not_of_its_folder() {
        for name in ["memcached", "./memcached", "/usr/bin/memcached", "/opt/t/memcached-debug"] {
            assert!(is_name(OsStr::new(name)), "{name}");
        }
        for name in ["todana", "memcached/todana", "memcachedb", "", "/"] {
            assert!(!is_name(OsStr::new(name)), "{name}");
        }
    }
}
