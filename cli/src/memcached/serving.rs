//! Runs the server under the name `memcached`: with the messages, files and signals of memcached.
//!
//! Not here: the order of the steps from the start to the end (`crate::serving`).

use super::server_failure::{SYSTEM, ServerFailure};
use super::settings::{MemcachedSettings, PortChoice};
use super::{admin, data_place, environment, mapping, pid_file, port_file, process};
use crate::serving::{
    BackgroundStart, PreparedServer, ServerProgram, ServingProblem, SignalHandler, error_stream, reason,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_protocol::memcached::CHUNK_SIZES;
use todana_server::{
    AdminError, DataDirectoryOptions, ListenError, LogFormat, LoginError, OpeningReport, Server, Tls,
    Transport, init_logging,
};

/// The size of a slab page of memcached, in bytes.
const SLAB_PAGE: u32 = 1 << 20;

/// The server under the name `memcached`.
pub(super) struct MemcachedProgram {
    settings: MemcachedSettings,
    place: Option<DataDirectoryOptions>,
    /// Standard error, for problems before clients are served. memcached's daemon has closed this
    /// stream by then and prints nothing.
    trouble: Option<Box<dyn Write>>,
    is_graceful: Arc<AtomicBool>,
}

impl MemcachedProgram {
    pub(super) fn new(settings: MemcachedSettings) -> MemcachedProgram {
        MemcachedProgram { settings, place: None, trouble: None, is_graceful: Arc::default() }
    }
}

impl ServerProgram for MemcachedProgram {
    type StartError = ServerFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGINT, SIGTERM, SIGUSR1, SIGHUP]
    }

    fn prepare(&mut self) -> Result<PreparedServer, ServerFailure> {
        let settings = &self.settings;
        let mut options = mapping::options(settings)?;
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        environment::apply(&mut options, variable)?;
        options.observation.admin = admin::asked(|name| std::env::var(name).ok())?;
        // Private keys are often readable only by root, so they are read before the user changes.
        let tls = options.listen.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|error| ServerFailure::usage(error.to_string()))?;
        let outdone = data_place::outdone(settings.memory_file.as_deref(), |name| std::env::var_os(name));
        settings.warnings.iter().chain(&outdone).for_each(|warning| eprintln!("{warning}"));
        mapping::warnings(settings).iter().for_each(|warning| eprintln!("{warning}"));
        // The limits are raised while the process runs as root. Then the user changes, who becomes
        // the owner of sockets and files.
        if settings.core_dumps {
            process::allow_core_dumps()?;
        }
        process::raise_limits(settings.connections_max, settings.threads, settings.lock_memory);
        process::assume_user(settings.user.as_deref())?;
        if settings.core_dumps {
            process::stay_dumpable();
        }
        // With `-vv` or more, requests and connections are logged in memcached's own format.
        init_logging(LogFormat::Text, settings.verbosity.min(1));
        describe(settings);
        self.place = options.databases.data.clone();
        // memcached opens its sockets after the fork, so its caller does not see a failure. Here
        // the caller does, because the sockets are open before.
        let background = settings
            .daemon
            .then_some(BackgroundStart { stays: settings.core_dumps, keeps_streams: settings.verbosity > 0 });
        Ok(PreparedServer { options, tls, background })
    }

    fn refusal(&self, problem: ServingProblem<'_>) -> ServerFailure {
        match problem {
            ServingProblem::System(error) | ServingProblem::Run(error) => {
                ServerFailure::new(SYSTEM, reason(error))
            }
            ServingProblem::Bind(error) => cannot_listen(&self.settings, error),
            ServingProblem::Threads(threads) => ServerFailure::new(
                SYSTEM,
                format!("failed to daemon(): the process has {threads} threads already"),
            ),
            ServingProblem::Background(error) => ServerFailure::bad_value(format!(
                "failed to daemon() in order to daemonize: {}",
                reason(&error.into())
            )),
            ServingProblem::Load(error) => data_place::refused(self.settings.memory_file.as_deref(), error),
        }
    }

    fn before_fork(&mut self, server: &mut Server) -> Result<(), ServerFailure> {
        // The data directory is opened and locked before the fork, so that the caller of a daemon
        // sees a failure. The data is read later.
        server.claim_data().map_err(|error| self.refusal(ServingProblem::Load(&error)))?;
        self.trouble = Some(error_stream());
        Ok(())
    }

    fn after_fork(&mut self, server: &Server) -> Result<(), ServerFailure> {
        let Some(trouble) = &mut self.trouble else { return Ok(()) };
        // Memory locks are not inherited by a forked process, so they are set after the fork.
        if self.settings.lock_memory {
            process::lock_memory(trouble);
        }
        if self.settings.unix_socket.is_none() {
            port_file::write(server.tcp_addresses(), server.udp_addresses(), trouble);
        }
        if let Some(path) = &self.settings.pid_file {
            pid_file::write(path, trouble);
        }
        Ok(())
    }

    fn signal_handler(&mut self, _server: &Server) -> SignalHandler {
        let is_graceful = Arc::clone(&self.is_graceful);
        Box::new(move |signal, controls| match signal {
            SIGHUP => controls.reload(),
            signal => {
                is_graceful.store(signal == SIGUSR1, Ordering::Relaxed);
                controls.stop();
            }
        })
    }

    fn started(&mut self, _server: &Server, opened: Option<&OpeningReport>) {
        let trouble = self.trouble.take();
        if let (Some(mut trouble), Some(place), Some(opened)) = (trouble, &self.place, opened) {
            // A failure is ignored, because standard error may be closed.
            let _ = writeln!(trouble, "{}", data_place::found(place, opened));
        }
    }

    fn remove_files(&mut self) {
        if let Some(path) = self.settings.pid_file.as_ref().filter(|_| self.settings.daemon) {
            pid_file::remove(path);
        }
    }

    fn ended(&mut self, _is_cancelled: bool) {
        if self.is_graceful.load(Ordering::Relaxed) {
            eprintln!("Gracefully stopping");
        } else if self.settings.verbosity > 0 {
            eprintln!("Exiting normally");
        }
    }
}

/// Prints the notes of `-v`, and the slab classes of `-vv`.
fn describe(settings: &MemcachedSettings) {
    if settings.verbosity > 0 {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        for note in mapping::without_effect(settings).into_iter().chain(environment::without_effect(names)) {
            eprintln!("{note}");
        }
    }
    if settings.verbosity > 1 {
        // These are the size classes of the statistics. Tools parse these lines.
        for (index, size) in CHUNK_SIZES.iter().enumerate() {
            eprintln!("slab class {:3}: chunk size {size:9} perslab {:7}", index + 1, SLAB_PAGE / size);
        }
    }
}

/// Returns the failure for an address or a users file that cannot be opened, in memcached's
/// wording.
fn cannot_listen(settings: &MemcachedSettings, error: &io::Error) -> ServerFailure {
    if error.get_ref().is_some_and(|inner| inner.is::<AdminError>()) {
        return ServerFailure::new(SYSTEM, error.to_string());
    }
    if let Some(login) = error.get_ref().and_then(|error| error.downcast_ref::<LoginError>()) {
        return ServerFailure::bad_value(login.to_string());
    }
    let reason = cause(error).map_or_else(|| error.to_string(), reason);
    let listen = error.get_ref().and_then(|error| error.downcast_ref::<ListenError>());
    let (transport, port) = match listen.map(ListenError::transport) {
        Some(Transport::Udp) => ("UDP", settings.udp_port),
        _ => ("TCP", settings.tcp_port),
    };
    let place = match (&settings.unix_socket, &settings.listen, port) {
        (Some(path), _, _) => format!("UNIX socket: {}", path.display()),
        (None, Some(list), _) => format!("one of interface(s) {list}"),
        (None, None, PortChoice::Number(port)) => format!("{transport} port {port}"),
        (None, None, PortChoice::Any | PortChoice::Off) => format!("{transport} port -1"),
    };
    ServerFailure::new(SYSTEM, format!("failed to listen on {place}: {reason}"))
}

/// Returns the system's error that is the cause of an error which names the address.
fn cause(error: &io::Error) -> Option<&io::Error> {
    error.get_ref()?.source()?.downcast_ref()
}
