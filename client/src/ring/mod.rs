//! Rings: functions that choose the server of a key from a list of servers.
//!
//! ```text
//! server_entry   a server of the list: address, weight, name, zone
//! ring_options   the kinds of ring, and their options
//! key_filter     the part of a key that is hashed
//! key_hash       the hash functions of libmemcached and twemproxy
//! point_table    rings of points, as ketama has them
//! rendezvous     our own ring
//! foreign_rings  the functions of mcrouter, pymemcache and memcached's proxy
//! ring_table     builds the table of each kind of ring
//! vbucket_map    maps of vbuckets, as moxi has them
//! server_choice  a ring or a map of vbuckets
//! ```
//!
//! Each kind chooses exactly as the program of its name: client/tests/ring_vectors.json has the
//! choices of those programs. A ring is built over the live servers. When a server leaves or comes
//! back, the ring is built again.
//! Not here: sockets, clocks, and the decision that a server is down.

mod foreign_rings;
mod key_filter;
mod key_hash;
mod point_table;
mod rendezvous;
mod ring_error;
mod ring_options;
mod ring_table;
mod server_choice;
mod server_entry;
mod vbucket_map;

pub use key_filter::KeyFilter;
pub use key_hash::KeyHash;
pub use ring_error::RingError;
pub use ring_options::{RingKind, RingOptions};
pub use server_choice::ServerChoice;
pub use server_entry::{SERVERS_MAX, ServerEntry};
pub use vbucket_map::VbucketMap;

use rendezvous::{RendezvousTable, xxh3};
use ring_table::RingTable;
use std::cmp::Reverse;
use std::collections::HashSet;

/// A function from keys to servers. Servers are indices into the list from which it was built.
#[derive(Debug)]
pub struct Ring {
    key_filter: KeyFilter,
    takes_empty_tags: bool,
    table: RingTable,
    /// The live servers. It ranks those that the table itself does not rank.
    rendezvous: RendezvousTable,
}

/// The place of a key in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The index of the server.
    pub server: usize,
    /// The hash of the key. A ring of one server, and one of random servers, does not hash.
    pub hash: Option<u64>,
    /// The point of the server if the ring has points, or else the number of its slot, or its
    /// score.
    pub point: Option<u64>,
}

impl Ring {
    /// Builds a ring over those servers for which `is_live` returns true, or over all of them if
    /// none is live. Its time and memory are proportional to the number of servers: about
    /// 20 us and 2 KB for each server of a ring of points.
    pub fn new(
        options: &RingOptions,
        servers: &[ServerEntry],
        is_live: impl Fn(usize) -> bool,
    ) -> Result<Ring, RingError> {
        options.check()?;
        check_servers(servers)?;
        let numbered = || (0u16..).zip(servers);
        let mut live: Vec<(u16, &ServerEntry)> =
            numbered().filter(|(index, _)| is_live(usize::from(*index))).collect();
        if live.is_empty() {
            live = numbered().collect();
        }
        Ok(Ring {
            key_filter: options.key_filter.clone(),
            takes_empty_tags: options.kind.takes_empty_tags(),
            table: RingTable::new(options, &live)?,
            rendezvous: RendezvousTable::new(&live),
        })
    }

    /// Returns the index of the server of a key.
    #[inline]
    pub fn server_of(&self, key: &[u8]) -> usize {
        self.place_of(key).server
    }

    /// Returns the server of a key, and why it is this server.
    #[inline]
    pub fn place_of(&self, key: &[u8]) -> KeyPlace {
        self.table.place_of(self.hashed_part(key), &self.rendezvous)
    }

    /// Returns the part of a key that the ring hashes.
    #[inline]
    pub fn hashed_part<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        self.key_filter.hashed_part(key, self.takes_empty_tags)
    }

    /// Replaces the content of `ranked` by up to `count` different servers, the server of the key
    /// first: those at the next points of a ring of points, or those with the next scores. They are
    /// the servers for copies of the key, and those that take it over one after another.
    pub fn rank(&self, key: &[u8], count: usize, ranked: &mut Vec<usize>) {
        let key = self.hashed_part(key);
        let count = count.min(self.rendezvous.servers.len());
        ranked.clear();
        self.table.rank(key, count, &self.rendezvous, ranked);
        if ranked.len() < count {
            let (servers, hash) = (&self.rendezvous.servers, xxh3(key));
            extend_by_score(servers, count, ranked, |position| self.rendezvous.score(position, hash));
        }
    }
}

/// Appends those servers that are not in `ranked` yet in the order of their scores, the greatest
/// first, until there are `count`.
fn extend_by_score<S: Ord>(
    servers: &[u16],
    count: usize,
    ranked: &mut Vec<usize>,
    score: impl Fn(usize) -> S,
) {
    let first = ranked.len();
    for (position, server) in servers.iter().enumerate() {
        if !ranked[..first].contains(&usize::from(*server)) {
            ranked.push(position);
        }
    }
    ranked[first..].sort_unstable_by_key(|position| Reverse(score(*position)));
    ranked.truncate(count);
    ranked[first..].iter_mut().for_each(|position| *position = usize::from(servers[*position]));
}

/// Returns an error if a list has no or too many servers, or two with the same label.
fn check_servers(servers: &[ServerEntry]) -> Result<(), RingError> {
    if servers.is_empty() || servers.len() > SERVERS_MAX {
        let count = if servers.is_empty() { "no".into() } else { servers.len().to_string() };
        return Err(RingError(format!("{count} servers; a list must have from 1 to {SERVERS_MAX}")));
    }
    let mut labels = HashSet::new();
    match servers.iter().map(ServerEntry::label).find(|label| !labels.insert(label.clone())) {
        None => Ok(()),
        Some(label) => Err(RingError(format!("server {label}: occurs twice; name=X distinguishes servers"))),
    }
}
