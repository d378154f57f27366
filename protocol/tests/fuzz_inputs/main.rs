//! The short form of the fuzz targets that take protocols and files apart: their code, with the inputs that the fuzzer keeps and with
//! changed ones. The short forms of the others stand beside what they open: `openers`, `spoils` and `streams` of `todana`,
//! `disk_hash_openers` of `engine`, `session_model` and `mixed_dialects` of `server`.

// Targets share files, and each is a program of its own to the fuzzer.
#![allow(clippy::duplicate_mod)]

// The name by which the targets call the macro.
extern crate self as libfuzzer_sys;

use std::fs;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;

/// As often each input is changed.
const CHANGES: usize = 20;
/// Numbers at which lengths and counts come to an end.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b' '];

/// Takes the place of libFuzzer's: a function instead of a program.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub(super) fn play($input: &[u8]) {
            $body
        }
    };
}

macro_rules! targets {
    ($($path:literal $name:ident)*) => {
        $(
            // A target is a program of its own without a main function, and uses a part of what it shares with tests.
            #[path = $path]
            #[allow(unused_attributes, dead_code, unreachable_pub)]
            mod $name;

            #[test]
            fn $name() {
                play_all(stringify!($name), $name::play);
            }
        )*

        const PLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    "../../../fuzz/fuzz_targets/binary_server.rs" binary_server
    "../../../fuzz/fuzz_targets/client_replies.rs" client_replies
    "../../../fuzz/fuzz_targets/kyoto_binary.rs" kyoto_binary
    "../../../fuzz/fuzz_targets/kyoto_files.rs" kyoto_files
    "../../../fuzz/fuzz_targets/kyoto_http.rs" kyoto_http
    "../../../fuzz/fuzz_targets/kyoto_replica.rs" kyoto_replica
    "../../../fuzz/fuzz_targets/meta_server.rs" meta_server
    "../../../fuzz/fuzz_targets/text_server.rs" text_server
}

/// Those of the manifest whose short forms stand elsewhere.
const ELSEWHERE: [&str; 7] =
    ["session", "data_directory", "backup_stream", "log_stream", "repair", "disk_hash", "mixed_dialects"];

#[test]
fn every_target_has_a_short_form() {
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).expect("a manifest");
    let bins = manifest.split("[[bin]]\nname = \"").skip(1);
    let mut targets: Vec<&str> = bins.filter_map(|bin| bin.split('"').next()).collect();
    let mut known = [PLAYED, &ELSEWHERE].concat();
    targets.sort_unstable();
    known.sort_unstable();
    assert_eq!(targets, known);
}

fn fuzz_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"))
}

fn play_all(target: &str, play: fn(&[u8])) {
    let mut inputs = Vec::new();
    for kind in ["seeds", "corpus"] {
        let Ok(entries) = fs::read_dir(fuzz_folder().join(kind).join(target)) else { continue };
        inputs.extend(entries.flatten().map(|entry| fs::read(entry.path()).expect("an input")));
    }
    // Sorted, so that the changes are the same each time.
    inputs.sort();
    assert!(inputs.len() > 3, "{} inputs", inputs.len());
    let mut random = fastrand::Rng::with_seed(20_261_122);
    for input in &inputs {
        play_one(target, play, input);
        for _ in 0..CHANGES {
            let other = &inputs[random.usize(..inputs.len())];
            play_one(target, play, &changed(input, other, &mut random));
        }
    }
}

/// Plays one; if that fails, keeps the input in a file.
fn play_one(target: &str, play: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(|| play(input)) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}-input"));
        fs::write(&file, input).expect("a folder for files of tests");
        eprintln!("the input is in {}; cargo +nightly fuzz run {target} takes it", file.display());
        resume_unwind(panic);
    }
}

/// Changes an input in one to four places, or lets it go on as the other.
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
