//! The thread that produces an export: it puts frames into the pipe one after the other.

use super::pipe::ExportPipe;
use super::rate_limit::RateLimit;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::backup::Backup;
use todana::disk::SystemDisk;
use todana::update_log::{DurabilityHealth, LogBytes, LogPosition};
use todana::{DataDirectory, Database};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::memcached::{ExportKind, LogStart};

/// Maximum bytes of a frame.
const FRAME_LEN_MAX: usize = 64 << 10;
/// Interval at which a reader that follows the log checks for new entries without a notification.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
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
        (ExportKind::Checkpoint, ExportSource::Directory(directory)) => checkpoint(directory, database, pipe),
        (ExportKind::Log { from, follows }, ExportSource::Directory(directory)) => {
            log(directory, database, pipe, from, follows)
        }
        (_, ExportSource::Files) => Err(Error::new(ErrorKind::Invalid, "there is no update log")),
    };
    // An export that has ended holds no files.
    drop(source);
    let last = outcome.unwrap_or_else(|error| {
        // Invalid requests concern only the client; other failures are logged for the operator.
        if !pipe.is_stopped() && error.kind() != ErrorKind::Invalid {
            tracing::warn!(%error, "an export has failed");
        }
        format!("SERVER_ERROR {}\r\n", for_clients(&error.to_string(), &place)).into_bytes()
    });
    pipe.end(last);
}

/// Formats an error for clients, on one line. Clients need not know where the server keeps its
/// files, so only the names within the data directory remain.
fn for_clients(error: &str, directory: &Path) -> String {
    let name = directory.display().to_string();
    let mut text = if name.is_empty() { error.into() } else { error.replace(&format!("{name}/"), "") };
    // A relative path discloses nothing, and it may occur in the message by chance.
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

/// Ends the pipe if the thread panics, so that the receiver does not wait for it.
struct EndOnDrop<'p>(&'p ExportPipe);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(b"SERVER_ERROR the server has failed\r\n".to_vec());
    }
}

fn checkpoint(directory: &DataDirectory, database: &Database, pipe: &ExportPipe) -> Result<Vec<u8>> {
    let made = directory.checkpoint_unless(database, pipe.stop_flag())?;
    tracing::info!(records = made.records, "checkpoint made, as a client asked for it");
    let (position, records, len, ms) = (made.start.0, made.records, made.len, made.took.as_millis());
    Ok(format!("CHECKPOINT position={position} records={records} bytes={len} ms={ms}\r\n").into_bytes())
}

fn backup(
    source: &ExportSource,
    database: &Arc<Database>,
    pipe: &ExportPipe,
    rate: Option<NonZeroU64>,
) -> Result<Vec<u8>> {
    let mut backup = match source {
        ExportSource::Directory(directory) => Backup::start(directory, database, pipe.stop_flag())?,
        ExportSource::Files => Backup::of_files(Arc::new(SystemDisk), database)?,
    };
    if let Some(held) = backup.held() {
        pipe.keeps(held);
    }
    let mut flow = PacedOutput { pipe, pace: rate.map(RateLimit::new), born: Instant::now() };
    let mut piece = Vec::new();
    while backup.next(&mut piece)? {
        flow.send(&piece)?;
        piece.clear();
    }
    tracing::info!(records = backup.records(), "backup sent");
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
    // The end of everything that has been acknowledged. If it cannot be synced, the log is sent as
    // far as it is on disk.
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
    pipe.keeps(bytes.held());
    let (position, identity) = (bytes.position().0, bytes.identity());
    if from.is_some() && !bytes.is_between_entries(end)? {
        let message = format!("position {position} of the update log is not between two entries");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let database_id: String = identity.database_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let server_id = identity.server_id;
    let head = format!("LOG position={position} database={database_id} server={server_id}\r\n");
    let mut flow = PacedOutput { pipe, pace: None, born: Instant::now() };
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
        if !pipe.wait_for_news(LOOK_AGAIN) {
            return Err(gone());
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

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "nobody takes it any more")
}

/// The output of an export, at its rate.
struct PacedOutput<'p> {
    pipe: &'p ExportPipe,
    pace: Option<RateLimit>,
    born: Instant,
}

impl PacedOutput<'_> {
    /// Sends bytes in as many frames as they need.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let portion = self.pace.as_ref().map_or(FRAME_LEN_MAX, |pace| pace.portion(FRAME_LEN_MAX));
        for bytes in bytes.chunks(portion) {
            if let Some(pace) = &mut self.pace {
                let now = self.born.elapsed();
                let wait = pace.admit(bytes.len(), now).saturating_sub(now);
                if wait > Duration::ZERO && !self.pipe.rest(wait) {
                    return Err(gone());
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
        if self.pipe.put(frame) { Ok(()) } else { Err(gone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_told_where_the_servers_files_are() {
        let directory = Path::new("/srv/some where/data");
        for (error, told) in [
            (
                "cannot read /srv/some where/data/log/7.log: No such file",
                "cannot read log/7.log: No such file",
            ),
            ("/srv/some where/data/log/7.log at offset 3: bad", "log/7.log at offset 3: bad"),
            ("cannot sync /srv/some where/data: full", "cannot sync the data directory: full"),
            ("the log ends\r\nhere", "the log ends  here"),
            ("2 / 3 of it", "its files cannot be read or written; the server's own messages say more"),
            ("cannot read /etc/x", "its files cannot be read or written; the server's own messages say more"),
            ("(/etc/x)", "its files cannot be read or written; the server's own messages say more"),
        ] {
            assert_eq!(for_clients(error, directory), told);
        }
        // A relative path.
        assert_eq!(
            for_clients("no data: cannot read data/log/7.log", Path::new("data")),
            "no data: cannot read log/7.log"
        );
        assert_eq!(
            for_clients("cannot read ../data/log/7.log", Path::new("../data")),
            "cannot read log/7.log"
        );
    }
}
