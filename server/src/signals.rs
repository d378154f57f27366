//! A server that signals stop.

use crate::handle::Stopping;
use crate::logging::NOTICE;
use crate::options::Options;
use crate::server::Server;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Opened, Progress};

/// Runs a server until SIGINT, SIGTERM or SIGUSR1; a second signal ends it at once. `progress` is told while data is read
/// back; `ready` is called once it serves.
pub fn serve(
    options: Options,
    progress: &mut dyn FnMut(Progress),
    ready: impl FnOnce(&Server, Option<&Opened>),
) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    let mut server = Server::bind(options)?;
    let (handle, reload, reloadable) = (server.handle(), server.reloader(), server.reloadable().join(", "));
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1])?;
    let closer = signals.handle();
    let loads = Arc::new(AtomicBool::new(true));
    let still_loads = Arc::clone(&loads);
    let watcher = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                // Closed terminals and log rotations send it too; a cache must not go with them.
                reload();
                match &reloadable {
                    all if all.is_empty() => tracing::info!(
                        target: NOTICE,
                        "SIGHUP: nothing to read again: there are no certificates, users or scripts, and options are read at the start"
                    ),
                    all => tracing::info!(target: NOTICE, "SIGHUP: {all} read again; options are read at the start"),
                }
                continue;
            }
            tracing::info!(signal, "stopping");
            handle.stop();
            if handle.stopping() == Stopping::AtOnce && still_loads.load(Ordering::SeqCst) {
                // The disk keeps it from hearing of it, and there is nothing to bring to an end.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    })?;
    let outcome = match server.load(progress) {
        Ok(opened) => {
            loads.store(false, Ordering::SeqCst);
            ready(&server, opened.as_ref());
            server.run().inspect(|()| tracing::info!(target: NOTICE, "stopped"))
        }
        // It was asked to stop, and has, with everything on disk as it was.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            tracing::info!("stopped before all of the data was read back");
            Ok(())
        }
        Err(error) => Err(error),
    };
    closer.close();
    let _ = watcher.join();
    outcome
}
