//! Chooses the server of a key by a ring or by a map of vbuckets.

use super::{Ring, VbucketMap};

/// A function from keys to servers, as a pool of a proxy has it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a pool has one of them, for its whole life")]
pub enum ServerChoice {
    /// A ring.
    Ring(Ring),
    /// A map of vbuckets.
    Vbuckets(VbucketMap),
}

impl ServerChoice {
    /// Returns the index of the server of a key.
    #[inline]
    pub fn server_of(&self, key: &[u8]) -> usize {
        match self {
            ServerChoice::Ring(ring) => ring.server_of(key),
            ServerChoice::Vbuckets(map) => map.server_of_slot(map.slot_of(key)),
        }
    }

    /// Replaces the content of `ranked` by up to `count` different servers, the server of the key
    /// first. A map of vbuckets goes on with the next servers of its list.
    pub fn rank(&self, key: &[u8], count: usize, ranked: &mut Vec<usize>) {
        match self {
            ServerChoice::Ring(ring) => ring.rank(key, count, ranked),
            ServerChoice::Vbuckets(map) => {
                let (first, servers) = (self.server_of(key), map.server_count());
                ranked.clear();
                ranked.extend((0..count.min(servers)).map(|step| (first + step) % servers));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vbuckets_choose_and_rank_servers() {
        let json = r#"{"hashAlgorithm":"CRC","serverList":["a","b","c"],"vBucketMap":[[0],[1],[2],[2]]}"#;
        let choice = ServerChoice::Vbuckets(VbucketMap::parse(json).unwrap().0);
        // The CRC-32 of foo is 0x8c736521, and its upper 15 bits are 0x0c73.
        assert_eq!(choice.server_of(b"foo"), 2);
        let mut ranked = vec![7];
        choice.rank(b"foo", 5, &mut ranked);
        assert_eq!(ranked, [2, 0, 1]);
    }
}
