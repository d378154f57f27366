//! `todana doctor`: checks the configuration of a server, its machine, and a running server.
//!
//! ```text
//! finding        one line of the report
//! configuration  the configuration file, listeners, logins, certificates
//! certificate    the last day of a certificate
//! machine        open files, memory, swap, huge pages, the clock
//! directory      the directories of databases, and their file systems
//! server         the statistics of a running server
//! ```
//!
//! Each check is a function of texts that it receives, so that tests can give it any machine.

mod certificate;
mod configuration;
mod directory;
mod finding;
mod machine;
mod server;

use crate::command_output::CommandOutput;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use crate::{CommandFailure, serve};
use clap::Args;
use finding::{CheckReport, Finding};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

pub(crate) const AFTER_HELP: &str = "\
Checks this machine and the options that `todana serve` would use, or a running
server. Exit code 1 means a problem; warnings do not count. Changes nothing.
Example: todana doctor 127.0.0.1:11311";

/// The arguments of `todana doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The running server to check; or -S
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    /// The configuration file to check [default: TODANA_CONFIG]
    #[arg(long, value_name = "FILE", conflicts_with = "place")]
    config: Option<PathBuf>,
    /// Print only warnings and problems
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    server: ServerOptions,
}

/// The figures of a server that its machine must suit.
#[derive(Clone, Debug, Default)]
struct ServerNeeds {
    /// The memory limit in bytes; 0 if there is none.
    memory_limit: u64,
    /// The most connections.
    connections_max: u64,
    /// The directories of its databases and logs.
    directories: Vec<PathBuf>,
    /// The process, if it runs on this machine.
    pid: Option<u32>,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), CommandFailure> {
    let DoctorArguments { place, config, quiet, server } = arguments;
    let mut report = CheckReport::default();
    let needs = match place.is_some() || server.has_server() {
        true => {
            let destination = server.place(place.as_ref())?.server()?;
            server::check(&mut server.connect(&destination)?, &destination.address, &mut report)?
        }
        false => check_configuration(config.as_ref(), &mut report),
    };
    if let Some(needs) = needs {
        machine::check(&needs, &mut report);
        needs.directories.iter().for_each(|directory| directory::check(directory, &needs, &mut report));
    }
    let mut out = CommandOutput::process();
    write!(out, "{}", report.text(*quiet))?;
    out.flush()?;
    if report.has_problem() { Err(CommandFailure::miss()) } else { Ok(()) }
}

/// Checks the options of `todana serve`. Returns what the server needs, unless they are invalid.
fn check_configuration(file: Option<&PathBuf>, report: &mut CheckReport) -> Option<ServerNeeds> {
    let mut words: Vec<OsString> = vec!["todana".into(), "serve".into()];
    words.extend(file.iter().flat_map(|file| ["--config".into(), file.as_os_str().to_owned()]));
    match serve::effective(words) {
        Ok(effective) => {
            report.add(Finding::ok("options", "valid"));
            Some(configuration::check(&effective.options, file, report))
        }
        Err(failure) => {
            report.add(Finding::problem("options", failure.message(), "correct this option"));
            None
        }
    }
}
