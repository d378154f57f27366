//! Reads the configuration file of twemproxy, nutcracker.yml: each key is a pool with a listener of
//! its own.
//!
//! A key that has no meaning here, as `tcpkeepalive`, is checked and then ignored. A pool for Redis
//! is a problem; the other pools are checked nevertheless.

use super::config_value::{ConfigEntry, ConfigValue};
use super::proxy_file::{check_ring, tcp_place, unix_mode, unix_place};
use super::table_reader::{ConfigReport, TableReader, count, elements, flag, number, some_text, text, word};
use std::time::Duration;
use todana_client::ring::{KeyHash, RingKind, ServerEntry};
use todana_server::{ListenerPlace, PoolOptions, ProxyListener, ProxyOptions};

/// The default permissions of a Unix socket: under the usual umask, only its owner can connect.
const DEFAULT_MODE: u32 = 0o700;

/// The limit of twemproxy's numbers.
const NUMBER_MAX: u32 = i32::MAX as u32;

const RINGS: [(&str, RingKind); 3] =
    [("ketama", RingKind::Twemproxy), ("modula", RingKind::TwemproxyModula), ("random", RingKind::Random)];

/// Reads a file. The result must not be used if there is a problem.
pub(super) fn read(file: ConfigValue, report: &ConfigReport) -> ProxyOptions {
    let mut options = ProxyOptions::default();
    let Some(mut root) = TableReader::new("", 1, file, report) else { return options };
    for entry in root.rest() {
        let ConfigEntry { line, key: name, value } = entry;
        if let Some(mut table) = TableReader::new(&format!("pool {name}"), line, value, report) {
            let (listener, pool) = read_pool(&name, &mut table);
            options.listeners.extend(listener);
            options.pools.insert(name, pool);
            table.finish();
        }
    }
    options
}

fn read_pool(name: &str, table: &mut TableReader<'_>) -> (Option<ProxyListener>, PoolOptions) {
    let mut pool = PoolOptions::default();
    let place = table.required("listen", |value| listener_place(&text(value)?));
    let backlog = table.get("backlog", count(NUMBER_MAX)).unwrap_or(512);
    let clients_max = table.get("client_connections", number(0, u64::from(NUMBER_MAX)));
    let clients_max = clients_max.filter(|limit| *limit > 0).and_then(|limit| usize::try_from(limit).ok());
    let pool_name = Some(name.to_string());
    let listener =
        place.map(|place| ProxyListener { backlog, clients_max, ..ProxyListener::new(place, pool_name) });
    pool.ring.kind = table.get("distribution", word(&RINGS)).unwrap_or(RingKind::Twemproxy);
    pool.ring.hash = table.get("hash", hash);
    table.set("hash_tag", &mut pool.hash_tag, text);
    read_servers(&mut pool, table);
    match table.get("timeout", milliseconds) {
        Some(timeout) => (pool.connect_timeout, pool.reply_timeout) = (timeout, Some(timeout)),
        None => {
            pool.reply_timeout = None;
            table.note("no timeout; requests wait for a stuck server without limit");
        }
    }
    table.set("server_connections", &mut pool.connections, count(1024));
    table.set("preconnect", &mut pool.preconnect, flag);
    table.set("auto_eject_hosts", &mut pool.eject, flag);
    let failures = table.get("server_failure_limit", count(NUMBER_MAX));
    let retry = table.get("server_retry_timeout", milliseconds);
    // Without ejection, twemproxy does not count failures and connects again at each request. Our
    // defaults are nearer to this than its 30 seconds.
    if pool.eject {
        pool.failures = failures.unwrap_or(2);
        pool.retry = retry.unwrap_or(Duration::from_secs(30));
        pool.retry_max = pool.retry_max.max(pool.retry);
    }
    // These have no counterpart: connections are always kept alive, and all workers are threads.
    for key in ["tcpkeepalive", "reuseport"] {
        table.get(key, flag);
    }
    let redis_line = table.line_of("redis");
    if table.get("redis", flag) == Some(true) {
        table.problem(redis_line, "redis: true: Todana does not speak the protocol of Redis");
    }
    table.get("redis_auth", text);
    table.get("redis_db", number(0, u64::from(NUMBER_MAX)));
    check_ring(&pool, table);
    (listener, pool)
}

fn read_servers(pool: &mut PoolOptions, table: &mut TableReader<'_>) {
    let Some(entry) = table.take("servers") else {
        return table.own_problem("servers is missing");
    };
    for value in elements(&entry.value) {
        match text(value).and_then(|text| server(&text)) {
            Ok(server) => pool.servers.push(server),
            Err(problem) => table.problem(value.line, format!("servers: {problem}")),
        }
    }
    if elements(&entry.value).is_empty() {
        table.problem(entry.line, "servers: must have a server");
    }
}

fn hash(value: &ConfigValue) -> Result<String, String> {
    let name = some_text(value)?;
    let known = KeyHash::ALL.map(|(name, _)| name);
    if known.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(format!("must be one of {}, not {name:?}", known.join(", ")))
}

fn milliseconds(value: &ConfigValue) -> Result<Duration, String> {
    number(1, u64::from(NUMBER_MAX))(value).map(Duration::from_millis)
}

/// Parses `HOST:PORT`, or `/PATH` and then the permissions.
fn listener_place(text: &str) -> Result<ListenerPlace, String> {
    if text.starts_with('/') {
        let (path, mode) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mode = if mode.is_empty() { DEFAULT_MODE } else { unix_mode(mode.trim())? };
        return unix_place(path, mode);
    }
    match text.rsplit_once(':') {
        // twemproxy writes IPv6 addresses without brackets.
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            tcp_place(&format!("[{host}]:{port}"))
        }
        Some(_) => tcp_place(text),
        None => Err(format!("{text:?}: must be HOST:PORT or /PATH")),
    }
}

/// Parses `HOST:PORT:WEIGHT [NAME]` or `/PATH:WEIGHT [NAME]`.
fn server(text: &str) -> Result<ServerEntry, String> {
    let form = || format!("server {text:?}: must be HOST:PORT:WEIGHT or /PATH:WEIGHT, and may have a name");
    let mut words = text.split_whitespace();
    let (place, name) = (words.next().ok_or_else(form)?, words.next());
    let (address, weight) = place.rsplit_once(':').ok_or_else(form)?;
    let weight = weight.parse().ok().filter(|weight| *weight > 0).ok_or_else(form)?;
    let address = if address.starts_with('/') {
        format!("unix:{address}")
    } else {
        let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
        if host.contains(':') { format!("[{host}]:{port}") } else { address.into() }
    };
    if words.next().is_some() {
        return Err(form());
    }
    let server: ServerEntry = address.parse().map_err(|error| format!("{error}"))?;
    Ok(ServerEntry { weight, name: name.map(String::from), ..server })
}
