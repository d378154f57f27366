//! The wheel and the source distribution of the Python module.

use super::clean_root::{self, failed, passed};
use crate::clients::{PYTHON, pip};
use crate::step::{StepOutcome, program, with_time_limit};
use std::fs;
use std::path::{Path, PathBuf};

/// The platform of the wheel: any Linux with glibc 2.17 (2012) or later.
const PLATFORM: &str = "manylinux2014";

/// Builds the source distribution and, from it, the wheel. Returns the path of the wheel.
pub(super) fn build(folder: &Path) -> Result<PathBuf, StepOutcome> {
    pip("maturin", "maturin", &[])?;
    // A linker that knows the symbols of an old C library.
    pip("ziglang", "ziglang", &[])?;
    let out = folder.join("python");
    let _ = fs::remove_dir_all(&out);
    // Not `--locked`: a source distribution has fewer crates than its Cargo.lock, which maturin
    // shortens.
    let words = ["-m", "maturin", "build", "--quiet", "--sdist", "--zig"];
    let place = ["--manifest-path", "bindings/python/Cargo.toml", "--out", &out.display().to_string()];
    let python = ["--compatibility", PLATFORM, "--interpreter", PYTHON];
    let run = program(PYTHON, &[&words[..], &place, &python].concat());
    let interpreter = std::path::absolute(PYTHON).map_err(failed)?.display().to_string();
    passed(run.env("CARGO_ZIGBUILD_PYTHON_PATH", &interpreter).run())?;
    let files = fs::read_dir(&out).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = files.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.next().ok_or(StepOutcome::Failed("maturin: built no wheel".into()))
}

/// Installs the wheel into a new environment without a network, and uses it there.
pub(super) fn test() -> Result<StepOutcome, StepOutcome> {
    clean_root::require_isolation()?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let wheel = build(folder.path())?.display().to_string();
    println!("{wheel}");
    for part in ["-abi3-", "manylinux_2_17_"] {
        if !wheel.contains(part) {
            return Err(StepOutcome::Failed(format!("{wheel}: is not a wheel for {part}")));
        }
    }
    let environment = folder.path().join("environment").display().to_string();
    let script = "python3 -m venv \"$1\" && \"$1\"/bin/pip install --quiet --no-index \"$2\" && \"$1\"/bin/python -c \"$3\"";
    let use_it = "import todana\nwith todana.open('mem:hash') as db:\n db['hello'] = 'world'\n assert db['hello'] == b'world'";
    let words = ["--net", "sh", "-c", script, "sh", &environment, &wheel, use_it];
    Ok(with_time_limit("unshare", &words).run())
}
