//! The program under the name `memcached`: command line, messages, exit codes, signals and files of
//! memcached.
//!
//! ```text
//! command line --getopt--> options --settings, extended--> MemcachedSettings
//! MemcachedSettings --mapping--> todana_server::ServerOptions
//! MemcachedSettings --serving--> privileges, sockets, daemon, pid file and port file
//! ```
//!
//! Invariants: if memcached accepts a command line, this program starts too, or refuses with a
//! message that names the missing feature. Every option without effect is reported with `-v`. Only
//! `mapping` knows what the server can do. Limits that memcached has only because of its slabs do
//! not exist.
//!
//! Not here: the server itself (crate `todana_server`).

mod admin;
mod data_place;
mod environment;
mod extended;
pub(crate) mod getopt;
mod listen;
mod mapping;
pub(crate) mod number;
pub(crate) mod pid_file;
mod port_file;
pub(crate) mod process;
mod server_failure;
mod serving;
mod settings;
mod usage;

use crate::serving::{ServerFailure, ServerPersonality, StartAction};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The names of executables that act as memcached. The second is the name of memcached's test
/// build.
const NAMES: [&str; 2] = ["memcached", "memcached-debug"];

/// Returns true if a program of this name should act as memcached.
fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// The memcached personality.
pub(crate) const PERSONALITY: ServerPersonality = ServerPersonality { name: NAMES[0], is_name, read };

fn read(program: &str, words: Vec<OsString>) -> Result<StartAction, ServerFailure> {
    Ok(match settings::MemcachedSettings::read(program, words)? {
        settings::MemcachedStart::Print(text) => StartAction::Print(text),
        settings::MemcachedStart::Serve(settings) => {
            StartAction::Serve(Box::new(serving::MemcachedProgram::new(*settings)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_the_file_name_of_the_program() {
        for name in ["memcached", "./memcached", "/usr/bin/memcached", "/opt/t/memcached-debug"] {
            assert!(is_name(OsStr::new(name)), "{name}");
        }
        for name in ["todana", "memcached/todana", "memcachedb", "", "/"] {
            assert!(!is_name(OsStr::new(name)), "{name}");
        }
    }
}
