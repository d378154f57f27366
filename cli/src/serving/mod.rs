//! The serving loop, from the options to the end of the process, for every name of the program.
//!
//! ```text
//! prepare -> sockets -> signals -> bound -> background -> in_place
//!         -> load data -> started -> served -> closed -> ended
//! ```
//!
//! The sockets are opened before the fork into the background, so that exit code 0 means that the
//! server listens. The fork precedes the first thread. A name of the program consists of data
//! ([`ServerPersonality`]), a parser, and a [`ServerProgram`] for its messages.
//!
//! Not here: command lines, and the server itself (`todana_server`).

mod background;
mod server_failure;
mod server_personality;

pub(crate) use background::{BackgroundStart, error_stream, reason};
pub(crate) use server_failure::ServerFailure;
pub(crate) use server_personality::{ServerPersonality, StartAction, called_as};

use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_server::{Opened, Progress, Server, ServerHandle, ServerOptions, Tls};

/// Handles a signal.
pub(crate) type SignalHandler = Box<dyn FnMut(i32, &SignalControls) + Send>;

/// The options of a server that is about to be opened.
pub(crate) struct PreparedServer {
    pub(crate) options: ServerOptions,
    /// Certificates, loaded while the process can still read them as root.
    pub(crate) tls: Option<Tls>,
    /// How to continue in the background, if at all.
    pub(crate) background: Option<BackgroundStart>,
}

/// The reason why the loop cannot continue.
pub(crate) enum ServingProblem<'e> {
    /// A signal handler or a thread cannot be created.
    System(&'e io::Error),
    /// An address or a file of the options cannot be opened.
    Bind(&'e io::Error),
    /// A fork would lose this many threads.
    Threads(usize),
    /// The process cannot continue in the background.
    Background(nix::errno::Errno),
    /// The data cannot be loaded.
    Load(&'e io::Error),
    /// The server failed.
    Run(&'e io::Error),
}

/// A server under one of its names: its messages, files and signals. The methods are in the order
/// of the calls.
pub(crate) trait ServerProgram {
    /// The reason why the server does not start.
    type StartError;

    /// Returns the handled signals.
    fn signals(&self) -> &'static [i32];
    /// Does what must precede the sockets: log, limits, user.
    fn prepare(&mut self) -> Result<PreparedServer, Self::StartError>;
    /// Returns the failure for a problem, in the words of the program.
    fn refusal(&self, problem: ServingProblem<'_>) -> Self::StartError;
    /// Does what the caller of a daemon should see fail. The process still has a single thread.
    fn bound(&mut self, _server: &mut Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Writes the files that belong to the serving process.
    fn in_place(&mut self, _server: &Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Returns the signal handler, which runs in a thread of its own.
    fn signal_handler(&mut self, server: &Server) -> SignalHandler;
    /// Shows the progress of loading.
    fn loading(&mut self, _step: Progress) {}
    /// Reports that the data is loaded and clients are served.
    fn started(&mut self, server: &Server, opened: Option<&Opened>);
    /// Removes the files. Called at every end except a failure before loading.
    fn closed(&mut self) {}
    /// Reports the end. `is_called_off` is true if it came before all data was loaded.
    fn ended(&mut self, is_called_off: bool);
}

/// Actions of a signal handler on the server.
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

    /// Stops the server; the second call stops at once.
    pub(crate) fn stop(&self) {
        self.handle.stop();
    }

    /// Returns true until all data is loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::SeqCst)
    }
}

/// Serves until a signal or a client ends it.
pub(crate) fn serve<P: ServerProgram + ?Sized>(program: &mut P) -> Result<(), P::StartError> {
    let PreparedServer { options, tls, background } = program.prepare()?;
    let server = Server::bind_with(options, tls);
    let mut server = server.map_err(|error| program.refusal(ServingProblem::Bind(&error)))?;
    // Before this point, while databases on disk are opened, a signal ends the process: no handler
    // exists yet.
    let signals = Signals::new(program.signals());
    let mut signals = signals.map_err(|error| program.refusal(ServingProblem::System(&error)))?;
    program.bound(&mut server)?;
    if let Some(background) = background {
        background.enter().map_err(|problem| program.refusal(problem))?;
    }
    program.in_place(&server)?;
    let is_loading = Arc::new(AtomicBool::new(true));
    let controls = SignalControls {
        handle: server.handle(),
        reload: Box::new(server.reloader()),
        is_loading: Arc::clone(&is_loading),
    };
    let (closer, mut handle) = (signals.handle(), program.signal_handler(&server));
    let watcher = std::thread::Builder::new().name("signals".into());
    let watcher = watcher.spawn(move || signals.forever().for_each(|signal| handle(signal, &controls)));
    let watcher = watcher.map_err(|error| program.refusal(ServingProblem::System(&error)))?;
    // Clients wait while the data is loaded.
    let outcome = match server.load(&mut |step| program.loading(step)) {
        Ok(opened) => {
            is_loading.store(false, Ordering::SeqCst);
            program.started(&server, opened.as_ref());
            let outcome = server.run().map(|()| false);
            outcome.map_err(|error| program.refusal(ServingProblem::Run(&error)))
        }
        // A signal cancelled the loading. The files are unchanged.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(program.refusal(ServingProblem::Load(&error))),
    };
    closer.close();
    let _ = watcher.join();
    program.closed();
    program.ended(outcome?);
    Ok(())
}
