//! Opening directories with arbitrary bytes.

use crate::crash_disk::{CrashDisk, State};
use crate::crash_session;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use todana_core::{DurableEngine, Engine, ErrorKind};

/// Opens a small database after writing bytes into one of its files; if the highest bit of the
/// third byte is set, a database with compressed values. The first byte chooses the file, the next
/// two the offset, and whether the bytes that follow replace existing ones or also truncate the
/// file. With an even third byte, the checksums of headers and entries are corrected where
/// possible, so that the data after them is reached too.
pub(crate) fn open_any(bytes: &[u8]) {
    let [which, low, high, rest @ ..] = bytes else { return };
    let (which_state, high) = (high >> 7, high & 0x7f);
    static STATES: LazyLock<[State; 2]> = LazyLock::new(|| [small(), packed()]);
    let state = STATES[usize::from(which_state)].clone();
    let paths: Vec<PathBuf> = state.files().into_keys().filter(|path| !path.ends_with("lock")).collect();
    let path = &paths[usize::from(*which >> 1) % paths.len()];
    let mut content = state.files()[path].clone();
    let at = usize::from(u16::from_le_bytes([*low, high])) % (content.len() + 1);
    let end = (at + rest.len()).min(content.len());
    content.splice(at..end, rest.iter().copied());
    if which & 1 == 1 {
        content.truncate(at + rest.len());
    }
    let is_segment = path.extension().is_some_and(|ending| ending == "segment");
    if is_segment && at >= 64 && at + 8 <= content.len() {
        mend(&mut content, at / 8 * 8);
    }
    let mut damaged = state;
    damaged.put(path, content);
    look(damaged);
}

/// Corrects the CRC of what looks like an entry at an offset.
fn mend(content: &mut [u8], at: usize) {
    let seed = crc32c::crc32c(&content[..60]) ^ (at / 8) as u32;
    for len in (8..=160).step_by(8) {
        let Some(entry) = content.get(at..at + len) else { return };
        // Returns a length that fits the head of the entry, for keys and values shorter than 128
        // bytes.
        let says = match entry[4] & 7 {
            0 if entry[4] == 0x80 && len > 16 => {
                let plain = 9 + if entry[9] < 0x80 { 1 } else { 2 };
                (plain + usize::from(entry[5]) + usize::from(entry[6])).next_multiple_of(8)
            }
            0 => (7 + usize::from(entry[5]) + usize::from(entry[6])).next_multiple_of(8),
            1 => (6 + usize::from(entry[5])).next_multiple_of(8),
            2 | 5 => 16,
            3 => 8,
            6 => 24,
            _ => return,
        };
        if says == len {
            let crc = crc32c::crc32c_append(seed, &entry[4..]);
            content[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            return;
        }
    }
}

/// Returns a database with a dictionary and compressed values.
fn packed() -> State {
    let disk = CrashDisk::new();
    let hash = crash_session::open_compressing(&disk).unwrap();
    let text = |n: u32| {
        format!("{{\"session\":{},\"user\":\"visitor\",\"roles\":[\"reader\"],\"n\":{n}}}", n * 77_777)
    };
    for n in 0..300 {
        crash_session::set(&hash, format!("key{}", n % 150).as_bytes(), text(n).as_bytes()).unwrap();
        hash.maintain();
    }
    hash.sync().unwrap();
    let state = disk.state();
    assert!(state.files().contains_key(&Path::new(crash_session::DATA).join("001.dictionary")));
    disk.stop();
    drop(hash);
    state
}

fn small() -> State {
    let disk = CrashDisk::new();
    let hash = crash_session::open(&disk).unwrap();
    for n in 0..20u8 {
        crash_session::set(&hash, &[b'k', n % 7], &[n; 20]).unwrap();
    }
    hash.sync().unwrap();
    hash.close().unwrap();
    drop(hash);
    // A second opening leaves a segment after the checkpoint.
    let hash = crash_session::open(&disk).unwrap();
    crash_session::set(&hash, b"late", b"value").unwrap();
    hash.sync().unwrap();
    crash_session::set(&hash, b"later", b"value").unwrap();
    hash.flush().unwrap();
    let state = disk.state();
    disk.stop();
    drop(hash);
    state
}

/// Asserts that the database either opens or reports damage with file and offset. An open database
/// is readable or reports damage, accepts writes, and opens again with the same contents.
fn look(state: State) {
    let disk = CrashDisk::with(state);
    let hash = match crash_session::open(&disk) {
        Ok(hash) => hash,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let text = error.to_string();
            assert!(text.contains(crash_session::DATA) && text.contains("offset"), "{text}");
            return;
        }
    };
    let found = crash_session::try_records(&hash);
    if let Err(error) = &found {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    for _ in 0..20 {
        hash.maintain();
    }
    let (Ok(mut found), Ok(())) = (found, crash_session::set(&hash, b"after", b"it")) else { return };
    hash.sync().unwrap();
    hash.close().unwrap();
    drop(hash);
    let hash = crash_session::open(&disk).unwrap();
    found.insert(b"after".to_vec(), (b"it".to_vec(), todana_core::Attributes::default()));
    assert_eq!(crash_session::try_records(&hash).unwrap(), found);
    assert!(disk.state().files().contains_key(&Path::new(crash_session::DATA).join("index")));
}
