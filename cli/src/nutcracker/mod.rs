//! The program under the name `nutcracker`, which is twemproxy: its command line and its file.
//!
//! Its messages go to standard error, as twemproxy's. Not here: the file (`proxy::nutcracker_file`)
//! and the proxy itself.

mod settings;
mod usage;

use crate::proxy::{ReplacementProgram, ReplacementSettings, nutcracker_options};
use crate::serving::{ServerFailure, ServerPersonality, StartAction};
use nix::sys::resource::{Resource, getrlimit};
use settings::{NutcrackerSettings, NutcrackerStart};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use todana_server::{
    LimitOptions, NutcrackerStatsOptions, ObservationOptions, ProxyName, ProxyOptions, ServerOptions,
};

const NAME: &str = "nutcracker";

/// The requests of one client in a turn.
const REQUESTS_PER_EVENT: u32 = 1000;

/// The most connections, if the limit on file descriptors allows that many. twemproxy has no limit
/// of its own.
const CONNECTIONS_MAX: u64 = 65_536;
/// The number of file descriptors that are needed for other purposes than clients.
const DESCRIPTORS_BESIDES: u64 = 512;

/// The nutcracker personality.
pub(crate) const PERSONALITY: ServerPersonality = ServerPersonality { name: NAME, is_name, read };

fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(NAME))
}

fn read(_program: &str, words: Vec<OsString>) -> Result<StartAction, ServerFailure> {
    let settings = match NutcrackerSettings::read(words)? {
        NutcrackerStart::Print(text) => {
            eprint!("{text}");
            return Ok(StartAction::Finish(ExitCode::SUCCESS));
        }
        NutcrackerStart::Serve(settings) => settings,
    };
    let file = settings.config.display();
    let invalid = |problems: &str| {
        let said = format!("{problems}\nnutcracker: configuration file '{file}' syntax is invalid");
        ServerFailure::new(1, said)
    };
    let proxy = nutcracker_options(&settings.config).map_err(|failure| invalid(failure.message()))?;
    if settings.is_test {
        eprintln!("nutcracker: configuration file '{file}' syntax is ok");
        return Ok(StartAction::Finish(ExitCode::SUCCESS));
    }
    let process = ReplacementSettings {
        program: NAME.into(),
        log: settings.log.clone(),
        verbosity: settings.verbosity(),
        is_daemon: settings.is_daemon,
        pid_file: settings.pid_file.clone(),
        ..ReplacementSettings::default()
    };
    let first = options(&settings, proxy);
    let source = move || Ok(options(&settings, nutcracker_options(&settings.config)?));
    Ok(StartAction::Serve(Box::new(ReplacementProgram::new(process, first, Some(Box::new(source)))?)))
}

fn options(settings: &NutcrackerSettings, proxy: ProxyOptions) -> ServerOptions {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let connections_max = soft.saturating_sub(DESCRIPTORS_BESIDES).clamp(128, CONNECTIONS_MAX);
    ServerOptions {
        observation: ObservationOptions { verbosity: settings.verbosity(), ..ObservationOptions::default() },
        limits: LimitOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            connections_max: usize::try_from(connections_max).unwrap_or(1024),
            connections_refused: false,
            requests_per_event: REQUESTS_PER_EVENT,
            ..LimitOptions::default()
        },
        proxy: Some(ProxyOptions {
            name: ProxyName::Nutcracker,
            nutcracker_stats: Some(NutcrackerStatsOptions {
                address: settings.stats_address.clone(),
                port: settings.stats_port,
            }),
            ..proxy
        }),
        ..ServerOptions::default()
    }
}
