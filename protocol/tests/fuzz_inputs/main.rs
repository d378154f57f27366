//! The short form of the fuzz targets that decode protocols and files: the same code, run on the
//! fuzzer's corpus and on modified inputs. The short forms of the other targets are next to the
//! code they test: `openers`, `spoils` and `streams` of `todana`, `disk_hash_openers` of `engine`,
//! `session_model` and `mixed_dialects` of `server`.

// Targets share files, and the fuzzer compiles each as a separate program.
#![allow(clippy::duplicate_mod)]

// The name by which the targets call the macro.
extern crate self as libfuzzer_sys;

#[path = "../../../tests/fuzz_inputs/mod.rs"]
mod inputs;

use inputs::{fuzz_folder, play_all};
use std::fs;

/// Replaces libFuzzer's macro: it defines a function instead of a program.
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
            // Each target is a program without a main function, and uses only a part of the code it
            // shares with tests.
            #[path = $path]
            #[allow(unused_attributes, dead_code, unreachable_pub)]
            mod $name;

            #[test]
            fn $name() {
                play_all(stringify!($name), 20, $name::play);
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
    "../../../fuzz/fuzz_targets/operation_replies.rs" operation_replies
    "../../../fuzz/fuzz_targets/tyrant_binary.rs" tyrant_binary
    "../../../fuzz/fuzz_targets/tyrant_log.rs" tyrant_log
}

/// The targets of the manifest whose short forms are elsewhere.
const ELSEWHERE: [&str; 13] = [
    "session",
    "data_directory",
    "backup_stream",
    "log_stream",
    "salvage",
    "disk_hash",
    "image_blocks",
    "dictionaries",
    "encoded_records",
    "mixed_dialects",
    "table_search",
    "proxy_client",
    "proxy_server",
];

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
