//! The tables of all kinds of ring.

use super::foreign_rings::{
    PrefixedMurmur3, ch3, ch3_hash, jump, mcrouter_key_hash, mcrouter_score, mcrouter_server_hash,
};
use super::point_table::{PointTable, md5_points, weighted_digests};
use super::rendezvous::{RendezvousTable, mixed, xxh3};
use super::{KeyHash, KeyPlace, RingError, RingKind, RingOptions, ServerEntry, extend_by_score};
use crate::Address;
use sha1::{Digest, Sha1};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The points of each server, where weights do not change them.
const POINTS: u32 = 160;
const PLAIN_POINTS: u32 = 100;
const POINTS_MAX: u32 = 1000;

type LiveServers<'s> = [(u16, &'s ServerEntry)];

/// What a kind of ring needs to find the server of a key.
#[derive(Debug)]
pub(super) enum RingTable {
    Single(u16),
    Points {
        hash: PointHash,
        points: PointTable,
    },
    Slots {
        hash: PointHash,
        slots: SlotTable,
    },
    Jump {
        seed: u64,
        servers: Vec<u16>,
    },
    Ch3 {
        salt: KeySalt,
        servers: Vec<u16>,
    },
    McrouterRendezvous {
        salt: KeySalt,
        hashes: Vec<u64>,
        servers: Vec<u16>,
    },
    /// The servers are sorted by name, because the greater name wins between equal hashes.
    Pymemcache {
        hashes: Vec<PrefixedMurmur3>,
        servers: Vec<u16>,
    },
    Rendezvous,
    Random {
        requests: AtomicU64,
        servers: Vec<u16>,
    },
}

/// The hash of a key in a ring of points or slots.
#[derive(Clone, Debug)]
pub(super) enum PointHash {
    Key(KeyHash),
    /// The low half of XXH3-64.
    Xxh3,
    /// CRC-32 without its highest bit, after mcrouter's salt.
    McrouterCrc32(KeySalt),
}

impl PointHash {
    #[inline]
    fn of(&self, key: &[u8]) -> u32 {
        match self {
            PointHash::Key(hash) => hash.of(key),
            PointHash::Xxh3 => xxh3(key) as u32,
            PointHash::McrouterCrc32(salt) => salt.with(key, crc32fast::hash) & 0x7fff_ffff,
        }
    }
}

/// A text that is appended to each key.
#[derive(Clone, Debug)]
pub(super) struct KeySalt(String);

impl KeySalt {
    fn with<T>(&self, key: &[u8], hash: impl Fn(&[u8]) -> T) -> T {
        let (salt, mut salted) = (self.0.as_bytes(), [0; 512]);
        if salt.is_empty() {
            return hash(key);
        }
        match salted.get_mut(..key.len() + salt.len()) {
            Some(salted) => {
                salted[..key.len()].copy_from_slice(key);
                salted[key.len()..].copy_from_slice(salt);
                hash(salted)
            }
            // No server has such keys.
            None => hash(&[key, salt].concat()),
        }
    }
}

/// Consecutive slots for each server, as many as its weight.
#[derive(Clone, Debug)]
pub(super) struct SlotTable {
    /// The end of the slots of each server.
    ends: Vec<u64>,
    servers: Vec<u16>,
}

impl SlotTable {
    fn new(live: &LiveServers<'_>, weight: impl Fn(&ServerEntry) -> u32) -> SlotTable {
        let mut total = 0;
        let end = |(_, server): &(u16, &ServerEntry)| {
            total += u64::from(weight(server));
            total
        };
        SlotTable { ends: live.iter().map(end).collect(), servers: indices(live) }
    }

    /// Returns the server of a hash, and its slot.
    #[inline]
    fn server_of(&self, hash: u32) -> (usize, u64) {
        let slot = u64::from(hash) % self.ends.last().expect("a ring has a server");
        (usize::from(self.servers[self.ends.partition_point(|end| *end <= slot)]), slot)
    }
}

impl RingTable {
    pub(super) fn new(options: &RingOptions, live: &LiveServers<'_>) -> Result<RingTable, RingError> {
        let table = match options.kind {
            RingKind::Libmemcached
            | RingKind::LibmemcachedPlain
            | RingKind::Libmemcached04
            | RingKind::LibmemcachedModula => libmemcached(options, live)?,
            RingKind::Twemproxy | RingKind::TwemproxyModula | RingKind::Random => twemproxy(options, live)?,
            RingKind::Spymemcached => spymemcached(live)?,
            RingKind::MemcachedProxyJump => {
                let seed = options.seed.as_deref().unwrap_or("0");
                let seed = seed.parse().unwrap_or_else(|_| xxh3(seed.as_bytes()));
                RingTable::Jump { seed, servers: indices(live) }
            }
            RingKind::MemcachedProxyRing => memcached_proxy_ring(options, live)?,
            RingKind::Mcrouter => mcrouter(options, live)?,
            RingKind::Dalli => dalli(live),
            RingKind::Pymemcache => pymemcache(live),
            RingKind::PythonMemcached => slots(PointHash::Key(KeyHash::Crc32), live, |server| server.weight),
            RingKind::Gomemcache => slots(PointHash::Key(KeyHash::Crc32a), live, |_| 1),
            RingKind::Todana => RingTable::Rendezvous,
        };
        // Two of several servers with very different weights may have no point. A single server
        // takes all keys, whatever its points are.
        Ok(if let [(server, _)] = live { RingTable::Single(*server) } else { table })
    }

    /// Returns the server of a key. The time is constant, or proportional to the number of servers
    /// for rendezvous hashing; nothing is allocated.
    #[inline]
    pub(super) fn place_of(&self, key: &[u8], rendezvous: &RendezvousTable) -> KeyPlace {
        let place =
            |server: usize, hash: u64, point: u64| KeyPlace { server, hash: Some(hash), point: Some(point) };
        match self {
            RingTable::Points { hash, points } => {
                let hash = hash.of(key);
                let (server, point) = points.server_of(hash);
                place(server, hash.into(), point.into())
            }
            RingTable::Rendezvous => {
                let hash = xxh3(key);
                let (server, u) = rendezvous.server_of(hash);
                place(server, hash, u)
            }
            RingTable::Slots { hash, slots } => {
                let hash = hash.of(key);
                let (server, slot) = slots.server_of(hash);
                place(server, hash.into(), slot)
            }
            RingTable::Single(server) => KeyPlace { server: usize::from(*server), hash: None, point: None },
            RingTable::Jump { seed, servers } => {
                let hash = xxh3_64_with_seed(key, *seed);
                let slot = jump(hash, servers.len());
                place(usize::from(servers[slot]), hash, slot as u64)
            }
            RingTable::Ch3 { salt, servers } => {
                let hash = salt.with(key, ch3_hash);
                let slot = ch3(hash, servers.len());
                place(usize::from(servers[slot]), hash, slot as u64)
            }
            RingTable::McrouterRendezvous { salt, hashes, servers } => {
                let hash = salt.with(key, mcrouter_key_hash);
                let scores = hashes.iter().map(|server_hash| mcrouter_score(*server_hash, hash));
                let (score, position) = scores.zip(0..).max().expect("a ring has a server");
                place(usize::from(servers[position]), hash, score)
            }
            RingTable::Pymemcache { hashes, servers } => {
                let scores = hashes.iter().map(|hash| hash.hash_of(key));
                let (score, position) = scores.zip(0..).max().expect("a ring has a server");
                place(usize::from(servers[position]), score.into(), score.into())
            }
            RingTable::Random { requests, servers } => {
                // A counter, because a random number of the system would be a system call.
                let number = mixed(requests.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
                let slot = ((u128::from(number) * servers.len() as u128) >> 64) as usize;
                KeyPlace { server: usize::from(servers[slot]), hash: None, point: None }
            }
        }
    }

    /// Appends up to `count` different servers to `ranked`, the server of the key first. Appends
    /// fewer if the table has no order of the others.
    pub(super) fn rank(
        &self,
        key: &[u8],
        count: usize,
        rendezvous: &RendezvousTable,
        ranked: &mut Vec<usize>,
    ) {
        match self {
            RingTable::Points { hash, points } => {
                for server in points.walk(hash.of(key)) {
                    if ranked.len() >= count {
                        break;
                    }
                    if !ranked.contains(&server) {
                        ranked.push(server);
                    }
                }
            }
            RingTable::McrouterRendezvous { salt, hashes, servers } => {
                let hash = salt.with(key, mcrouter_key_hash);
                let score = |position: usize| (mcrouter_score(hashes[position], hash), position);
                extend_by_score(servers, count, ranked, score);
            }
            RingTable::Pymemcache { hashes, servers } => {
                extend_by_score(servers, count, ranked, |position| (hashes[position].hash_of(key), position));
            }
            // The caller ranks by rendezvous.
            RingTable::Rendezvous => {}
            _ if count > 0 => ranked.push(self.place_of(key, rendezvous).server),
            _ => {}
        }
    }
}

fn indices(live: &LiveServers<'_>) -> Vec<u16> {
    live.iter().map(|(index, _)| *index).collect()
}

fn slots(hash: PointHash, live: &LiveServers<'_>, weight: impl Fn(&ServerEntry) -> u32) -> RingTable {
    RingTable::Slots { hash, slots: SlotTable::new(live, weight) }
}

fn points(hash: PointHash, points: impl Iterator<Item = (u32, u16)>) -> RingTable {
    RingTable::Points { hash, points: PointTable::new(points.collect()) }
}

/// Returns the points of libmemcached's and twemproxy's weighted ring.
fn weighted_points(
    live: &LiveServers<'_>,
    text: impl Fn(&ServerEntry) -> String,
) -> impl Iterator<Item = (u32, u16)> {
    live.iter().zip(weighted_digests(live)).flat_map(move |((index, server), digests)| {
        md5_points(&text(server), digests, *index).collect::<Vec<_>>()
    })
}

/// Returns the hash that the options name, or else a default.
fn key_hash(options: &RingOptions, default: KeyHash) -> Result<KeyHash, RingError> {
    options.hash.as_deref().map_or(Ok(default), str::parse)
}

fn libmemcached(options: &RingOptions, live: &LiveServers<'_>) -> Result<RingTable, RingError> {
    let default = match options.kind {
        RingKind::Libmemcached | RingKind::Libmemcached04 => KeyHash::Md5,
        _ => KeyHash::OneAtATime,
    };
    let hash = key_hash(options, default)?;
    if options.kind == RingKind::LibmemcachedModula {
        return Ok(slots(PointHash::Key(hash), live, |_| 1));
    }
    let is_spy = options.mode.is_some();
    if let Some(mode) = &options.mode {
        RingError::find("mode", mode, &[("spy", ())])?;
    }
    let text = |server: &ServerEntry| match (is_spy, &server.address) {
        (false, _) => server.text(":0"),
        (true, Address::Unix(_)) => format!("/{}", server.text(":0")),
        (true, _) => format!("/{}", server.text_with_port("")),
    };
    let is_weighted = options.kind == RingKind::Libmemcached
        || options.kind == RingKind::LibmemcachedPlain && live.iter().any(|(_, server)| server.weight > 1);
    Ok(if is_weighted {
        points(PointHash::Key(hash), weighted_points(live, text))
    } else {
        let plain = |(index, server): &(u16, &ServerEntry)| {
            let (text, index) = (text(server), *index);
            (0..PLAIN_POINTS).map(move |number| (hash.of(format!("{text}-{number}").as_bytes()), index))
        };
        points(PointHash::Key(hash), live.iter().flat_map(plain))
    })
}

fn twemproxy(options: &RingOptions, live: &LiveServers<'_>) -> Result<RingTable, RingError> {
    let hash = PointHash::Key(key_hash(options, KeyHash::Fnv1a64)?);
    // The colon before the weight stays in the text of a socket.
    let text = |server: &ServerEntry| server.text(":");
    let mut sorted = live.to_vec();
    sorted.sort_by_cached_key(|(_, server)| (text(server).len(), text(server)));
    Ok(match options.kind {
        RingKind::Random => RingTable::Random { requests: AtomicU64::new(0), servers: indices(&sorted) },
        RingKind::TwemproxyModula => slots(hash, &sorted, |server| server.weight),
        _ => points(hash, weighted_points(&sorted, text)),
    })
}

/// spymemcached hashes `HOST/IP:PORT`, without the slash if there is no host name. A host name is
/// never resolved here, so a name must state the complete text.
fn spymemcached(live: &LiveServers<'_>) -> Result<RingTable, RingError> {
    let mut all = Vec::new();
    for (index, server) in live {
        if let (None, Address::Tcp(host, port)) = (&server.name, &server.address)
            && host.parse::<Ipv4Addr>().is_err()
        {
            return Err(RingError(format!(
                "server {}: spymemcached hashes the IP address too; add name={host}/IP:{port}",
                server.label()
            )));
        }
        all.extend(md5_points(&server.text_with_port(""), POINTS / 4, *index));
    }
    Ok(points(PointHash::Key(KeyHash::Md5), all.into_iter()))
}

fn memcached_proxy_ring(options: &RingOptions, live: &LiveServers<'_>) -> Result<RingTable, RingError> {
    let count = options.points.unwrap_or(POINTS);
    if !(4..=POINTS_MAX).contains(&count) {
        return Err(RingError(format!("points {count} must be from 4 to {POINTS_MAX}")));
    }
    type TextOf = fn(&ServerEntry) -> String;
    let with_port: TextOf = |server| server.text_with_port("");
    let modes: [(&str, Option<TextOf>); 4] = [
        ("default", None),
        ("ketama", Some(with_port)),
        ("twemproxy", Some(|server| server.text(""))),
        (
            "evcache",
            Some(|server| match (&server.name, &server.address) {
                (None, Address::Tcp(host, port)) => format!("{host}/{host}:{port}"),
                _ => server.text_with_port(""),
            }),
        ),
    ];
    let mode = RingError::find("mode", options.mode.as_deref().unwrap_or("default"), &modes)?;
    let mut all = Vec::new();
    for (index, server) in live {
        match mode {
            Some(text) => all.extend(md5_points(&text(server), count / 4, *index)),
            None => {
                let text = with_port(server);
                let point = |number: u32| xxh3(format!("{text}-{number}").as_bytes()) as u32;
                all.extend((0..count).map(|number| (point(number), *index)));
            }
        }
    }
    let hash = mode.map_or(PointHash::Xxh3, |_| PointHash::Key(KeyHash::Md5));
    Ok(points(hash, all.into_iter()))
}

fn mcrouter(options: &RingOptions, live: &LiveServers<'_>) -> Result<RingTable, RingError> {
    let salt = KeySalt(options.salt.clone().unwrap_or_default());
    let hashes = [("Ch3", 0), ("Crc32", 1), ("Rendezvous", 2)];
    let text = |server: &ServerEntry| server.text_with_port("");
    Ok(match RingError::find("hash", options.hash.as_deref().unwrap_or("Ch3"), &hashes)? {
        0 => RingTable::Ch3 { salt, servers: indices(live) },
        1 => slots(PointHash::McrouterCrc32(salt), live, |_| 1),
        _ => RingTable::McrouterRendezvous {
            salt,
            hashes: live.iter().map(|(_, server)| mcrouter_server_hash(&text(server))).collect(),
            servers: indices(live),
        },
    })
}

fn dalli(live: &LiveServers<'_>) -> RingTable {
    let total: u64 = live.iter().map(|(_, server)| u64::from(server.weight)).sum();
    let points = live.iter().flat_map(|(index, server)| {
        let count = live.len() as u64 * u64::from(POINTS) * u64::from(server.weight) / total;
        let text = server.text_with_port("");
        (0..count).map(move |number| {
            let digest = Sha1::digest(format!("{text}:{number}").as_bytes());
            (u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]), *index)
        })
    });
    RingTable::Points {
        hash: PointHash::Key(KeyHash::Crc32a),
        points: PointTable::new_inverted(points.collect()),
    }
}

fn pymemcache(live: &LiveServers<'_>) -> RingTable {
    let mut named: Vec<(String, u16)> =
        live.iter().map(|(index, server)| (server.text_with_port(""), *index)).collect();
    named.sort();
    RingTable::Pymemcache {
        hashes: named.iter().map(|(name, _)| PrefixedMurmur3::new(format!("{name}-").as_bytes())).collect(),
        servers: named.iter().map(|(_, index)| *index).collect(),
    }
}
