//! Parses the behaviours of `-Z`: keys with values, and commas between them.

use crate::memcached::number::{leading_integer, starts_with_number};
use todana_client::ring::RingKind;
use todana_server::PoolProtocol;

/// The keys of Couchbase, which have no effect here, and the step of moxi's clock.
const IGNORED: [&str; 6] = ["cycle", "time_stats", "bucket", "default_bucket_name", "host", "port"];

/// The behaviours of moxi. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoxiBehavior {
    pub(super) port_listen: u16,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) protocol: PoolProtocol,
    pub(super) concurrency: u32,
    pub(super) connections_max: u32,
    pub(super) timeout_ms: u64,
    /// The waiting times for a connection and for a turn.
    pub(super) queue_timeouts_ms: [u64; 2],
    pub(super) connect_timeout_ms: u64,
    pub(super) auth_timeout_ms: u64,
    pub(super) connect_errors_max: u32,
    pub(super) connect_retry_ms: u64,
    pub(super) retries: u32,
    pub(super) weight: u32,
    pub(super) front_cache: PrefixedCache,
    pub(super) key_stats: PrefixedCache,
    pub(super) ring: RingKind,
    /// Notes about keys without effect and unknown keys.
    pub(super) notes: Vec<String>,
}

/// The settings of the front cache and of the statistics by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PrefixedCache {
    pub(super) max: u32,
    pub(super) lifespan_ms: u64,
    /// The prefixes of keys that are kept.
    pub(super) spec: Vec<String>,
    /// The prefixes of keys that are not kept.
    pub(super) unspec: Vec<String>,
}

impl Default for MoxiBehavior {
    fn default() -> Self {
        MoxiBehavior {
            port_listen: 11211,
            user: String::new(),
            password: String::new(),
            protocol: PoolProtocol::Auto,
            concurrency: 1024,
            connections_max: 4,
            timeout_ms: 5000,
            queue_timeouts_ms: [200, 200],
            connect_timeout_ms: 400,
            auth_timeout_ms: 100,
            connect_errors_max: 5,
            connect_retry_ms: 30_000,
            retries: 1,
            weight: 0,
            front_cache: PrefixedCache { max: 200, ..PrefixedCache::default() },
            key_stats: PrefixedCache { max: 4000, ..PrefixedCache::default() },
            ring: RingKind::Libmemcached,
            notes: Vec::new(),
        }
    }
}

impl MoxiBehavior {
    /// Reads a value of `-Z`. As in moxi, an unknown key is only noted.
    pub(super) fn read(&mut self, text: &str) -> Result<(), String> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            self.set(key.trim(), value.trim()).map_err(|problem| format!("-Z {key}: {problem}"))?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || {
            let number = leading_integer(value.as_bytes());
            u32::try_from(number)
                .ok()
                .filter(|_| starts_with_number(value.as_bytes()))
                .ok_or_else(|| format!("must be a number, not {value:?}"))
        };
        let ms = || number().map(u64::from);
        match key {
            "port_listen" => {
                let port = number().ok().and_then(|port| u16::try_from(port).ok());
                self.port_listen =
                    port.filter(|port| *port > 0).ok_or_else(|| format!("must be a port, not {value:?}"))?;
            }
            "usr" => self.user = value.into(),
            "pwd" => self.password = value.into(),
            "downstream_protocol" | "protocol" => self.protocol = protocol(value)?,
            "concurrency" | "downstream_max" => self.concurrency = number()?,
            "downstream_conn_max" => self.connections_max = number()?,
            "downstream_timeout" | "timeout" | "downstream_conn_timeout" => self.timeout_ms = ms()?,
            "downstream_conn_queue_timeout" => self.queue_timeouts_ms[0] = ms()?,
            "wait_queue_timeout" => self.queue_timeouts_ms[1] = ms()?,
            "connect_timeout" => self.connect_timeout_ms = ms()?,
            "auth_timeout" => self.auth_timeout_ms = ms()?,
            "connect_max_errors" => self.connect_errors_max = number()?,
            "connect_retry_interval" => self.connect_retry_ms = ms()?,
            "downstream_retry" | "retry" => self.retries = number()?,
            "downstream_weight" | "weight" => self.weight = number()?,
            "front_cache_max" => self.front_cache.max = number()?,
            "front_cache_lifespan" => self.front_cache.lifespan_ms = ms()?,
            "front_cache_spec" => self.front_cache.spec = prefixes(value),
            "front_cache_unspec" => self.front_cache.unspec = prefixes(value),
            "key_stats_max" => self.key_stats.max = number()?,
            "key_stats_lifespan" => self.key_stats.lifespan_ms = ms()?,
            "key_stats_spec" => self.key_stats.spec = prefixes(value),
            "key_stats_unspec" => self.key_stats.unspec = prefixes(value),
            "optimize_set" if value.is_empty() => {}
            "optimize_set" => {
                return Err("not supported; a set is answered only after the server has done it".into());
            }
            "mcs_opts" => self.ring = ring(value)?,
            key if IGNORED.contains(&key) => self.notes.push(format!("-Z {key} has no effect")),
            key => self.notes.push(format!("-Z: unknown key {key:?}, which is ignored")),
        }
        Ok(())
    }
}

/// Parses prefixes with bars between them.
fn prefixes(value: &str) -> Vec<String> {
    value.split('|').filter(|prefix| !prefix.is_empty()).map(String::from).collect()
}

fn protocol(value: &str) -> Result<PoolProtocol, String> {
    let name = value.strip_prefix("memcached-").or(value.strip_prefix("membase-")).unwrap_or(value);
    match name {
        "ascii" => Ok(PoolProtocol::Text),
        "binary" => Ok(PoolProtocol::Binary),
        _ => Err(format!("must be ascii or binary, not {value:?}")),
    }
}

fn ring(value: &str) -> Result<RingKind, String> {
    match value {
        "distribution:ketama-weighted" => Ok(RingKind::Libmemcached),
        "distribution:ketama" => Ok(RingKind::Libmemcached04),
        "distribution:modula" => Ok(RingKind::LibmemcachedModula),
        _ => Err(format!(
            "must be distribution:ketama-weighted, distribution:ketama or distribution:modula, not {value:?}"
        )),
    }
}
