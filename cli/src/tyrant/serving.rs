//! Runs the server under the name `ttserver`: with the messages, files and signals of Tokyo
//! Tyrant's server.
//!
//! Not here: the order of the steps from the start to the end (`crate::serving`).

use super::settings::{ListenAddress, TyrantSettings};
use super::{mapping, pid_file};
use crate::serving::{
    BackgroundStart, PreparedServer, ServerFailure, ServerProgram, ServingProblem, SignalHandler,
};
use nix::sys::resource::{Resource, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use todana_server::{LogFile, LogStyle, OpeningReport, PidFile, ScriptText, Server};
use tracing::{debug, error, info};

/// The most connections, if the limit on file descriptors allows that many. ttserver has no limit
/// of its own.
const CONNECTIONS_MAX: u64 = 65_536;
/// The number of file descriptors that are needed for other purposes than connections.
const DESCRIPTORS_BESIDES: u64 = 1024;

/// The server under the name `ttserver`.
pub(super) struct TokyoTyrantProgram {
    /// The name of the program in messages.
    program: String,
    settings: TyrantSettings,
    log: Option<LogFile>,
    pid_file: Option<PidFile>,
}

impl TokyoTyrantProgram {
    pub(super) fn new(program: &str, settings: TyrantSettings) -> TokyoTyrantProgram {
        TokyoTyrantProgram { program: program.into(), settings, log: None, pid_file: None }
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

    /// Ends the process that the pid file names, or fails if it is running and `-kl` is not given.
    fn expect_alone(&self) -> Result<(), ServerFailure> {
        let Some(pid) = self.settings.pid_file.as_deref().and_then(pid_file::other_process) else {
            return Ok(());
        };
        if !self.settings.ends_other {
            return Err(self.logged(&format!("the process {pid} may be already running")));
        }
        pid_file::end(pid, &mut |line| debug!("warning: {line}"));
        Ok(())
    }
}

impl ServerProgram for TokyoTyrantProgram {
    type StartError = ServerFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGHUP, SIGINT, SIGTERM]
    }

    fn prepare(&mut self) -> Result<PreparedServer, ServerFailure> {
        let settings = &self.settings;
        let options =
            mapping::options(settings, connections_max()).map_err(|problem| self.unlogged(&problem))?;
        let log = LogFile::open(settings.log.as_deref()).map_err(|error| {
            let path = settings.log.as_deref().unwrap_or("-".as_ref());
            self.unlogged(&format!("the log file {} could not be opened: {error}", path.display()))
        })?;
        log.receive(settings.log_kinds, LogStyle::Tyrant);
        settings.warnings.iter().for_each(|warning| debug!("warning: {warning}"));
        self.log = Some(log);
        self.expect_alone()?;
        let background = BackgroundStart { stays: false, keeps_streams: self.settings.log.is_none() };
        Ok(PreparedServer { options, tls: None, background: self.settings.is_daemon.then_some(background) })
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
        let pid = std::process::id();
        info!("--------- logging started [{pid}] --------");
        if let Some(path) = &self.settings.pid_file {
            let file = PidFile::write(path);
            self.pid_file = Some(file.map_err(|error| {
                self.logged(&format!("-pid {}: cannot write it: {error}", path.display()))
            })?);
            info!("process ID configuration: path={} pid={pid}", path.display());
        }
        describe(&self.settings, server);
        Ok(())
    }

    fn signal_handler(&mut self, _server: &Server) -> SignalHandler {
        let log = self.log.take();
        Box::new(move |signal, controls| {
            debug!("signal interruption");
            if signal != SIGHUP {
                return controls.stop();
            }
            // ttserver restarts its service loop on this signal. Scripts send it to rotate the log,
            // so the log file is opened again.
            match log.as_ref().map_or(Ok(()), LogFile::reopen) {
                Ok(()) => info!("the log file was reopened"),
                Err(error) => error!("the log file cannot be reopened: {error}"),
            }
            controls.reload();
        })
    }

    fn started(&mut self, _server: &Server, _opened: Option<&OpeningReport>) {
        info!("service started: {}", std::process::id());
        info!("listening started");
    }

    fn remove_files(&mut self) {
        self.pid_file = None;
    }

    fn ended(&mut self, _is_cancelled: bool) {
        info!("listening finished");
        info!("service finished");
        info!("--------- logging finished [{}] --------", std::process::id());
    }
}

/// Logs the settings.
fn describe(settings: &TyrantSettings, server: &Server) {
    match &settings.address {
        ListenAddress::Unix(path) => info!("server configuration: host={} port=0", path.display()),
        ListenAddress::Tcp { host, port } => {
            let chosen = server.tcp_addresses().first().map_or(0, std::net::SocketAddr::port);
            let host = host.as_deref().unwrap_or("(any)");
            info!("server configuration: host={host} port={}", port.unwrap_or(chosen));
        }
    }
    info!("maximum connection: {}", connections_max());
    info!("opening the database: {}", settings.database);
    if settings.logs_notes {
        settings.notes.iter().for_each(|note| debug!("{note}"));
    }
    if let (Some(log), Some(id)) = (&settings.update_log, settings.server_id) {
        info!(
            "update log configuration: path={} limit={} async={} sid={id}",
            log.directory.display(),
            log.file_len_max,
            u8::from(log.is_asynchronous)
        );
    }
    match &settings.script {
        Some(ScriptText::File(path)) => info!("scripting extension: {}", path.display()),
        Some(ScriptText::Inline(_)) => info!("scripting extension: (inline)"),
        None => {}
    }
    if !settings.mask.is_empty() {
        info!("command bit mask: 0x{:x}", settings.mask.bits());
    }
}

fn connections_max() -> usize {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).map_or(DESCRIPTORS_BESIDES * 2, |(_, hard)| hard);
    usize::try_from(allowed.saturating_sub(DESCRIPTORS_BESIDES).clamp(64, CONNECTIONS_MAX)).unwrap_or(64)
}
