//! Kyoto Cabinet's snapshots (`.kcss`) in the library, as files and streams.
//!
//! Only the command line and the scripts of a server could once read and write them.

use crate::kinds;

use kinds::on_each_kind;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use todana::{Db, DumpedValues, Error, ErrorKind, Expiry, OwnedRecord, Records, Ttl, UnixSeconds};

const BARE: DumpedValues = DumpedValues::Bare;
const TIMED: DumpedValues = DumpedValues::Timed;

/// This snapshot was written by Kyoto Cabinet 1.2.76.
const CAPTURED: &[u8] = b"KCSS\n\0\
    \x00\x00\x02\x00\xff\
    \x00\x05\x05japantokyo\
    \x00\x01\x08n\x00\x00\x00\x00\x00\x00\x00\x05\
    \xff";

fn all(db: &Db) -> BTreeMap<Vec<u8>, OwnedRecord> {
    db.iter().records().map(Result::unwrap).collect()
}

fn dumped(db: &Db, values: DumpedValues) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert_eq!(db.dump_snapshot(&mut bytes, values).unwrap(), db.count());
    bytes
}

fn place(of: &Error) -> String {
    assert_eq!(of.kind(), ErrorKind::Corrupt, "{of}");
    of.to_string()
}

#[test]
fn original_snapshot_round_trips() {
    on_each_kind(|db| {
        db.set(b"japan", b"kyoto").unwrap();
        db.set(b"other", b"stays").unwrap();
        assert_eq!(db.load_snapshot(&mut &CAPTURED[..], BARE).unwrap().stored, 3);
        assert_eq!(db.get(b"japan").unwrap().unwrap(), b"tokyo");
        assert_eq!(db.get(b"").unwrap().unwrap(), b"\0\xff");
        assert_eq!(db.increment_binary(b"n", 1, todana::IncrementOrigin::Number(0)).unwrap(), 6);
        assert_eq!(db.increment_binary(b"n", -1, todana::IncrementOrigin::Number(0)).unwrap(), 5);
        assert!(db.remove(b"other").unwrap());
        if db.is_ordered() {
            assert_eq!(dumped(&db, BARE), CAPTURED);
        }
    });
}

#[test]
fn all_records_come_back_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.kcss");
    on_each_kind(|db| {
        for number in 0..2500u32 {
            db.set(&number.to_be_bytes(), &vec![number as u8; number as usize % 700]).unwrap();
        }
        db.set(b"long", &vec![7; 3 << 20]).unwrap();
        assert_eq!(db.dump_snapshot_file(&path, BARE).unwrap(), 2501);
        let again = Db::open("mem:tree").unwrap();
        assert_eq!(again.load_snapshot_file(&path, BARE).unwrap().stored, 2501);
        assert_eq!(all(&again), all(&db));
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn times_are_those_of_kyoto_tycoon() {
    on_each_kind(|db| {
        db.set_with(b"mortal", b"v", Ttl::At(4_000_000_001), 9).unwrap();
        db.set(b"never", b"w").unwrap();
        let again = Db::open("mem:tree").unwrap();
        assert_eq!(again.load_snapshot(&mut &dumped(&db, TIMED)[..], TIMED).unwrap().stored, 2);
        let bytes =
            b"KCSS\n\0\x00\x06\x06mortal\x00\xee\x6b\x28\x00v\x00\x05\x06never\xff\xff\xff\xff\xffw\xff";
        assert_eq!(dumped(&again, TIMED), bytes);
        assert_eq!(all(&again)[&b"mortal"[..]].expiry, Expiry::At(UnixSeconds(4_000_000_001)));
        let past = b"KCSS\n\0\x00\x04\x06dead\x00\x00\x00\x00\x05v\xff";
        let loaded = again.load_snapshot(&mut &past[..], TIMED).unwrap();
        assert_eq!((loaded.stored, loaded.expired, again.count()), (0, 1, 2));
        let short = b"KCSS\n\0\x00\x01\x04kv123\xff";
        let error = again.load_snapshot(&mut &short[..], TIMED).unwrap_err();
        assert_eq!(place(&error), "snapshot: byte 6: a value is too short for the time before it");
    });
}

#[test]
fn damaged_file_is_refused_before_anything_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.kcss");
    let db = Db::open("mem:hash").unwrap();
    let refusal = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = place(&db.load_snapshot_file(&path, BARE).unwrap_err());
        assert_eq!(db.count(), 0);
        error.strip_prefix(&format!("{}: snapshot: ", path.display())).unwrap().to_owned()
    };
    for len in 0..CAPTURED.len() {
        assert!(
            refusal(&CAPTURED[..len]).ends_with("the file ends within the record that begins here"),
            "{len}"
        );
    }
    let changed = |at: usize| {
        let mut bytes = CAPTURED.to_vec();
        bytes[at] = 7;
        bytes
    };
    assert_eq!(refusal(&changed(0)), "byte 0: not a dump of Kyoto Cabinet");
    assert_eq!(refusal(&changed(11)), "byte 11: no record begins here");
    // If a file states a length that it does not have, no memory is allocated for it.
    let claims = [&CAPTURED[..6], b"\x00\x01\x83\xff\xff\xff\x7fk"].concat();
    assert_eq!(refusal(&claims), "byte 6: the file ends within the record that begins here");
    let claims = [&CAPTURED[..6], b"\x00\x01\x8f\xff\xff\xff\x7fk"].concat();
    assert_eq!(refusal(&claims), "byte 6: a record is too long");
    fs::write(&path, CAPTURED).unwrap();
    assert_eq!(db.load_snapshot_file(&path, BARE).unwrap().stored, 3);
    let missing = db.load_snapshot_file(&folder.path().join("none"), BARE).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unavailable);
}

#[test]
fn damaged_stream_is_loaded_up_to_the_damage() {
    let db = Db::open("mem:hash").unwrap();
    let cut = &CAPTURED[..CAPTURED.len() - 3];
    let error = db.load_snapshot(&mut &*cut, BARE).unwrap_err();
    assert_eq!(place(&error), "snapshot: byte 24: the file ends within the record that begins here");
    assert_eq!((db.count(), db.get(b"japan").unwrap().unwrap()), (2, b"tokyo".to_vec()));
}

/// A stream that fails after this number of bytes.
struct FailingStream(usize);

impl Write for FailingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("the tape is torn"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for FailingStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.0);
        self.0 -= len;
        bytes[..len].copy_from_slice(&CAPTURED[..len]);
        if len == 0 { Err(io::Error::other("the tape is torn")) } else { Ok(len) }
    }
}

#[test]
fn stream_that_fails_is_reported() {
    let db = Db::open("mem:hash").unwrap();
    db.set(b"k", &vec![1; 1 << 20]).unwrap();
    for error in [
        db.dump_snapshot(&mut FailingStream(1000), BARE).unwrap_err(),
        db.load_snapshot(&mut FailingStream(20), BARE).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("the tape is torn"), "{error}");
    }
}

#[test]
fn failed_dump_leaves_the_file_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.kcss");
    fs::write(&path, CAPTURED).unwrap();
    let db = Db::open("mem:hash").unwrap();
    let transaction = db.begin().unwrap();
    let error = db.dump_snapshot_file(&path, BARE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(transaction);
    assert_eq!(fs::read(&path).unwrap(), CAPTURED);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = folder.path().join("none/s.kcss");
    assert_eq!(db.dump_snapshot_file(&nowhere, BARE).unwrap_err().kind(), ErrorKind::Unavailable);
}
