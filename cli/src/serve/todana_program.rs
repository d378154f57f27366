//! Runs the server under its own name: `todana serve`, with its messages and signals.
//!
//! Not here: the order of the steps from the start to the end (`crate::serving`).

use super::start_banner::StartBanner;
use crate::CommandFailure;
use crate::progress::progress;
use crate::serving::{PreparedServer, ServerProgram, ServingProblem, SignalHandler};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::emulate_default_handler;
use todana_server::{LoadProgress, NOTICE, OpeningReport, Server, ServerOptions, Tls};

/// The server under its own name.
pub(super) struct TodanaProgram {
    options: ServerOptions,
    banner: StartBanner,
    /// The progress bar, which is created only if there is data to load.
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
        problem.of_command("serve")
    }

    fn signal_handler(&mut self, server: &Server) -> SignalHandler {
        let (reloadable, mut is_stopped) = (server.reloadable().join(", "), false);
        Box::new(move |signal, controls| {
            if signal == SIGHUP {
                // SIGHUP also comes from closed terminals and log rotation, so it must not end the
                // server.
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
                // While data is loaded, nothing needs to be finished, so the signal ends the
                // process at once. A slow disk could delay a regular stop.
                let _ = emulate_default_handler(signal);
            }
        })
    }

    fn loading(&mut self, step: LoadProgress) {
        let bar = self.bar.get_or_insert_with(|| {
            progress(Some(0), "reading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
        });
        bar.set_length(step.done + step.remaining);
        bar.set_position(step.done);
    }

    fn started(&mut self, server: &Server, opened: Option<&OpeningReport>) {
        self.clear();
        self.banner.print(server.listening_on(), server.admin_addresses(), opened);
    }

    fn remove_files(&mut self) {
        self.clear();
    }

    fn ended(&mut self, is_cancelled: bool) {
        match is_cancelled {
            true => tracing::info!("stopped before all data was loaded"),
            false => tracing::info!(target: NOTICE, "stopped"),
        }
    }
}
