//! Chooses the number of shards of an engine in memory.

use crate::options::ServerOptions;

/// The maximum number of shards that is chosen because of the number of threads. More shards would
/// not reduce the time that threads wait for each other.
const SHARDS_FOR_THREADS_MAX: usize = 256;
/// The planned size of a shard without a memory limit. It is half of the 32 GiB that the handles of
/// a shard can address, because records are not distributed evenly and not all pages are full.
pub(crate) const SHARD_BYTES: u64 = 16 << 30;
/// The planned size of a shard with a limit. Shards are then so full that eviction and expiry
/// compact them often, and each compaction reads the directory of the shard under its lock.
const FULL_SHARD_BYTES: u64 = 512 << 20;
/// Maximum number of shards that the engine accepts.
const SHARDS_MAX: u64 = 4096;

/// Returns the number of shards. If memory is scarce, the number is small, because each shard has
/// partly filled pages of its own. The number is larger if there are many threads or if the limit
/// is high. Without a limit, there are at least enough shards to address the memory of the machine.
pub(crate) fn count(options: &ServerOptions, machine_bytes: u64) -> usize {
    let by_threads = (options.limits.threads * 2).next_power_of_two().min(SHARDS_FOR_THREADS_MAX);
    let (by_memory, needed) = match options.memory.limit_mib {
        0 => (by_threads, machine_bytes.div_ceil(SHARD_BYTES)),
        mib => (
            (mib / 8).clamp(1, SHARDS_FOR_THREADS_MAX as u64) as usize,
            (mib << 20).div_ceil(FULL_SHARD_BYTES),
        ),
    };
    by_threads.min(by_memory).max(needed.min(SHARDS_MAX).next_power_of_two() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{LimitOptions, MemoryOptions};

    const GIB: u64 = 1 << 30;

    fn shards_of(threads: usize, memory_limit_mib: u64, machine_bytes: u64) -> usize {
        count(
            &ServerOptions {
                memory: MemoryOptions { limit_mib: memory_limit_mib, ..MemoryOptions::default() },
                limits: LimitOptions { threads, ..LimitOptions::default() },
                ..ServerOptions::default()
            },
            machine_bytes,
        )
    }

    #[test]
    fn shard_count_grows_with_memory_and_threads() {
        assert_eq!(shards_of(4, 8, GIB), 1);
        assert_eq!(shards_of(4, 64, 512 * GIB), 8);
        assert_eq!(shards_of(32, 64, GIB), 8);
        assert_eq!(shards_of(32, 1024, GIB), 64);
        assert_eq!(shards_of(4, 16 << 10, GIB), 32);
        assert_eq!(shards_of(4, 0, GIB), 8);
        assert_eq!(shards_of(4, 0, 16 * GIB), 8);
        assert_eq!(shards_of(1, 64, GIB), 2);
    }

    /// The handles of a shard address 32 GiB. With 8 shards, a limit of 300 GiB could not be
    /// reached: writes failed before it, and nothing was evicted.
    #[test]
    fn shards_can_address_all_of_a_large_memory() {
        for gib in [100, 256, 257, 300, 1 << 10, 50 << 10] {
            let limited = shards_of(1, gib << 10, GIB) as u64;
            let unlimited = shards_of(1, 0, gib * GIB) as u64;
            assert!(limited.min(unlimited) * 16 >= gib, "{limited} and {unlimited} shards for {gib} GiB");
        }
        assert_eq!(shards_of(1, 1 << 30, GIB), 4096);
    }
}
