//! Runs the proxy: `todana proxy`, with its messages and signals.

use crate::CommandFailure;
use crate::amount::amount;
use crate::serving::{PreparedServer, ServerProgram, ServingProblem, SignalHandler};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use todana_server::{ListenerPlace, NOTICE, OpeningReport, ProxyRoutes, Server, ServerOptions, Tls};

/// The proxy.
pub(super) struct ProxyProgram {
    options: ServerOptions,
    servers: usize,
}

impl ProxyProgram {
    /// Fails if the proxy cannot do what the options say.
    pub(super) fn new(mut options: ServerOptions) -> Result<ProxyProgram, CommandFailure> {
        let mut proxy = options.proxy.take().unwrap_or_default();
        let listen = &mut options.listen;
        listen.addresses.clear();
        for listener in &proxy.listeners {
            listen.backlog = listener.backlog;
            match &listener.place {
                ListenerPlace::Tcp(address) => listen.addresses.push(address.clone()),
                ListenerPlace::Unix { path, mode } => {
                    if proxy.listeners.len() > 1 {
                        return Err(unsupported("a Unix socket beside other listeners"));
                    }
                    (listen.unix_socket, listen.unix_mask) = (Some(path.clone()), *mode);
                }
            }
            if listener.clients_max.is_some() {
                return Err(unsupported("a maximum number of clients of a listener"));
            }
        }
        let mut pools: Vec<&str> =
            proxy.listeners.iter().filter_map(|listener| listener.pool.as_deref()).collect();
        pools.dedup();
        match (&pools[..], &proxy.routes) {
            ([], _) => {}
            ([pool], None) => proxy.routes = Some(ProxyRoutes::to_pool(pool)),
            _ => return Err(unsupported("listeners with different pools")),
        }
        let servers = proxy.pools.values().map(|pool| pool.servers.len()).sum();
        options.proxy = Some(proxy);
        Ok(ProxyProgram { options, servers })
    }
}

fn unsupported(what: &str) -> CommandFailure {
    CommandFailure::usage(format!("proxy: {what}: not supported yet"))
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

    fn signal_handler(&mut self, _server: &Server) -> SignalHandler {
        Box::new(|signal, controls| {
            if signal == SIGHUP {
                tracing::info!(target: NOTICE, "SIGHUP: the configuration is read only at the start");
                return;
            }
            tracing::info!(signal, "stopping");
            controls.stop();
        })
    }

    fn started(&mut self, server: &Server, _opened: Option<&OpeningReport>) {
        let place = server.listening_on().first().map_or("", String::as_str);
        let text = format!(
            "todana {}: proxy of {}, {} threads\nlistening on {}\ntry: todana set hello world -S {place} && todana get hello -S {place}\n",
            env!("CARGO_PKG_VERSION"),
            amount(self.servers as u64, "server"),
            self.options.limits.threads,
            server.listening_on().join(", "),
        );
        // A closed standard output is no reason to end.
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn ended(&mut self, _is_cancelled: bool) {
        tracing::info!(target: NOTICE, "stopped");
    }
}
