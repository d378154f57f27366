//! Provides bytes that are shown in place of a compressed value to readers that need only its
//! length.

use crate::raw::MemoryMapping;
use std::sync::OnceLock;

/// Mappings of 1, 2, 4, ... bytes that nobody writes to, so that they take addresses but no memory.
/// They are created when they are first needed and never freed.
static STAND_INS: [OnceLock<Option<MemoryMapping>>; 32] = [const { OnceLock::new() }; 32];

fn mapping(len: usize) -> Option<&'static MemoryMapping> {
    let len = len.max(1).next_power_of_two();
    let slot = STAND_INS.get(len.trailing_zeros() as usize)?;
    slot.get_or_init(|| MemoryMapping::new(len).ok()).as_ref()
}

/// Creates the bytes in place of values of this length. Returns false if the system refuses them.
pub(super) fn prepare(len: usize) -> bool {
    mapping(len).is_some()
}

/// Returns bytes in place of a value of this length.
pub(super) fn stand_in(len: usize) -> &'static [u8] {
    let mapping = mapping(len).expect("the bytes were prepared before the value was compressed");
    &mapping.bytes()[..len]
}
