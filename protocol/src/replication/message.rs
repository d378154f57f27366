//! The messages after the greeting.

use super::frame::{MalformedFrame, put_frame};
use super::{DATABASES_MAX, EpochPlace, FieldReader, put_some_place};

const APPLIED: u8 = 2;
const LOG: u8 = 18;
const CHECKPOINT: u8 = 19;
const HEARTBEAT: u8 = 20;
const FAILED: u8 = 21;
const PACKED_LOG: u8 = 22;

/// A message of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterMessage<'c> {
    /// The next bytes of the log of a database. Entries may be divided between messages.
    Log {
        /// The number of the database.
        number: u16,
        /// The position of the first byte.
        position: u64,
        /// The bytes as they lie in the log.
        bytes: &'c [u8],
    },
    /// The next entries of the log of a database, in a shorter form.
    PackedLog {
        /// The number of the database.
        number: u16,
        /// The position of the first entry.
        position: u64,
        /// The entries, which this module does not read.
        bytes: &'c [u8],
    },
    /// The next bytes of a checkpoint.
    Checkpoint {
        /// The number of the database.
        number: u16,
        /// The bytes of the checkpoint.
        bytes: &'c [u8],
    },
    /// The state of the master, which is sent regularly.
    Heartbeat {
        /// The time of the master, as Unix time in milliseconds. All its earlier changes are before
        /// the ends.
        time_ms: u64,
        /// The time of the clock by which records expire at the master, in Unix seconds.
        clock_s: u64,
        /// The time that the replica stated last before the master looked for changes. All changes
        /// until then have been sent. 0 if it has stated none.
        asked_us: u64,
        /// The age of the master's own records at that moment in microseconds: 0 unless it is a
        /// replica itself. `u64::MAX` if it is unknown.
        age_us: u64,
        /// The end of the log of each database.
        ends: Vec<LogEnd>,
    },
    /// The master cannot continue. The connection ends after this message.
    Failed {
        /// The reason.
        reason: &'c [u8],
    },
}

/// The end of the log of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The number of the database.
    pub number: u16,
    /// The position after the last entry.
    pub end: u64,
    /// For a master that is itself a replica: the place up to which it has the log of the
    /// first master, if that is known.
    pub source: Option<EpochPlace>,
}

/// A message of a replica after its greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaMessage {
    /// The places up to which the replica has applied the logs.
    Applied {
        /// The time of the replica in microseconds, by a clock of its own that only goes forward.
        /// The master repeats it in a heartbeat.
        asked_us: u64,
        /// The places.
        positions: Vec<AppliedPosition>,
    },
}

/// The place up to which a replica has applied the log of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedPosition {
    /// The number of the database at the master.
    pub number: u16,
    /// The position after the last entry that was applied.
    pub applied: u64,
    /// The position from which the replica continues after its own death.
    pub stored: u64,
}

impl MasterMessage<'_> {
    /// Appends the message.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, |out| match self {
            MasterMessage::Log { number, position, bytes } => put_log(LOG, *number, *position, bytes, out),
            MasterMessage::PackedLog { number, position, bytes } => {
                put_log(PACKED_LOG, *number, *position, bytes, out);
            }
            MasterMessage::Checkpoint { number, bytes } => {
                out.push(CHECKPOINT);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            MasterMessage::Heartbeat { time_ms, clock_s, asked_us, age_us, ends } => {
                out.push(HEARTBEAT);
                for time in [time_ms, clock_s, asked_us, age_us] {
                    out.extend_from_slice(&time.to_le_bytes());
                }
                out.extend_from_slice(&(ends.len().min(DATABASES_MAX) as u16).to_le_bytes());
                for LogEnd { number, end, source } in ends {
                    out.extend_from_slice(&number.to_le_bytes());
                    out.extend_from_slice(&end.to_le_bytes());
                    put_some_place(source.as_ref(), out);
                }
            }
            MasterMessage::Failed { reason } => {
                out.push(FAILED);
                out.extend_from_slice(&reason[..reason.len().min(super::NAME_LEN_MAX)]);
            }
        });
    }

    /// Reads the content of a frame.
    pub fn read(content: &[u8]) -> Result<MasterMessage<'_>, MalformedFrame> {
        let mut fields = FieldReader(content);
        match fields.u8()? {
            LOG => {
                let (number, position) = (fields.u16()?, fields.u64()?);
                Ok(MasterMessage::Log { number, position, bytes: fields.0 })
            }
            PACKED_LOG => {
                let (number, position) = (fields.u16()?, fields.u64()?);
                Ok(MasterMessage::PackedLog { number, position, bytes: fields.0 })
            }
            CHECKPOINT => Ok(MasterMessage::Checkpoint { number: fields.u16()?, bytes: fields.0 }),
            HEARTBEAT => {
                let (time_ms, clock_s) = (fields.u64()?, fields.u64()?);
                let (asked_us, age_us) = (fields.u64()?, fields.u64()?);
                let ends = fields.list(|fields| {
                    let (number, end) = (fields.u16()?, fields.u64()?);
                    Ok(LogEnd { number, end, source: fields.some_place()? })
                })?;
                fields.expect_end()?;
                Ok(MasterMessage::Heartbeat { time_ms, clock_s, asked_us, age_us, ends })
            }
            FAILED => Ok(MasterMessage::Failed { reason: fields.0 }),
            _ => Err(MalformedFrame),
        }
    }
}

fn put_log(kind: u8, number: u16, position: u64, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(bytes);
}

impl ReplicaMessage {
    /// Appends the message.
    pub fn put(&self, out: &mut Vec<u8>) {
        let ReplicaMessage::Applied { asked_us, positions } = self;
        put_frame(out, |out| {
            out.push(APPLIED);
            out.extend_from_slice(&asked_us.to_le_bytes());
            out.extend_from_slice(&(positions.len().min(DATABASES_MAX) as u16).to_le_bytes());
            for position in positions {
                out.extend_from_slice(&position.number.to_le_bytes());
                out.extend_from_slice(&position.applied.to_le_bytes());
                out.extend_from_slice(&position.stored.to_le_bytes());
            }
        });
    }

    /// Reads the content of a frame.
    pub fn read(content: &[u8]) -> Result<ReplicaMessage, MalformedFrame> {
        let mut fields = FieldReader(content);
        if fields.u8()? != APPLIED {
            return Err(MalformedFrame);
        }
        let asked_us = fields.u64()?;
        let positions = fields.list(|fields| {
            let (number, applied, stored) = (fields.u16()?, fields.u64()?, fields.u64()?);
            Ok(AppliedPosition { number, applied, stored })
        })?;
        fields.expect_end()?;
        Ok(ReplicaMessage::Applied { asked_us, positions })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FrameDecoder, LogPlace};
    use super::*;

    #[test]
    fn messages_round_trip() {
        let place = LogPlace { database_id: [5; 16], position: 8 };
        let source = Some(EpochPlace { epoch: 4, place });
        let ends =
            vec![LogEnd { number: 0, end: 9, source: None }, LogEnd { number: 3, end: 1 << 41, source }];
        let all = [
            MasterMessage::Log { number: 3, position: 1 << 40, bytes: b"entries" },
            MasterMessage::PackedLog { number: 3, position: 1 << 40, bytes: b"shorter" },
            MasterMessage::Checkpoint { number: 0, bytes: b"blocks" },
            MasterMessage::Heartbeat {
                time_ms: 1_800_000_000_123,
                clock_s: 1_800_000_000,
                asked_us: 7,
                age_us: u64::MAX,
                ends,
            },
            MasterMessage::Failed { reason: b"disk" },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|message| message.put(&mut bytes));
        let mut decoder = FrameDecoder::default();
        decoder.push(&bytes);
        for message in &all {
            let content = decoder.next_content().unwrap().unwrap();
            assert_eq!(MasterMessage::read(content).as_ref(), Ok(message));
        }
        let position = AppliedPosition { number: 1, applied: 5, stored: 4 };
        let message = ReplicaMessage::Applied { asked_us: 8, positions: vec![position] };
        bytes.clear();
        message.put(&mut bytes);
        decoder.push(&bytes);
        assert_eq!(ReplicaMessage::read(decoder.next_content().unwrap().unwrap()), Ok(message));
    }

    #[test]
    fn log_message_has_the_documented_bytes() {
        let mut bytes = Vec::new();
        MasterMessage::Log { number: 1, position: 513, bytes: b"ab" }.put(&mut bytes);
        assert_eq!(bytes[8..], *b"\x12\x01\0\x01\x02\0\0\0\0\0\0ab");
    }

    #[test]
    fn no_bytes_of_a_message_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let mut content: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            if let Some(kind) = content.first_mut() {
                *kind %= 24;
            }
            let _ = (MasterMessage::read(&content), ReplicaMessage::read(&content));
            let _ = (super::super::ReplicaHello::read(&content), super::super::MasterWelcome::read(&content));
        }
    }
}
