//! Compresses and decompresses values (docs/format/disk-hash.md, section 5).

use super::dictionary::{DictionarySet, LEVEL, ValueDictionary};
use super::entry::ValueEncoding;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;
use todana_core::{Error, ErrorKind};
use zstd::zstd_safe::{CCtx, DCtx, DParameter, FrameFormat, compress_bound};

/// Longer values are not compressed, because reading a compressed value needs as much memory as the
/// value, and takes a millisecond for every few MiB while its shard is locked.
pub(crate) const PLAIN_LEN_MAX: usize = 16 << 20;
/// Shorter values are not compressed.
const LEN_MIN: usize = 32;
/// Without a dictionary, values below this length are not compressed: compression without a
/// dictionary saves little on them and takes seven times as long as with one.
const LEN_MIN_ALONE: usize = 256;
/// Compression must save at least this number of bytes, because a compressed entry has a few
/// additional bytes and entries are padded to multiples of 8.
const GAIN_MIN: usize = 16;
/// The length of the magic number of a zstd frame. The magic number is not stored.
const MAGIC_LEN: usize = 4;
/// A buffer longer than this is freed after use.
const RETAINED_MAX: usize = 1 << 20;

/// Compresses values on one thread.
#[derive(Default)]
pub(crate) struct ValueCompressor {
    context: Option<CCtx<'static>>,
    compressed: Vec<u8>,
}

impl ValueCompressor {
    /// Compresses a value with the current dictionary. Returns `None` if compression is not
    /// worthwhile.
    #[inline]
    pub(crate) fn compress(
        &mut self,
        value: &[u8],
        dictionaries: &DictionarySet,
    ) -> Option<(ValueEncoding, &[u8])> {
        let (number, dictionary) = dictionaries.current();
        let compressed = self.compress_with(value, dictionary)?;
        Some((ValueEncoding { dictionary: number, plain_len: value.len() }, compressed))
    }

    /// Compresses a value with the given dictionary, or without a dictionary. Returns `None` if
    /// compression is not worthwhile.
    pub(crate) fn compress_with(
        &mut self,
        value: &[u8],
        dictionary: Option<&ValueDictionary>,
    ) -> Option<&[u8]> {
        let len_min = if dictionary.is_some() { LEN_MIN } else { LEN_MIN_ALONE };
        if !(len_min..=PLAIN_LEN_MAX).contains(&value.len()) {
            return None;
        }
        if self.context.is_none() {
            self.context = CCtx::try_create();
        }
        let context = self.context.as_mut()?;
        self.compressed.clear();
        self.compressed.reserve(compress_bound(value.len()));
        match dictionary {
            None => context.compress(&mut self.compressed, value, LEVEL),
            Some(dictionary) => {
                context.compress_using_cdict(&mut self.compressed, value, dictionary.compression()?)
            }
        }
        .ok()?;
        let compressed = self.compressed.get(MAGIC_LEN..)?;
        (compressed.len() + GAIN_MIN <= value.len()).then_some(compressed)
    }
}

/// Decompresses values on one thread.
#[derive(Default)]
pub(crate) struct ValueDecompressor {
    context: Option<DCtx<'static>>,
    plain: Vec<u8>,
}

impl ValueDecompressor {
    /// Decompresses a value. `dictionary` is the dictionary that `encoding` names, or `None` if
    /// there is no such dictionary.
    pub(crate) fn decompress(
        &mut self,
        compressed: &[u8],
        encoding: ValueEncoding,
        dictionary: Option<&ValueDictionary>,
    ) -> Result<&[u8], DecompressionError> {
        let ValueEncoding { dictionary: number, plain_len } = encoding;
        if number != 0 && dictionary.is_none() {
            return Err(DecompressionError::Damaged(format!(
                "the value is compressed with dictionary {number}, which is missing"
            )));
        }
        if plain_len > PLAIN_LEN_MAX {
            return Err(DecompressionError::Damaged(format!(
                "impossible length of a compressed value: {plain_len} bytes"
            )));
        }
        if self.context.is_none() {
            let mut context = DCtx::try_create().ok_or(DecompressionError::NoMemory)?;
            context
                .set_parameter(DParameter::Format(FrameFormat::Magicless))
                .map_err(|_| DecompressionError::NoMemory)?;
            self.context = Some(context);
        }
        let context = self.context.as_mut().ok_or(DecompressionError::NoMemory)?;
        self.plain.clear();
        // Reserved memory is not touched before it is written to, so a wrong, huge length costs
        // nothing.
        self.plain.try_reserve(plain_len).map_err(|_| DecompressionError::NoMemory)?;
        let expanded = match dictionary {
            None => context.decompress(&mut self.plain, compressed),
            Some(dictionary) => {
                context.decompress_using_ddict(&mut self.plain, compressed, &dictionary.decompression)
            }
        };
        match expanded {
            Ok(len) if len == plain_len => Ok(&self.plain),
            _ => Err(DecompressionError::Damaged("the compressed value is damaged".into())),
        }
    }
}

/// The reason why a value could not be decompressed.
pub(crate) enum DecompressionError {
    Damaged(String),
    NoMemory,
}

impl DecompressionError {
    /// Returns the error of the engine for this reason. `corrupt` adds the location of the value.
    pub(crate) fn at(self, corrupt: impl FnOnce(&str) -> Error) -> Error {
        match self {
            DecompressionError::Damaged(what) => corrupt(&what),
            DecompressionError::NoMemory => Error::new(ErrorKind::Full, "no memory to decompress a value"),
        }
    }
}

/// A type of which each thread keeps one value for reuse.
pub(crate) trait CachedPerThread: Default + 'static {
    fn cell() -> &'static LocalKey<Cell<Option<Box<Self>>>>;

    fn buffer(&mut self) -> &mut Vec<u8>;
}

thread_local! {
    static PACKER: Cell<Option<Box<ValueCompressor>>> = const { Cell::new(None) };
    static UNPACKER: Cell<Option<Box<ValueDecompressor>>> = const { Cell::new(None) };
}

impl CachedPerThread for ValueCompressor {
    fn cell() -> &'static LocalKey<Cell<Option<Box<ValueCompressor>>>> {
        &PACKER
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.compressed
    }
}

impl CachedPerThread for ValueDecompressor {
    fn cell() -> &'static LocalKey<Cell<Option<Box<ValueDecompressor>>>> {
        &UNPACKER
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.plain
    }
}

/// The cached value of this thread. If that value is in use, this holds a new one.
pub(crate) struct ThreadCached<T: CachedPerThread>(Option<Box<T>>);

impl<T: CachedPerThread> ThreadCached<T> {
    pub(crate) fn take() -> ThreadCached<T> {
        // A thread that is ending has no cache any more, so it gets a new value.
        ThreadCached(Some(T::cell().try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }
}

impl<T: CachedPerThread> Deref for ThreadCached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl<T: CachedPerThread> DerefMut for ThreadCached<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl<T: CachedPerThread> Drop for ThreadCached<T> {
    fn drop(&mut self) {
        if let Some(mut kept) = self.0.take() {
            if kept.buffer().capacity() > RETAINED_MAX {
                *kept.buffer() = Vec::new();
            }
            let _ = T::cell().try_with(|cell| cell.set(Some(kept)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_compressed_value_is_reported() {
        let dictionaries = DictionarySet::new(Vec::new());
        let (mut compressor, mut decompressor) = (ValueCompressor::default(), ValueDecompressor::default());
        let value = b"all the same ".repeat(100);
        let (encoding, compressed) = compressor.compress(&value, &dictionaries).unwrap();
        assert_eq!(encoding, ValueEncoding { dictionary: 0, plain_len: value.len() });
        assert!(compressed.len() < 40 && compressed[..4] != [0x28, 0xb5, 0x2f, 0xfd], "{compressed:?}");
        assert_eq!(
            decompressor.decompress(compressed, encoding, dictionaries.get(encoding.dictionary)).ok(),
            Some(&value[..])
        );
        let is_damage = |compressed: &[u8], encoding| {
            let mut decompressor = ValueDecompressor::default();
            let outcome =
                decompressor.decompress(compressed, encoding, dictionaries.get(encoding.dictionary));
            matches!(outcome, Err(DecompressionError::Damaged(_)))
                && decompressor.plain.len() <= PLAIN_LEN_MAX
        };
        for plain_len in [0, 1, value.len() - 1, value.len() + 1, PLAIN_LEN_MAX, PLAIN_LEN_MAX + 1, 1 << 30] {
            assert!(is_damage(compressed, ValueEncoding { plain_len, ..encoding }), "{plain_len}");
        }
        assert!(is_damage(compressed, ValueEncoding { dictionary: 1, ..encoding }));
        (0..compressed.len()).for_each(|len| assert!(is_damage(&compressed[..len], encoding), "{len}"));
        assert!(is_damage(&[compressed, b"more"].concat(), encoding));
    }

    #[test]
    fn incompressible_value_stays_plain() {
        let dictionaries = DictionarySet::new(Vec::new());
        let mut random = fastrand::Rng::with_seed(5);
        let noise: Vec<u8> = (0..5000).map(|_| random.u8(..)).collect();
        let mut compressor = ValueCompressor::default();
        assert!(compressor.compress(&noise, &dictionaries).is_none());
        assert!(compressor.compress(&[7; LEN_MIN_ALONE - 1], &dictionaries).is_none());
        assert!(compressor.compress(&[7; LEN_MIN_ALONE], &dictionaries).is_some());
        assert!(compressor.compress(&vec![7; PLAIN_LEN_MAX + 1], &dictionaries).is_none());
        assert!(compressor.compress(&vec![7; PLAIN_LEN_MAX], &dictionaries).is_some());
    }
}
