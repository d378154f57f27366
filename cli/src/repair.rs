//! `todana repair`: what can be saved of a damaged data directory, and saving it when told.

use crate::Failure;
use crate::source::expect_directory;
use clap::Args;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::Repair;
use todana::disk::SystemDisk;
use todana_core::ErrorKind;

pub(crate) const AFTER_HELP: &str = "\
Without --yes nothing is changed. Files that are mended or set aside stay beside
what takes their place, with .damaged behind their names.

A torn end of the log, as a crash leaves it, is no damage: the server cuts it
off when it is started.

Exit codes: 0 nothing is damaged, or all is mended; 1 there is damage;
3 it cannot be read, or a server has it open.

Examples:
  todana repair /var/lib/todana            what is damaged, what can be saved
  todana repair /var/lib/todana --yes      save it";

/// What `repair` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory, which no server has open
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Do it
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { directory, yes } = arguments;
    expect_directory(directory, "repair")?;
    let repaired = todana::repair(Arc::new(SystemDisk), directory, *yes);
    let repaired = repaired.map_err(|error| match error.kind() {
        ErrorKind::Busy => Failure::trouble(format!("{error}; stop it first")),
        _ => error.into(),
    })?;
    let told = tell(&repaired, directory, *yes);
    if !repaired.remedies.is_empty() && (!yes || repaired.unmended > 0) {
        // Whoever reads no further is told by the exit code all the same.
        return Err(Failure::miss());
    }
    Ok(told?)
}

fn tell(repaired: &Repair, directory: &Path, yes: bool) -> io::Result<()> {
    let mut out = std::io::stdout().lock();
    for remedy in &repaired.remedies {
        let finding = &remedy.finding;
        let place = finding.path.display().to_string();
        // Some say it themselves, with a better offset.
        let what = match finding.what.starts_with(&place) {
            true => finding.what.clone(),
            false => format!("{place} at offset {}: {}", finding.offset, finding.what),
        };
        let tense = if yes { "" } else { "to be " };
        writeln!(out, "{what}\n  {tense}{}", remedy.remedy)?;
    }
    let lost: u64 = repaired.remedies.iter().map(|remedy| remedy.finding.lost).sum();
    writeln!(
        out,
        "{} checkpoints are whole, {} entries of the log can be read, {lost} bytes of entries are lost",
        repaired.checkpoints, repaired.entries
    )?;
    match (repaired.remedies.is_empty(), yes) {
        (true, _) => writeln!(out, "nothing is damaged"),
        (false, true) if repaired.unmended > 0 => {
            writeln!(out, "{} of that cannot be mended here", repaired.unmended)
        }
        (false, true) => writeln!(out, "{} is repaired", directory.display()),
        (false, false) => writeln!(out, "nothing has been changed; --yes does it"),
    }
}
