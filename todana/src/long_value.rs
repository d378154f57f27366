//! Long values are copied outside of the engine's locks, piece by piece, into the engine's own
//! memory, which it then uses directly.

use crate::Database;
use todana_core::{Record, Result, SharedBytes};

/// Joins the pieces in the engine's own memory. Fails with `Full` if there is none, and with
/// `Invalid` if the engine has no such memory.
pub(crate) fn gather(database: &Database, pieces: &[&[u8]]) -> Result<SharedBytes> {
    let total = pieces.iter().map(|piece| piece.len()).sum();
    let mut buffer = database.buffer(total)?;
    while buffer.filled() < total {
        let filled = buffer.filled();
        let room = database.room(&mut *buffer, total - filled)?;
        copy(pieces, filled, room);
        let len = room.len();
        buffer.advance(len);
    }
    Ok(buffer.into_shared())
}

/// Fills `room` with the bytes of all pieces from `skip` on.
fn copy(pieces: &[&[u8]], mut skip: usize, mut room: &mut [u8]) {
    for piece in pieces {
        let rest = &piece[skip.min(piece.len())..];
        skip -= piece.len() - rest.len();
        let (now, later) = room.split_at_mut(rest.len().min(room.len()));
        now.copy_from_slice(&rest[..now.len()]);
        room = later;
    }
}

/// A value as it was seen, to detect later changes.
pub(crate) enum SeenValue {
    Long(SharedBytes),
    Short(Vec<u8>),
}

impl SeenValue {
    /// Returns `None` for a value whose copy would be long.
    pub(crate) fn of(record: Record<'_>, short_max: usize) -> Option<SeenValue> {
        match record.shared {
            Some(shared) => Some(SeenValue::Long(SharedBytes::clone(shared))),
            None if record.value.len() <= short_max => Some(SeenValue::Short(record.value.to_vec())),
            None => None,
        }
    }

    pub(crate) fn value(&self) -> &[u8] {
        match self {
            SeenValue::Long(shared) => (**shared).as_ref(),
            SeenValue::Short(bytes) => bytes,
        }
    }

    /// Returns true if the record still has this value. Costs at most the comparison of a short
    /// value.
    pub(crate) fn is_of(&self, record: Record<'_>) -> bool {
        match self {
            SeenValue::Long(seen) => record.shared.is_some_and(|shared| SharedBytes::ptr_eq(seen, shared)),
            SeenValue::Short(bytes) => record.value == bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn pieces_are_copied_in_order_from_any_place() {
        let whole = b"one, two";
        for skip in 0..=whole.len() {
            for len in 0..=whole.len() - skip {
                let mut room = vec![0; len];
                copy(&[b"one", b"", b", two"], skip, &mut room);
                assert_eq!(room, &whole[skip..skip + len]);
            }
        }
    }
}
