//! Maps of vbuckets, as moxi reads them: a key has a slot, and each slot has a server.

use super::{KeyHash, RingError, ServerEntry};
use serde_json::Value;
use std::sync::atomic::{AtomicU16, Ordering};

/// The largest number of slots.
const SLOTS_MAX: usize = 65_536;

/// A map from slots to servers. The number of slots is a power of two. Threads share a map and move
/// its slots; a clone has slots of its own.
#[derive(Debug)]
pub struct VbucketMap {
    owners: Vec<AtomicU16>,
    servers: usize,
}

impl VbucketMap {
    /// Parses a map in Couchbase's JSON: `hashAlgorithm`, which must be `CRC`, `serverList` and
    /// `vBucketMap`, either at the top or in `vBucketServerMap`. Replicas are ignored.
    pub fn parse(json: &str) -> Result<(VbucketMap, Vec<ServerEntry>), RingError> {
        let error = |problem: String| RingError(format!("vbucket map: {problem}"));
        let root: Value = serde_json::from_str(json).map_err(|problem| error(problem.to_string()))?;
        let map = root.get("vBucketServerMap").unwrap_or(&root);
        let list = |name: &str| {
            let list = map.get(name).and_then(Value::as_array);
            list.ok_or_else(|| error(format!("{name} must be a list")))
        };
        if map.get("hashAlgorithm").and_then(Value::as_str) != Some("CRC") {
            return Err(error("hashAlgorithm must be \"CRC\"".into()));
        }
        let servers = list("serverList")?.iter().map(|server| {
            server.as_str().ok_or_else(|| error("a server of serverList must be a text".into()))?.parse()
        });
        let servers = servers.collect::<Result<Vec<ServerEntry>, RingError>>()?;
        super::check_servers(&servers)?;
        let slots = list("vBucketMap")?;
        if !slots.len().is_power_of_two() || slots.len() > SLOTS_MAX {
            return Err(error(format!(
                "vBucketMap has {} slots; must be a power of two up to {SLOTS_MAX}",
                slots.len()
            )));
        }
        let owner = |(slot, chain): (usize, &Value)| {
            let owner = chain.get(0).and_then(Value::as_u64).filter(|owner| *owner < servers.len() as u64);
            owner
                .map(|owner| AtomicU16::new(owner as u16))
                .ok_or_else(|| error(format!("vBucketMap[{slot}][0] must be an index into serverList")))
        };
        let owners = slots.iter().enumerate().map(owner).collect::<Result<Vec<AtomicU16>, RingError>>()?;
        Ok((VbucketMap { owners, servers: servers.len() }, servers))
    }

    /// Returns the slot of a key, which requests to binary servers carry.
    #[inline]
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        (KeyHash::Crc32.of(key) as usize & (self.owners.len() - 1)) as u16
    }

    /// Returns the index of the server of a slot.
    #[inline]
    pub fn server_of_slot(&self, slot: u16) -> usize {
        // The server numbers themselves are all that threads exchange.
        usize::from(self.owners[usize::from(slot)].load(Ordering::Relaxed))
    }

    /// Returns the number of servers.
    pub fn server_count(&self) -> usize {
        self.servers
    }

    /// Moves a slot from a server that has refused it to the next server of the list. Does nothing
    /// if the slot is at another server already, because many requests may be refused at once.
    /// Returns the server of the slot.
    pub fn move_slot(&self, slot: u16, from: usize) -> usize {
        let next = (from + 1) % self.servers;
        let owner = &self.owners[usize::from(slot)];
        match owner.compare_exchange(from as u16, next as u16, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            Err(owner) => usize::from(owner),
        }
    }

    fn owners(&self) -> impl Iterator<Item = u16> {
        self.owners.iter().map(|owner| owner.load(Ordering::Relaxed))
    }
}

impl Clone for VbucketMap {
    fn clone(&self) -> VbucketMap {
        VbucketMap { owners: self.owners().map(AtomicU16::new).collect(), servers: self.servers }
    }
}

impl PartialEq for VbucketMap {
    fn eq(&self, other: &VbucketMap) -> bool {
        self.servers == other.servers && self.owners().eq(other.owners())
    }
}

impl Eq for VbucketMap {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vbuckets_map_keys_to_servers() {
        let json = r#"{"hashAlgorithm":"CRC","numReplicas":1,"serverList":["a:11210","b:11210","c:11210"],
            "vBucketMap":[[0,1],[1,2],[2,0],[2,1]]}"#;
        let (map, servers) = VbucketMap::parse(json).unwrap();
        assert_eq!(servers[2].label(), "c:11210");
        // The CRC-32 of foo is 0x8c736521, and its upper 15 bits are 0x0c73.
        assert_eq!((map.slot_of(b"foo"), map.server_of_slot(3)), (3, 2));
        let before = map.clone();
        assert_eq!(map, before);
        // The second request that server 2 has refused finds the slot at the next server.
        assert_eq!([map.move_slot(3, 2), map.move_slot(3, 2)], [0, 0]);
        assert_eq!((map.server_of_slot(3), map.server_of_slot(2)), (0, 2));
        assert_eq!((before.server_of_slot(3), map == before), (2, false));
        let nested = format!(r#"{{"name":"default","vBucketServerMap":{json}}}"#);
        assert_eq!(VbucketMap::parse(&nested).unwrap().0.server_of_slot(3), 2);
    }

    #[test]
    fn invalid_maps_name_their_problem() {
        let map = |servers: &str, slots: &str| {
            format!(r#"{{"hashAlgorithm":"CRC","serverList":{servers},"vBucketMap":{slots}}}"#)
        };
        for (json, problem) in [
            ("{", "EOF"),
            ("[]", "hashAlgorithm must be"),
            (r#"{"hashAlgorithm":"MD5"}"#, "hashAlgorithm must be"),
            (&map("{}", "[]"), "serverList must be a list"),
            (&map("[1]", "[]"), "must be a text"),
            (&map(r#"["a:0"]"#, "[]"), "port \"0\""),
            (&map("[]", "[]"), "no servers"),
            (&map(r#"["a"]"#, "[]"), "0 slots; must be a power of two"),
            (&map(r#"["a"]"#, "[[0],[0],[0]]"), "3 slots; must be a power of two"),
            (&map(r#"["a"]"#, "[[0],[1]]"), "vBucketMap[1][0] must be an index"),
            (&map(r#"["a"]"#, "[[0],[-1]]"), "vBucketMap[1][0] must be an index"),
            (&map(r#"["a"]"#, "[[0],[]]"), "vBucketMap[1][0] must be an index"),
            (&map(r#"["a"]"#, "[[0],7]"), "vBucketMap[1][0] must be an index"),
        ] {
            let error = VbucketMap::parse(json).unwrap_err().to_string();
            assert!(error.contains(problem), "{json}: {error}");
        }
    }
}
