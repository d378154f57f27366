//! Defines the options of a server, by concern. Options that memcached has, too, have memcached's
//! names.

mod databases;
mod kyoto;
mod limits;
mod listen;
mod memory;
mod observation;
mod protocols;
mod proxy;
mod tyrant;

pub use databases::{DataDirectoryOptions, DatabaseOptions, DatabaseSpec};
pub use kyoto::{KyotoMode, KyotoOptions, PluginOptions};
pub use limits::LimitOptions;
pub use listen::{IoMode, ListenOptions};
pub use memory::MemoryOptions;
pub use observation::{
    AdminOptions, CollectorAddress, CollectorAddressError, ObservationOptions, SlowRequestOptions,
    TraceOptions,
};
pub use protocols::{AuthenticationMode, ProtocolOptions};
pub use proxy::{
    ListenerPlace, ListenerProtocol, NutcrackerStatsOptions, PoolLogin, PoolOptions, PoolProtocol,
    PoolTlsOptions, PoolVbuckets, ProxyListener, ProxyName, ProxyOptions, ProxyRoutes, ProxyVersion,
    ReplicaRead, ReplicaWrite, RouteTree, ShadowedRequests, WhenDown,
};
pub use tyrant::{PeriodicCall, ScriptText, TyrantMode, TyrantOptions};

use std::fmt;

/// The options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// The addresses on which the server listens.
    pub listen: ListenOptions,
    /// The memory limit and its effect.
    pub memory: MemoryOptions,
    /// The protocols, and how clients log in.
    pub protocols: ProtocolOptions,
    /// The databases, and where their data is kept.
    pub databases: DatabaseOptions,
    /// Logs, statistics and monitoring.
    pub observation: ObservationOptions,
    /// Limits on clients and their requests.
    pub limits: LimitOptions,
    /// The pools of a proxy. `None` means that this server keeps the records itself.
    pub proxy: Option<ProxyOptions>,
    /// True if another thread executes each operation.
    #[cfg(test)]
    pub(crate) defers_replies: bool,
}

/// An invalid option. Its text names the option and the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError(String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionsError {}

impl OptionsError {
    pub(crate) fn new(text: String) -> OptionsError {
        OptionsError(text)
    }
}

impl ServerOptions {
    /// Checks the options of each part, and then the combinations of options of several parts.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        let ServerOptions { listen, memory, protocols, databases, limits, .. } = self;
        let kyoto = &protocols.kyoto;
        databases.validate(memory.refuse_when_full, kyoto.has_queues())?;
        let has_scripts = kyoto.script.is_some() || protocols.tyrant.script.is_some();
        if has_scripts && databases.all().iter().any(|database| database.name.cluster.is_some()) {
            return wrong("a script cannot use a database on a cluster; leave out the script");
        }
        kyoto.validate(databases.all()[0].name.kind)?;
        limits.validate()?;
        memory.validate()?;
        if memory.limit_mib != 0 && limits.item_size_max > (memory.limit_mib << 20) / 2 {
            return wrong("the item size may be at most half of the memory limit (-I, -m)");
        }
        listen.validate()?;
        if listen.udp_port.is_some() && databases.all()[0].name.cluster.is_some() {
            return wrong("UDP sends no replies of a cluster; leave out -U, or put another database first");
        }
        let authentication = &protocols.authentication;
        if listen.udp_port.is_some()
            && matches!(authentication, AuthenticationMode::Text(_) | AuthenticationMode::Passwords(_))
        {
            return wrong("UDP has no logins; give only one of -U, -Y and -S");
        }
        let listeners = self.proxy.iter().flat_map(|proxy| &proxy.listeners);
        if *authentication != AuthenticationMode::None
            && listeners.into_iter().any(|one| one.protocol == ListenerProtocol::Tyrant)
        {
            return wrong("protocol=tyrant: Tokyo Tyrant's protocol has no logins; leave out either of them");
        }
        if kyoto.plugin.is_some() && *authentication != AuthenticationMode::None {
            return wrong("the port of Kyoto Tycoon's plug-in has no logins; leave out either of them");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana::DatabaseName;

    #[test]
    fn default_options_are_valid() {
        assert_eq!(ServerOptions::default().validate(), Ok(()));
    }

    #[test]
    fn impossible_values_are_refused_with_their_option() {
        let logins = AuthenticationMode::Text("users".into());
        let cases: [(&str, ServerOptions); 8] = [
            (
                "-U",
                ServerOptions {
                    listen: ListenOptions { udp_port: Some(1), ..ListenOptions::default() },
                    protocols: ProtocolOptions { authentication: logins, ..ProtocolOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "--udp-reply-max",
                ServerOptions {
                    listen: ListenOptions { udp_reply_max: 1 << 27, ..ListenOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-t",
                ServerOptions {
                    limits: LimitOptions { threads: 0, ..LimitOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-c",
                ServerOptions {
                    limits: LimitOptions { connections_max: 0, ..LimitOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-I",
                ServerOptions {
                    limits: LimitOptions { item_size_max: 1000, ..LimitOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-I",
                ServerOptions {
                    limits: LimitOptions { item_size_max: 40 << 20, ..LimitOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-m",
                ServerOptions {
                    memory: MemoryOptions { limit_mib: 3, ..MemoryOptions::default() },
                    ..ServerOptions::default()
                },
            ),
            (
                "-R",
                ServerOptions {
                    limits: LimitOptions { requests_per_event: 0, ..LimitOptions::default() },
                    ..ServerOptions::default()
                },
            ),
        ];
        for (option, options) in cases {
            let error = options.validate().expect_err(option).to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn compression_is_refused_for_other_kinds() {
        let names = [
            ("%#opts=c", true),
            ("mem:tree#zcomp=zstd", true),
            ("x.hash#zcomp=zstd", true),
            ("*#opts=c", false),
        ];
        for (name, is_done) in names {
            let name = DatabaseName::parse(name).unwrap();
            let options = ServerOptions {
                databases: DatabaseOptions { database: Some(name), ..DatabaseOptions::default() },
                ..ServerOptions::default()
            };
            assert_eq!(options.validate().is_ok(), is_done, "{:?}", options.databases.database);
        }
    }
}
