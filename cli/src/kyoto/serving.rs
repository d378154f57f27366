//! Runs the server under the name `ktserver`: with the messages, files and signals of Kyoto
//! Tycoon's server.
//!
//! Not here: the order of the steps from the start to the end (`crate::serving`).

use super::mapping;
use super::settings::KyotoSettings;
use crate::serving::{
    BackgroundStart, PreparedServer, ServerFailure, ServerProgram, ServingProblem, SignalHandler,
};
use nix::sys::resource::{Resource, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::path::Path;
use todana_protocol::kyoto::update_log::file_number;
use todana_server::{LogFile, LogStyle, OpeningReport, PidFile, Server};
use tracing::{error, info};

/// The most connections, if the limit on file descriptors allows that many. ktserver has no limit
/// of its own.
const CONNECTIONS_MAX: u64 = 65_536;
/// The number of file descriptors that are needed for other purposes than connections.
const DESCRIPTORS_BESIDES: u64 = 1024;

/// The server under the name `ktserver`.
pub(super) struct KyotoTycoonProgram {
    /// The name of the program in messages.
    program: String,
    settings: KyotoSettings,
    log: Option<LogFile>,
    pid_file: Option<PidFile>,
}

impl KyotoTycoonProgram {
    pub(super) fn new(program: &str, settings: KyotoSettings) -> KyotoTycoonProgram {
        KyotoTycoonProgram { program: program.into(), settings, log: None, pid_file: None }
    }

    /// Returns the failure for a problem, without a log line.
    fn unlogged(&self, problem: &str) -> ServerFailure {
        super::refusal(&self.program, problem)
    }

    /// Logs a problem and returns the failure.
    fn logged(&self, problem: &str) -> ServerFailure {
        error!("{problem}");
        self.unlogged(problem)
    }
}

impl ServerProgram for KyotoTycoonProgram {
    type StartError = ServerFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]
    }

    fn prepare(&mut self) -> Result<PreparedServer, ServerFailure> {
        let settings = &self.settings;
        let options =
            mapping::options(settings, connections_max()).map_err(|problem| self.unlogged(&problem))?;
        let log = LogFile::open(settings.log.as_deref()).map_err(|error| {
            let path = settings.log.as_deref().unwrap_or("-".as_ref());
            self.unlogged(&format!("-log {}: cannot open it: {error}", path.display()))
        })?;
        log.receive(settings.log_kinds, LogStyle::Kyoto);
        info!("================ [START]: pid={}", std::process::id());
        describe(settings);
        self.log = Some(log);
        let background = BackgroundStart { stays: false, keeps_streams: settings.log.is_none() };
        Ok(PreparedServer { options, tls: None, background: settings.is_daemon.then_some(background) })
    }

    fn refusal(&self, problem: ServingProblem<'_>) -> ServerFailure {
        let background = "-dmn: cannot continue in the background";
        match problem {
            ServingProblem::System(error) => self.unlogged(&error.to_string()),
            ServingProblem::Bind(error) | ServingProblem::Load(error) | ServingProblem::Run(error) => {
                self.logged(&error.to_string())
            }
            ServingProblem::Threads(threads) => {
                self.logged(&format!("{background}: the process has {threads} threads already"))
            }
            ServingProblem::Background(error) => self.logged(&format!("{background}: {error}")),
        }
    }

    fn before_fork(&mut self, server: &mut Server) -> Result<(), ServerFailure> {
        server.claim_data().map_err(|error| self.refusal(ServingProblem::Load(&error)))
    }

    fn after_fork(&mut self, server: &Server) -> Result<(), ServerFailure> {
        if self.settings.is_daemon {
            info!("switched to a daemon: pid={}", std::process::id());
        }
        for place in server.listening_on() {
            info!("server socket opened: expr={place} timeout={:.1}", self.settings.timeout_s);
        }
        if let Some(path) = &self.settings.pid_file {
            let file = PidFile::write(path);
            self.pid_file = Some(file.map_err(|error| {
                self.logged(&format!("-pid {}: cannot write it: {error}", path.display()))
            })?);
        }
        Ok(())
    }

    fn signal_handler(&mut self, _server: &Server) -> SignalHandler {
        let (log, is_daemon) = (self.log.take(), self.settings.is_daemon);
        Box::new(move |signal, controls| {
            // ktserver restarts on these signals. Scripts send them to rotate the log, so the log
            // file is opened again.
            if signal == SIGUSR1 || (signal == SIGHUP && is_daemon) {
                match log.as_ref().map_or(Ok(()), LogFile::reopen) {
                    Ok(()) => info!("the log file was reopened"),
                    Err(error) => error!("the log file cannot be reopened: {error}"),
                }
                controls.reload();
            } else {
                info!("a signal stops the server: {signal}");
                controls.stop();
            }
        })
    }

    fn started(&mut self, _server: &Server, _opened: Option<&OpeningReport>) {
        info!("the server has started");
    }

    fn remove_files(&mut self) {
        self.pid_file = None;
    }

    fn ended(&mut self, _is_cancelled: bool) {
        info!("================ [FINISH]: pid={}", std::process::id());
    }
}

/// Logs the databases, and notes about options without effect.
fn describe(settings: &KyotoSettings) {
    let is_alone = settings.update_log.is_none() && settings.replication.position.is_none();
    if let Some(number) = settings.server_id.filter(|_| is_alone) {
        info!("-sid {number} has no effect without -ulog or -rts");
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
            "-ulog {directory}: the update logs of Kyoto Tycoon there (*.ulog) are not read; changes after its last snapshot are missing"
        );
    }
}

/// Returns true if the directory contains an update log of ktserver. The user must be warned,
/// because the changes in this log are not applied.
fn has_log_of_original(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().and_then(file_number).is_some())
}

fn connections_max() -> usize {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).map_or(DESCRIPTORS_BESIDES * 2, |(_, hard)| hard);
    usize::try_from(allowed.saturating_sub(DESCRIPTORS_BESIDES).clamp(64, CONNECTIONS_MAX)).unwrap_or(64)
}
