//! Lays the code of a server at work side by side: `hot_code.ld`.

use std::env;

/// What the linker of the usual targets understands, GNU's or LLVM's.
fn main() {
    println!("cargo:rerun-if-changed=hot_code.ld");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Without optimisation the code is ten times as large, and nobody measures its memory.
    let is_optimized = !is("OPT_LEVEL", "0");
    let has_gnu_linker = is("CARGO_CFG_TARGET_OS", "linux");
    // Another linker that somebody has asked for may know no scripts (mold does not).
    let asks = |flags: String| flags.contains("linker=") || flags.contains("fuse-ld");
    let has_chosen =
        env::var_os("RUSTC_LINKER").is_some() || env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(asks);
    if is_optimized && has_gnu_linker && !has_chosen {
        let directory = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo:rustc-link-arg-bin=todana=-Wl,-T,{directory}/hot_code.ld");
    }
}
