//! Encodes a value as a frame of zstd, with a dictionary in zstd's format.
//!
//! ```text
//! value = frame without its magic number; it states the length of the value
//! ```

use std::cell::RefCell;
use std::ops::Range;
use zstd::zstd_safe::{CCtx, CDict, DCtx, DDict, DParameter, FrameFormat, compress_bound, train_from_buffer};

/// The length of the magic number, which is not stored.
const MAGIC_LEN: usize = 4;
/// The maximum length of a dictionary.
const LEN_MAX: usize = 64 << 10;
/// The minimum length of a dictionary that zstd trains.
const LEN_MIN: usize = 1 << 10;
/// A dictionary is at most one of this many parts of its sample.
const SAMPLE_PARTS: usize = 16;
/// The ID of a dictionary in zstd's format.
const ID: Range<usize> = 4..8;
const LEVEL: i32 = 3;

/// The working memory of a thread.
#[derive(Default)]
struct FrameContexts {
    compression: Option<CCtx<'static>>,
    decompression: Option<DCtx<'static>>,
    frame: Vec<u8>,
}

thread_local! {
    static CONTEXTS: RefCell<FrameContexts> = RefCell::default();
}

/// A dictionary of zstd.
pub(super) struct FrameDictionary {
    compression: CDict<'static>,
    decompression: DDict<'static>,
}

impl FrameDictionary {
    /// Trains a dictionary on values, which are ranges of a sample. Returns `None` if there are too
    /// few.
    pub(super) fn train(sample: &[u8], values: &[Range<usize>]) -> Option<FrameDictionary> {
        let lens: Vec<usize> = values.iter().map(|value| value.len()).collect();
        let sample: Vec<u8> = values.iter().flat_map(|value| &sample[value.clone()]).copied().collect();
        let len_max = (sample.len() / SAMPLE_PARTS).clamp(LEN_MIN, LEN_MAX);
        let mut content = Vec::with_capacity(len_max);
        train_from_buffer(&mut content, &sample, &lens).ok()?;
        // Frames do not contain an ID of 0. The record names the dictionary.
        content.get_mut(ID)?.fill(0);
        Some(FrameDictionary {
            compression: CDict::try_create(&content, LEVEL)?,
            decompression: DDict::try_create(&content)?,
        })
    }

    /// Returns the memory that the dictionary takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.compression.sizeof() + self.decompression.sizeof()
    }

    /// Appends the encoded value if it is at most `len_max` bytes long. Otherwise appends nothing
    /// and returns false.
    pub(super) fn encode(&self, value: &[u8], len_max: usize, out: &mut Vec<u8>) -> bool {
        CONTEXTS.with_borrow_mut(|contexts| {
            let FrameContexts { compression, frame, .. } = contexts;
            if compression.is_none() {
                *compression = CCtx::try_create();
            }
            let Some(context) = compression else { return false };
            frame.clear();
            frame.reserve(compress_bound(value.len()));
            if context.compress_using_cdict(frame, value, &self.compression).is_err() {
                return false;
            }
            let stored = frame.get(MAGIC_LEN..).filter(|stored| stored.len() <= len_max);
            stored.inspect(|stored| out.extend_from_slice(stored)).is_some()
        })
    }

    /// Decodes a value into a buffer and returns it. Returns `None` if the frame is damaged, or if
    /// the value is longer than `len_max`.
    pub(super) fn decode<'b>(
        &self,
        stored: &[u8],
        len_max: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        let len = content_len(stored).filter(|len| *len <= len_max)?;
        CONTEXTS.with_borrow_mut(|contexts| {
            let context = match &mut contexts.decompression {
                Some(context) => context,
                none => {
                    let mut context = DCtx::try_create()?;
                    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
                    none.insert(context)
                }
            };
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let decoded = context.decompress_using_ddict(&mut buffer[..len], stored, &self.decompression);
            (decoded == Ok(len)).then_some(())
        })?;
        Some(&buffer[..len])
    }
}

/// Returns the length of the value that the header of a frame states (RFC 8878, section 3.1.1.1).
/// Returns `None` if it states none.
pub(super) fn content_len(frame: &[u8]) -> Option<usize> {
    let (&descriptor, rest) = frame.split_first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    let has_dictionary_id = descriptor & 3 != 0;
    if !is_single_segment || has_dictionary_id {
        return None;
    }
    Some(match descriptor >> 6 {
        0 => usize::from(*rest.first()?),
        1 => usize::from(u16::from_le_bytes(*rest.first_chunk()?)) + 256,
        2 => u32::from_le_bytes(*rest.first_chunk()?) as usize,
        _ => return None,
    })
}
