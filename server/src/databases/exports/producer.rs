//! Runs the thread that produces an export and puts its frames into the pipe one after another.

use super::ExportProgress;
use super::pipe::ExportPipe;
use super::rate_limit::RateLimit;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use todana::LoadProgress;
use todana::backup::{BackupReceiver, BackupSender};
use todana::disk::SystemDisk;
use todana::update_log::{DurabilityHealth, LogBytes, LogPosition};
use todana::{DataDirectory, Database};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::memcached::{ExportKind, LogStart};

/// The maximum length of a frame in bytes.
const FRAME_LEN_MAX: usize = 64 << 10;
/// The interval at which a reader that follows the log checks for new entries even without a
/// notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const END: &[u8] = b"END\r\n";

/// The source of an export.
pub(super) enum ExportSource {
    /// Checkpoints and an update log.
    Directory(Arc<DataDirectory>),
    /// The files of a hash on disk.
    Files,
}

/// Runs an export to its end.
pub(super) fn run(
    export: ExportKind,
    source: ExportSource,
    database: &Arc<Database>,
    pipe: &Arc<ExportPipe>,
) {
    let _ending = EndOnDrop(pipe);
    let place = match &source {
        ExportSource::Directory(directory) => directory.path().to_path_buf(),
        ExportSource::Files => PathBuf::new(),
    };
    let outcome = match (export, &source) {
        (ExportKind::Backup { rate }, source) => backup(source, database, pipe, rate),
        (ExportKind::Promotion { .. }, _) => Err(Error::new(ErrorKind::Invalid, "not an export")),
        (ExportKind::Checkpoint, ExportSource::Directory(directory)) => checkpoint(directory, database, pipe),
        (ExportKind::Log { from, follows }, ExportSource::Directory(directory)) => {
            log(directory, database, pipe, from, follows)
        }
        (_, ExportSource::Files) => Err(Error::new(ErrorKind::Invalid, "there is no update log")),
    };
    // After the end of an export, no file is kept for it.
    drop(source);
    let last = outcome.unwrap_or_else(|error| {
        // An invalid request concerns only its client. Other failures are logged for the operator.
        if !pipe.is_stopped() && error.kind() != ErrorKind::Invalid {
            tracing::warn!(%error, "export: failed");
        }
        format!("SERVER_ERROR {}\r\n", for_clients(&error.to_string(), &place)).into_bytes()
    });
    pipe.end(last);
}

/// Writes a checkpoint, or a backup to the directory `target`.
pub(super) fn run_here(
    export: ExportKind,
    source: ExportSource,
    database: &Arc<Database>,
    pipe: &Arc<ExportPipe>,
    target: &Path,
    progress: &ExportProgress,
) {
    let _ending = EndOnDrop(pipe);
    let outcome = match (export, &source) {
        (ExportKind::Checkpoint, ExportSource::Directory(directory)) => directory
            .checkpoint_unless(database, pipe.stop_flag())
            .map(|made| format!("a checkpoint of {} records, {} bytes, was written", made.records, made.len)),
        _ => backup_here(&source, database, pipe, target, progress),
    };
    drop(source);
    let outcome = outcome.map_err(|error| {
        tracing::warn!(%error, "an export that was requested on the admin page failed");
        error.to_string()
    });
    let _ = progress.outcome.set(outcome);
}

fn backup_here(
    source: &ExportSource,
    database: &Arc<Database>,
    pipe: &ExportPipe,
    target: &Path,
    progress: &ExportProgress,
) -> Result<String> {
    let mut backup = sender(source, database, pipe)?;
    let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), target)?;
    let mut piece = Vec::new();
    while backup.next(&mut piece)? {
        if pipe.is_stopped() {
            return Err(receiver_closed());
        }
        receiver.take(&piece)?;
        piece.clear();
        let LoadProgress { done, remaining, .. } = receiver.progress();
        progress.done.store(done, Ordering::Relaxed);
        progress.total.store(done + remaining, Ordering::Relaxed);
    }
    let made = receiver.finish(&mut |done| progress.done.store(done, Ordering::Relaxed))?;
    Ok(format!("{}: a backup of {} records, {} bytes", target.display(), made.records, made.len))
}

/// Begins a backup. The files that are kept for it are counted for its pipe.
fn sender(source: &ExportSource, database: &Arc<Database>, pipe: &ExportPipe) -> Result<BackupSender> {
    let backup = match source {
        ExportSource::Directory(directory) => BackupSender::start(directory, database, pipe.stop_flag())?,
        ExportSource::Files => BackupSender::of_files(Arc::new(SystemDisk), database)?,
    };
    if let Some(held) = backup.held() {
        pipe.set_held(held);
    }
    Ok(backup)
}

/// Formats an error for clients on one line. Clients need not know where the server keeps its
/// files, so the path of the data directory is removed from the text.
fn for_clients(error: &str, directory: &Path) -> String {
    let name = directory.display().to_string();
    let mut text = if name.is_empty() { error.into() } else { error.replace(&format!("{name}/"), "") };
    // A relative path is not removed: it discloses nothing, and the text may contain it by chance.
    if directory.is_absolute() {
        text = text.replace(&name, "the data directory");
    }
    let is_elsewhere =
        text.split(|c: char| !c.is_alphanumeric() && c != '/' && c != '.').any(|word| word.starts_with('/'));
    if is_elsewhere {
        return "its files cannot be read or written; the server's own messages say more".into();
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Ends the pipe when dropped, so that the receiver does not wait forever if the thread panics.
struct EndOnDrop<'p>(&'p ExportPipe);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(b"SERVER_ERROR the server has failed\r\n".to_vec());
    }
}

fn checkpoint(directory: &DataDirectory, database: &Database, pipe: &ExportPipe) -> Result<Vec<u8>> {
    let made = directory.checkpoint_unless(database, pipe.stop_flag())?;
    tracing::info!(records = made.records, "checkpoint: created at a client's request");
    let (position, records, len, ms) = (made.start.0, made.records, made.len, made.took.as_millis());
    Ok(format!("CHECKPOINT position={position} records={records} bytes={len} ms={ms}\r\n").into_bytes())
}

fn backup(
    source: &ExportSource,
    database: &Arc<Database>,
    pipe: &ExportPipe,
    rate: Option<NonZeroU64>,
) -> Result<Vec<u8>> {
    let mut backup = sender(source, database, pipe)?;
    let mut flow = PacedOutput { pipe, rate_limit: rate.map(RateLimit::new), started_at: Instant::now() };
    let mut piece = Vec::new();
    while backup.next(&mut piece)? {
        flow.send(&piece)?;
        piece.clear();
    }
    tracing::info!(records = backup.records(), "backup: sent");
    Ok(END.to_vec())
}

fn log(
    directory: &DataDirectory,
    database: &Database,
    pipe: &ExportPipe,
    from: LogStart,
    follows: bool,
) -> Result<Vec<u8>> {
    let Some(log) = database.log() else {
        return Err(Error::new(ErrorKind::Invalid, "there is no update log"));
    };
    // All acknowledged changes are before this position. If the log cannot be synced, only the part
    // that is on disk is sent.
    let end = log.end();
    let _ = log.sync_to(end);
    let end = end.min(log.readable());
    let from = match from {
        LogStart::First => None,
        LogStart::At(position) if position > end.0 => {
            let message = format!("the update log ends at position {}", end.0);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        LogStart::At(position) => Some(LogPosition(position)),
        LogStart::End => Some(end),
    };
    let mut bytes = directory.log_bytes(from)?;
    pipe.set_held(bytes.held());
    let (position, identity) = (bytes.position().0, bytes.identity());
    if from.is_some() && !bytes.is_between_entries(end)? {
        let message = format!("position {position} of the update log is not between two entries");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let database_id: String = identity.database_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let server_id = identity.server_id;
    let head = format!("LOG position={position} database={database_id} server={server_id}\r\n");
    let mut flow = PacedOutput { pipe, rate_limit: None, started_at: Instant::now() };
    flow.put(head.into_bytes())?;
    send_log(&mut flow, &mut bytes, end)?;
    if !follows {
        return Ok(END.to_vec());
    }
    loop {
        send_log(&mut flow, &mut bytes, log.readable())?;
        if let DurabilityHealth::Lost(why) = log.health() {
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        if !pipe.wait_for_log_growth(CHECK_INTERVAL) {
            return Err(receiver_closed());
        }
    }
}

fn send_log(flow: &mut PacedOutput<'_>, bytes: &mut LogBytes, until: LogPosition) -> Result<()> {
    let mut piece = Vec::new();
    while bytes.position() < until {
        bytes.read(until, FRAME_LEN_MAX, &mut piece)?;
        flow.send(&piece)?;
        piece.clear();
    }
    Ok(())
}

fn receiver_closed() -> Error {
    Error::new(ErrorKind::Closed, "export: the receiver has closed")
}

/// The output of an export, limited to its rate.
struct PacedOutput<'p> {
    pipe: &'p ExportPipe,
    rate_limit: Option<RateLimit>,
    started_at: Instant,
}

impl PacedOutput<'_> {
    /// Sends bytes in as many frames as they need.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let portion =
            self.rate_limit.as_ref().map_or(FRAME_LEN_MAX, |rate_limit| rate_limit.portion(FRAME_LEN_MAX));
        for bytes in bytes.chunks(portion) {
            if let Some(rate_limit) = &mut self.rate_limit {
                let now = self.started_at.elapsed();
                let wait = rate_limit.admit(bytes.len(), now).saturating_sub(now);
                if wait > Duration::ZERO && !self.pipe.sleep_for(wait) {
                    return Err(receiver_closed());
                }
            }
            let mut frame = format!("DATA {}\r\n", bytes.len()).into_bytes();
            frame.extend_from_slice(bytes);
            frame.extend_from_slice(b"\r\n");
            self.put(frame)?;
        }
        Ok(())
    }

    fn put(&self, frame: Vec<u8>) -> Result<()> {
        if self.pipe.put(frame) { Ok(()) } else { Err(receiver_closed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_errors_do_not_contain_server_paths() {
        let directory = Path::new("/srv/some where/data");
        for (error, told) in [
            (
                "/srv/some where/data/log/7.log: cannot read it: No such file",
                "log/7.log: cannot read it: No such file",
            ),
            ("/srv/some where/data/log/7.log at offset 3: bad", "log/7.log at offset 3: bad"),
            ("/srv/some where/data: cannot sync it: full", "the data directory: cannot sync it: full"),
            ("the log ends\r\nhere", "the log ends  here"),
            ("2 / 3 of it", "its files cannot be read or written; the server's own messages say more"),
            (
                "/etc/x: cannot read it",
                "its files cannot be read or written; the server's own messages say more",
            ),
            ("(/etc/x)", "its files cannot be read or written; the server's own messages say more"),
        ] {
            assert_eq!(for_clients(error, directory), told);
        }
        // This path is relative.
        assert_eq!(
            for_clients("no data: data/log/7.log: cannot read it", Path::new("data")),
            "no data: log/7.log: cannot read it"
        );
        assert_eq!(
            for_clients("../data/log/7.log: cannot read it", Path::new("../data")),
            "log/7.log: cannot read it"
        );
    }
}
