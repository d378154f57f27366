//! Opening arbitrary bytes, as the fuzz target `disk_hash` does, with its stored inputs and some
//! thousand random ones.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;
#[path = "disk_hash/opener.rs"]
mod opener;

#[test]
fn fuzz_inputs_open_or_are_reported() {
    fuzz_inputs::play_all("disk_hash", 20, opener::open_any);
}

#[test]
fn arbitrary_bytes_open_or_are_reported() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..1_500 {
        let len = 3 + random.usize(..40);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        // Mostly within the first kilobyte, where the files have data; small numbers are lengths
        // and kinds.
        bytes[2] = random.u8(..6) | u8::from(random.bool()) << 7;
        bytes[3..].iter_mut().for_each(|byte| *byte %= if random.bool() { 16 } else { 255 });
        opener::open_any(&bytes);
    }
}
