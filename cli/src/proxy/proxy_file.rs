//! Reads the configuration file of a proxy (TOML): listeners, pools, and their defaults.
//!
//! ```text
//! listen, threads, zone    the proxy itself
//! [defaults]               keys of all pools; a pool's own keys take precedence
//! [pool.NAME]              servers, the ring over them, timeouts; listen, if it has its own port
//! [route]                  which pools serve a request (see route_table)
//! ```
//!
//! Not here: the values of the options that a proxy has in common with `todana serve`.

use super::config_value::{ConfigData, ConfigEntry, ConfigValue};
use super::table_reader::{
    ConfigReport, TableReader, count, count_from_0, duration, duration_or, elements, flag, some_text,
    some_texts, text, word,
};
use super::{pool_servers, route_table};
use std::path::PathBuf;
use std::time::Duration;
use todana_client::ring::{RingError, ServerChoice, ServerEntry};
use todana_server::{
    ListenerPlace, ListenerProtocol, PoolLogin, PoolOptions, PoolProtocol, PoolTlsOptions, ProxyListener,
    ProxyOptions, ProxyRoutes, ProxyVersion, WhenDown,
};

/// The names of `speak`.
pub(super) const PROTOCOLS: [(&str, PoolProtocol); 4] = [
    ("auto", PoolProtocol::Auto),
    ("text", PoolProtocol::Text),
    ("meta", PoolProtocol::Meta),
    ("binary", PoolProtocol::Binary),
];

/// The names of `when-down`.
pub(super) const WHEN_DOWN: [(&str, WhenDown); 4] = [
    ("gentle", WhenDown::Gentle),
    ("error", WhenDown::Error),
    ("miss", WhenDown::Miss),
    ("moxi", WhenDown::Moxi),
];

/// The names of `version`.
pub(super) const VERSIONS: [(&str, ProxyVersion); 2] =
    [("own", ProxyVersion::Own), ("servers", ProxyVersion::Servers)];

/// The options that `todana serve` has, too, except for those that are read here.
pub(super) const SHARED_OPTIONS: [&str; 27] = [
    "port",
    "unix-socket",
    "unix-mask",
    "conn-limit",
    "conn-limit-waits",
    "idle-timeout",
    "listen-backlog",
    "max-reqs-per-event",
    "io",
    "admin-port",
    "admin-listen",
    "tls-cert",
    "tls-key",
    "tls-ca",
    "tls-clients",
    "tls-min-version",
    "tls-ciphers",
    "tls-no-resumption",
    "enable-sasl",
    "password-file",
    "auth-file",
    "memory-limit",
    "verbose",
    "pidfile",
    "protocol",
    "disable-flush-all",
    "log-format",
];

/// The permissions of a Unix socket.
const DEFAULT_MODE: u32 = 0o700;

/// Words that mean something else than a pool in routes.
const RESERVED_NAMES: [&str; 2] = ["refuse", "null"];

/// Returns true for the file of a proxy, and false for one of `todana serve`, which has no tables.
/// A table with another name is a mistake in either of them.
pub(super) fn is_of_proxy(file: &ConfigValue) -> bool {
    let ConfigData::Table(entries) = &file.data else { return false };
    let is_known = |entry: &ConfigEntry| ["defaults", "pool", "route"].contains(&entry.key.as_str());
    entries.iter().any(|entry| is_known(entry) && matches!(entry.value.data, ConfigData::Table(_)))
}

/// The content of a file.
#[derive(Default)]
pub(super) struct ProxyFile {
    pub(super) options: ProxyOptions,
    /// The line, the name and the values of each option that `todana serve` has, too.
    pub(super) shared: Vec<(usize, &'static str, Vec<String>)>,
    /// True if the file has listeners that serve the routes.
    pub(super) has_listen: bool,
}

/// Reads a file. The result must not be used if there is a problem.
pub(super) fn read(file: ConfigValue, report: &ConfigReport) -> ProxyFile {
    let mut all = ProxyFile::default();
    let Some(mut root) = TableReader::new("", 1, file, report) else { return all };
    for name in SHARED_OPTIONS {
        let line = root.line_of(name);
        let values = root.get(name, |value| elements(value).iter().map(text).collect::<Result<_, _>>());
        all.shared.extend(values.map(|values| (line, name, values)));
    }
    let options = &mut all.options;
    let listen = root.take("listen");
    all.has_listen = listen.is_some();
    options.threads = root.get("threads", count(1024));
    options.zone = root.get("zone", some_text);
    root.set("show-servers", &mut options.show_servers, flag);
    root.set("version", &mut options.version, word(&VERSIONS));
    root.set("hot-keys", &mut options.hot_keys, count_from_0(1_000_000));
    root.set("drain", &mut options.drain, duration);
    options.in_flight_max = root.get("in-flight", count(100_000_000));
    let mut defaults = PoolOptions::default();
    if let Some(entry) = root.take("defaults")
        && let Some(mut table) = TableReader::new("defaults", entry.line, entry.value, report)
    {
        set_pool(&mut defaults, &mut table);
        table.finish();
    }
    if let Some(entry) = root.take("pool")
        && let Some(mut pools) = TableReader::new("pool", entry.line, entry.value, report)
    {
        for entry in pools.rest() {
            read_pool(options, &defaults, entry, report);
        }
    }
    if options.pools.is_empty() {
        root.own_problem("no pool; write [pool.main] and servers = [...]");
    }
    let route = root.take("route");
    // Pools with listeners of their own need neither routes nor another listener.
    let own = |pool: &String| options.listeners.iter().any(|one| one.pool.as_ref() == Some(pool));
    if listen.is_some() || route.is_some() || !options.pools.keys().all(own) {
        if let Some(entry) = listen {
            options.listeners.splice(0..0, listeners(&root, &entry, None));
        }
        let pools: Vec<&str> = options.pools.keys().map(String::as_str).collect();
        options.routes = match (route, &pools[..]) {
            (Some(entry), pools) => route_table::read(entry, pools, report),
            (None, [pool]) => Some(ProxyRoutes::to_pool(pool)),
            (None, []) => None,
            (None, _) => {
                root.own_problem("several pools, but no route; write [route] and default = \"POOL\"");
                None
            }
        };
    }
    root.finish();
    all
}

fn read_pool(options: &mut ProxyOptions, defaults: &PoolOptions, entry: ConfigEntry, report: &ConfigReport) {
    let ConfigEntry { line, key: name, value } = entry;
    let Some(mut table) = TableReader::new(&format!("pool {name}"), line, value, report) else { return };
    if name.is_empty() || RESERVED_NAMES.contains(&name.as_str()) {
        table.own_problem("the name is reserved");
    }
    let mut pool = defaults.clone();
    if table.has("ring") {
        // The options of another ring mean nothing to this one.
        pool.ring = PoolOptions::default().ring;
    }
    pool_servers::read(&mut pool, &mut table);
    if let Some(entry) = table.take("listen") {
        let mut own = listeners(&table, &entry, Some(&name));
        let backlog = table.get("listen-backlog", count(65_535));
        let clients_max = table.get("conn-limit", count(10_000_000));
        for listener in &mut own {
            listener.backlog = backlog.unwrap_or(listener.backlog);
            listener.clients_max = clients_max;
        }
        options.listeners.append(&mut own);
    }
    set_pool(&mut pool, &mut table);
    check_ring(&pool, &table);
    table.finish();
    options.pools.insert(name, pool);
}

/// Reports a problem if the ring of a pool cannot be built.
pub(super) fn check_ring(pool: &PoolOptions, table: &TableReader<'_>) {
    if pool.servers.is_empty() {
        return;
    }
    match pool.server_choice(|_| true) {
        Err(error) => table.own_problem(error),
        Ok(ServerChoice::Vbuckets(_)) if pool.eject => {
            table.own_problem("eject: a map of vbuckets cannot leave out a server");
        }
        Ok(_) if ignores_weights(pool) => {
            table.note(format!("ring {}: ignores weights", pool.ring.kind));
        }
        Ok(_) => {}
    }
}

/// Returns true if the servers of a pool have weights, but its ring does not use them.
pub(super) fn ignores_weights(pool: &PoolOptions) -> bool {
    let has_weight = |server: &ServerEntry| server.weight > 1;
    !pool.ring.kind.uses_weights() && pool.servers.iter().any(has_weight)
}

/// Sets the options that a pool and `[defaults]` have.
fn set_pool(pool: &mut PoolOptions, table: &mut TableReader<'_>) {
    let some = |value: &ConfigValue| some_text(value).map(Some);
    table.set("ring", &mut pool.ring.kind, |value| {
        text(value)?.parse().map_err(|error: RingError| error.to_string())
    });
    table.set("hash", &mut pool.ring.hash, some);
    table.set("mode", &mut pool.ring.mode, some);
    table.set("points", &mut pool.ring.points, |value| count(10_000)(value).map(Some));
    table.set("seed", &mut pool.ring.seed, some);
    table.set("salt", &mut pool.ring.salt, some);
    table.set("hash-tag", &mut pool.hash_tag, text);
    table.set("hash-stop", &mut pool.hash_stop, text);
    table.set("hash-without", &mut pool.hash_without, some_texts);
    table.set("speak", &mut pool.speak, word(&PROTOCOLS));
    table.set("connect-timeout", &mut pool.connect_timeout, duration);
    table.set("reply-timeout", &mut pool.reply_timeout, duration_or("none"));
    table.set("connections", &mut pool.connections, count(256));
    table.set("preconnect", &mut pool.preconnect, flag);
    table.set("failures", &mut pool.failures, count(1_000_000));
    let sets_retry_max = table.has("retry-max");
    table.set("retry", &mut pool.retry, duration);
    table.set("retry-max", &mut pool.retry_max, duration);
    if pool.retry_max < pool.retry {
        if sets_retry_max {
            table.own_problem("retry-max must be at least retry");
        }
        pool.retry_max = pool.retry;
    }
    table.set("retries", &mut pool.retries, count_from_0(100));
    table.set("ping", &mut pool.ping, duration_or("none"));
    table.set("dns", &mut pool.dns, duration);
    table.set("eject", &mut pool.eject, flag);
    table.set("stand-in-ttl", &mut pool.stand_in_ttl, whole_seconds);
    table.set("when-down", &mut pool.when_down, word(&WHEN_DOWN));
    table.set("queue", &mut pool.queue, count(100_000_000));
    table.set("queue-timeout", &mut pool.queue_timeout, duration_or("none"));
    if let Some(entry) = table.take("tls") {
        pool.tls = tls(table, entry);
    }
    if let Some(entry) = table.take("login") {
        pool.login = login(table, entry);
    }
}

/// Parses a time to live. Servers count them in seconds.
pub(super) fn whole_seconds(value: &ConfigValue) -> Result<Duration, String> {
    let ttl = duration(value)?;
    if ttl.subsec_nanos() == 0 { Ok(ttl) } else { Err("must be in seconds, as 10s".into()) }
}

fn tls(pool: &TableReader<'_>, entry: ConfigEntry) -> Option<PoolTlsOptions> {
    let mut table = pool.nested("tls", entry)?;
    let path = |value: &ConfigValue| some_text(value).map(PathBuf::from);
    let tls = PoolTlsOptions {
        ca: table.get("ca", path),
        cert: table.get("cert", path),
        key: table.get("key", path),
        server_name: table.get("server-name", some_text),
    };
    if tls.key.is_some() && tls.cert.is_none() {
        table.own_problem("key needs cert");
    }
    table.finish();
    Some(tls)
}

fn login(pool: &TableReader<'_>, entry: ConfigEntry) -> Option<PoolLogin> {
    let mut table = pool.nested("login", entry)?;
    let user = table.required("user", some_text);
    let password_file = table.required("password-file", some_text);
    table.finish();
    Some(PoolLogin { user: user?, password_file: password_file?.into(), password: None })
}

fn listeners(table: &TableReader<'_>, entry: &ConfigEntry, pool: Option<&str>) -> Vec<ProxyListener> {
    let mut listeners = Vec::new();
    for value in elements(&entry.value) {
        match text(value).and_then(|text| listener_place(&text)) {
            Ok((place, protocol)) => {
                let listener = ProxyListener::new(place, pool.map(String::from));
                listeners.push(ProxyListener { protocol, ..listener });
            }
            Err(problem) => table.problem(value.line, format!("listen: {problem}")),
        }
    }
    if elements(&entry.value).is_empty() {
        table.problem(entry.line, "listen: must have an address");
    }
    listeners
}

/// Parses `HOST:PORT` or `unix:/PATH`, and then `protocol=kyoto` and, for a path, `mode=0770`.
fn listener_place(text: &str) -> Result<(ListenerPlace, ListenerProtocol), String> {
    let mut words = text.split_whitespace();
    let place = words.next().ok_or("must not be empty")?;
    let path = place.strip_prefix("unix:");
    let (mut mode, mut protocol) = (DEFAULT_MODE, ListenerProtocol::Memcached);
    for word in words {
        match (word.split_once('='), path) {
            (Some(("protocol", name)), _) => protocol = listener_protocol(name)?,
            (Some(("mode", octal)), Some(_)) => mode = unix_mode(octal)?,
            (_, Some(_)) => {
                return Err(format!("unknown word {word:?}; known: mode=0770 protocol=kyoto"));
            }
            (_, None) => {
                return Err(format!("{place:?}: unknown word {word:?}; known: protocol=kyoto"));
            }
        }
    }
    let place = path.map_or_else(|| tcp_place(place), |path| unix_place(path, mode))?;
    Ok((place, protocol))
}

fn listener_protocol(name: &str) -> Result<ListenerProtocol, String> {
    let found = ListenerProtocol::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, protocol)| *protocol).ok_or_else(|| {
        let names = ListenerProtocol::ALL.map(|(name, _)| name);
        format!("protocol {name:?} is unknown; known: {}", names.join(" "))
    })
}

/// Parses the permissions of a Unix socket.
pub(super) fn unix_mode(octal: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(octal, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("the mode must be octal, at most 777, not {octal:?}"))
}

pub(super) fn unix_place(path: &str, mode: u32) -> Result<ListenerPlace, String> {
    if !path.starts_with('/') || path.len() == 1 {
        return Err(format!("unix:{path}: a path must begin with /"));
    }
    Ok(ListenerPlace::Unix { path: path.into(), mode })
}

/// Checks the form of an address. Its host is resolved at the start of the proxy.
pub(super) fn tcp_place(place: &str) -> Result<ListenerPlace, String> {
    let is_v6 = place.parse::<std::net::Ipv6Addr>().is_ok();
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !is_v6 && !place.ends_with(']') => (host, Some(port)),
        _ => (place, None),
    };
    if host.is_empty() || host.contains([',', '/']) || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(format!(
            "{place:?}: not an address; examples: 127.0.0.1:11211, [::1]:11211, *:11211, unix:/run/todana.sock"
        ));
    }
    Ok(ListenerPlace::Tcp(place.into()))
}
