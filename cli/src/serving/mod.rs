//! Runs a server from its options to the end of the process, under each name of the program.
//!
//! ```text
//! prepare() -> open the sockets -> handle signals -> before_fork() -> fork, if requested
//!           -> after_fork() -> load the data, loading() -> started() -> serve clients
//!           -> remove_files() -> ended()
//! ```
//!
//! The names with `()` are methods of [`ServerProgram`]. The sockets are opened before the fork, so
//! that exit code 0 of the parent process means that the server listens. The fork precedes the
//! first thread.
//!
//! The program behaves differently under each of its names. Each name has its data
//! ([`ServerPersonality`]), a parser of its command line, and a [`ServerProgram`] for its messages.
//! Not here: command lines, and the server itself (crate `todana_server`).

mod background;
mod server_failure;
mod server_personality;
mod service_manager;

pub(crate) use background::{BackgroundStart, error_stream, reason};
pub(crate) use server_failure::ServerFailure;
pub(crate) use server_personality::{ServerPersonality, StartAction, called_as};

use crate::CommandFailure;
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_server::{LoadProgress, OpeningReport, Server, ServerHandle, ServerOptions, Tls};

/// Handles a signal that has arrived.
pub(crate) type SignalHandler = Box<dyn FnMut(i32, &SignalControls) + Send>;

/// A server that is ready to be opened.
pub(crate) struct PreparedServer {
    pub(crate) options: ServerOptions,
    /// The certificates, which are read while the process still runs as root.
    pub(crate) tls: Option<Tls>,
    /// How the server continues in the background. `None` stays in the foreground.
    pub(crate) background: Option<BackgroundStart>,
}

/// The reason why a server cannot start or continue.
pub(crate) enum ServingProblem<'e> {
    /// A signal handler or a thread cannot be created.
    System(&'e io::Error),
    /// An address, or a file that the options name, cannot be opened.
    Bind(&'e io::Error),
    /// The process already has this number of threads, which a fork would lose.
    Threads(usize),
    /// The process cannot continue in the background.
    Background(nix::errno::Errno),
    /// The data cannot be loaded.
    Load(&'e io::Error),
    /// The server has failed while it served clients.
    Run(&'e io::Error),
}

impl ServingProblem<'_> {
    /// Returns the failure of a command that has no background mode.
    pub(crate) fn of_command(self, command: &str) -> CommandFailure {
        match self {
            ServingProblem::System(error)
            | ServingProblem::Bind(error)
            | ServingProblem::Load(error)
            | ServingProblem::Run(error) => CommandFailure::trouble(error.to_string()),
            ServingProblem::Threads(_) | ServingProblem::Background(_) => {
                CommandFailure::trouble(format!("{command}: has no background mode"))
            }
        }
    }
}

/// The messages, files and signals of a server under one of its names.
pub(crate) trait ServerProgram {
    /// The reason why the server does not start.
    type StartError;

    /// Returns the signals that [`signal_handler`](Self::signal_handler) handles.
    fn signals(&self) -> &'static [i32];
    /// Does everything that must precede the sockets: opens the log, raises limits, changes the
    /// user.
    fn prepare(&mut self) -> Result<PreparedServer, Self::StartError>;
    /// Returns the failure for a problem, in the wording of the program.
    fn refusal(&self, problem: ServingProblem<'_>) -> Self::StartError;
    /// Does everything whose failure the parent process of a daemon must see. Called when the
    /// sockets are open and before the fork, while the process has a single thread.
    fn before_fork(&mut self, _server: &mut Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Writes the files that contain the process ID, and logs the addresses. Called after the fork,
    /// or in its place if the server stays in the foreground.
    fn after_fork(&mut self, _server: &Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Returns the signal handler, which runs in a thread of its own.
    fn signal_handler(&mut self, server: &Server) -> SignalHandler;
    /// Shows the progress of loading.
    fn loading(&mut self, _step: LoadProgress) {}
    /// Reports that the data is loaded and clients are served.
    fn started(&mut self, server: &Server, opened: Option<&OpeningReport>);
    /// Removes the files of the process. Not called if the start fails before the loading begins.
    fn remove_files(&mut self) {}
    /// Reports the end of the server. `is_cancelled` is true if a signal ended it before all data
    /// was loaded.
    fn ended(&mut self, is_cancelled: bool);
}

/// The actions that a signal handler can request.
pub(crate) struct SignalControls {
    handle: ServerHandle,
    reload: Box<dyn Fn() + Send>,
    is_loading: Arc<AtomicBool>,
}

impl SignalControls {
    /// Reads certificates, users and scripts again.
    pub(crate) fn reload(&self) {
        (self.reload)();
    }

    /// Stops the server. A second call stops it without waiting for anything.
    pub(crate) fn stop(&self) {
        service_manager::notify(service_manager::STOPPING);
        self.handle.stop();
    }

    /// Returns true until all data is loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::SeqCst)
    }
}

/// Runs the server until a signal or a client stops it.
pub(crate) fn serve<P: ServerProgram + ?Sized>(program: &mut P) -> Result<(), P::StartError> {
    let PreparedServer { options, tls, background } = program.prepare()?;
    let server = Server::bind_with(options, tls);
    let mut server = server.map_err(|error| program.refusal(ServingProblem::Bind(&error)))?;
    // Until here a signal ends the process at once, as a kill does. Databases on disk are already
    // open, and survive that.
    let signals = Signals::new(program.signals());
    let mut signals = signals.map_err(|error| program.refusal(ServingProblem::System(&error)))?;
    program.before_fork(&mut server)?;
    if let Some(background) = background {
        background.enter().map_err(|problem| program.refusal(problem))?;
    }
    program.after_fork(&server)?;
    let is_loading = Arc::new(AtomicBool::new(true));
    let controls = SignalControls {
        handle: server.handle(),
        reload: Box::new(server.reloader()),
        is_loading: Arc::clone(&is_loading),
    };
    let (signals_handle, mut handle) = (signals.handle(), program.signal_handler(&server));
    let watcher = std::thread::Builder::new().name("signals".into());
    let watcher = watcher.spawn(move || signals.forever().for_each(|signal| handle(signal, &controls)));
    let watcher = watcher.map_err(|error| program.refusal(ServingProblem::System(&error)))?;
    // Clients can already connect, and wait until the data is loaded.
    let outcome = match server.load(&mut |step| program.loading(step)) {
        Ok(opened) => {
            is_loading.store(false, Ordering::SeqCst);
            program.started(&server, opened.as_ref());
            service_manager::notify(service_manager::READY);
            let outcome = server.run_reporting(&service_manager::extend_stop).map(|()| false);
            outcome.map_err(|error| program.refusal(ServingProblem::Run(&error)))
        }
        // A signal has cancelled the loading, which changes no files.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(program.refusal(ServingProblem::Load(&error))),
    };
    signals_handle.close();
    let _ = watcher.join();
    program.remove_files();
    program.ended(outcome?);
    Ok(())
}
