//! The executable as it is released: small, its debug information in a file beside it, where
//! debuggers find it by a link.

use crate::step::{Outcome, cargo, program, target_directory};

/// Builds it with debug information and takes that out; the code is that of `cargo build
/// --release`.
pub(crate) fn run() -> Outcome {
    let with_debug_information =
        ["--config", "profile.release.debug=1", "--config", "profile.release.strip=false"];
    let words = ["build", "--release", "--package", "todana-cli"];
    let built = cargo(&[&words[..], &with_debug_information].concat()).run();
    if !matches!(built, Outcome::Passed) {
        return built;
    }
    let executable = target_directory().join("release/todana").display().to_string();
    let debug = format!("{executable}.debug");
    let link = format!("--add-gnu-debuglink={debug}");
    let takings: [&[&str]; 2] =
        [&["--only-keep-debug", &executable, &debug], &["--strip-debug", &link, &executable]];
    for words in takings {
        let taken = program("objcopy", words).run();
        if !matches!(taken, Outcome::Passed) {
            return taken;
        }
    }
    for file in [&executable, &debug] {
        let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        println!("{file}: {:.1} MB", bytes as f64 / 1e6);
    }
    Outcome::Passed
}
