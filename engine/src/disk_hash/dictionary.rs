//! Loads and stores the dictionaries with which values are compressed. Each dictionary has a file
//! of its own (docs/format/disk-hash.md, section 5).
//!
//! Invariant: if an entry refers to a dictionary, the dictionary is on disk and the header of the
//! entry's segment declares it.

use super::segment::{DatabaseIdentity, FileHeader, HEADER_LEN, corrupt, read_error, write_error};
use crate::disk::{Disk, File};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use todana_core::{Error, ErrorKind, Result};
use zstd::zstd_safe::{CDict, DDict};

const MAGIC: &[u8; 8] = b"TODANADD";
/// The maximum number of dictionaries. An entry refers to a dictionary by one byte, in which 0
/// means none.
pub(crate) const DICTIONARIES_MAX: usize = 255;
/// The maximum length of a dictionary.
const LEN_MAX: usize = 1 << 20;
/// The compression level of zstd. Level 3 would make values 1 % smaller and take a third longer
/// (Nov 2026; JSON records of 180 bytes, which shrink to a third).
pub(crate) const LEVEL: i32 = 1;

/// Returns the file name of a dictionary.
pub(crate) fn dictionary_name(number: usize) -> String {
    format!("{number:03}.dictionary")
}

/// Returns the number in the file name of a dictionary, or `None` if the name is not that of a
/// dictionary.
pub(crate) fn dictionary_number(name: &str) -> Option<usize> {
    let number: usize = name.strip_suffix(".dictionary")?.parse().ok()?;
    ((1..=DICTIONARIES_MAX).contains(&number) && dictionary_name(number) == name).then_some(number)
}

/// A dictionary that is ready for use.
pub(crate) struct ValueDictionary {
    pub(crate) path: PathBuf,
    /// The length of the dictionary's file.
    pub(crate) len: u64,
    pub(crate) decompression: DDict<'static>,
    /// The form of the dictionary that zstd needs to compress. It is created on first use, because
    /// only the newest dictionary compresses.
    compression: OnceLock<Option<CDict<'static>>>,
    content: Box<[u8]>,
}

impl ValueDictionary {
    /// Prepares a dictionary. `content` is its file without the header.
    pub(crate) fn new(path: PathBuf, content: Vec<u8>) -> Result<ValueDictionary> {
        let decompression = DDict::try_create(&content).ok_or_else(|| {
            Error::new(ErrorKind::Full, format!("{}: no memory for the dictionary", path.display()))
        })?;
        let len = (HEADER_LEN + content.len()) as u64;
        Ok(ValueDictionary {
            path,
            len,
            decompression,
            compression: OnceLock::new(),
            content: content.into(),
        })
    }

    /// Returns the form of the dictionary for compression, or `None` if memory is short.
    pub(crate) fn compression(&self) -> Option<&CDict<'static>> {
        self.compression.get_or_init(|| CDict::try_create(&self.content, LEVEL)).as_ref()
    }

    /// Returns the memory that the dictionary uses.
    fn bytes(&self) -> usize {
        let compression = self.compression.get().and_then(Option::as_ref).map_or(0, CDict::sizeof);
        self.content.len() + self.decompression.sizeof() + compression
    }
}

/// All dictionaries of a database.
pub(crate) struct DictionarySet {
    all: Box<[OnceLock<ValueDictionary>]>,
    /// The number of the dictionary for new values; 0 for none.
    current: AtomicU8,
}

impl DictionarySet {
    /// Creates a set whose last dictionary is used for new values.
    pub(crate) fn new(found: Vec<ValueDictionary>) -> DictionarySet {
        let current = AtomicU8::new(found.len() as u8);
        let mut all: Vec<OnceLock<ValueDictionary>> = found.into_iter().map(OnceLock::from).collect();
        all.resize_with(DICTIONARIES_MAX, OnceLock::new);
        DictionarySet { all: all.into(), current }
    }

    /// Returns the dictionary with a number. Numbers begin at 1.
    #[inline]
    pub(crate) fn get(&self, number: u8) -> Option<&ValueDictionary> {
        self.all.get(usize::from(number).checked_sub(1)?)?.get()
    }

    /// Returns the number of dictionaries.
    pub(crate) fn count(&self) -> usize {
        self.all.iter().take_while(|dictionary| dictionary.get().is_some()).count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &ValueDictionary)> {
        self.all
            .iter()
            .map_while(OnceLock::get)
            .enumerate()
            .map(|(index, dictionary)| (index + 1, dictionary))
    }

    /// Returns the dictionary for new values, and its number.
    #[inline]
    pub(crate) fn current(&self) -> (u8, Option<&ValueDictionary>) {
        let number = self.current.load(Ordering::Acquire);
        (number, self.get(number))
    }

    /// Adds a dictionary without using it for new values.
    pub(crate) fn add(&self, dictionary: ValueDictionary) {
        // No other dictionary is added at the same time, because only one thread trains.
        let _ = self.all[self.count()].set(dictionary);
    }

    /// Uses the last dictionary for new values from now on.
    pub(crate) fn use_newest(&self) {
        self.current.store(self.count() as u8, Ordering::Release);
    }

    /// Returns the memory that all dictionaries use.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|(_, dictionary)| dictionary.bytes() as u64).sum()
    }
}

/// Writes the file of a dictionary. When this function returns, the file is on disk under its final
/// name.
pub(crate) fn store(
    disk: &dyn Disk,
    directory: &Path,
    (identity, openings): (DatabaseIdentity, u32),
    number: usize,
    content: &[u8],
) -> Result<PathBuf> {
    let path = directory.join(dictionary_name(number));
    let partial = directory.join(format!("{}.partial", dictionary_name(number)));
    let extra = crc32c::crc32c(content);
    let header = FileHeader { identity, openings, number: number as u64, extra }.encode(MAGIC);
    let write = || {
        // An earlier attempt may have left this file.
        let _ = disk.remove(&partial);
        let file = disk.create(&partial)?;
        file.write_at(0, &mut [IoSlice::new(&header), IoSlice::new(content)])?;
        file.sync()?;
        disk.rename(&partial, &path)?;
        disk.sync_directory(directory)
    };
    write().map_err(|error| write_error(&path, &error))?;
    Ok(path)
}

/// Reads the file of a dictionary and checks it. Returns the identity of the database to which the
/// file belongs, and the contents without the header. Fails with `Corrupt` if the file is damaged
/// or missing.
pub(crate) fn read(disk: &dyn Disk, path: &Path, number: usize) -> Result<(DatabaseIdentity, Vec<u8>)> {
    let damaged = |what: &str| corrupt(path, 0, what);
    let file = match disk.open(path, false) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged("the dictionary of compressed values is missing"));
        }
        opened => opened.map_err(|error| read_error(path, &error))?,
    };
    let len = file.len().map_err(|error| read_error(path, &error))?;
    if len > (HEADER_LEN + LEN_MAX) as u64 {
        return Err(damaged(&format!("impossible length of a dictionary: {len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    let there = read_whole(&*file, &mut bytes).map_err(|error| read_error(path, &error))?;
    bytes.truncate(there);
    let (header, _) = FileHeader::decode(&bytes, MAGIC).map_err(|what| damaged(&what))?;
    if header.number != number as u64 {
        return Err(damaged("the number in the header differs from the file name"));
    }
    let content = bytes.split_off(HEADER_LEN);
    if crc32c::crc32c(&content) != header.extra {
        return Err(corrupt(path, HEADER_LEN as u64, "the checksum of the dictionary differs"));
    }
    Ok((header.identity, content))
}

fn read_whole(file: &dyn File, into: &mut [u8]) -> std::io::Result<usize> {
    let mut there = 0;
    while there < into.len() {
        match file.read_at(there as u64, &mut into[there..])? {
            0 => break,
            got => there += got,
        }
    }
    Ok(there)
}

/// Loads the dictionaries 1 to `count` of a database.
pub(crate) fn load(
    disk: &dyn Disk,
    directory: &Path,
    identity: DatabaseIdentity,
    count: usize,
) -> Result<Vec<ValueDictionary>> {
    (1..=count)
        .map(|number| {
            let path = directory.join(dictionary_name(number));
            let (found, content) = read(disk, &path, number)?;
            if found != identity {
                return Err(corrupt(&path, 0, "belongs to another database"));
            }
            ValueDictionary::new(path, content)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn dictionary_damage_and_truncation_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let identity = DatabaseIdentity { database_id: *b"0123456789abcdef", seed: 7 };
        let content: Vec<u8> = (0..300u32).map(|n| (n * 7) as u8).collect();
        let path = store(&SystemDisk, folder.path(), (identity, 3), 2, &content).unwrap();
        assert!(path.ends_with("002.dictionary"));
        assert_eq!(read(&SystemDisk, &path, 2).unwrap(), (identity, content));
        let whole = std::fs::read(&path).unwrap();
        assert_eq!((&whole[..8], &whole[40..48]), (&b"TODANADD"[..], &2u64.to_le_bytes()[..]));
        let told = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&SystemDisk, &path, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("002.dictionary, offset "), "{error}");
        };
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            told(&damaged);
        }
        (0..whole.len()).for_each(|len| told(&whole[..len]));
        told(&[&whole[..], b"more"].concat());
        std::fs::write(&path, &whole).unwrap();
        assert!(read(&SystemDisk, &path, 1).unwrap_err().to_string().contains("differs from the file name"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(&SystemDisk, &path, 2).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn only_numbers_of_a_byte_name_a_dictionary() {
        assert_eq!(dictionary_number("001.dictionary"), Some(1));
        assert_eq!(dictionary_number("255.dictionary"), Some(255));
        for name in
            ["000.dictionary", "256.dictionary", "1.dictionary", "0001.dictionary", "001.dictionary.partial"]
        {
            assert_eq!(dictionary_number(name), None, "{name}");
        }
    }
}
