//! Values are made shorter, and themselves again (docs/format/disk-hash.md, section 5).

use super::dictionary::{Dictionaries, Dictionary, LEVEL};
use super::entry::Packing;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;
use todana_core::{Error, ErrorKind};
use zstd::zstd_safe::{CCtx, DCtx, DParameter, FrameFormat, compress_bound};

/// Longer values stay as they are: each read needs as much memory, and takes a millisecond for some MiB under its shard's lock.
pub(crate) const PLAIN_LEN_MAX: usize = 16 << 20;
/// Shorter values stay as they are.
const LEN_MIN: usize = 32;
/// Without a dictionary those below this stay as they are: little is won, and it takes seven times as long as with one.
const LEN_MIN_ALONE: usize = 256;
/// A value is worth compressing if it gets so much shorter: a few bytes of it say how to read it, and entries are padded to 8.
const GAIN_MIN: usize = 16;
/// Of a frame, which is not stored.
const MAGIC_LEN: usize = 4;
/// More than this is given back at once.
const KEPT_MAX: usize = 1 << 20;

/// Compresses, for one thread.
#[derive(Default)]
pub(crate) struct Packer {
    context: Option<CCtx<'static>>,
    packed: Vec<u8>,
}

impl Packer {
    /// The value as it is better stored; `None` where that is as it is.
    #[inline]
    pub(crate) fn pack(&mut self, value: &[u8], dictionaries: &Dictionaries) -> Option<(Packing, &[u8])> {
        let (number, dictionary) = dictionaries.current();
        let packed = self.pack_with(value, dictionary)?;
        Some((Packing { dictionary: number, plain_len: value.len() }, packed))
    }

    /// The same with this dictionary, or without one.
    pub(crate) fn pack_with(&mut self, value: &[u8], dictionary: Option<&Dictionary>) -> Option<&[u8]> {
        let len_min = if dictionary.is_some() { LEN_MIN } else { LEN_MIN_ALONE };
        if !(len_min..=PLAIN_LEN_MAX).contains(&value.len()) {
            return None;
        }
        if self.context.is_none() {
            self.context = CCtx::try_create();
        }
        let context = self.context.as_mut()?;
        self.packed.clear();
        self.packed.reserve(compress_bound(value.len()));
        match dictionary {
            None => context.compress(&mut self.packed, value, LEVEL),
            Some(dictionary) => {
                context.compress_using_cdict(&mut self.packed, value, dictionary.compresses()?)
            }
        }
        .ok()?;
        let packed = self.packed.get(MAGIC_LEN..)?;
        (packed.len() + GAIN_MIN <= value.len()).then_some(packed)
    }
}

/// Expands, for one thread.
#[derive(Default)]
pub(crate) struct Unpacker {
    context: Option<DCtx<'static>>,
    plain: Vec<u8>,
}

impl Unpacker {
    /// The value; else what is wrong. `dictionary`: the one of its number, if it is there.
    pub(crate) fn unpack(
        &mut self,
        packed: &[u8],
        packing: Packing,
        dictionary: Option<&Dictionary>,
    ) -> Result<&[u8], Wrong> {
        let Packing { dictionary: number, plain_len } = packing;
        if number != 0 && dictionary.is_none() {
            return Err(Wrong::Damaged(format!(
                "the value is compressed with dictionary {number}, which is not there"
            )));
        }
        if plain_len > PLAIN_LEN_MAX {
            return Err(Wrong::Damaged(format!("a compressed value of {plain_len} bytes, which none has")));
        }
        if self.context.is_none() {
            let mut context = DCtx::try_create().ok_or(Wrong::NoMemory)?;
            context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| Wrong::NoMemory)?;
            self.context = Some(context);
        }
        let context = self.context.as_mut().ok_or(Wrong::NoMemory)?;
        self.plain.clear();
        // Not touched before it is written to, so one that is not as long as it says costs nothing.
        self.plain.try_reserve(plain_len).map_err(|_| Wrong::NoMemory)?;
        let expanded = match dictionary {
            None => context.decompress(&mut self.plain, packed),
            Some(dictionary) => context.decompress_using_ddict(&mut self.plain, packed, &dictionary.expands),
        };
        match expanded {
            Ok(len) if len == plain_len => Ok(&self.plain),
            _ => Err(Wrong::Damaged("the compressed value is damaged".into())),
        }
    }
}

/// Why a value could not be had.
pub(crate) enum Wrong {
    Damaged(String),
    NoMemory,
}

impl Wrong {
    /// As an error about a place that `corrupt` tells.
    pub(crate) fn at(self, corrupt: impl FnOnce(&str) -> Error) -> Error {
        match self {
            Wrong::Damaged(what) => corrupt(&what),
            Wrong::NoMemory => Error::new(ErrorKind::Full, "no memory to expand a compressed value"),
        }
    }
}

/// What a thread keeps of these.
pub(crate) trait Kept: Default + 'static {
    fn place() -> &'static LocalKey<Cell<Option<Box<Self>>>>;

    fn room(&mut self) -> &mut Vec<u8>;
}

thread_local! {
    static PACKER: Cell<Option<Box<Packer>>> = const { Cell::new(None) };
    static UNPACKER: Cell<Option<Box<Unpacker>>> = const { Cell::new(None) };
}

impl Kept for Packer {
    fn place() -> &'static LocalKey<Cell<Option<Box<Packer>>>> {
        &PACKER
    }

    fn room(&mut self) -> &mut Vec<u8> {
        &mut self.packed
    }
}

impl Kept for Unpacker {
    fn place() -> &'static LocalKey<Cell<Option<Box<Unpacker>>>> {
        &UNPACKER
    }

    fn room(&mut self) -> &mut Vec<u8> {
        &mut self.plain
    }
}

/// This thread's; another one while that is lent.
pub(crate) struct Lent<T: Kept>(Option<Box<T>>);

impl<T: Kept> Lent<T> {
    pub(crate) fn take() -> Lent<T> {
        // A thread that ends keeps nothing any more.
        Lent(Some(T::place().try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }
}

impl<T: Kept> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl<T: Kept> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl<T: Kept> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(mut kept) = self.0.take() {
            if kept.room().capacity() > KEPT_MAX {
                *kept.room() = Vec::new();
            }
            let _ = T::place().try_with(|place| place.set(Some(kept)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_and_one_that_lies_about_its_length_or_is_damaged_is_told() {
        let dictionaries = Dictionaries::new(Vec::new());
        let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
        let value = b"all the same ".repeat(100);
        let (packing, packed) = packer.pack(&value, &dictionaries).unwrap();
        assert_eq!(packing, Packing { dictionary: 0, plain_len: value.len() });
        assert!(packed.len() < 40 && packed[..4] != [0x28, 0xb5, 0x2f, 0xfd], "{packed:?}");
        assert_eq!(
            unpacker.unpack(packed, packing, dictionaries.get(packing.dictionary)).ok(),
            Some(&value[..])
        );
        let is_damage = |packed: &[u8], packing| {
            let mut unpacker = Unpacker::default();
            let outcome = unpacker.unpack(packed, packing, dictionaries.get(packing.dictionary));
            matches!(outcome, Err(Wrong::Damaged(_))) && unpacker.plain.len() <= PLAIN_LEN_MAX
        };
        for plain_len in [0, 1, value.len() - 1, value.len() + 1, PLAIN_LEN_MAX, PLAIN_LEN_MAX + 1, 1 << 30] {
            assert!(is_damage(packed, Packing { plain_len, ..packing }), "{plain_len}");
        }
        assert!(is_damage(packed, Packing { dictionary: 1, ..packing }));
        (0..packed.len()).for_each(|len| assert!(is_damage(&packed[..len], packing), "{len}"));
        assert!(is_damage(&[packed, b"more"].concat(), packing));
    }

    #[test]
    fn what_gets_no_shorter_stays_as_it_is() {
        let dictionaries = Dictionaries::new(Vec::new());
        let mut random = fastrand::Rng::with_seed(5);
        let noise: Vec<u8> = (0..5000).map(|_| random.u8(..)).collect();
        let mut packer = Packer::default();
        assert!(packer.pack(&noise, &dictionaries).is_none());
        assert!(packer.pack(&[7; LEN_MIN_ALONE - 1], &dictionaries).is_none());
        assert!(packer.pack(&[7; LEN_MIN_ALONE], &dictionaries).is_some());
        assert!(packer.pack(&vec![7; PLAIN_LEN_MAX + 1], &dictionaries).is_none());
        assert!(packer.pack(&vec![7; PLAIN_LEN_MAX], &dictionaries).is_some());
    }
}
