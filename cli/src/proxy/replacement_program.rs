//! Runs the proxy under the name of another proxy, `moxi` or `nutcracker`: log file, pid file, user
//! and background.
//!
//! Not here: the command lines of those programs, and the order of the steps (`crate::serving`).

use super::live_configuration::{LiveConfiguration, OptionsSource};
use crate::memcached::{pid_file, process};
use crate::serving::{
    BackgroundStart, PreparedServer, ServerFailure, ServerProgram, ServingProblem, SignalHandler, reason,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::path::PathBuf;
use todana_server::{
    LogFile, LogFormat, LogKinds, LogStyle, OpeningReport, Server, ServerOptions, init_logging,
};

/// The settings of the process of another proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplacementSettings {
    /// The name of the program in messages.
    pub(crate) program: String,
    /// The log file. `None` means standard error.
    pub(crate) log: Option<PathBuf>,
    /// The verbosity of the log, as in [`ObservationOptions`](todana_server::ObservationOptions).
    pub(crate) verbosity: u8,
    pub(crate) is_daemon: bool,
    pub(crate) pid_file: Option<PathBuf>,
    /// The user to which a process of root changes. `None` keeps the user.
    pub(crate) user: Option<Option<String>>,
    pub(crate) core_dumps: bool,
    pub(crate) lock_memory: bool,
    /// True if the proxy stops when standard input is closed.
    pub(crate) ends_with_input: bool,
}

/// The proxy under the name of another one.
pub(crate) struct ReplacementProgram {
    settings: ReplacementSettings,
    options: ServerOptions,
    /// Reads the options again. `None` if no file has them, and once the proxy runs.
    source: Option<OptionsSource>,
    log: Option<LogFile>,
}

impl ReplacementProgram {
    /// Fails if the options are invalid.
    pub(crate) fn new(
        settings: ReplacementSettings,
        options: ServerOptions,
        source: Option<OptionsSource>,
    ) -> Result<ReplacementProgram, ServerFailure> {
        let program = ReplacementProgram { settings, options, source, log: None };
        match program.options.validate() {
            Ok(()) => Ok(program),
            Err(error) => Err(program.failure(error)),
        }
    }

    fn failure(&self, problem: impl std::fmt::Display) -> ServerFailure {
        ServerFailure::new(1, format!("{}: {problem}", self.settings.program))
    }
}

impl ServerProgram for ReplacementProgram {
    type StartError = ServerFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGHUP, SIGINT, SIGTERM]
    }

    fn prepare(&mut self) -> Result<PreparedServer, ServerFailure> {
        let settings = &self.settings;
        match &settings.log {
            None => init_logging(LogFormat::Text, settings.verbosity),
            Some(path) => {
                let log = LogFile::open(Some(path)).map_err(|error| {
                    ServerFailure::new(
                        1,
                        format!("opening log file '{}' failed: {}", path.display(), reason(&error)),
                    )
                })?;
                let kinds = if settings.verbosity > 1 { LogKinds::All } else { LogKinds::System };
                log.receive(kinds, LogStyle::Kyoto);
                self.log = Some(log);
            }
        }
        if settings.core_dumps {
            process::allow_core_dumps()?;
        }
        let limits = &self.options.limits;
        process::raise_limits(limits.connections_max, limits.threads, settings.lock_memory);
        if let Some(user) = &settings.user {
            process::assume_user(user.as_deref())?;
        }
        if settings.core_dumps {
            process::stay_dumpable();
        }
        let background = settings.is_daemon.then_some(BackgroundStart { stays: true, keeps_streams: false });
        Ok(PreparedServer { options: self.options.clone(), tls: None, background })
    }

    fn refusal(&self, problem: ServingProblem<'_>) -> ServerFailure {
        match problem {
            ServingProblem::System(error)
            | ServingProblem::Bind(error)
            | ServingProblem::Load(error)
            | ServingProblem::Run(error) => self.failure(reason(error)),
            ServingProblem::Threads(threads) => {
                self.failure(format!("-d: the process has {threads} threads already"))
            }
            ServingProblem::Background(error) => self.failure(format!("-d: {error}")),
        }
    }

    fn after_fork(&mut self, _server: &Server) -> Result<(), ServerFailure> {
        // Memory locks are not inherited by a forked process, so they are set after the fork.
        if self.settings.lock_memory {
            process::lock_memory(&mut std::io::stderr());
        }
        if let Some(path) = &self.settings.pid_file {
            pid_file::write(path, &mut std::io::stderr());
        }
        Ok(())
    }

    fn signal_handler(&mut self, server: &Server) -> SignalHandler {
        let log = self.log.clone();
        let live = self.source.take().zip(server.proxy_reloader());
        let live = live.map(|(source, reloader)| LiveConfiguration::new(source, reloader, &self.options));
        Box::new(move |signal, controls| {
            if signal != SIGHUP {
                tracing::info!(signal, "stopping");
                return controls.stop();
            }
            if let Some(Err(error)) = log.as_ref().map(LogFile::reopen) {
                tracing::error!("the log file cannot be reopened: {error}");
            }
            if let Some(live) = &live {
                live.reload();
            }
        })
    }

    fn started(&mut self, server: &Server, _opened: Option<&OpeningReport>) {
        tracing::info!("listening on {}", server.listening_on().join(", "));
        if self.settings.ends_with_input && !self.settings.is_daemon {
            let watcher = std::thread::Builder::new().name("input".into()).spawn(|| {
                let mut buffer = [0; 512];
                while std::io::stdin().read(&mut buffer).is_ok_and(|len| len > 0) {}
                let _ = signal_hook::low_level::raise(SIGTERM);
            });
            if let Err(error) = watcher {
                tracing::error!("standard input is not watched: {error}");
            }
        }
    }

    fn remove_files(&mut self) {
        if let Some(path) = &self.settings.pid_file {
            pid_file::remove(path);
        }
    }

    fn ended(&mut self, _is_cancelled: bool) {
        tracing::info!("stopped");
    }
}
