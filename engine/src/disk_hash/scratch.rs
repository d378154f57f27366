//! Provides buffers for entries, which each thread keeps so that operations allocate no memory.

use std::cell::Cell;

/// A buffer longer than this is freed after use.
const RETAINED_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct ScratchBuffers {
    /// An entry that was read.
    pub(crate) old: Vec<u8>,
    /// An entry to be written.
    pub(crate) new: Vec<u8>,
    /// An entry that is only read and passed to a viewer.
    pub(crate) read: Vec<u8>,
    /// The plain value of a record that is stored compressed.
    pub(crate) plain_value: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<ScratchBuffers>>> = const { Cell::new(None) };
}

/// The buffers of this thread. If they are in use, this holds new ones; that happens when a visitor
/// visits another engine.
pub(crate) struct ThreadScratch(Option<Box<ScratchBuffers>>);

impl ThreadScratch {
    #[inline]
    pub(crate) fn take() -> ThreadScratch {
        // A thread that is ending has no buffers any more, so it gets new ones.
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
            let ScratchBuffers { old, new, read, plain_value } = &mut *room;
            for part in [old, new, read, plain_value] {
                if part.capacity() > RETAINED_MAX {
                    *part = Vec::new();
                }
            }
            let _ = SCRATCH.try_with(|kept| kept.set(Some(room)));
        }
    }
}
