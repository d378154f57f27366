//! From the settings to a running server, and to its end.

use super::mapping;
use super::settings::Settings;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::daemon;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::path::Path;
use todana_protocol::kyoto::update_log::file_number;
use todana_server::{LogFile, PidFile, Server};
use tracing::{error, info};

/// Connections at once, if so many descriptors may be open: the original has no other bound.
const CONNECTIONS_MAX: u64 = 65_536;
/// Descriptors for all else.
const DESCRIPTORS_BESIDES: u64 = 1024;

/// Serves until a signal ends it.
pub(super) fn serve(settings: &Settings) -> Result<(), String> {
    let options = mapping::options(settings, connections_max())?;
    let log = LogFile::open(settings.log.as_deref()).map_err(|error| {
        let path = settings.log.as_deref().unwrap_or("-".as_ref());
        format!("-log {}: cannot open it: {error}", path.display())
    })?;
    log.receive(settings.log_kinds);
    // Before anything is told by a signal.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]).map_err(text)?;
    info!("================ [START]: pid={}", std::process::id());
    let is_alone = settings.update_log.is_none() && settings.replication.position.is_none();
    if let Some(number) = settings.server_id.filter(|_| is_alone) {
        info!("-sid {number} has no meaning without -ulog or -rts");
    }
    for name in &settings.databases {
        info!("opening a database: path={name}");
    }
    settings.notes.iter().for_each(|note| info!("{note}"));
    if let Some(log) = &settings.update_log
        && has_log_of_original(&log.directory)
    {
        let directory = log.directory.display();
        error!(
            "-ulog {directory}: the original's files there (*.ulog) are not read: what they tell beyond its snapshots is not here"
        );
    }
    let told = |error: String| {
        error!("{error}");
        error
    };
    // Whoever starts a daemon learns of an address or a directory that cannot be had: both are there before it forks.
    let mut server = Server::bind(options).map_err(|error| told(text(error)))?;
    server.claim_data().map_err(|error| told(text(error)))?;
    if settings.is_daemon {
        // A fork takes only its own thread along: with others, locks would stay locked for ever.
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(told(format!(
                "-dmn: cannot go on in the background: there are {threads} threads already"
            )));
        }
        daemon(false, settings.log.is_none())
            .map_err(|error| told(format!("-dmn: cannot go on in the background: {error}")))?;
        info!("switched to a daemon: pid={}", std::process::id());
    }
    for place in server.listening_on() {
        info!("server socket opened: expr={place} timeout={:.1}", settings.timeout_s);
    }
    let write = |path: &Path| {
        PidFile::write(path)
            .map_err(|error| told(format!("-pid {}: cannot write it: {error}", path.display())))
    };
    let pid_file = settings.pid_file.as_deref().map(write).transpose()?;
    let (handle, closer, read_again) = (server.handle(), signals.handle(), server.reloader());
    let is_daemon = settings.is_daemon;
    let watcher = std::thread::Builder::new().name("signals".into());
    let watcher = watcher
        .spawn(move || {
            for signal in &mut signals {
                // Those by which the original starts again, mostly to have its log rotated.
                if signal == SIGUSR1 || (signal == SIGHUP && is_daemon) {
                    match log.reopen() {
                        Ok(()) => info!("the log file was opened again"),
                        Err(error) => error!("the log file cannot be opened again: {error}"),
                    }
                    read_again();
                } else {
                    info!("a signal stops the server: {signal}");
                    handle.stop();
                }
            }
        })
        .map_err(text)?;
    let outcome = match server.load(&mut |_| ()) {
        Ok(_) => {
            info!("the server has started");
            server.run()
        }
        // A signal has called it off.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    };
    closer.close();
    let _ = watcher.join();
    drop(pid_file);
    outcome.map_err(|error| told(text(error)))?;
    info!("================ [FINISH]: pid={}", std::process::id());
    Ok(())
}

/// Whether the original has logged updates there. A start that looks as ever would otherwise leave them out in silence.
fn has_log_of_original(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().and_then(file_number).is_some())
}

fn connections_max() -> usize {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).map_or(DESCRIPTORS_BESIDES * 2, |(_, hard)| hard);
    usize::try_from(allowed.saturating_sub(DESCRIPTORS_BESIDES).clamp(64, CONNECTIONS_MAX)).unwrap_or(64)
}

fn text(error: io::Error) -> String {
    error.to_string()
}
