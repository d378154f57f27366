//! ScratchBuffers that a thread keeps for what it reads and writes, so that no operation asks for memory.

use std::cell::Cell;

/// More than this is given back at once.
const KEPT_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct ScratchBuffers {
    /// An entry as it was read.
    pub(crate) old: Vec<u8>,
    /// An entry to be written.
    pub(crate) new: Vec<u8>,
    /// An entry that is only looked at.
    pub(crate) read: Vec<u8>,
    /// A value as it was given, where it is stored compressed.
    pub(crate) other: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<ScratchBuffers>>> = const { Cell::new(None) };
}

/// This thread's room; another one while that is lent (a visit within a visit of another engine).
pub(crate) struct ThreadScratch(Option<Box<ScratchBuffers>>);

impl ThreadScratch {
    #[inline]
    pub(crate) fn take() -> ThreadScratch {
        // A thread that ends keeps nothing any more.
        ThreadScratch(Some(SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }
}

impl std::ops::Deref for ThreadScratch {
    type Target = ScratchBuffers;

    fn deref(&self) -> &ScratchBuffers {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl std::ops::DerefMut for ThreadScratch {
    fn deref_mut(&mut self) -> &mut ScratchBuffers {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl Drop for ThreadScratch {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut room) = self.0.take() {
            let ScratchBuffers { old, new, read, other } = &mut *room;
            for part in [old, new, read, other] {
                if part.capacity() > KEPT_MAX {
                    *part = Vec::new();
                }
            }
            let _ = SCRATCH.try_with(|kept| kept.set(Some(room)));
        }
    }
}
