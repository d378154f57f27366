//! Encodes a value as a frame of zstd, with a dictionary in zstd's format.
//!
//! ```text
//! value = frame without its magic number; it states the length of the value
//! ```

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
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
/// Of values longer than `PROBED_MIN`, this many bytes are encoded at first. If these do not become
/// shorter by one of `PROBE_GAIN_PARTS` parts, the value is left alone: it is noise, or has been
/// compressed by the client.
const PROBE_LEN: usize = 2 << 10;
const PROBED_MIN: usize = 4 * PROBE_LEN;
const PROBE_GAIN_PARTS: usize = 10;
/// After this number of values in a row that were left alone, only one in as many values is probed.
const FAILURES_MAX: u32 = 16;

/// Which long values are encoded completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameEffort {
    /// Those whose beginning becomes shorter. After many values that were left alone, some are not
    /// even probed.
    Low,
    /// Those whose beginning becomes shorter.
    Medium,
    /// All.
    High,
}

/// The working memory of a thread.
#[derive(Default)]
struct FrameContexts {
    compression: Option<CCtx<'static>>,
    decompression: Option<DCtx<'static>>,
    frame: Vec<u8>,
}

impl FrameContexts {
    fn decompression(&mut self) -> Option<&mut DCtx<'static>> {
        if self.decompression.is_none() {
            let mut context = DCtx::try_create()?;
            context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
            self.decompression = Some(context);
        }
        self.decompression.as_mut()
    }
}

thread_local! {
    static CONTEXTS: RefCell<FrameContexts> = RefCell::default();
}

/// A dictionary of zstd.
pub(super) struct FrameDictionary {
    level: i32,
    compression: CDict<'static>,
    decompression: DDict<'static>,
    /// The number of long values since the last one that became shorter.
    failures: AtomicU32,
}

/// Trains the content of a dictionary on values, which are ranges of a sample. Returns `None` if
/// there are too few.
pub(super) fn train(sample: &[u8], values: &[Range<usize>]) -> Option<Vec<u8>> {
    let lens: Vec<usize> = values.iter().map(|value| value.len()).collect();
    let sample: Vec<u8> = values.iter().flat_map(|value| &sample[value.clone()]).copied().collect();
    let len_max = (sample.len() / SAMPLE_PARTS).clamp(LEN_MIN, LEN_MAX);
    let mut content = Vec::with_capacity(len_max);
    train_from_buffer(&mut content, &sample, &lens).ok()?;
    // Frames do not contain an ID of 0. The record names the dictionary.
    content.get_mut(ID)?.fill(0);
    Some(content)
}

impl FrameDictionary {
    /// Creates a dictionary of this content for frames of this level. Returns `None` if there is no
    /// memory.
    pub(super) fn new(content: &[u8], level: i32) -> Option<FrameDictionary> {
        Some(FrameDictionary {
            level,
            compression: CDict::try_create(content, level)?,
            decompression: DDict::try_create(content)?,
            failures: AtomicU32::new(0),
        })
    }

    pub(super) fn level(&self) -> i32 {
        self.level
    }

    /// Returns the memory that the dictionary takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.compression.sizeof() + self.decompression.sizeof()
    }

    /// Returns true if the next value of this length is not even probed with low effort.
    pub(super) fn skips_next(&self, value_len: usize) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        value_len > PROBED_MIN && failures >= FAILURES_MAX && !failures.is_multiple_of(FAILURES_MAX)
    }

    /// Appends the encoded value if it is at most `len_max` bytes long. Otherwise appends nothing
    /// and returns false.
    pub(super) fn encode(
        &self,
        value: &[u8],
        len_max: usize,
        effort: FrameEffort,
        out: &mut Vec<u8>,
    ) -> bool {
        CONTEXTS.with_borrow_mut(|contexts| {
            let FrameContexts { compression, frame, .. } = contexts;
            if compression.is_none() {
                *compression = CCtx::try_create();
            }
            let Some(context) = compression else { return false };
            let mut compress = |value: &[u8], len_max: usize| {
                frame.clear();
                frame.reserve(compress_bound(value.len()));
                let is_done = context.compress_using_cdict(frame, value, &self.compression).is_ok();
                is_done && frame.len() <= len_max + MAGIC_LEN
            };
            if value.len() > PROBED_MIN && effort != FrameEffort::High {
                let is_low = effort == FrameEffort::Low;
                let is_probed = !is_low || !self.skips_next(value.len());
                let probe = &value[..PROBE_LEN];
                let is_promising = is_probed && compress(probe, PROBE_LEN - PROBE_LEN / PROBE_GAIN_PARTS);
                // Only writes by clients show whether the next ones are worth a probe.
                let failures = self.failures.load(Ordering::Relaxed);
                let failures_now = if is_promising { 0 } else { failures.wrapping_add(1) };
                if is_low && failures != failures_now {
                    self.failures.store(failures_now, Ordering::Relaxed);
                }
                if !is_promising {
                    return false;
                }
            }
            let fits = compress(value, len_max);
            if fits {
                out.extend_from_slice(&frame[MAGIC_LEN..]);
            }
            fits
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
            let context = contexts.decompression()?;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let decoded = context.decompress_using_ddict(&mut buffer[..len], stored, &self.decompression);
            (decoded == Ok(len)).then_some(())
        })?;
        Some(&buffer[..len])
    }
}

/// Encodes a chunk of a long value without a dictionary, in place of the content of `frame`.
/// Returns false if there is no memory.
pub(crate) fn encode_chunk(chunk: &[u8], level: i32, frame: &mut Vec<u8>) -> bool {
    CONTEXTS.with_borrow_mut(|contexts| {
        if contexts.compression.is_none() {
            contexts.compression = CCtx::try_create();
        }
        let Some(context) = &mut contexts.compression else { return false };
        frame.clear();
        frame.reserve(compress_bound(chunk.len()));
        let is_done = context.compress(frame, chunk, level).is_ok() && frame.len() > MAGIC_LEN;
        if is_done {
            frame.drain(..MAGIC_LEN);
        }
        is_done
    })
}

/// Decodes a chunk, which fills `out`. Returns false if the frame is damaged, or if there is no
/// memory.
pub(crate) fn decode_chunk(stored: &[u8], out: &mut [u8]) -> bool {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.decompression().is_some_and(|context| context.decompress(out, stored) == Ok(out.len()))
    })
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
