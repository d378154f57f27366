//! Folders in which packages are installed: a program there sees neither this machine's files nor
//! its network.

use crate::clients::require;
use crate::step::{StepOutcome, program, target_directory, with_time_limit};
use std::fs;
use std::path::{Path, PathBuf};

/// The oldest release of Debian that is tested.
const RELEASE: &str = "bookworm";
/// Creates namespaces, and gives the folder $1 loopback and /proc. Then the script $2 runs, still
/// with this machine's programs.
const ISOLATION: &str = r#"mount --make-rprivate / && mount --bind "$1" "$1" && mkdir -p "$1/proc" && mount -t proc proc "$1/proc" && ip link set lo up && exec sh -eu -c "$2" sh "$1""#;

/// Returns a new copy of a minimal Debian, made from Debian's packages at the first call.
pub(super) fn debian(folder: &Path) -> Result<PathBuf, StepOutcome> {
    require_isolation()?;
    let base = target_directory().join(format!("packages/{RELEASE}.tar"));
    if !base.exists() {
        fs::create_dir_all(base.parent().expect("a file has a folder")).map_err(failed)?;
        require(|| program("mmdebstrap", &["--version"]).succeeds(), "mmdebstrap", &["mmdebstrap"])?;
        let unfinished = base.with_extension("unfinished.tar").display().to_string();
        let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
        let sources = sources.iter().filter(|file| Path::new(file).exists());
        let options = ["--quiet", "--variant=essential", "--include=adduser,logrotate", RELEASE, &unfinished];
        let words: Vec<&str> = options.into_iter().chain(sources.copied().take(1)).collect();
        if !with_time_limit("mmdebstrap", &words).succeeds() {
            return Err(StepOutcome::Skipped("Debian's packages: cannot be fetched".into()));
        }
        fs::rename(unfinished, &base).map_err(failed)?;
    }
    let root = folder.join("root");
    fs::create_dir(&root).map_err(failed)?;
    let (from, to) = (base.display().to_string(), root.display().to_string());
    passed(program("tar", &["--extract", "--numeric-owner", "--file", &from, "--directory", &to]).run())?;
    Ok(root)
}

/// Skips the calling step if this process may not create namespaces.
pub(super) fn require_isolation() -> Result<(), StepOutcome> {
    require(|| program("ip", &["-V"]).succeeds(), "ip", &["iproute2"])?;
    match program("unshare", &["--mount", "--net", "--pid", "--fork", "true"]).succeeds() {
        true => Ok(()),
        false => Err(StepOutcome::Skipped("namespaces: need root and unshare".into())),
    }
}

/// Runs a shell script whose argument $1 is the folder `root`, without a network but loopback. All
/// processes that the script leaves are killed at its end.
pub(super) fn run(root: &Path, script: &str) -> Result<(), StepOutcome> {
    let root = root.display().to_string();
    let namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c"];
    passed(with_time_limit("unshare", &[&namespaces[..], &[ISOLATION, "sh", &root, script]].concat()).run())
}

/// Runs a shell script within `root`.
pub(super) fn run_inside(root: &Path, script: &Path) -> Result<(), StepOutcome> {
    let script_text = fs::read_to_string(script).map_err(failed)?;
    fs::write(root.join("test.sh"), script_text).map_err(failed)?;
    run(root, "exec chroot \"$1\" sh -eu /test.sh")
}

pub(super) fn failed(error: std::io::Error) -> StepOutcome {
    StepOutcome::Failed(error.to_string())
}

/// Returns an error unless the outcome is that of a success.
pub(super) fn passed(outcome: StepOutcome) -> Result<(), StepOutcome> {
    match outcome {
        StepOutcome::Passed => Ok(()),
        other => Err(other),
    }
}
