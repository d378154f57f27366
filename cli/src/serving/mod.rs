//! The one serving loop of every name under which this program is a server: from the options to the end of the process.
//!
//! ```text
//! signals -> prepare -> sockets -> bound -> background -> in_place -> data read back -> started -> served -> closed -> ended
//! ```
//!
//! Sockets come before the fork into the background, so that exit code 0 means that the server listens; the fork comes before
//! the first thread. A name is data ([`ServerPersonality`]), a parser, and a [`ServerProgram`] for the words of its messages.
//! Not here: command lines, and what the server does with its options (`todana_server`).

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

/// Handles one signal.
pub(crate) type SignalHandler = Box<dyn FnMut(i32, &SignalControls) + Send>;

/// What a server is opened with.
pub(crate) struct PreparedServer {
    pub(crate) options: ServerOptions,
    /// Certificates, which may be readable only before the process changes its user.
    pub(crate) tls: Option<Tls>,
    /// How to go on in the background, if it should.
    pub(crate) background: Option<BackgroundStart>,
}

/// Why the loop cannot go on.
pub(crate) enum ServingProblem<'e> {
    /// The system has no room for a signal handler or a thread.
    System(&'e io::Error),
    /// An address, or another thing that the options name, cannot be had.
    Bind(&'e io::Error),
    /// A fork would lose this many threads.
    Threads(usize),
    /// The process cannot go on in the background.
    Background(nix::errno::Errno),
    /// The data cannot be read back.
    Load(&'e io::Error),
    /// The server has failed.
    Run(&'e io::Error),
}

/// A server under one of its names: its messages, files and signals, in the order of the calls.
pub(crate) trait ServerProgram {
    /// Why it does not serve.
    type StartError;

    /// Returns the signals that it handles.
    fn signals(&self) -> &'static [i32];
    /// Settles what must precede the sockets, as log, limits and user.
    fn prepare(&mut self) -> Result<PreparedServer, Self::StartError>;
    /// Names a problem in the program's words.
    fn refusal(&self, problem: ServingProblem<'_>) -> Self::StartError;
    /// Settles what the caller of a daemon should learn; the process has a single thread.
    fn bound(&mut self, _server: &mut Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Writes files that belong to the process that serves.
    fn in_place(&mut self, _server: &Server) -> Result<(), Self::StartError> {
        Ok(())
    }
    /// Returns what handles its signals, in a thread of its own.
    fn signal_handler(&mut self, server: &Server) -> SignalHandler;
    /// Shows how far the data is read back.
    fn loading(&mut self, _step: Progress) {}
    /// Reports that the data is read back and clients are served.
    fn started(&mut self, server: &Server, opened: Option<&Opened>);
    /// Removes its files; called after every end but a refusal before the data is read.
    fn closed(&mut self) {}
    /// Reports a stop; `is_called_off` if it came before all data was read back.
    fn ended(&mut self, is_called_off: bool);
}

/// What a handler of signals can do to the server.
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

    /// Stops the server; the second time at once.
    pub(crate) fn stop(&self) {
        self.handle.stop();
    }

    /// Returns true until all data is read back.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::SeqCst)
    }
}

/// Serves until a signal or a client ends it.
pub(crate) fn serve<P: ServerProgram + ?Sized>(program: &mut P) -> Result<(), P::StartError> {
    let PreparedServer { options, tls, background } = program.prepare()?;
    let server = Server::bind_with(options, tls);
    let mut server = server.map_err(|error| program.refusal(ServingProblem::Bind(&error)))?;
    // Until here, while databases on disk are opened, a signal ends the process; nobody could handle it yet.
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
    // Reading data back may take its time: clients wait meanwhile.
    let outcome = match server.load(&mut |step| program.loading(step)) {
        Ok(opened) => {
            is_loading.store(false, Ordering::SeqCst);
            program.started(&server, opened.as_ref());
            let outcome = server.run().map(|()| false);
            outcome.map_err(|error| program.refusal(ServingProblem::Run(&error)))
        }
        // A signal has called it off, with everything on disk as it was.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(program.refusal(ServingProblem::Load(&error))),
    };
    closer.close();
    let _ = watcher.join();
    program.closed();
    program.ended(outcome?);
    Ok(())
}
