//! The number of shards of an engine in memory.

use crate::options::ServerOptions;

/// Maximum number of shards chosen because of threads: beyond it, threads do not contend less.
const SHARDS_FOR_THREADS_MAX: usize = 256;
/// Planned contents of a shard: half of the 32 GiB that its handles can address, because records
/// are not distributed evenly and pages are not all full.
pub(crate) const SHARD_BYTES: u64 = 16 << 30;
/// Maximum number of shards that the engine accepts.
const SHARDS_MAX: u64 = 4096;

/// Returns the number of shards: few if memory is scarce, because each keeps partly filled pages of
/// its own; more if many threads write, or if fewer could not address the memory limit. Without a
/// limit that is the machine's memory.
pub(crate) fn count(options: &ServerOptions, machine_bytes: u64) -> usize {
    let by_threads = (options.limits.threads * 2).next_power_of_two().min(SHARDS_FOR_THREADS_MAX);
    let (by_memory, bytes) = match options.memory.limit_mib {
        0 => (by_threads, machine_bytes),
        mib => ((mib / 8).clamp(1, SHARDS_FOR_THREADS_MAX as u64) as usize, mib << 20),
    };
    let addressing = bytes.div_ceil(SHARD_BYTES).min(SHARDS_MAX).next_power_of_two();
    by_threads.min(by_memory).max(addressing as usize)
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
    fn small_memories_have_few_shards_and_many_threads_have_many() {
        assert_eq!(shards_of(4, 8, GIB), 1);
        assert_eq!(shards_of(4, 64, 512 * GIB), 8);
        assert_eq!(shards_of(32, 64, GIB), 8);
        assert_eq!(shards_of(32, 1024, GIB), 64);
        assert_eq!(shards_of(4, 0, GIB), 8);
        assert_eq!(shards_of(1, 64, GIB), 2);
    }

    /// A shard's handles address 32 GiB. With 8 shards a limit of 300 GiB was unreachable, so
    /// nothing was evicted.
    #[test]
    fn all_of_a_large_memory_is_within_reach_of_the_shards() {
        for gib in [100, 256, 257, 300, 1 << 10, 50 << 10] {
            let limited = shards_of(1, gib << 10, GIB) as u64;
            let unlimited = shards_of(1, 0, gib * GIB) as u64;
            assert_eq!(limited, unlimited);
            assert!(limited * 16 >= gib, "{limited} shards for {gib} GiB");
        }
        assert_eq!(shards_of(1, 1 << 30, GIB), 4096);
    }
}
