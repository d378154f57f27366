//! The update log of a tree on disk, where it is damaged or lost: the tree itself is whole up to its mark, so the log is mended from
//! there on, or begins anew there.

use super::repair::{Log, OPENINGS_UNKNOWN, Remedy, Repair, first_segment, names, set_aside};
use super::{LOG, cannot, identity, is_there, lock};
use crate::db::TREE;
use crate::disk::Disk;
use crate::update_log::{
    Finding, Identity, Position, Salvage, append_recent, begin_anew, openings_of, salvage_for, segment_start,
    with_recent,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Checkpointed, Engine, Error, ErrorKind, Result};
use todana_engine::{DiskTree, DiskTreeOptions};

/// Lists what is damaged or missing of the update log of a tree on disk, and what is to be done about it; does so where it `repairs`, and
/// changes nothing of the log otherwise. What was acknowledged behind the last checkpoint and stood in what is lost stays lost, which
/// the remedies say. Fails with `Busy` if the tree is open, and with `Corrupt` where the tree itself is damaged or the log is another
/// database's.
pub fn repair_tree(disk: Arc<dyn Disk>, path: &Path, repairs: bool) -> Result<Repair> {
    let pages = path.join(TREE).join("data.mdb");
    if !pages.exists() {
        let message = format!("{} at offset 0: it is missing, and with it the records", pages.display());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    // Held to the end.
    let _lock = match repairs || is_there(&*disk, &path.join("lock"))? {
        true => Some(lock(&*disk, path)?),
        false => None,
    };
    let tree = DiskTree::open(&path.join(TREE), DiskTreeOptions { spills: false, ..Default::default() })?;
    let mut repair = Repair { checkpoints: 1, whole: 1, ..Repair::default() };
    let identity = repair.look_at_identity(&*disk, path, tree.database_id(), repairs)?;
    let (log, mark) = (path.join(LOG), Position(tree.mark()));
    let disk = if repairs {
        append_recent(&disk, &log, identity)?;
        disk
    } else {
        with_recent(disk, &log, identity)?
    };
    let disk = &*disk;
    let first = first_segment(disk, &log)?;
    let salvaged = match first {
        // Nobody needs what stands before.
        Some(first) => salvage_for(disk, &log, identity, first.max(mark), &[mark], repairs)?,
        None => Salvage::default(),
    };
    repair.add(salvaged.entries, salvaged.findings);
    let Salvage { end, between, .. } = salvaged;
    let is_needed = first.is_some() || mark > Position(0);
    if is_needed && !between.contains(&mark) {
        let log = Log { path: log, identity, first, end, between };
        repair.begin_at_mark(disk, &log, &tree, mark, repairs)?;
    }
    Ok(repair)
}

impl Repair {
    /// Who the database is: the tree knows that, too.
    fn look_at_identity(
        &mut self,
        disk: &dyn Disk,
        path: &Path,
        tied: Option<[u8; 16]>,
        repairs: bool,
    ) -> Result<Identity> {
        let file = path.join("identity");
        let found = match identity::read(disk, path) {
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            found => found,
        };
        let is_ours = |identity: &Identity| tied.is_none_or(|tied| tied == identity.database_id);
        if let Ok(Some(identity)) = &found
            && is_ours(identity)
        {
            return Ok(*identity);
        }
        let told = identity::by_segments(disk, path);
        if let Some(other) = told.filter(|told| !is_ours(told)) {
            let message = format!(
                "{} at offset 0: the log is the database {:032x}'s, and not this tree's: put its own in its place, or take this one away",
                path.join(LOG).display(),
                u128::from_be_bytes(other.database_id)
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let server_id = || (RandomState::new().build_hasher().finish() as u32).max(1);
        let by_tree = || tied.map(|database_id| Identity { server_id: server_id(), database_id });
        let Some(identity) = told.or_else(by_tree) else {
            return Err(found.err().unwrap_or_else(|| identity::missing(disk, path)));
        };
        let what = match &found {
            Ok(None) => "it is missing".into(),
            Ok(Some(_)) => "it is not the tree's".into(),
            Err(error) => error.to_string(),
        };
        self.find(file.clone(), 0, what, "written anew, as the other files tell it");
        if repairs {
            if !matches!(found, Ok(None)) {
                set_aside(disk, path, &file)?;
            }
            identity::write(disk, path, identity)?;
        }
        Ok(identity)
    }

    /// Has the log begin where the tree needs it to.
    fn begin_at_mark(
        &mut self,
        disk: &dyn Disk,
        log: &Log,
        tree: &DiskTree,
        mark: Position,
        repairs: bool,
    ) -> Result<()> {
        let next = log.first.filter(|&first| first > mark).unwrap_or(mark);
        let lost = next.0 - mark.0;
        let reaches = log.first.is_some_and(|first| first <= mark) && log.end > mark;
        if reaches || !log.can_begin(mark, next) {
            let what = format!("the tree needs the log from position {} on, where no entry begins", mark.0);
            let remedy = "left as it is: the log has to come from another copy of the directory";
            self.find(log.path.clone(), 0, what, remedy);
            self.unmended += 1;
            return Ok(());
        }
        let what = format!("the log from position {} on, where the tree's records end, is missing", mark.0);
        let records = tree.status().records;
        let rest = match next > mark {
            true => format!(
                "and with what the log tells from position {} on: {lost} bytes between are marked as lost",
                next.0
            ),
            false => {
                "the log begins anew: what was acknowledged behind the last checkpoint is lost, if anything was"
                    .into()
            }
        };
        let finding = Finding { path: log.path.clone(), offset: 0, what, lost };
        let remedy = format!("saved, with {records} records as of the last checkpoint; {rest}");
        self.remedies.push(Remedy { finding, remedy });
        if !repairs {
            return Ok(());
        }
        // How often it was opened since is not known, and versions that were shown then are not to be made again.
        let known = openings_of(disk, &log.path).max((version_max(tree)? >> 32) as u32);
        disk.make_directory(&log.path).map_err(|error| cannot("make", &log.path, &error))?;
        // What ends before the mark is in the tree, and would leave a gap.
        for name in names(disk, &log.path)? {
            if segment_start(&name).is_some_and(|start| start <= mark) {
                set_aside(disk, &log.path, &log.path.join(name))?;
            }
        }
        begin_anew(disk, &log.path, log.identity, known.saturating_add(OPENINGS_UNKNOWN), (mark, next))
            .map_err(|error| cannot("write", &log.path, &error))
    }
}

/// The highest version of any record.
fn version_max(tree: &DiskTree) -> Result<u64> {
    let (mut highest, mut place) = (0, None);
    loop {
        place = tree.scan(place.take(), &mut |_, record| {
            highest = highest.max(record.attributes.version);
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            return Ok(highest);
        }
    }
}
