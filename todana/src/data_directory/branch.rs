//! The branch at which the log of a server ends because another server became the master: finding
//! the branch in this server's log, and writing the changes after it to a file.
//!
//! Invariant: a salvaged log contains the entries after the branch as they are in the log, so it
//! has exactly the changes that only this server has.

use super::{DataDirectory, EpochHistory, EpochRole, LOG, SALVAGE, cannot};
use crate::Database;
use crate::update_log::{
    EntryDecoder, Epoch, EpochPlace, EpochStart, LogChange, LogEntry, LogId, LogPosition,
};
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::path::PathBuf;
use todana_core::{Error, ErrorKind, Result};

/// The number of bytes of a log that are read at a time.
const PIECE_LEN: usize = 256 << 10;

/// Describes a salvaged log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvagedLog {
    /// The directory of its segment, which `todana log` prints.
    pub directory: PathBuf,
    /// The number of changes.
    pub changes: u64,
}

/// The last source that the entries of a log state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSource {
    /// The epoch and its log, if an epoch began among the entries.
    pub part: Option<(Epoch, LogId)>,
    /// The position in that log.
    pub position: Option<LogPosition>,
}

/// Receives an entry and its position.
type SeeEntry<'s> = dyn FnMut(LogPosition, &LogEntry<'_>) -> ControlFlow<()> + 's;

impl DataDirectory {
    /// Begins an epoch: stores it, and appends it to the log of the database. Both are on disk when
    /// this returns.
    pub fn begin_epoch(&self, database: &Database, start: EpochStart, role: EpochRole) -> Result<()> {
        let mut history = self.epochs();
        history.add(start);
        self.enter_epochs(database, EpochHistory { role, ..history }, &|start| start)
    }

    /// Takes over the epochs of a master, whose records will be copied or have been copied. They
    /// are on disk and in the log when this returns.
    pub fn replace_epochs(
        &self,
        database: &Database,
        starts: Vec<EpochStart>,
        role: EpochRole,
    ) -> Result<()> {
        let history = EpochHistory { starts, role, ..self.epochs() };
        self.enter_epochs(database, history, &without_end)
    }

    /// Stores epochs, and appends those to the log that are new, in the form that `logged` returns.
    fn enter_epochs(
        &self,
        database: &Database,
        history: EpochHistory,
        logged: &dyn Fn(EpochStart) -> EpochStart,
    ) -> Result<()> {
        let known = self.epochs().starts;
        let superseded_by = Epoch::default();
        self.store_epochs(EpochHistory { superseded_by, is_unlogged: true, ..history })?;
        self.log_epochs(database, &known, logged)
    }

    /// Returns to the epoch of a place, up to which the database has the changes of a master and no
    /// later ones. Until it has entered the epoch of the master, `later`, it takes no changes of
    /// clients.
    pub fn return_to(&self, database: &Database, place: EpochPlace, later: Epoch) -> Result<()> {
        let mut history = self.epochs();
        history.starts.retain(|start| start.epoch <= place.epoch);
        history.superseded_by = history.superseded_by.max(later);
        self.store_epochs(EpochHistory { role: EpochRole::Unchanged, ..history })?;
        if self.followed().map(|at| (at.epoch, at.log_id)) != Some((place.epoch, place.log_id)) {
            self.note_source(database, place);
        }
        Ok(())
    }

    /// Appends an entry to the log which states that the sources of the following entries are
    /// positions in the log of this place.
    pub fn note_source(&self, database: &Database, place: EpochPlace) {
        if let Some(log) = database.log() {
            let EpochPlace { epoch, log_id, .. } = place;
            log.set_source(None);
            log.append(&LogChange::Epoch(EpochStart { epoch, log_id, ended: None }));
        }
    }

    /// Appends the epochs to the log that a crash may have kept out of it.
    pub(super) fn complete_epochs(&self, database: &Database) -> Result<()> {
        if !self.epochs().is_unlogged {
            return Ok(());
        }
        let mut known = Vec::new();
        self.see_entries(database, None, &mut |_, entry| {
            if let LogChange::Epoch(start) = entry.change {
                known.push(start);
            }
            ControlFlow::Continue(())
        })?;
        self.log_epochs(database, &known, &without_end)
    }

    /// Appends the epochs to the log that are not among these, in the form that `logged` returns.
    fn log_epochs(
        &self,
        database: &Database,
        known: &[EpochStart],
        logged: &dyn Fn(EpochStart) -> EpochStart,
    ) -> Result<()> {
        let history = self.epochs();
        let log = self.log_of(database)?;
        log.set_source(None);
        for start in history.starts.iter().filter(|start| !known.contains(start)) {
            log.append(&LogChange::Epoch(logged(*start)));
        }
        log.sync_to(log.end())?;
        self.store_epochs(EpochHistory { is_unlogged: false, ..history })
    }

    /// Returns the position in the log of this database up to which it has the changes that its
    /// servers have up to `place`. Returns `None` if the log does not go back to it.
    pub fn position_of(&self, database: &Database, place: EpochPlace) -> Result<Option<LogPosition>> {
        let log = self.log_of(database)?;
        if place.log_id == self.identity.database_id {
            let is_there = self.log_bytes(Some(place.position)).map(|_| place.position <= log.end());
            return match is_there {
                Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
                is_there => Ok(is_there?.then_some(place.position)),
            };
        }
        let mut search = PlaceSearch::new(place);
        let end = self.see_entries(database, None, &mut |position, entry| {
            search.see(position, entry);
            ControlFlow::Continue(())
        })?;
        let followed = || self.followed().map(|followed| (followed.epoch, followed.log_id));
        let is_last = search.part.or_else(followed) == Some((place.epoch, place.log_id));
        if is_last {
            search.end_part(end);
        }
        Ok(search.found)
    }

    /// Returns true if the log has changes after a position.
    pub fn has_changes_after(&self, database: &Database, from: LogPosition) -> Result<bool> {
        let mut has_changes = false;
        self.see_entries(database, Some(from), &mut |_, entry| {
            has_changes = entry.is_change();
            if has_changes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(has_changes)
    }

    /// Returns true if the log has changes that clients of this server made.
    pub fn has_own_changes(&self, database: &Database) -> Result<bool> {
        let mut has_changes = false;
        self.see_entries(database, None, &mut |_, entry| {
            has_changes = entry.is_change() && entry.origin.is_none();
            if has_changes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(has_changes)
    }

    /// Returns the last source that entries after a position state, and its epoch and its log, if
    /// the log goes back to the beginning of that epoch. Fails with `Invalid` if a copy of all
    /// records has begun after the position, or if later changes state no source.
    pub fn last_source(&self, database: &Database, from: LogPosition) -> Result<LastSource> {
        let (mut part, mut source) = (None, None);
        let (mut is_copied, mut is_unknown) = (false, false);
        self.see_entries(database, Some(from), &mut |_, entry| {
            match entry.change {
                LogChange::Epoch(start) => {
                    (part, source, is_unknown) = (Some((start.epoch, start.log_id)), None, false);
                }
                LogChange::Clear => is_copied |= entry.source.is_none(),
                _ => {}
            }
            source = source.max(entry.source);
            is_unknown |= entry.is_change() && entry.source.is_none();
            ControlFlow::Continue(())
        })?;
        if is_copied || is_unknown {
            let message = "changes after this position of the update log state no source";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if part.is_none() && source.is_some() {
            self.see_entries(database, None, &mut |position, entry| {
                if let LogChange::Epoch(start) = entry.change
                    && position < from
                {
                    part = Some((start.epoch, start.log_id));
                }
                if position < from { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(LastSource { part, position: source })
    }

    /// Writes the log after a position to a log of its own in the folder `salvage`. It is on disk
    /// when this returns. Returns `None` if there are no changes after the position.
    pub fn salvage_after(&self, database: &Database, from: LogPosition) -> Result<Option<SalvagedLog>> {
        let mut changes = 0;
        let until = self.see_entries(database, Some(from), &mut |_, entry| {
            changes += u64::from(entry.is_change());
            ControlFlow::Continue(())
        })?;
        if changes == 0 {
            return Ok(None);
        }
        let folder = self.path.join(SALVAGE);
        let directory = folder.join(format!("{:020}", from.0));
        for made in [&folder, &directory] {
            self.disk.make_directory(made).map_err(|error| cannot("create", made, &error))?;
        }
        let path = directory.join(crate::update_log::segment_name(from));
        let partial = super::beside(&path, ".partial");
        let unwritten = |error: std::io::Error| cannot("write to", &partial, &error);
        if let Err(error) = self.disk.remove(&partial)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(unwritten(error));
        }
        let file = self.disk.create(&partial).map_err(unwritten)?;
        let header = crate::update_log::segment_header(self.identity, from, self.log_of(database)?.now_ms());
        file.write_at(0, &mut [IoSlice::new(&header)]).map_err(unwritten)?;
        let (mut bytes, mut offset) = (self.log_bytes(Some(from))?, header.len() as u64);
        let mut piece = Vec::new();
        while bytes.position() < until {
            piece.clear();
            bytes.read(until, PIECE_LEN, &mut piece)?;
            file.write_at(offset, &mut [IoSlice::new(&piece)]).map_err(unwritten)?;
            offset += piece.len() as u64;
        }
        file.sync().map_err(unwritten)?;
        self.disk.rename(&partial, &path).map_err(unwritten)?;
        for made in [&directory, &folder, &self.path] {
            self.disk.sync_directory(made).map_err(|error| cannot("sync", made, &error))?;
        }
        Ok(Some(SalvagedLog { directory, changes }))
    }

    /// Shows the entries from a position on, or from the oldest one on. Returns the position after
    /// them.
    fn see_entries(
        &self,
        database: &Database,
        from: Option<LogPosition>,
        see: &mut SeeEntry<'_>,
    ) -> Result<LogPosition> {
        let log = self.log_of(database)?;
        let end = log.end();
        log.sync_to(end)?;
        let mut bytes = self.log_bytes(from)?;
        let mut entries = EntryDecoder::new(self.identity.database_id, bytes.position());
        let mut piece = Vec::new();
        while bytes.position() < end {
            piece.clear();
            bytes.read(end, PIECE_LEN, &mut piece)?;
            entries.push(&piece);
            while let Some((position, entry)) = entries.next_entry()? {
                if see(position, &entry).is_break() {
                    return Ok(position);
                }
            }
        }
        Ok(end)
    }

    fn log_of<'d>(&self, database: &'d Database) -> Result<&'d crate::update_log::UpdateLog> {
        let closed = || {
            let message = format!("{}: the update log is closed", self.path.join(LOG).display());
            Error::new(ErrorKind::Closed, message)
        };
        database.log().ok_or_else(closed)
    }
}

/// Returns the form of an epoch in a log that may have changes of the epoch before this entry. The
/// end of the earlier epoch is not at the entry then, so the entry must not state it.
fn without_end(start: EpochStart) -> EpochStart {
    EpochStart { ended: None, ..start }
}

/// Searches the position in a log that belongs to a place in the log of its master. The log has one
/// part for each master, and an epoch begins after each part.
struct PlaceSearch {
    place: EpochPlace,
    /// The epoch and the log from which this part comes, if an epoch began before it.
    part: Option<(Epoch, LogId)>,
    /// True if this part has an entry before the place, so that it has all entries after the place.
    has_earlier: bool,
    /// The first entry of this part after the place.
    first_later: Option<LogPosition>,
    found: Option<LogPosition>,
}

impl PlaceSearch {
    fn new(place: EpochPlace) -> PlaceSearch {
        PlaceSearch { place, part: None, has_earlier: false, first_later: None, found: None }
    }

    fn see(&mut self, position: LogPosition, entry: &LogEntry<'_>) {
        match (entry.change, entry.source) {
            (LogChange::Epoch(start), _) => {
                if let Some(ended) = start.ended {
                    let part = self.part.unwrap_or((ended.epoch, ended.log_id));
                    // A part that ended before the place lacks changes before the place. This
                    // server has got them later, by a copy of all records.
                    if part == (self.place.epoch, self.place.log_id) && self.place.position <= ended.position
                    {
                        self.has_earlier |= self.place.position == ended.position;
                        self.end_part(position);
                    }
                }
                (self.has_earlier, self.first_later) = (false, None);
                self.part = Some((start.epoch, start.log_id));
            }
            (_, Some(source)) if source <= self.place.position => self.has_earlier = true,
            (_, Some(_)) if self.has_earlier => {
                self.first_later.get_or_insert(position);
            }
            // All records are copied here, or the master did not know the sources.
            (change, None) if self.first_later.is_none() => {
                let is_lost = matches!(change, LogChange::Lost { .. });
                self.has_earlier &= !(is_lost || entry.is_change());
            }
            _ => {}
        }
    }

    /// Ends a part of the log that comes from the log of the place.
    fn end_part(&mut self, end: LogPosition) {
        if self.has_earlier {
            self.found = Some(self.first_later.unwrap_or(end));
        }
    }
}
