//! The greeting of a replica, and the answer of the master.

use super::frame::{MalformedFrame, put_frame};

/// The maximum number of databases of a replica.
pub const DATABASES_MAX: usize = 1024;
/// The maximum length of a user's name or a password in bytes.
pub const NAME_LEN_MAX: usize = 1024;

/// The highest epoch in a greeting or its answer. It leaves room for later promotions.
const EPOCH_MAX: u64 = u64::MAX >> 8;
const HELLO: u8 = 1;
const WELCOME: u8 = 16;
const REFUSED: u8 = 17;

/// The first message of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHello {
    /// The server ID of the replica.
    pub server_id: u16,
    /// The highest epoch that the replica knows.
    pub epoch: u64,
    /// The name of the user as which the replica logs in. Empty if it does not.
    pub user: Vec<u8>,
    /// The password of that user.
    pub password: Vec<u8>,
    /// The databases of the master that the replica wants.
    pub databases: Vec<DatabaseRequest>,
}

/// A database of the master that the replica wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseRequest {
    /// The number of the database at the master.
    pub number: u16,
    /// The first change that the replica wants.
    pub start: RequestedStart,
    /// The format of buckets that the database can take over from an image. 0 if it wants all
    /// records one by one.
    pub bucket_format: u8,
    /// For each master whose changes the replica has, in their order, the place in its log up to
    /// which the replica has them.
    pub path: Vec<EpochPlace>,
}

/// The first change that a replica wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedStart {
    /// A checkpoint with all records, and the changes after it.
    Checkpoint,
    /// The changes after this place. The replica has all changes before it.
    Place(LogPlace),
    /// All changes since the database was created. A server whose own clients write wants these,
    /// because a checkpoint would replace its records by older ones.
    Beginning,
}

/// A place in the log of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    /// The ID of the database.
    pub database_id: [u8; 16],
    /// A position between two entries of its log.
    pub position: u64,
}

/// A place in the log of the master of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochPlace {
    /// The number of the epoch.
    pub epoch: u64,
    /// The place.
    pub place: LogPlace,
}

/// The answer of a master that accepts the replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterWelcome {
    /// The server ID of the master.
    pub server_id: u16,
    /// The epoch of the master.
    pub epoch: u64,
    /// The databases that the replica wants, in its order.
    pub databases: Vec<DatabaseAnswer>,
}

/// The answer for a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseAnswer {
    /// The number of the database at the master.
    pub number: u16,
    /// The ID of the database.
    pub database_id: [u8; 16],
    /// The first message about the database.
    pub start: AnsweredStart,
    /// The last place in a log that the replica and the master have in common. `None` if the master
    /// knows no log of the replica's path.
    pub branch: Option<EpochPlace>,
    /// The epochs that the master knows, in their order.
    pub epochs: Vec<EpochRecord>,
}

/// An epoch: the time in which one server is the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The number of the epoch.
    pub epoch: u64,
    /// The ID of the master's database.
    pub database_id: [u8; 16],
    /// The end of the epoch before. `None` if the master had followed no other server.
    pub ended: Option<EpochPlace>,
}

/// The first message about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredStart {
    /// The log from the requested place or the beginning on.
    Requested,
    /// A checkpoint, and then the log from its position on.
    Checkpoint,
    /// The log of the master from this position on, which belongs to the branch.
    Branch(u64),
}

impl ReplicaHello {
    /// Appends the message, without the greeting before it.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, |out| {
            out.push(HELLO);
            out.extend_from_slice(&self.server_id.to_le_bytes());
            out.extend_from_slice(&self.epoch.to_le_bytes());
            put_text(&self.user, out);
            put_text(&self.password, out);
            out.extend_from_slice(&(self.databases.len() as u16).to_le_bytes());
            for request in &self.databases {
                out.extend_from_slice(&request.number.to_le_bytes());
                match request.start {
                    RequestedStart::Checkpoint => out.push(0),
                    RequestedStart::Place(place) => {
                        out.push(1);
                        put_place(&place, out);
                    }
                    RequestedStart::Beginning => out.push(2),
                }
                out.push(request.bucket_format);
                out.extend_from_slice(&(request.path.len() as u16).to_le_bytes());
                request.path.iter().for_each(|place| put_epoch_place(place, out));
            }
        });
    }

    /// Reads the content of the frame.
    pub fn read(content: &[u8]) -> Result<ReplicaHello, MalformedFrame> {
        let mut fields = FieldReader(content);
        fields.expect_kind(HELLO)?;
        let (server_id, epoch) = (fields.u16()?, fields.epoch()?);
        let (user, password) = (fields.text()?.to_vec(), fields.text()?.to_vec());
        let databases = fields.list(|fields| {
            let number = fields.u16()?;
            let start = match fields.u8()? {
                0 => RequestedStart::Checkpoint,
                1 => RequestedStart::Place(fields.place()?),
                2 => RequestedStart::Beginning,
                _ => return Err(MalformedFrame),
            };
            let bucket_format = fields.u8()?;
            let path = fields.list(FieldReader::epoch_place)?;
            Ok(DatabaseRequest { number, start, bucket_format, path })
        })?;
        fields.expect_end()?;
        Ok(ReplicaHello { server_id, epoch, user, password, databases })
    }
}

impl MasterWelcome {
    /// Appends the message.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, |out| {
            out.push(WELCOME);
            out.extend_from_slice(&self.server_id.to_le_bytes());
            out.extend_from_slice(&self.epoch.to_le_bytes());
            out.extend_from_slice(&(self.databases.len() as u16).to_le_bytes());
            for answer in &self.databases {
                out.extend_from_slice(&answer.number.to_le_bytes());
                out.extend_from_slice(&answer.database_id);
                match answer.start {
                    AnsweredStart::Requested => out.push(0),
                    AnsweredStart::Checkpoint => out.push(1),
                    AnsweredStart::Branch(position) => {
                        out.push(2);
                        out.extend_from_slice(&position.to_le_bytes());
                    }
                }
                put_some_place(answer.branch.as_ref(), out);
                out.extend_from_slice(&(answer.epochs.len() as u16).to_le_bytes());
                for EpochRecord { epoch, database_id, ended } in &answer.epochs {
                    out.extend_from_slice(&epoch.to_le_bytes());
                    out.extend_from_slice(database_id);
                    put_some_place(ended.as_ref(), out);
                }
            }
        });
    }

    /// Appends the answer of a master that refuses the replica, in place of a welcome. The
    /// connection ends after it.
    pub fn put_refusal(reason: &str, out: &mut Vec<u8>) {
        let reason = reason.as_bytes();
        put_frame(out, |out| {
            out.push(REFUSED);
            put_text(&reason[..reason.len().min(NAME_LEN_MAX)], out);
        });
    }

    /// Reads the content of the frame. The inner error is the reason of a refusal.
    pub fn read(content: &[u8]) -> Result<Result<MasterWelcome, String>, MalformedFrame> {
        let mut fields = FieldReader(content);
        if content.first() == Some(&REFUSED) {
            fields.expect_kind(REFUSED)?;
            let reason = String::from_utf8_lossy(fields.text()?).into_owned();
            fields.expect_end()?;
            return Ok(Err(reason));
        }
        fields.expect_kind(WELCOME)?;
        let (server_id, epoch) = (fields.u16()?, fields.epoch()?);
        let databases = fields.list(|fields| {
            let (number, database_id) = (fields.u16()?, fields.id()?);
            let start = match fields.u8()? {
                0 => AnsweredStart::Requested,
                1 => AnsweredStart::Checkpoint,
                2 => AnsweredStart::Branch(fields.u64()?),
                _ => return Err(MalformedFrame),
            };
            let branch = fields.some_place()?;
            let epochs = fields.list(|fields| {
                let (epoch, database_id) = (fields.epoch()?, fields.id()?);
                Ok(EpochRecord { epoch, database_id, ended: fields.some_place()? })
            })?;
            Ok(DatabaseAnswer { number, database_id, start, branch, epochs })
        })?;
        fields.expect_end()?;
        Ok(Ok(MasterWelcome { server_id, epoch, databases }))
    }
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text);
}

fn put_place(place: &LogPlace, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.database_id);
    out.extend_from_slice(&place.position.to_le_bytes());
}

fn put_epoch_place(place: &EpochPlace, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.epoch.to_le_bytes());
    put_place(&place.place, out);
}

pub(super) fn put_some_place(place: Option<&EpochPlace>, out: &mut Vec<u8>) {
    out.push(u8::from(place.is_some()));
    if let Some(place) = place {
        put_epoch_place(place, out);
    }
}

/// Reads the fields of a message.
pub(super) struct FieldReader<'c>(pub(super) &'c [u8]);

impl<'c> FieldReader<'c> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'c [u8], MalformedFrame> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MalformedFrame)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedFrame> {
        self.take(N)?.try_into().map_err(|_| MalformedFrame)
    }

    pub(super) fn u8(&mut self) -> Result<u8, MalformedFrame> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, MalformedFrame> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, MalformedFrame> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn id(&mut self) -> Result<[u8; 16], MalformedFrame> {
        self.array()
    }

    fn place(&mut self) -> Result<LogPlace, MalformedFrame> {
        Ok(LogPlace { database_id: self.id()?, position: self.u64()? })
    }

    fn epoch(&mut self) -> Result<u64, MalformedFrame> {
        self.u64().and_then(|epoch| if epoch <= EPOCH_MAX { Ok(epoch) } else { Err(MalformedFrame) })
    }

    fn epoch_place(&mut self) -> Result<EpochPlace, MalformedFrame> {
        Ok(EpochPlace { epoch: self.epoch()?, place: self.place()? })
    }

    pub(super) fn some_place(&mut self) -> Result<Option<EpochPlace>, MalformedFrame> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.epoch_place().map(Some),
            _ => Err(MalformedFrame),
        }
    }

    fn text(&mut self) -> Result<&'c [u8], MalformedFrame> {
        let len = usize::from(self.u16()?);
        if len > NAME_LEN_MAX {
            return Err(MalformedFrame);
        }
        self.take(len)
    }

    /// Reads the number of items, and then each item.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, MalformedFrame>,
    ) -> Result<Vec<T>, MalformedFrame> {
        let count = usize::from(self.u16()?);
        if count > DATABASES_MAX {
            return Err(MalformedFrame);
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn expect_kind(&mut self, kind: u8) -> Result<(), MalformedFrame> {
        if self.u8()? == kind { Ok(()) } else { Err(MalformedFrame) }
    }

    pub(super) fn expect_end(&self) -> Result<(), MalformedFrame> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedFrame) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FrameDecoder, GREETING};
    use super::*;

    fn content(bytes: &[u8]) -> Vec<u8> {
        let mut decoder = FrameDecoder::default();
        decoder.push(bytes);
        decoder.next_content().unwrap().unwrap().to_vec()
    }

    fn place(position: u64) -> LogPlace {
        LogPlace { database_id: *b"0123456789abcdef", position }
    }

    fn epoch_place(position: u64) -> EpochPlace {
        EpochPlace { epoch: 3, place: place(position) }
    }

    fn hello() -> ReplicaHello {
        ReplicaHello {
            server_id: 7,
            epoch: 3,
            user: b"ann".to_vec(),
            password: b"pw".to_vec(),
            databases: vec![
                DatabaseRequest {
                    number: 0,
                    start: RequestedStart::Checkpoint,
                    bucket_format: 1,
                    path: Vec::new(),
                },
                DatabaseRequest {
                    number: 2,
                    start: RequestedStart::Place(place(513)),
                    bucket_format: 0,
                    path: vec![epoch_place(513)],
                },
            ],
        }
    }

    /// The bytes are those of the example in docs/protocol/replication.md.
    #[test]
    fn hello_has_the_documented_bytes() {
        let mut bytes = GREETING.to_vec();
        hello().put(&mut bytes);
        let expected: &[&[u8]] = &[
            b"\xdaTODANA\x02",
            b"\x5a\0\0\0\xb2\x86\x8a\xed",
            b"\x01\x07\0\x03\0\0\0\0\0\0\0\x03\0ann\x02\0pw\x02\0",
            b"\0\0\0\x01\0\0",
            b"\x02\0\x010123456789abcdef\x01\x02\0\0\0\0\0\0\0",
            b"\x01\0\x03\0\0\0\0\0\0\x000123456789abcdef\x01\x02\0\0\0\0\0\0",
        ];
        assert_eq!(bytes.escape_ascii().to_string(), expected.concat().escape_ascii().to_string());
        assert_eq!(ReplicaHello::read(&content(&bytes[8..])), Ok(hello()));
    }

    #[test]
    fn welcome_and_refusal_round_trip() {
        let epochs = vec![
            EpochRecord { epoch: 65538, database_id: [9; 16], ended: Some(epoch_place(7)) },
            EpochRecord { epoch: 131_073, database_id: [8; 16], ended: None },
        ];
        let answer = |number, start, branch| {
            let database_id = [number as u8; 16];
            DatabaseAnswer { number, database_id, start, branch, epochs: epochs.clone() }
        };
        let databases = vec![
            answer(0, AnsweredStart::Checkpoint, None),
            answer(2, AnsweredStart::Requested, None),
            answer(3, AnsweredStart::Branch(99), Some(epoch_place(513))),
        ];
        let welcome = MasterWelcome { server_id: 1, epoch: 4, databases };
        let mut bytes = Vec::new();
        welcome.put(&mut bytes);
        assert_eq!(MasterWelcome::read(&content(&bytes)), Ok(Ok(welcome)));
        bytes.clear();
        MasterWelcome::put_refusal("no", &mut bytes);
        assert_eq!(MasterWelcome::read(&content(&bytes)), Ok(Err("no".into())));
    }

    /// After the last epoch, no promotion would be possible.
    #[test]
    fn epoch_without_later_ones_is_malformed() {
        for (epoch, is_valid) in [(EPOCH_MAX, true), (EPOCH_MAX + 1, false), (u64::MAX, false)] {
            let mut bytes = Vec::new();
            ReplicaHello { epoch, ..hello() }.put(&mut bytes);
            assert_eq!(ReplicaHello::read(&content(&bytes)).is_ok(), is_valid, "{epoch}");
            bytes.clear();
            MasterWelcome { server_id: 1, epoch, databases: Vec::new() }.put(&mut bytes);
            assert_eq!(MasterWelcome::read(&content(&bytes)).is_ok(), is_valid, "{epoch}");
        }
    }

    #[test]
    fn truncated_messages_are_malformed() {
        let mut bytes = Vec::new();
        hello().put(&mut bytes);
        let whole = content(&bytes);
        for len in 0..whole.len() {
            assert_eq!(ReplicaHello::read(&whole[..len]), Err(MalformedFrame), "{len} bytes");
        }
        assert_eq!(ReplicaHello::read(&[whole, vec![0]].concat()), Err(MalformedFrame));
    }
}
