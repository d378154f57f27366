//! Gives the processor a hint to prefetch a value.

/// Prefetches the cache line of a value.
#[inline]
pub(crate) fn prefetch<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing architecturally and cannot fault. Besides, the address
        // is that of a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_prefetch_changes_nothing() {
        let words = [7u64; 100];
        words.iter().for_each(super::prefetch);
        assert_eq!(words, [7; 100]);
    }
}
