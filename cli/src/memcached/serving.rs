//! From the settings to a running server, in memcached's order, and to its end.

use super::refusal::{Refusal, SYSTEM};
use super::settings::{Port, Settings};
use super::{admin, data_place, environment, mapping, pid_file, port_file, process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_protocol::memcached::CHUNK_SIZES;
use todana_server::{AdminError, ListenError, LogFormat, LoginError, Server, Tls, Transport, init_logging};

/// memcached's slab pages, which its classes divide.
const SLAB_PAGE: u32 = 1 << 20;

/// Serves until a signal or a client's `shutdown` ends it.
pub(super) fn serve(settings: &Settings) -> Result<(), Refusal> {
    let mut options = mapping::options(settings)?;
    options.admin = admin::asked(|name| std::env::var(name).ok())?;
    // While it is root, as private keys are often root's.
    let tls = options.tls.as_ref().map(Tls::load).transpose();
    let tls = tls.map_err(|error| Refusal::usage(error.to_string()))?;
    let outdone = data_place::outdone(settings.memory_file.as_deref(), |name| std::env::var_os(name));
    settings.warnings.iter().chain(&outdone).for_each(|warning| eprintln!("{warning}"));
    mapping::warnings(settings).iter().for_each(|warning| eprintln!("{warning}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGHUP]).map_err(|error| system(&error))?;
    // Limits while it is root; then the user, so that sockets and files are the user's.
    if settings.core_dumps {
        process::allow_core_dumps()?;
    }
    process::raise_limits(settings.connections_max, settings.threads, settings.lock_memory);
    process::assume_user(settings.user.as_deref())?;
    if settings.core_dumps {
        process::stay_dumpable();
    }
    // From `-vv` on requests and connections are told in memcached's words instead.
    init_logging(LogFormat::Text, settings.verbosity.min(1));
    describe(settings);
    // memcached opens its sockets in the background, where nobody learns of a failure, and returns before they are
    // open. Here the caller knows: exit code 0 says that it listens.
    let place = options.data.clone();
    let mut server = Server::bind_with(options, tls).map_err(|error| cannot_listen(settings, &error))?;
    // So is the directory, as far as can be told without reading all of it.
    let memory_file = settings.memory_file.as_deref();
    server.claim_data().map_err(|error| data_place::refused(memory_file, &error))?;
    // Files and locks are the daemon's, but trouble with them is told where it was started: memcached's daemon has its
    // streams closed by then and goes on in silence.
    let mut trouble = process::error_stream();
    if settings.daemon {
        process::detach(settings.core_dumps, settings.verbosity > 0)?;
    }
    // A child inherits no locks on memory.
    if settings.lock_memory {
        process::lock_memory(&mut trouble);
    }
    if settings.unix_socket.is_none() {
        port_file::write(server.tcp_addresses(), server.udp_addresses(), &mut trouble);
    }
    if let Some(path) = &settings.pid_file {
        pid_file::write(path, &mut trouble);
    }
    let graceful = Arc::new(AtomicBool::new(false));
    let (handle, closer, reload) = (server.handle(), signals.handle(), server.reloader());
    let seen = Arc::clone(&graceful);
    let watcher = std::thread::Builder::new().name("signals".into());
    let watcher = watcher
        .spawn(move || {
            for signal in &mut signals {
                match signal {
                    SIGHUP => reload(),
                    signal => {
                        seen.store(signal == SIGUSR1, Ordering::Relaxed);
                        handle.stop();
                    }
                }
            }
        })
        .map_err(|error| system(&error))?;
    // What is read back may take its time: clients wait meanwhile.
    let outcome = match server.load(&mut |_| ()) {
        Ok(opened) => {
            if let (Some(place), Some(opened)) = (&place, &opened) {
                // Nobody may be there to be told.
                let _ = writeln!(trouble, "{}", data_place::found(place, opened));
            }
            drop(trouble);
            server.run().map_err(|error| system(&error))
        }
        // A signal has called it off.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(data_place::refused(memory_file, &error)),
    };
    closer.close();
    let _ = watcher.join();
    if settings.daemon
        && let Some(path) = &settings.pid_file
    {
        pid_file::remove(path);
    }
    outcome?;
    if graceful.load(Ordering::Relaxed) {
        eprintln!("Gracefully stopping");
    } else if settings.verbosity > 0 {
        eprintln!("Exiting normally");
    }
    Ok(())
}

/// What `-v` and `-vv` tell before the start.
fn describe(settings: &Settings) {
    if settings.verbosity > 0 {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        for note in mapping::without_effect(settings).into_iter().chain(environment::without_effect(names)) {
            eprintln!("{note}");
        }
    }
    if settings.verbosity > 1 {
        // The classes under which statistics report; tools read them here.
        for (index, size) in CHUNK_SIZES.iter().enumerate() {
            eprintln!("slab class {:3}: chunk size {size:9} perslab {:7}", index + 1, SLAB_PAGE / size);
        }
    }
}

/// The refusal for an address or a file of users that cannot be had, as memcached names it.
fn cannot_listen(settings: &Settings, error: &io::Error) -> Refusal {
    if error.get_ref().is_some_and(|inner| inner.is::<AdminError>()) {
        return Refusal::new(SYSTEM, error.to_string());
    }
    if let Some(login) = error.get_ref().and_then(|error| error.downcast_ref::<LoginError>()) {
        return Refusal::bad_value(login.to_string());
    }
    let reason = cause(error).map_or_else(|| error.to_string(), process::reason);
    let listen = error.get_ref().and_then(|error| error.downcast_ref::<ListenError>());
    let (transport, port) = match listen.map(ListenError::transport) {
        Some(Transport::Udp) => ("UDP", settings.udp_port),
        _ => ("TCP", settings.tcp_port),
    };
    let place = match (&settings.unix_socket, &settings.listen, port) {
        (Some(path), _, _) => format!("UNIX socket: {}", path.display()),
        (None, Some(list), _) => format!("one of interface(s) {list}"),
        (None, None, Port::Number(port)) => format!("{transport} port {port}"),
        (None, None, Port::Any | Port::Off) => format!("{transport} port -1"),
    };
    Refusal::new(SYSTEM, format!("failed to listen on {place}: {reason}"))
}

/// The system's error inside one that names the address.
fn cause(error: &io::Error) -> Option<&io::Error> {
    error.get_ref()?.source()?.downcast_ref()
}

fn system(error: &io::Error) -> Refusal {
    Refusal::new(SYSTEM, process::reason(error))
}
