//! The commands recover the intact records of a damaged hash on disk, and each reports the losses.

use crate::running;

use running::TestFolder;
use std::fs;
use std::path::{Path, PathBuf};

fn fill(folder: &TestFolder, place: &str) {
    let lines: String = (0..500).map(|n| format!("k{n:03}\tthe value of {n}\n")).collect();
    assert!(folder.import(place, &lines).status.success());
}

/// Changes bytes in one of the files below a directory. Returns that file.
fn damage(directory: &str, what: &[u8]) -> PathBuf {
    let files = fs::read_dir(Path::new(directory)).unwrap().map(|entry| entry.unwrap().path());
    let damage = |path: &PathBuf| {
        let mut bytes = fs::read(path).unwrap();
        let Some(at) = bytes.windows(what.len()).position(|found| found == what) else { return false };
        bytes[at..][..3].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(path, bytes).is_ok()
    };
    files.into_iter().find(damage).expect("it stands in one of them")
}

#[test]
fn damaged_hash_backup_is_salvaged_with_a_report() {
    let folder = TestFolder::new();
    fill(&folder, "x.hash");
    folder.expect(&["backup", "x.hash", "saved"], 0);
    let file = damage(&folder.path("saved/hash"), b"the value of 77");
    assert!(folder.complaint(&["restore", "saved", "y.hash"], 3).contains("`todana salvage saved TARGET`"));
    let printed = folder.complaint(&["salvage", "saved", "y.hash"], 0);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(printed.contains(&format!("saved/hash/{name} at offset ")), "{printed}");
    assert!(printed.contains("its key seems to be \"k077\": left out"), "{printed}");
    assert!(printed.contains("there were 500 records") && printed.contains("1 are lost"), "{printed}");
    assert!(folder.expect(&["verify", "y.hash"], 0).starts_with("intact: 499 records"));
    assert_eq!(folder.expect(&["get", "k078", "-S", "y.hash"], 0), "the value of 78");
    folder.expect(&["get", "k077", "-S", "y.hash"], 1);
    // This hash is not a backup. The source stays unchanged, too.
    let file = damage(&folder.path("x.hash"), b"the value of 9\0");
    let before = fs::read(&file).unwrap();
    let printed = folder.complaint(&["salvage", "x.hash", "z.hash"], 0);
    assert!(printed.contains("\"k009\""), "{printed}");
    assert!(folder.expect(&["verify", "z.hash"], 0).starts_with("intact: 499 records"));
    assert_eq!(fs::read(&file).unwrap(), before);
}

/// After a kill, the opening cuts off a torn end, which does not count as damage.
#[test]
fn torn_end_is_cut_off_without_damage() {
    let folder = TestFolder::new();
    fill(&folder, "x.hash");
    fs::remove_file(folder.path("x.hash/index")).unwrap();
    let mut segments: Vec<PathBuf> =
        fs::read_dir(folder.path("x.hash")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|end| end == "segment"));
    segments.sort();
    let last = segments.pop().unwrap();
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() - 5]).unwrap();
    assert!(folder.expect(&["verify", "./x.hash"], 0).starts_with("intact: 499 records"));
    assert_eq!(fs::read(&last).unwrap().len(), bytes.len() - 5, "verifying cuts nothing off");
    let printed = folder.complaint(&["count", "x.hash"], 0);
    assert!(printed.contains("a torn tail") && printed.contains(": no index, "), "{printed}");
    assert_eq!(folder.expect(&["count", "x.hash"], 0), "499\n");
}
