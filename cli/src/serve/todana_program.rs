//! The server under its own name: its messages and signals.
//!
//! Not here: the serving loop (`crate::serving`).

use super::start_banner::StartBanner;
use crate::CommandFailure;
use crate::progress::progress;
use crate::serving::{PreparedServer, ServerProgram, ServingProblem, SignalHandler};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::emulate_default_handler;
use todana_server::{NOTICE, Opened, Progress, Server, ServerOptions, Tls};

/// The server under its own name.
pub(super) struct TodanaProgram {
    options: ServerOptions,
    banner: StartBanner,
    /// Created only if there is data to load.
    bar: Option<ProgressBar>,
}

impl TodanaProgram {
    pub(super) fn new(options: ServerOptions) -> TodanaProgram {
        TodanaProgram { banner: StartBanner::of(&options), options, bar: None }
    }

    fn clear(&mut self) {
        self.bar.take().iter().for_each(ProgressBar::finish_and_clear);
    }
}

impl ServerProgram for TodanaProgram {
    type StartError = CommandFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGHUP, SIGINT, SIGTERM, SIGUSR1]
    }

    fn prepare(&mut self) -> Result<PreparedServer, CommandFailure> {
        let options = self.options.clone();
        let tls = options.listen.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|error| CommandFailure::trouble(error.to_string()))?;
        Ok(PreparedServer { options, tls, background: None })
    }

    fn refusal(&self, problem: ServingProblem<'_>) -> CommandFailure {
        match problem {
            ServingProblem::System(error)
            | ServingProblem::Bind(error)
            | ServingProblem::Load(error)
            | ServingProblem::Run(error) => CommandFailure::trouble(error.to_string()),
            ServingProblem::Threads(_) | ServingProblem::Background(_) => {
                CommandFailure::trouble("serve: has no background mode")
            }
        }
    }

    fn signal_handler(&mut self, server: &Server) -> SignalHandler {
        let (reloadable, mut is_stopped) = (server.reloadable().join(", "), false);
        Box::new(move |signal, controls| {
            if signal == SIGHUP {
                // Closing terminals and log rotation send SIGHUP too; it must not end a cache.
                controls.reload();
                match &reloadable {
                    all if all.is_empty() => tracing::info!(
                        target: NOTICE,
                        "SIGHUP: nothing to reload: no certificates, users or scripts are in use, and options are read only at the start"
                    ),
                    all => {
                        tracing::info!(target: NOTICE, "SIGHUP: reloaded {all}; options are read only at the start")
                    }
                }
                return;
            }
            tracing::info!(signal, "stopping");
            controls.stop();
            if std::mem::replace(&mut is_stopped, true) && controls.is_loading() {
                // A slow disk can delay the reaction, and nothing has to be finished yet.
                let _ = emulate_default_handler(signal);
            }
        })
    }

    fn loading(&mut self, step: Progress) {
        let bar = self.bar.get_or_insert_with(|| {
            progress(Some(0), "reading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
        });
        bar.set_length(step.done + step.remaining);
        bar.set_position(step.done);
    }

    fn started(&mut self, server: &Server, opened: Option<&Opened>) {
        self.clear();
        self.banner.print(server.listening_on(), server.admin_addresses(), opened);
    }

    fn closed(&mut self) {
        self.clear();
    }

    fn ended(&mut self, is_called_off: bool) {
        match is_called_off {
            true => tracing::info!("stopped before all data was loaded"),
            false => tracing::info!(target: NOTICE, "stopped"),
        }
    }
}
