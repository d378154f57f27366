//! Converts moxi's settings to the options of the proxy.

use super::behavior::PrefixedCache;
use super::cluster::MoxiCluster;
use super::settings::MoxiSettings;
use crate::proxy::ReplacementSettings;
use std::collections::BTreeMap;
use std::time::Duration;
use todana_client::ring::RingOptions;
use todana_server::{
    LimitOptions, ListenerPlace, ObservationOptions, PoolLogin, PoolOptions, PoolProtocol, PoolVbuckets,
    ProtocolOptions, ProxyListener, ProxyName, ProxyOptions, ProxyRoutes, RouteTree, ServerOptions, WhenDown,
};

/// The number of connections to a server if moxi has no limit.
const CONNECTIONS_MAX: usize = 64;

/// The limit of the front cache in bytes. moxi limits only the number of records.
const FRONT_CACHE_BYTES_MAX: u64 = 32 << 20;

/// Returns the options of the proxy.
pub(super) fn options(settings: &MoxiSettings) -> Result<ServerOptions, String> {
    let behavior = &settings.behavior;
    let mut pools = BTreeMap::new();
    let mut listeners = Vec::new();
    for cluster in &settings.clusters {
        let port = cluster.port.unwrap_or(behavior.port_listen);
        let name = if settings.clusters.len() == 1 { "default".into() } else { port.to_string() };
        for place in places(settings, port)? {
            listeners.push(ProxyListener {
                backlog: settings.backlog,
                routes: Some(front_cached(&name, &behavior.front_cache)),
                ..ProxyListener::new(place, Some(name.clone()))
            });
        }
        if pools.insert(name, pool(settings, cluster)).is_some() {
            return Err(format!("-z: two clusters have the port {port}"));
        }
    }
    let proxy = ProxyOptions {
        name: ProxyName::Moxi,
        listeners,
        pools,
        threads: Some(settings.threads),
        hot_keys: if is_used(&behavior.key_stats) { behavior.key_stats.max as usize } else { 0 },
        in_flight_max: (behavior.concurrency > 0).then_some(behavior.concurrency as usize),
        ..ProxyOptions::default()
    };
    Ok(ServerOptions {
        protocols: ProtocolOptions { protocol: settings.protocol, ..ProtocolOptions::default() },
        observation: ObservationOptions { verbosity: settings.verbosity, ..ObservationOptions::default() },
        limits: LimitOptions {
            threads: settings.threads,
            connections_max: settings.connections_max,
            connections_refused: false,
            requests_per_event: settings.requests_per_event,
            ..LimitOptions::default()
        },
        proxy: Some(proxy),
        ..ServerOptions::default()
    })
}

/// Returns the settings of the process.
pub(super) fn process(program: &str, settings: &MoxiSettings) -> ReplacementSettings {
    ReplacementSettings {
        program: program.into(),
        log: settings.log.clone(),
        verbosity: settings.verbosity,
        is_daemon: settings.is_daemon,
        pid_file: settings.pid_file.clone().filter(|_| settings.is_daemon),
        user: Some(settings.user.clone()),
        core_dumps: settings.core_dumps,
        lock_memory: settings.lock_memory,
        ends_with_input: settings.ends_with_input,
    }
}

fn places(settings: &MoxiSettings, port: u16) -> Result<Vec<ListenerPlace>, String> {
    if let Some(path) = &settings.unix_socket {
        if settings.clusters.len() > 1 {
            return Err("-s: a Unix socket serves a single cluster".into());
        }
        return Ok(vec![ListenerPlace::Unix { path: path.clone(), mode: settings.unix_mask }]);
    }
    let hosts = settings.listen.as_deref().unwrap_or("*").split(',').map(str::trim);
    let place = |host: &str| {
        let is_v6 = host.contains(':') && !host.starts_with('[');
        let host = if is_v6 { format!("[{host}]") } else { host.to_string() };
        ListenerPlace::Tcp(format!("{host}:{port}"))
    };
    Ok(hosts.map(place).collect())
}

fn pool(settings: &MoxiSettings, cluster: &MoxiCluster) -> PoolOptions {
    let behavior = &settings.behavior;
    let login = (!behavior.user.is_empty()).then(|| PoolLogin {
        user: behavior.user.clone(),
        password_file: "".into(),
        password: Some(behavior.password.clone()),
    });
    let auth_ms = if login.is_some() { behavior.auth_timeout_ms } else { 0 };
    let some_ms = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    // A limit of 0 in moxi means that servers are always tried.
    let is_health_checked = behavior.connect_errors_max > 0 && behavior.connect_retry_ms > 0;
    let default = PoolOptions::default();
    let retry = some_ms(behavior.connect_retry_ms).unwrap_or(default.retry);
    PoolOptions {
        servers: cluster.servers.clone(),
        ring: RingOptions { kind: behavior.ring, ..RingOptions::default() },
        vbuckets: cluster.vbuckets.clone().map(|map| PoolVbuckets { file: None, map }),
        speak: match behavior.protocol {
            // Only binary servers have logins by SASL, and check the vbucket of a request.
            PoolProtocol::Auto if login.is_some() || cluster.vbuckets.is_some() => PoolProtocol::Binary,
            protocol => protocol,
        },
        connect_timeout: some_ms(behavior.connect_timeout_ms + auth_ms).unwrap_or(default.connect_timeout),
        reply_timeout: some_ms(behavior.timeout_ms),
        connections: match behavior.connections_max as usize {
            0 => CONNECTIONS_MAX,
            connections => connections.min(CONNECTIONS_MAX),
        },
        failures: if is_health_checked { behavior.connect_errors_max } else { u32::MAX },
        retry,
        retry_max: retry.max(default.retry_max),
        retries: behavior.retries,
        // A time of 0 in moxi means no limit.
        queue_timeout: behavior
            .queue_timeouts_ms
            .map(some_ms)
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .and_then(|times| times.into_iter().max()),
        when_down: WhenDown::Moxi,
        login,
        ..default
    }
}

fn is_used(cache: &PrefixedCache) -> bool {
    cache.max > 0 && cache.lifespan_ms > 0 && !cache.spec.is_empty()
}

/// Returns routes to a pool with a cache for the keys of `spec` that are not keys of `unspec`.
fn front_cached(pool: &str, cache: &PrefixedCache) -> ProxyRoutes {
    let mut routes = ProxyRoutes::to_pool(pool);
    if !is_used(cache) {
        return routes;
    }
    let near = RouteTree::Near {
        with: Box::new(RouteTree::Pool(pool.into())),
        ttl: Duration::from_millis(cache.lifespan_ms),
        bytes_max: FRONT_CACHE_BYTES_MAX,
        records_max: Some(cache.max as usize),
        hot: false,
        coalesce: false,
        // moxi has one cache for each of its ports.
        is_shared: true,
    };
    let is_excluded = |prefix: &String| cache.unspec.iter().any(|excluded| prefix.starts_with(excluded));
    let kept = cache.spec.iter().filter(|prefix| !is_excluded(prefix)).cloned();
    routes.prefixes = kept.map(|prefix| (prefix, near.clone())).collect();
    let excluded = cache.unspec.iter().cloned();
    routes.prefixes.extend(excluded.map(|prefix| (prefix, RouteTree::Pool(pool.into()))));
    routes.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    routes.prefixes.dedup_by(|one, other| one.0 == other.0);
    routes
}
