//! Room that a thread keeps for what it reads and writes, so that no operation asks for memory.

use std::cell::Cell;

/// More than this is given back at once.
const KEPT_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Room {
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
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// This thread's room; another one while that is lent (a visit within a visit of another engine).
pub(crate) struct Scratch(Option<Box<Room>>);

impl Scratch {
    #[inline]
    pub(crate) fn take() -> Scratch {
        // A thread that ends keeps nothing any more.
        Scratch(Some(ROOM.try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }
}

impl std::ops::Deref for Scratch {
    type Target = Room;

    fn deref(&self) -> &Room {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl std::ops::DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Room {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut room) = self.0.take() {
            let Room { old, new, read, other } = &mut *room;
            for part in [old, new, read, other] {
                if part.capacity() > KEPT_MAX {
                    *part = Vec::new();
                }
            }
            let _ = ROOM.try_with(|kept| kept.set(Some(room)));
        }
    }
}
