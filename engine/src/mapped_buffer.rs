//! Provides the memory for a long value that is being received, for engines that write values to a
//! file. The memory then becomes the value without a copy.

use crate::raw::{MemoryMapping, SYSTEM_PAGE};
use std::any::Any;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, SharedBytes, ValueBuffer};

/// A mapping with the length of the value. It takes memory of the system only as far as it is
/// filled.
pub(crate) struct MappedBuffer {
    mapping: Option<MemoryMapping>,
    len: usize,
    filled: usize,
}

impl MappedBuffer {
    pub(crate) fn new(len: usize) -> Result<MappedBuffer> {
        let mapping = match len {
            0 => None,
            _ => Some(MemoryMapping::new(len.next_multiple_of(SYSTEM_PAGE)).map_err(|error| {
                Error::new(ErrorKind::Full, format!("no memory for a value of {len} bytes: {error}"))
            })?),
        };
        Ok(MappedBuffer { mapping, len, filled: 0 })
    }

    /// Returns the next bytes to be filled, at most `len` of them.
    pub(crate) fn room(buffer: &mut dyn ValueBuffer, len: usize) -> Result<&mut [u8]> {
        let buffer = (buffer as &mut dyn Any)
            .downcast_mut::<MappedBuffer>()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "a buffer of another engine"))?;
        let end = buffer.len.min(buffer.filled.saturating_add(len));
        let bytes = buffer.mapping.as_mut().map_or(&mut [][..], MemoryMapping::bytes_mut);
        Ok(&mut bytes[buffer.filled..end])
    }
}

impl ValueBuffer for MappedBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn filled(&self) -> usize {
        self.filled
    }

    fn advance(&mut self, len: usize) {
        self.filled = self.len.min(self.filled + len);
    }

    fn into_shared(self: Box<Self>) -> SharedBytes {
        Arc::new(MappedValue { mapping: self.mapping, len: self.len })
    }
}

struct MappedValue {
    mapping: Option<MemoryMapping>,
    len: usize,
}

impl AsRef<[u8]> for MappedValue {
    fn as_ref(&self) -> &[u8] {
        self.mapping.as_ref().map_or(&[], |mapping| &mapping.bytes()[..self.len])
    }
}
