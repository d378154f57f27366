//! Determines the options of a proxy from the command line, the environment and its file.
//!
//! The options that a proxy shares with `todana serve` have the same sources and the same
//! precedence as there. The file has them at its top, beside its tables.

use super::config_file::{self, LoadedFile, ProxyFileKind};
use super::proxy_file::SHARED_OPTIONS;
use super::{POOL, ProxyArguments, pool_servers, proxy_file, wrong};
use crate::option_sources::{self, ConfiguredValue};
use crate::{CommandFailure, HELP_WIDTH_MAX, ProgramArguments, serve, suggestions};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::Path;
use todana_client::ring::{RingOptions, ServerEntry};
use todana_server::{
    LimitOptions, ListenerPlace, LogFormat, MemoryOptions, ObservationOptions, PoolOptions, ProtocolOptions,
    ProxyListener, ProxyOptions, ProxyRoutes, ServerOptions,
};

/// The options that replace the addresses of a file if the command line or the environment has
/// them.
const PLACES: [&str; 3] = ["listen", "port", "unix-socket"];

fn proxy_command() -> clap::Command {
    let all = ProgramArguments::command();
    let proxy =
        all.get_subcommands().find(|command| command.get_name() == "proxy").expect("proxy is a command");
    proxy.clone().args_override_self(true).max_term_width(HELP_WIDTH_MAX).bin_name("todana proxy")
}

/// The arguments of a proxy, and its file.
pub(super) struct EffectiveOptions {
    pub(super) arguments: ProxyArguments,
    file: Option<LoadedFile>,
    /// True if the command line or the environment says where to listen.
    has_place: bool,
    /// The options that `todana serve` has, too, with their values. Missing are those with a
    /// default value, and the addresses, which are in `proxy_options`.
    pub(super) shared: Vec<(String, Vec<String>)>,
}

impl EffectiveOptions {
    /// Reads the command line, the environment and the file. `words` is a complete command line of
    /// `proxy`, with the name of the program.
    pub(super) fn read(
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<EffectiveOptions, CommandFailure> {
        // For clap, the name of the program and `proxy` are a single word.
        let words: Vec<OsString> = words.into_iter().skip(1).collect();
        let first = option_sources::flags_only(proxy_command()).try_get_matches_from(&words);
        let first = first.unwrap_or_else(|error| {
            if error.kind() == clap::error::ErrorKind::DisplayHelp {
                // This prints the help, which shows the variables, and ends the process.
                proxy_command().get_matches_from(&words);
            }
            suggestions::clearer(error, &proxy_command()).exit()
        });
        suggestions::warn_of_unknown_variables(&proxy_command());
        let file = file_of(&first)?;
        EffectiveOptions::layered(&words, file)
    }

    /// Returns the options of a file alone.
    pub(super) fn of_file(file: LoadedFile) -> Result<EffectiveOptions, CommandFailure> {
        EffectiveOptions::layered(&["proxy".into()], Some(file))
    }

    fn layered(words: &[OsString], file: Option<LoadedFile>) -> Result<EffectiveOptions, CommandFailure> {
        let entries = file.as_ref().map_or(&[][..], |file| &file.entries);
        let (command, configured) = option_sources::with_configuration(proxy_command(), entries)?;
        let matches = command.clone().try_get_matches_from(words).map_err(serve::usage)?;
        let has_place = PLACES.into_iter().any(|name| is_given(name, &matches, &configured));
        let names = SHARED_OPTIONS.into_iter().filter(|name| !["unix-socket", "unix-mask"].contains(name));
        let shared = names
            .filter_map(|name| Some((name.to_string(), values_of(name, &command, &matches, &configured)?)));
        let shared = shared.collect();
        let arguments = ProxyArguments::from_arg_matches(&matches).map_err(serve::usage)?;
        Ok(EffectiveOptions { arguments, file, has_place, shared })
    }

    /// Returns the options of the server.
    pub(super) fn server_options(&self) -> Result<ServerOptions, CommandFailure> {
        let ProxyArguments { network, process, .. } = &self.arguments;
        let listen = network.listen_options().map_err(CommandFailure::usage)?;
        let proxy = self.proxy_options()?;
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let options = ServerOptions {
            memory: MemoryOptions { limit_mib: self.arguments.memory_limit, ..MemoryOptions::default() },
            protocols: ProtocolOptions {
                protocol: process.dialect(),
                authentication: network.authentication().map_err(CommandFailure::usage)?,
                ..ProtocolOptions::default()
            },
            observation: ObservationOptions {
                verbosity: process.verbose,
                pid_file: process.pidfile.clone(),
                admin: network.admin(self.tcp_port(&proxy)),
                ..ObservationOptions::default()
            },
            limits: LimitOptions {
                threads: proxy.threads.unwrap_or_else(processors),
                flush_allowed: !process.disable_flush_all,
                ..network.limits()
            },
            listen,
            proxy: Some(proxy),
            ..ServerOptions::default()
        };
        options.validate().map_err(|error| CommandFailure::usage(error.to_string()))?;
        Ok(options)
    }

    pub(super) fn log_format(&self) -> LogFormat {
        self.arguments.process.log_format()
    }

    /// Returns the options of the proxy itself.
    pub(super) fn proxy_options(&self) -> Result<ProxyOptions, CommandFailure> {
        let network = &self.arguments.network;
        let mut proxy = match &self.file {
            Some(file) => file.options.clone(),
            None => of_pool(self.arguments.pool()?),
        };
        proxy.threads = self.arguments.threads.or(proxy.threads);
        let is_listed = self.file.as_ref().is_some_and(|file| file.has_listen);
        if (proxy.routes.is_some() && !is_listed) || self.has_place {
            if proxy.routes.is_none() {
                let [pool] = &proxy.pools.keys().collect::<Vec<_>>()[..] else {
                    let problem = "-l: several pools with listeners of their own, but no route";
                    return Err(CommandFailure::usage(problem));
                };
                proxy.routes = Some(ProxyRoutes::to_pool(pool));
            }
            proxy.listeners.retain(|listener| listener.pool.is_some());
            let places = match &network.unix_socket {
                Some(path) => vec![ListenerPlace::Unix { path: path.clone(), mode: network.unix_mask }],
                None => network.listen.iter().cloned().map(ListenerPlace::Tcp).collect(),
            };
            let listeners = places.into_iter().map(|place| ProxyListener::new(place, None));
            proxy.listeners.splice(0..0, listeners);
        }
        for listener in proxy.listeners.iter_mut().filter(|listener| listener.pool.is_none()) {
            listener.backlog = network.listen_backlog;
        }
        Ok(proxy)
    }

    /// Returns the port of the first TCP listener.
    fn tcp_port(&self, proxy: &ProxyOptions) -> Option<i32> {
        let place = proxy.listeners.iter().find_map(|listener| match &listener.place {
            ListenerPlace::Tcp(address) => Some(address),
            ListenerPlace::Unix { .. } => None,
        })?;
        let port = place.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        Some(port.and_then(|(_, port)| port.parse().ok()).unwrap_or(self.arguments.network.port))
    }
}

/// Returns the options of a proxy with a single pool.
fn of_pool(pool: PoolOptions) -> ProxyOptions {
    if proxy_file::ignores_weights(&pool) {
        eprintln!("todana: ring {}: ignores weights", pool.ring.kind);
    }
    ProxyOptions {
        pools: [(POOL.to_string(), pool)].into(),
        routes: Some(ProxyRoutes::to_pool(POOL)),
        ..ProxyOptions::default()
    }
}

/// Loads the file that the command line names. The variable of `--config` counts only if the
/// command line describes no pool.
fn file_of(first: &ArgMatches) -> Result<Option<LoadedFile>, CommandFailure> {
    if let Some(path) = first.get_one::<std::path::PathBuf>("from") {
        return config_file::load(path, ProxyFileKind::Nutcracker).map(Some);
    }
    let is_described = first.contains_id("servers") || first.contains_id("vbuckets");
    let flag = first.get_one("config");
    if is_described && flag.is_none() {
        return Ok(None);
    }
    let path = option_sources::file(&proxy_command(), flag);
    path.map(|path| config_file::load(Path::new(&path), ProxyFileKind::Todana)).transpose()
}

/// Returns true if the command line or the environment has an option.
fn is_given(name: &str, matches: &ArgMatches, configured: &[ConfiguredValue]) -> bool {
    matches.value_source(&name.replace('-', "_")) == Some(ValueSource::CommandLine)
        || configured.iter().any(|one| one.name == name && one.origin == "environment")
}

/// Returns the values of an option; `None` if it has its default value.
fn values_of(
    name: &str,
    command: &clap::Command,
    matches: &ArgMatches,
    configured: &[ConfiguredValue],
) -> Option<Vec<String>> {
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name))?;
    let id = argument.get_id().as_str();
    let is_flag = matches.value_source(id) == Some(ValueSource::CommandLine);
    if !is_flag && !configured.iter().any(|one| one.name == name) {
        return None;
    }
    Some(match argument.get_action() {
        ArgAction::Count => vec![matches.get_count(id).to_string()],
        ArgAction::SetTrue => vec![matches.get_flag(id).to_string()],
        _ => matches.get_raw(id)?.map(|value| value.to_string_lossy().into_owned()).collect(),
    })
}

impl ProxyArguments {
    /// Returns the pool that the arguments describe.
    pub(super) fn pool(&self) -> Result<PoolOptions, CommandFailure> {
        if let Some(path) = &self.vbuckets {
            let (vbuckets, servers) = pool_servers::vbuckets(path).map_err(CommandFailure::usage)?;
            return Ok(PoolOptions { servers, vbuckets: Some(vbuckets), ..PoolOptions::default() });
        }
        if self.servers.is_empty() {
            return Err(CommandFailure::usage(
                "proxy: no servers; give --servers <LIST>, --config <FILE> or --from <FILE>",
            ));
        }
        Ok(PoolOptions {
            servers: ServerEntry::parse_list(&self.servers.join(",")).map_err(wrong)?,
            ring: RingOptions {
                kind: self.ring.parse().map_err(wrong)?,
                hash: self.hash.clone(),
                mode: self.mode.clone(),
                points: self.points,
                seed: self.seed.clone(),
                salt: self.salt.clone(),
                ..RingOptions::default()
            },
            hash_tag: self.hash_tag.clone(),
            hash_stop: self.hash_stop.clone(),
            hash_without: self.hash_without.clone(),
            ..PoolOptions::default()
        })
    }
}
