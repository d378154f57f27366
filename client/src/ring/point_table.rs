//! A ring of points: sorted numbers, each with its server.

use super::ServerEntry;
use super::key_hash::md5_words;

/// The points of a ring, and a table that finds them by the first bits of a hash.
///
/// Points are spread evenly, so the table has about one point for each of its entries, and a
/// look-up reads three cache lines instead of the twelve of a binary search over 4,000 points.
#[derive(Clone, Debug)]
pub(super) struct PointTable {
    points: Vec<u32>,
    servers: Vec<u16>,
    /// For each value of the first bits, the index of the first point that is not smaller.
    starts: Vec<u32>,
    shift: u32,
    /// True if a key belongs to the last point that is not greater than its hash. Points and hashes
    /// are inverted then.
    is_inverted: bool,
}

impl PointTable {
    /// Creates a table. Of equal points, the first one given counts.
    pub(super) fn new(mut points: Vec<(u32, u16)>) -> PointTable {
        points.sort_by_key(|(point, _)| *point);
        let bits = points.len().next_power_of_two().trailing_zeros().clamp(1, 31);
        let shift = 32 - bits;
        let mut starts: Vec<u32> = Vec::with_capacity((1 << bits) + 1);
        for (index, (point, _)) in points.iter().enumerate() {
            while starts.len() <= (point >> shift) as usize {
                starts.push(index as u32);
            }
        }
        starts.resize((1 << bits) + 1, points.len() as u32);
        let (points, servers) = points.into_iter().unzip();
        PointTable { points, servers, starts, shift, is_inverted: false }
    }

    /// Creates a table in which a key belongs to the last point that is not greater than its hash.
    /// Of equal points, the last one given counts.
    pub(super) fn new_inverted(points: Vec<(u32, u16)>) -> PointTable {
        let inverted = points.into_iter().rev().map(|(point, server)| (!point, server)).collect();
        PointTable { is_inverted: true, ..PointTable::new(inverted) }
    }

    /// Returns the index of the point of a hash.
    #[inline]
    fn find(&self, hash: u32) -> usize {
        let hash = if self.is_inverted { !hash } else { hash };
        let group = (hash >> self.shift) as usize;
        let (start, end) = (self.starts[group] as usize, self.starts[group + 1] as usize);
        let found = start + self.points[start..end].partition_point(|point| *point < hash);
        if found == self.points.len() { 0 } else { found }
    }

    /// Returns the server of a hash, and its point.
    #[inline]
    pub(super) fn server_of(&self, hash: u32) -> (usize, u32) {
        let index = self.find(hash);
        let point = self.points[index];
        (usize::from(self.servers[index]), if self.is_inverted { !point } else { point })
    }

    /// Returns the servers of all points, from the point of the hash round the ring.
    pub(super) fn walk(&self, hash: u32) -> impl Iterator<Item = usize> {
        let (before, after) = self.servers.split_at(self.find(hash));
        after.iter().chain(before).map(|server| usize::from(*server))
    }
}

/// Returns four points for each of `digests` MD5 digests of `TEXT-0`, `TEXT-1` and so on.
pub(super) fn md5_points(text: &str, digests: u32, server: u16) -> impl Iterator<Item = (u32, u16)> {
    let words = (0..digests).flat_map(move |number| md5_words(format!("{text}-{number}").as_bytes()));
    words.map(move |point| (point, server))
}

/// Returns the number of MD5 digests of each server in a weighted ring.
///
/// The arithmetic has 32 bits and this order of operations in libmemcached and twemproxy. Exact
/// arithmetic yields other rings: 25 equal servers have 39 digests each and not 40.
pub(super) fn weighted_digests(servers: &[(u16, &ServerEntry)]) -> Vec<u32> {
    let total: u64 = servers.iter().map(|(_, server)| u64::from(server.weight)).sum();
    let digests = |server: &ServerEntry| {
        let share = server.weight as f32 / total as f32;
        (share * 160.0 / 4.0 * servers.len() as f32 + 1e-10).floor() as u32
    };
    servers.iter().map(|(_, server)| digests(server)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the table with a search through all points, also for crowded and for equal points.
    #[test]
    fn table_finds_the_point_of_a_search() {
        let spread = |number: u32| number.wrapping_mul(0x9e37_79b9);
        let crowded: Vec<(u32, u16)> = (0..500).map(|n| (spread(n) >> 17, n as u16)).collect();
        let even: Vec<(u32, u16)> = (0..500).map(|n| (spread(n), n as u16)).collect();
        let edges = vec![(0, 0), (u32::MAX, 1), (7, 2), (7, 3), (0, 4)];
        for points in [crowded, even, edges, vec![(9, 0)]] {
            let (table, inverted) =
                (PointTable::new(points.clone()), PointTable::new_inverted(points.clone()));
            let hashes = (0..2000).map(spread).chain(points.iter().map(|(point, _)| *point));
            for hash in hashes.flat_map(|hash| [hash, hash.wrapping_add(1), hash.wrapping_sub(1), hash >> 17])
            {
                let least = |candidates: &[(u32, u16)]| {
                    candidates
                        .iter()
                        .enumerate()
                        .min_by_key(|(order, (point, _))| (*point, *order))
                        .map(|f| *f.1)
                };
                let from: Vec<_> = points.iter().copied().filter(|(point, _)| *point >= hash).collect();
                let expected = least(&from).or(least(&points)).unwrap();
                assert_eq!(table.server_of(hash), (usize::from(expected.1), expected.0), "{hash}");
                let greatest = |candidates: &[(u32, u16)]| {
                    candidates
                        .iter()
                        .enumerate()
                        .max_by_key(|(order, (point, _))| (*point, *order))
                        .map(|f| *f.1)
                };
                let to: Vec<_> = points.iter().copied().filter(|(point, _)| *point <= hash).collect();
                let expected = greatest(&to).or(greatest(&points)).unwrap();
                assert_eq!(inverted.server_of(hash), (usize::from(expected.1), expected.0), "{hash}");
            }
        }
    }

    #[test]
    fn digests_are_rounded_as_32_bit_floats() {
        let digests = |weights: &[u32]| {
            let entry: ServerEntry = "a".parse().unwrap();
            let servers: Vec<ServerEntry> =
                weights.iter().map(|weight| ServerEntry { weight: *weight, ..entry.clone() }).collect();
            let servers: Vec<(u16, &ServerEntry)> = servers.iter().map(|server| (0, server)).collect();
            weighted_digests(&servers)
        };
        let short = (1..=107).filter(|n| digests(&vec![1; *n])[0] == 39).collect::<Vec<_>>();
        assert_eq!(short, [25, 47, 50, 55, 61, 71, 94, 100, 107]);
        assert_eq!(digests(&[4, 3, 5, 6, 7]), [31, 23, 40, 47, 56]);
        assert_eq!(digests(&[100_000, 1]), [79, 0]);
    }
}
