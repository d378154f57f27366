//! The options of a ring: its kind, as a configuration names it, and what can be changed about it.

use super::{KeyFilter, RingError};
use std::fmt;
use std::str::FromStr;

/// The kinds of ring. Each is compatible with the program of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RingKind {
    #[default]
    Libmemcached,
    LibmemcachedPlain,
    Libmemcached04,
    LibmemcachedModula,
    Twemproxy,
    TwemproxyModula,
    /// A random server for each request.
    Random,
    Spymemcached,
    MemcachedProxyJump,
    MemcachedProxyRing,
    Mcrouter,
    Dalli,
    Pymemcache,
    PythonMemcached,
    Gomemcache,
    /// Weighted rendezvous hashing.
    Todana,
}

impl RingKind {
    /// All kinds with their names in configurations.
    pub const ALL: [(&str, RingKind); 16] = [
        ("libmemcached", RingKind::Libmemcached),
        ("libmemcached-plain", RingKind::LibmemcachedPlain),
        ("libmemcached-0.4", RingKind::Libmemcached04),
        ("libmemcached-modula", RingKind::LibmemcachedModula),
        ("twemproxy", RingKind::Twemproxy),
        ("twemproxy-modula", RingKind::TwemproxyModula),
        ("random", RingKind::Random),
        ("spymemcached", RingKind::Spymemcached),
        ("memcached-proxy-jump", RingKind::MemcachedProxyJump),
        ("memcached-proxy-ring", RingKind::MemcachedProxyRing),
        ("mcrouter", RingKind::Mcrouter),
        ("dalli", RingKind::Dalli),
        ("pymemcache", RingKind::Pymemcache),
        ("python-memcached", RingKind::PythonMemcached),
        ("gomemcache", RingKind::Gomemcache),
        ("todana", RingKind::Todana),
    ];

    /// Returns true if weights change the shares of the servers.
    pub fn uses_weights(self) -> bool {
        use RingKind::{
            Dalli, Libmemcached, LibmemcachedPlain, PythonMemcached, Todana, Twemproxy, TwemproxyModula,
        };
        matches!(
            self,
            Libmemcached | LibmemcachedPlain | Twemproxy | TwemproxyModula | Dalli | PythonMemcached | Todana
        )
    }

    /// Returns true if an empty hash tag selects the empty text, as in memcached's proxy.
    pub(super) fn takes_empty_tags(self) -> bool {
        matches!(self, RingKind::MemcachedProxyJump | RingKind::MemcachedProxyRing)
    }
}

impl FromStr for RingKind {
    type Err = RingError;

    fn from_str(text: &str) -> Result<RingKind, RingError> {
        RingError::find("ring", text, &RingKind::ALL)
    }
}

impl fmt::Display for RingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RingKind::ALL.iter().find(|(_, kind)| kind == self).expect("every kind is listed").0)
    }
}

/// The options of a ring, as a configuration has them. Texts that are `None` have the default of
/// the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingOptions {
    /// The kind of ring.
    pub kind: RingKind,
    /// The part of a key that is hashed.
    pub key_filter: KeyFilter,
    /// The hash of keys: one of [`KeyHash::ALL`](super::KeyHash::ALL) for the rings of libmemcached
    /// and twemproxy; `Ch3`, `Crc32` or `Rendezvous` for mcrouter.
    pub hash: Option<String>,
    /// `memcached-proxy-ring`: `default`, `ketama`, `twemproxy` or `evcache`. `libmemcached` and
    /// `libmemcached-plain`: `spy`, for its behaviour KETAMA_SPY.
    pub mode: Option<String>,
    /// `memcached-proxy-ring`: the points of each server, 160 by default.
    pub points: Option<u32>,
    /// `memcached-proxy-jump`: a number or a text.
    pub seed: Option<String>,
    /// `mcrouter`: a text that is appended to each key before it is hashed.
    pub salt: Option<String>,
}

impl RingOptions {
    /// Returns an error if an option is set that the ring does not have.
    pub(super) fn check(&self) -> Result<(), RingError> {
        use RingKind::{
            Libmemcached, LibmemcachedModula, LibmemcachedPlain, Mcrouter, MemcachedProxyJump,
            MemcachedProxyRing, Random, Twemproxy, TwemproxyModula,
        };
        let hashing: &[RingKind] = &[
            Libmemcached,
            LibmemcachedPlain,
            LibmemcachedModula,
            Twemproxy,
            TwemproxyModula,
            Random,
            Mcrouter,
        ];
        for (option, is_set, kinds) in [
            ("hash", self.hash.is_some(), hashing),
            ("mode", self.mode.is_some(), &[MemcachedProxyRing, Libmemcached, LibmemcachedPlain]),
            ("points", self.points.is_some(), &[MemcachedProxyRing]),
            ("seed", self.seed.is_some(), &[MemcachedProxyJump]),
            ("salt", self.salt.is_some(), &[Mcrouter]),
        ] {
            if is_set && !kinds.contains(&self.kind) {
                return Err(RingError(format!("ring {}: has no option {option}", self.kind)));
            }
        }
        Ok(())
    }
}
