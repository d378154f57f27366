//! Writes record files in all formats.

use super::output_file::OutputFile;
use super::{DumpFormat, DumpOptions};
use crate::{CommandFailure, tsv};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use todana::kyoto::{DumpWriter, NEVER};
use todana::replication::first_of_second;
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::compression::SNAPSHOT_DEFLATE;
use todana_protocol::kyoto::snapshot::SnapshotHead;
use todana_server::{SnapshotCompression, SnapshotWriter};

/// The number of bytes that are collected before a write.
const WRITE_LEN: usize = 1 << 16;

/// A file that is being written.
pub(crate) struct RecordWriter {
    path: PathBuf,
    to: WriteTarget,
    options: DumpOptions,
    head: SnapshotHead,
    written: u64,
    left_out: DroppedAttributes,
}

enum WriteTarget {
    /// Text lines, which are written as they come.
    File {
        output: OutputFile,
        pending: Vec<u8>,
    },
    Snapshot(SnapshotWriter<OutputFile>),
    Dump(DumpWriter<OutputFile>),
}

/// Counts the attributes that the format cannot store.
#[derive(Default)]
struct DroppedAttributes {
    flags: u64,
    spans: u64,
    times: u64,
    values: u64,
}

impl RecordWriter {
    pub(crate) fn create(path: &Path, options: DumpOptions) -> Result<RecordWriter, CommandFailure> {
        let failed = |error| CommandFailure::of_file(path, error);
        if options.bare && matches!(options.format, DumpFormat::Tsv | DumpFormat::TsvHex) {
            return Err(CommandFailure::usage("--bare: needs the format ktss or kcss"));
        }
        let output = OutputFile::create(path).map_err(failed)?;
        // The snapshot has the time stamp of its start. It may lack changes made after the start,
        // so a replica that continues from this time stamp receives those changes again.
        let mut head = SnapshotHead { timestamp: timestamp_now(), ..SnapshotHead::default() };
        let to = match options.format {
            DumpFormat::Ktss => WriteTarget::Snapshot(
                SnapshotWriter::begin(output, head, SnapshotCompression::None).map_err(failed)?,
            ),
            DumpFormat::KtssZlib => {
                head.check = SNAPSHOT_DEFLATE;
                WriteTarget::Snapshot(
                    SnapshotWriter::begin(output, head, SnapshotCompression::Zlib).map_err(failed)?,
                )
            }
            DumpFormat::Kcss => WriteTarget::Dump(DumpWriter::begin(output)),
            DumpFormat::Tsv | DumpFormat::TsvHex => WriteTarget::File { output, pending: Vec::new() },
        };
        Ok(RecordWriter {
            path: path.into(),
            to,
            options,
            head,
            written: 0,
            left_out: DroppedAttributes::default(),
        })
    }

    /// Writes a record. Fails with a message that names the file.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: tsv::TsvExpiry,
    ) -> Result<(), CommandFailure> {
        self.written += 1;
        self.write_record(key, value, flags, expiry)
            .map_err(|error| CommandFailure::of_file(&self.path, error))
    }

    /// Writes a further value of the key that was written last, if the format has them.
    pub(crate) fn put_further(&mut self, key: &[u8], value: &[u8]) -> Result<(), CommandFailure> {
        match (self.options.format, &mut self.to) {
            (DumpFormat::Tsv, WriteTarget::File { output, .. }) => tsv::put_further(output, key, value)
                .map_err(|error| CommandFailure::of_file(&self.path, error)),
            _ => {
                self.left_out.values += 1;
                Ok(())
            }
        }
    }

    fn write_record(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: tsv::TsvExpiry,
    ) -> io::Result<()> {
        let format = self.options.format;
        if let (DumpFormat::Tsv, WriteTarget::File { output, .. }) = (format, &mut self.to) {
            return tsv::put(output, key, value, flags, expiry);
        }
        self.left_out.flags += u64::from(flags != 0);
        self.left_out.spans += u64::from(expiry.span_s != 0);
        let keeps_times = !self.options.bare && format != DumpFormat::TsvHex;
        self.left_out.times += u64::from(!keeps_times && expiry.at != 0);
        let stored = if keeps_times {
            // In Kyoto Tycoon, a record expires after this second; in Todana, at its start.
            let time = if expiry.at == 0 { NEVER } else { expiry.at - 1 };
            StoredValue::with_expiry(time.min(NEVER), value)
        } else {
            StoredValue::raw(value)
        };
        match &mut self.to {
            WriteTarget::Snapshot(snapshot) => {
                self.head.count += 1;
                self.head.size += (key.len() + stored.len()) as u64;
                snapshot.put(key, &stored);
                if snapshot.is_due() { snapshot.write() } else { Ok(()) }
            }
            WriteTarget::Dump(dump) => dump.put(key, &stored),
            WriteTarget::File { output, pending } => {
                put_hex(key, pending);
                pending.push(b'\t');
                put_hex(value, pending);
                pending.push(b'\n');
                if pending.len() < WRITE_LEN {
                    return Ok(());
                }
                output.write_all(pending)?;
                pending.clear();
                // One long value must not occupy memory until the end.
                pending.shrink_to(2 * WRITE_LEN);
                Ok(())
            }
        }
    }

    /// Completes the file. Returns the number of records.
    pub(crate) fn finish(self) -> Result<u64, CommandFailure> {
        let RecordWriter { path, to, head, written, left_out, .. } = self;
        let finish = || match to {
            WriteTarget::Dump(dump) => dump.finish()?.finish(),
            WriteTarget::File { mut output, pending } => {
                output.write_all(&pending)?;
                output.finish()
            }
            WriteTarget::Snapshot(snapshot) => {
                let mut output = snapshot.finish()?;
                // The head now contains the number of records. In a stream it cannot be rewritten,
                // so there it keeps the number 0, which readers accept.
                output.rewrite_head(&head.to_bytes())?;
                output.finish()
            }
        };
        finish().map_err(|error| CommandFailure::of_file(&path, error))?;
        left_out.report();
        Ok(written)
    }
}

impl DroppedAttributes {
    fn report(&self) {
        for (count, what) in [
            (self.flags, "had client flags, which this format does not store"),
            (self.times, "had an expiry time, which this format does not store"),
            (
                if self.times == 0 { self.spans } else { 0 },
                "had a sliding expiry, which becomes a fixed time in this format",
            ),
        ] {
            if count > 0 {
                eprintln!("todana: {count} of the records {what}");
            }
        }
        if self.values > 0 {
            let values = self.values;
            eprintln!(
                "todana: {values} further values of keys are left out, because this format stores one per key"
            );
        }
    }
}

fn put_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for (index, &byte) in bytes.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Returns a time stamp for a dump that begins now: the dump contains all changes with earlier time
/// stamps. Within a second, the time stamps of Todana's servers only count, so a change after the
/// start of the dump could have an earlier time stamp than the current time. The result therefore
/// lies before the current second.
fn timestamp_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    first_of_second(since.as_secs().saturating_sub(1)).saturating_sub(1)
}
