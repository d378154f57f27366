//! The wheel and the source distribution of the Python module.

use super::built_files::epoch;
use super::clean_root::{self, failed, passed};
use super::executable::{copy_of_commit, host, without_folders};
use super::repetition::compare;
use crate::clients::{PYTHON, pip};
use crate::step::{StepOutcome, program, target_directory, with_time_limit};
use std::fs;
use std::path::{Path, PathBuf};

/// The platform of the wheel: any Linux with glibc 2.17 (2012) or later.
const PLATFORM: &str = "manylinux2014";

/// Fails if the files of two wheels differ, except for the list of libraries, in which maturin
/// writes a random number and the folder of the sources, and for its hash.
const SAME_FILES: &str = "
import sys, zipfile
def files(path):
    wheel = zipfile.ZipFile(path)
    names = [name for name in wheel.namelist() if '/sboms/' not in name and not name.endswith('/RECORD')]
    return {name: wheel.read(name) for name in names}
first, again = map(files, sys.argv[1:])
differing = [name for name in first if first[name] != again.get(name)]
sys.exit(str(differing) if differing or len(first) != len(again) else 0)
";

/// The files that are built.
struct PythonPackages {
    sources: PathBuf,
    wheel: PathBuf,
}

/// Builds the source distribution and, from it, the wheel. Returns the path of the wheel.
pub(super) fn build(folder: &Path) -> Result<PathBuf, StepOutcome> {
    let sources = std::env::current_dir().map_err(failed)?;
    let target = std::path::absolute(target_directory()).map_err(failed)?;
    Ok(build_from(&sources, &target, folder)?.wheel)
}

/// Builds both from these sources, with this target folder.
fn build_from(sources: &Path, target: &Path, folder: &Path) -> Result<PythonPackages, StepOutcome> {
    pip("maturin", "maturin", &[])?;
    // A linker that knows the symbols of an old C library.
    pip("ziglang", "ziglang", &[])?;
    let (out, unpacked) = (folder.join("python"), folder.join("python-sources"));
    for folder in [&out, &unpacked] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let epoch = epoch()?.to_string();
    let interpreter = std::path::absolute(PYTHON).map_err(failed)?.display().to_string();
    let maturin = |words: &[&str], sources: &Path| {
        let manifest = sources.join("bindings/python/Cargo.toml").display().to_string();
        let place = ["--manifest-path", &manifest, "--out", &out.display().to_string()];
        let run = program(&interpreter, &[&["-m", "maturin"], words, &place].concat()).folder(sources);
        let run = run.env("SOURCE_DATE_EPOCH", &epoch).env("CARGO_ZIGBUILD_PYTHON_PATH", &interpreter);
        run.env("CARGO_TARGET_DIR", &target.display().to_string())
    };
    passed(maturin(&["sdist"], sources).run())?;
    let archive = file_with(&out, "gz")?;
    let words = ["-x", "-f", &archive.display().to_string(), "-C", &unpacked.display().to_string()];
    passed(program("tar", &words).run())?;
    let unpacked = first_of(&unpacked, |_| true)?;
    let (rustflags, cflags) = without_folders(&unpacked, target)?;
    // Not `--locked`: a source distribution has fewer crates than its Cargo.lock, which maturin
    // shortens.
    let words = ["build", "--quiet", "--zig", "--compatibility", PLATFORM, "--interpreter", &interpreter];
    let cflags_name = format!("CFLAGS_{}", host()?.replace('-', "_"));
    passed(maturin(&words, &unpacked).env("RUSTFLAGS", &rustflags).env(&cflags_name, &cflags).run())?;
    Ok(PythonPackages { sources: archive, wheel: file_with(&out, "whl")? })
}

fn file_with(folder: &Path, ending: &str) -> Result<PathBuf, StepOutcome> {
    first_of(folder, |path| path.extension().is_some_and(|extension| extension == ending))
}

fn first_of(folder: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<PathBuf, StepOutcome> {
    let mut paths = fs::read_dir(folder).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| is_wanted(path)).ok_or(StepOutcome::Failed("maturin: has not built a package".into()))
}

/// Installs the wheel into a new environment without a network, and uses it there. Builds both
/// packages again in other folders, and compares them.
pub(super) fn test() -> Result<StepOutcome, StepOutcome> {
    clean_root::require_isolation()?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let sources = std::env::current_dir().map_err(failed)?;
    let target = std::path::absolute(target_directory()).map_err(failed)?;
    let first = build_from(&sources, &target, folder.path())?;
    use_wheel(&first.wheel.display().to_string(), folder.path())?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let sources = copy_of_commit(folder.path())?;
    let again = build_from(&sources, &folder.path().join("other-target"), folder.path())?;
    compare(&first.sources, &again.sources)?;
    let wheels = [&first.wheel, &again.wheel].map(|wheel| wheel.display().to_string());
    Ok(program(PYTHON, &["-c", SAME_FILES, &wheels[0], &wheels[1]]).run())
}

fn use_wheel(wheel: &str, folder: &Path) -> Result<(), StepOutcome> {
    println!("{wheel}");
    for part in ["-abi3-", "manylinux_2_17_"] {
        if !wheel.contains(part) {
            return Err(StepOutcome::Failed(format!("{wheel}: is not a wheel for {part}")));
        }
    }
    let environment = folder.join("environment").display().to_string();
    let script = "python3 -m venv \"$1\" && \"$1\"/bin/pip install --quiet --no-index \"$2\" && \"$1\"/bin/python -c \"$3\"";
    let use_it = "import todana\nwith todana.open('mem:hash') as db:\n db['hello'] = 'world'\n assert db['hello'] == b'world'";
    let words = ["--net", "sh", "-c", script, "sh", &environment, wheel, use_it];
    passed(with_time_limit("unshare", &words).run())
}
