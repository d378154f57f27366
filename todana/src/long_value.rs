//! Copies long values outside of the engine's locks, piece by piece, to memory of the engine, which
//! then stores them without another copy.

use crate::Database;
use std::cell::OnceCell;
use todana_core::{Record, Result, SharedBytes, plain_value};

/// Copies pieces one after another to memory of the engine. Fails with `Full` if no memory is left,
/// and with `Invalid` if the engine offers none.
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

/// Fills `room` with the bytes of all pieces, from the offset `skip` on.
fn copy(pieces: &[&[u8]], mut skip: usize, mut room: &mut [u8]) {
    for piece in pieces {
        let rest = &piece[skip.min(piece.len())..];
        skip -= piece.len() - rest.len();
        let (now, later) = room.split_at_mut(rest.len().min(room.len()));
        now.copy_from_slice(&rest[..now.len()]);
        room = later;
    }
}

/// A value as it was seen at some time, by which later changes are detected.
pub(crate) enum SeenValue {
    Long {
        seen: SharedBytes,
        /// The value in plain form, once it is needed.
        plain: OnceCell<SharedBytes>,
    },
    Short(Vec<u8>),
}

impl SeenValue {
    /// Notes the value of a record. Returns `None` if that would need a copy longer than
    /// `short_max`.
    pub(crate) fn of(record: Record<'_>, short_max: usize) -> Option<SeenValue> {
        match record.shared {
            Some(shared) => {
                Some(SeenValue::Long { seen: SharedBytes::clone(shared), plain: OnceCell::new() })
            }
            None if record.value.len() <= short_max => Some(SeenValue::Short(record.value.to_vec())),
            None => None,
        }
    }

    pub(crate) fn value(&self) -> &[u8] {
        match self {
            SeenValue::Long { seen, plain } => {
                plain.get_or_init(|| plain_value(seen)).plain().unwrap_or_default()
            }
            SeenValue::Short(bytes) => bytes,
        }
    }

    /// Returns true if the record still has this value. Compares the bytes of a short value only.
    pub(crate) fn is_of(&self, record: Record<'_>) -> bool {
        match self {
            SeenValue::Long { seen, .. } => {
                record.shared.is_some_and(|shared| SharedBytes::ptr_eq(seen, shared))
            }
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
