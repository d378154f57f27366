//! Plays the inputs of a fuzz target as tests: its seeds, its corpus, and random changes of both.
#![allow(dead_code)] // Each test uses its part.

use std::fs;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;

/// Bytes at which lengths and counts reach a limit.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b' '];

/// Returns the folder of the targets and their inputs.
pub(crate) fn fuzz_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"))
}

/// Returns the seeds and the corpus of a target, with the names of their files.
pub(crate) fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for kind in ["seeds", "corpus"] {
        let Ok(entries) = fs::read_dir(fuzz_folder().join(kind).join(target)) else { continue };
        inputs.extend(entries.flatten().map(|entry| {
            let name = entry.file_name().into_string().expect("a name that is text");
            (name, fs::read(entry.path()).expect("an input"))
        }));
    }
    inputs
}

/// Plays all inputs of a target. Each is played again `changes` times with random changes.
pub(crate) fn play_all(target: &str, changes: usize, play: fn(&[u8])) {
    let mut inputs: Vec<Vec<u8>> = inputs(target).into_iter().map(|(_, input)| input).collect();
    // Sorted, so that the changes are the same each time.
    inputs.sort();
    assert!(inputs.len() > 1, "{} inputs", inputs.len());
    let mut random = fastrand::Rng::with_seed(20_261_122);
    for input in &inputs {
        play_one(target, play, input);
        for _ in 0..changes {
            let other = &inputs[random.usize(..inputs.len())];
            play_one(target, play, &changed(input, other, &mut random));
        }
    }
}

/// Plays one input. On failure, keeps the input in a file.
fn play_one(target: &str, play: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(|| play(input)) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}-input"));
        fs::write(&file, input).expect("a folder for files of tests");
        eprintln!("the input is in {}; cargo +nightly fuzz run {target} takes it", file.display());
        resume_unwind(panic);
    }
}

/// Changes an input in one to four places, or continues it with the other.
fn changed(input: &[u8], other: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(..=bytes.len());
        let end = (at + random.usize(..16)).min(bytes.len());
        match random.u8(..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            1 if at < bytes.len() => bytes[at] = EDGES[random.usize(..EDGES.len())],
            2 => drop(bytes.drain(at..end)),
            3 => drop(bytes.splice(at..at, input[at.min(input.len())..].iter().take(16).copied())),
            4 => bytes.insert(at, random.u8(..)),
            _ => drop(bytes.splice(at.., other.iter().skip(at).copied())),
        }
    }
    bytes
}
