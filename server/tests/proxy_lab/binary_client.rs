//! A client with the binary protocol. It sends several requests at a time, and compares each reply
//! with the model of its keys.

use super::key_model::{KeyModel, KeyState};
use super::text_client::Surroundings;
use fastrand::Rng;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use todana_server::WhenDown;

/// The time after which a reply counts as missing. No reply takes nearly as long.
const HANG: Duration = Duration::from_secs(60);
const KEYS: usize = 16;
const HEADER_LEN: usize = 24;
/// From this status on, a reply is an error.
const ERROR: u16 = 0x81;

#[derive(Clone, Copy, Debug, PartialEq)]
enum BinaryCommand {
    Get,
    GetQuiet,
    GetWithKey,
    Set,
    SetQuiet,
    Add,
    Append,
    Delete,
}

use BinaryCommand::{Add, Append, Delete, Get, GetQuiet, GetWithKey, Set, SetQuiet};

const COMMANDS: [BinaryCommand; 10] =
    [Get, Get, GetQuiet, GetWithKey, Set, Set, SetQuiet, Add, Append, Delete];

impl BinaryCommand {
    fn code(self) -> u8 {
        match self {
            Get => 0x00,
            GetQuiet => 0x09,
            GetWithKey => 0x0c,
            Set => 0x01,
            SetQuiet => 0x11,
            Add => 0x02,
            Append => 0x0e,
            Delete => 0x04,
        }
    }
}

#[derive(Debug)]
struct SentPacket {
    command: BinaryCommand,
    key: usize,
    value: String,
    flags: u32,
    opaque: u32,
}

struct ReplyPacket {
    code: u8,
    status: u16,
    opaque: u32,
    flags: u32,
    key: String,
    value: String,
}

pub(crate) struct BinaryClient {
    name: String,
    around: Arc<Surroundings>,
    random: Rng,
    keys: Vec<KeyModel>,
    generation: u32,
    opaque: u32,
    connection: Option<BufReader<TcpStream>>,
    /// The number of replies that faults of servers have changed.
    pub(crate) losses: u32,
}

impl BinaryClient {
    pub(crate) fn new(name: String, around: Arc<Surroundings>, random: Rng) -> BinaryClient {
        let mut client = BinaryClient {
            name,
            around,
            random,
            keys: Vec::new(),
            generation: 0,
            opaque: 0,
            connection: None,
            losses: 0,
        };
        client.keys = (0..KEYS).map(|slot| client.new_key(slot)).collect();
        client
    }

    fn new_key(&mut self, slot: usize) -> KeyModel {
        self.generation += 1;
        let steady = self.around.steady.filter(|_| slot.is_multiple_of(3));
        let key = format!("{}{}:{slot}:{}", steady.unwrap_or_default(), self.name, self.generation);
        let shaky = steady.is_none().then(|| self.around.ring.server_of(key.as_bytes()));
        KeyModel::new(key, shaky, false)
    }

    /// Sends some requests and checks the replies. Returns the number of requests.
    pub(crate) fn turn(&mut self) -> Result<u32, String> {
        let count = 1 + self.random.usize(..20);
        let mut bytes = Vec::new();
        let sent: Vec<SentPacket> = (0..count).map(|_| self.draft(&mut bytes)).collect();
        self.opaque += 1;
        put_packet(0x0a, "", b"", b"", self.opaque, &mut bytes);
        if self.connection.is_none() || self.random.u8(..) == 0 {
            let stream = TcpStream::connect(self.around.proxy).map_err(|error| error.to_string())?;
            let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(HANG)));
            set.map_err(|error| error.to_string())?;
            self.connection = Some(BufReader::new(stream));
        }
        let connection = self.connection.as_mut().ok_or("there is no connection")?;
        connection.get_mut().write_all(&bytes).map_err(|error| format!("cannot send: {error}"))?;
        let mut at = 0;
        loop {
            let reply = self.reply()?;
            let found = sent[at..].iter().position(|packet| packet.opaque == reply.opaque);
            // The replies of quiet requests before this one do not come any more.
            let end = found.map_or(sent.len(), |found| at + found);
            for (number, packet) in sent.iter().enumerate().take(end).skip(at) {
                self.check_silence(packet, &sent[number + 1..])
                    .map_err(|mistake| format!("{mistake}: no reply to {packet:?}"))?;
            }
            if found.is_none() {
                if (reply.code, reply.status, reply.opaque) != (0x0a, 0, self.opaque) {
                    return Err(format!("a reply with opaque {} where {} ends", reply.opaque, self.opaque));
                }
                break;
            }
            self.check(&sent[end], &reply, &sent[end + 1..]).map_err(|mistake| {
                let state = &self.keys[sent[end].key].state;
                format!("{mistake}: status {} for {:?} with {state:?}", reply.status, sent[end])
            })?;
            at = end + 1;
        }
        for slot in 0..KEYS {
            if self.keys[slot].state == KeyState::Unknown && self.random.bool() {
                self.keys[slot] = self.new_key(slot);
            }
        }
        Ok(count as u32)
    }

    fn draft(&mut self, bytes: &mut Vec<u8>) -> SentPacket {
        let command = COMMANDS[self.random.usize(..COMMANDS.len())];
        let key = self.random.usize(..KEYS);
        self.opaque += 1;
        let opaque = self.opaque;
        let len = self.random.usize(..80);
        let is_store = matches!(command, Set | SetQuiet | Add | Append);
        let (value, flags) = if is_store { self.keys[key].piece(len) } else { (String::new(), 0) };
        let mut extras = Vec::new();
        if is_store && command != Append {
            extras.extend_from_slice(&flags.to_be_bytes());
            extras.extend_from_slice(&[0; 4]);
        }
        put_packet(command.code(), &self.keys[key].key, &extras, value.as_bytes(), opaque, bytes);
        SentPacket { command, key, value, flags, opaque }
    }

    fn reply(&mut self) -> Result<ReplyPacket, String> {
        let connection = self.connection.as_mut().ok_or("there is no connection")?;
        let mut header = [0; HEADER_LEN];
        connection.read_exact(&mut header).map_err(|error| format!("no reply: {error}"))?;
        let number = |at: usize, len: usize| {
            header[at..at + len].iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
        };
        if header[0] != 0x81 {
            return Err(format!("not a packet: {}", header.escape_ascii()));
        }
        let (key_len, extras_len) = (number(2, 2), number(4, 1));
        let mut body = vec![0; number(8, 4)];
        connection.read_exact(&mut body).map_err(|error| format!("no body: {error}"))?;
        let rest = body.get(extras_len..).filter(|rest| key_len <= rest.len()).ok_or("wrong lengths")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_string();
        Ok(ReplyPacket {
            code: header[1],
            status: number(6, 2) as u16,
            opaque: number(12, 4) as u32,
            flags: body[..extras_len].iter().fold(0, |number, byte| number << 8 | u32::from(*byte)),
            key: text(&rest[..key_len]),
            value: text(&rest[key_len..]),
        })
    }

    fn is_written(&self, key: usize, later: &[SentPacket]) -> bool {
        let is_read = |command| matches!(command, Get | GetQuiet | GetWithKey);
        later.iter().any(|packet| packet.key == key && !is_read(packet.command))
    }

    fn check_miss(&mut self, key: usize, later: &[SentPacket]) -> Result<(), String> {
        let is_later = self.is_written(key, later);
        let KeyModel { shaky, state, .. } = &self.keys[key];
        let may_fail = shaky.is_some() && (self.around.when_down != WhenDown::Error || is_later);
        match state {
            KeyState::Unknown | KeyState::Exact(None) => Ok(()),
            KeyState::Exact(Some(_)) if may_fail => {
                self.losses += 1;
                Ok(())
            }
            KeyState::Exact(Some(_)) => Err("a miss".into()),
        }
    }

    fn check_silence(&mut self, packet: &SentPacket, later: &[SentPacket]) -> Result<(), String> {
        match packet.command {
            GetQuiet => self.check_miss(packet.key, later),
            SetQuiet => {
                self.keys[packet.key].note(Some((packet.value.clone(), packet.flags)));
                Ok(())
            }
            _ => Err("a reply is missing".into()),
        }
    }

    fn check(
        &mut self,
        packet: &SentPacket,
        reply: &ReplyPacket,
        later: &[SentPacket],
    ) -> Result<(), String> {
        if reply.code != packet.command.code() {
            return Err(format!("the reply has code {}", reply.code));
        }
        let is_read = matches!(packet.command, Get | GetQuiet | GetWithKey);
        let is_later = self.keys[packet.key].shaky.is_some() && self.is_written(packet.key, later);
        if reply.status >= ERROR {
            self.losses += 1;
            let key = &mut self.keys[packet.key];
            if !is_read {
                key.forget();
            }
            return if key.shaky.is_some() { Ok(()) } else { Err(format!("the error {:?}", reply.value)) };
        }
        if is_read {
            if reply.status == 1 {
                return self.check_miss(packet.key, later);
            }
            let key = &self.keys[packet.key];
            if packet.command == GetWithKey && reply.key != key.key {
                return Err(format!("the reply has the key {}", reply.key));
            }
            let is_exact = key.state == KeyState::Exact(Some((reply.value.clone(), reply.flags)));
            let is_plausible =
                (is_later || key.state == KeyState::Unknown) && key.is_plausible(&reply.value, reply.flags);
            let is_right = reply.status == 0 && (is_exact || is_plausible);
            return if is_right { Ok(()) } else { Err(format!("the value {:?}", reply.value)) };
        }
        let key = &mut self.keys[packet.key];
        let KeyState::Exact(old) = key.state.clone() else { return Ok(()) };
        let stored = Some((packet.value.clone(), packet.flags));
        let (expected, record): (&[u16], _) = match (packet.command, old) {
            (Set | SetQuiet, _) | (Add, None) => (&[0], stored),
            (Append, Some((old, flags))) => (&[0], Some((old + &packet.value, flags))),
            (Append, None) => (&[5], None),
            (Delete, Some(_)) if key.shaky.is_none() => (&[0], None),
            (Delete, None) if !is_later => (&[1], None),
            // A delete that was sent again finds nothing, or the effect of a later write.
            (Delete, _) => (&[0, 1], None),
            (_, old) => (&[2], old),
        };
        key.note(record);
        if expected.contains(&reply.status) { Ok(()) } else { Err(format!("not {expected:?}")) }
    }
}

fn put_packet(code: u8, key: &str, extras: &[u8], value: &[u8], opaque: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x80, code]);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    out.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    out.extend_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(extras);
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
}
