//! Runs the proxy: `todana proxy`, with its messages and signals.

use super::live_configuration::{LiveConfiguration, OptionsSource};
use crate::CommandFailure;
use crate::amount::amount;
use crate::serving::{PreparedServer, ServerProgram, ServingProblem, SignalHandler};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use todana_server::{ListenerProtocol, NOTICE, OpeningReport, Server, ServerOptions, Tls};

/// The proxy.
pub(super) struct ProxyProgram {
    options: ServerOptions,
    servers: usize,
    /// `None` once the proxy runs.
    source: Option<OptionsSource>,
}

impl ProxyProgram {
    pub(super) fn new(mut options: ServerOptions, source: OptionsSource) -> ProxyProgram {
        // The listeners of the proxy take the place of the server's.
        (options.listen.addresses, options.listen.unix_socket) = (Vec::new(), None);
        let pools = options.proxy.iter().flat_map(|proxy| proxy.pools.values());
        let servers = pools.map(|pool| pool.servers.len()).sum();
        ProxyProgram { options, servers, source: Some(source) }
    }
}

impl ServerProgram for ProxyProgram {
    type StartError = CommandFailure;

    fn signals(&self) -> &'static [i32] {
        &[SIGHUP, SIGINT, SIGTERM]
    }

    fn prepare(&mut self) -> Result<PreparedServer, CommandFailure> {
        let options = self.options.clone();
        let tls = options.listen.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|error| CommandFailure::trouble(error.to_string()))?;
        Ok(PreparedServer { options, tls, background: None })
    }

    fn refusal(&self, problem: ServingProblem<'_>) -> CommandFailure {
        problem.of_command("proxy")
    }

    fn signal_handler(&mut self, server: &Server) -> SignalHandler {
        let live = self.source.take().zip(server.proxy_reloader());
        let live = live.map(|(source, reloader)| LiveConfiguration::new(source, reloader, &self.options));
        Box::new(move |signal, controls| match &live {
            Some(live) if signal == SIGHUP => {
                controls.reload();
                live.reload();
            }
            _ => {
                tracing::info!(signal, "stopping");
                controls.stop();
            }
        })
    }

    fn started(&mut self, server: &Server, _opened: Option<&OpeningReport>) {
        let mut text = format!(
            "todana {}: proxy of {}, {} threads\nlistening on {}\n",
            env!("CARGO_PKG_VERSION"),
            amount(self.servers as u64, "server"),
            self.options.limits.threads,
            server.listening_on().join(", "),
        );
        let first = self.options.proxy.as_ref().and_then(|proxy| proxy.listeners.first());
        // Our own client speaks memcached's protocol.
        if first.is_none_or(|listener| listener.protocol == ListenerProtocol::Memcached)
            && let Some(place) = server.listening_on().first()
        {
            text += &format!("try: todana set hello world -S {place} && todana get hello -S {place}\n");
        }
        // A closed standard output is no reason to end.
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn ended(&mut self, _is_cancelled: bool) {
        tracing::info!(target: NOTICE, "stopped");
    }
}
