//! `todana repair`: what can be saved of a damaged data directory, and saving it when told.

use crate::amount::amount;
use crate::source::expect_directory;
use crate::{Failure, database, source};
use clap::Args;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::Repair;
use todana::backup::BACKUP;
use todana::disk::SystemDisk;
use todana::update_log::Finding;
use todana_core::ErrorKind;

pub(crate) const AFTER_HELP: &str = "\
Without --yes nothing is changed. Files that are mended or set aside stay beside
what takes their place, with .damaged behind their names.

A torn end of the log, as a crash leaves it, is no damage: the server cuts it
off when it is started.

A database on disk mends a torn end itself when it is opened, and a damaged
index is made anew from its records. Of a hash with damaged records what is whole
becomes a new hash in its place, which takes as much room again; what was there
stays beside it, with .damaged behind its name. The update log of a tree is mended,
and begins anew where it is lost: what was stored behind the tree's last checkpoint
is lost then. Damage to the tree itself is told, and not mended.

A backup is not repaired: `todana restore --damaged` makes a database of what
is whole in it.

Exit codes: 0 nothing is damaged, or all is mended; 1 there is damage;
3 it cannot be read, or a server has it open.

Examples:
  todana repair /var/lib/todana            what is damaged, what can be saved
  todana repair /var/lib/todana --yes      save it";

/// What `repair` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory, or database on disk (./x.hash, ./x.tree), which no server has open
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Mend what is damaged, instead of only telling of it
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { directory, yes } = arguments;
    expect_directory(directory, "repair")?;
    if let Some(name) = source::database(directory) {
        // Its checkpoints are its own, and nothing that `todana::repair` knows.
        return database::examine(&name, *yes);
    }
    let repaired = todana::repair(Arc::new(SystemDisk), directory, *yes);
    let repaired = repaired.map_err(|error| match error.kind() {
        ErrorKind::Busy => Failure::trouble(format!("{error}; stop it first")),
        // That it is a backup is all that can be.
        ErrorKind::Invalid if directory.join(BACKUP).exists() => {
            let directory = directory.display();
            Failure::usage(format!(
                "{directory} is a backup, and stays as it is: `todana verify {directory}` tells whether it is damaged, \
                 `todana restore --damaged {directory} TARGET` makes a database of what is whole"
            ))
        }
        _ => error.into(),
    })?;
    report(&repaired, directory, *yes, "checkpoint")
}

/// Prints what was found, and what became of it; fails where something is left to be done. `what` there may be of besides its log;
/// nothing if that is empty.
pub(crate) fn report(repaired: &Repair, directory: &Path, yes: bool, what: &str) -> Result<(), Failure> {
    let told = tell(repaired, directory, yes, what);
    if !repaired.remedies.is_empty() && (!yes || repaired.unmended > 0) {
        // Whoever reads no further is told by the exit code all the same.
        return Err(Failure::miss());
    }
    Ok(told?)
}

fn tell(repaired: &Repair, directory: &Path, yes: bool, what: &str) -> io::Result<()> {
    let mut out = std::io::stdout().lock();
    for remedy in &repaired.remedies {
        let tense = if yes { "" } else { "to be " };
        writeln!(out, "{}\n  {tense}{}", finding(&remedy.finding), remedy.remedy)?;
    }
    let lost: u64 = repaired.remedies.iter().map(|remedy| remedy.finding.lost).sum();
    writeln!(
        out,
        "{} can be read, {lost} bytes of entries are lost",
        match what {
            "" => amount(repaired.entries, "entry"),
            what => format!(
                "{} whole, {} of the log",
                amount(repaired.checkpoints, what),
                amount(repaired.entries, "entry")
            ),
        }
    )?;
    let found = repaired.remedies.len() as u64;
    match (found, yes, repaired.unmended) {
        (0, ..) => writeln!(out, "nothing is damaged"),
        (_, true, 0) => writeln!(out, "{} is repaired", directory.display()),
        (_, true, left) => writeln!(out, "{left} of that cannot be mended here"),
        (_, false, 0) => writeln!(out, "nothing has been changed; --yes does it"),
        (_, false, left) if left == found => {
            writeln!(out, "nothing has been changed, and nothing of that can be mended here")
        }
        (_, false, left) => writeln!(out, "nothing has been changed; --yes does it, but for {left} of that"),
    }
}

/// What is damaged, with its place.
pub(crate) fn finding(finding: &Finding) -> String {
    let place = finding.path.display().to_string();
    // Some say it themselves, with a better offset.
    match finding.what.starts_with(&place) {
        true => finding.what.clone(),
        false => format!("{place} at offset {}: {}", finding.offset, finding.what),
    }
}
