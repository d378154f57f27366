//! Opening any bytes: what the fuzz target `disk_hash` does, for the inputs it keeps and for some thousand others.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/kept.rs"]
#[allow(dead_code)]
mod kept;
#[path = "disk_hash/opener.rs"]
mod opener;

use std::path::Path;

#[test]
fn the_inputs_of_the_fuzz_target_open_or_are_damaged() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut inputs = 0;
    for folder in ["seeds/disk_hash", "corpus/disk_hash"] {
        for entry in std::fs::read_dir(fuzz.join(folder)).into_iter().flatten() {
            opener::open_any(&std::fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
    }
    assert!(inputs > 5, "{inputs}");
}

#[test]
fn arbitrary_bytes_in_arbitrary_places_open_or_are_damaged() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..1_500 {
        let len = 3 + random.usize(..40);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        // Mostly within the first kilobyte, where the files are; small numbers are lengths and kinds.
        bytes[2] = random.u8(..6) | u8::from(random.bool()) << 7;
        bytes[3..].iter_mut().for_each(|byte| *byte %= if random.bool() { 16 } else { 255 });
        opener::open_any(&bytes);
    }
}
