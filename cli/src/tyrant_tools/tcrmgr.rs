//! `tcrmgr`: sends commands to a server of Tokyo Tyrant's protocol.

use super::ToolFailure;
use super::connection::{ClientError, ServerConnection};
use super::number::{number_in, whole_in};
use super::tool_output::ValueForm;
use super::tsv_input;
use crate::tyrant::version;
use std::io::{BufWriter, Write};
use todana_protocol::tyrant::{
    CHECKS_OUTCOMES, FieldBuffer, MISC_NOT_LOGGED, TyrantPutMode, TyrantRequest, log_text, update_log,
};

const USAGE: [&str; 18] = [
    "inform [-port num] [-st] host",
    "put [-port num] [-sx] [-sep chr] [-dk|-dc|-dai|-dad] [-ds num] host key value",
    "out [-port num] [-sx] [-sep chr] host key",
    "get [-port num] [-sx] [-sep chr] [-px] [-pz] host key",
    "mget [-port num] [-sx] [-sep chr] [-px] host [key...]",
    "list [-port num] [-sep chr] [-m num] [-pv] [-px] [-fm str] host",
    "ext [-port num] [-xlr|-xlg] [-sx] [-sep chr] [-px] host func [key [value]]",
    "sync [-port num] host",
    "optimize [-port num] host [params]",
    "vanish [-port num] host",
    "copy [-port num] host dpath",
    "misc [-port num] [-mnu] [-sx] [-sep chr] [-px] host func [arg...]",
    "importtsv [-port num] [-nr] [-sc] [-sep chr] host [file]",
    "restore [-port num] [-ts num] [-rcc] host upath",
    "setmst [-port num] [-mport num] [-ts num] [-rcc] host [mhost]",
    "repl [-port num] [-ts num] [-sid num] [-ph] host",
    "http [-ah name value] [-ih] url",
    "version",
];

/// The number of keys in one request.
const KEYS_AT_ONCE: usize = 1000;

/// The options of all commands.
#[derive(Default)]
struct Given {
    port: Option<u16>,
    form: ValueForm,
    shows_statistics: bool,
    /// The option `-dk`, `-dc`, `-dai` or `-dad`, if given.
    put_mode: Option<&'static str>,
    shift_width: Option<u32>,
    has_no_line_end: bool,
    count_max: Option<i64>,
    shows_values: bool,
    prefix: Option<String>,
    lock: u32,
    is_not_logged: bool,
    has_no_reply: bool,
    is_lowered: bool,
    stamp: u64,
    checks: bool,
    master_port: Option<u32>,
    server_id: Option<u32>,
    shows_text: bool,
    headers: Vec<(String, String)>,
    shows_head: bool,
}

pub(super) fn run(program: &str, words: Vec<String>) -> Result<(), ToolFailure> {
    let usage = || ToolFailure::usage(program, "commands to a server of Tokyo Tyrant's protocol", &USAGE);
    let mut words = words.into_iter();
    let verb = words.next().ok_or_else(usage)?;
    if verb == "version" {
        print!("{}", version());
        return Ok(());
    }
    if !USAGE.iter().any(|line| line.split(' ').next() == Some(&verb)) {
        return Err(usage());
    }
    let (mut given, mut places) = (Given::default(), Vec::new());
    while let Some(word) = words.next() {
        // Words after the host are not options.
        if places.is_empty() && word.starts_with('-') {
            given.option(&word, &mut words).ok_or_else(usage)?;
        } else {
            places.push(word);
        }
    }
    let (host, arguments) = places.split_first().ok_or_else(usage)?;
    let needed = match verb.as_str() {
        "put" => 2..=2,
        "get" | "out" | "copy" | "restore" => 1..=1,
        "optimize" | "importtsv" | "setmst" => 0..=1,
        "ext" => 1..=3,
        "misc" => 1..=usize::MAX,
        "mget" => 0..=usize::MAX,
        _ => 0..=0,
    };
    if !needed.contains(&arguments.len()) {
        return Err(usage());
    }
    if verb == "http" {
        return given.http(host);
    }
    let server = ServerConnection::open(host, given.port)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    given.perform(&verb, server, arguments, &mut out)?;
    out.flush()?;
    Ok(())
}

impl Given {
    /// Parses an option. Returns `None` if it is unknown or its value is missing.
    fn option(&mut self, option: &str, words: &mut impl Iterator<Item = String>) -> Option<()> {
        let mut number = || words.next()?.parse::<i64>().ok();
        match option {
            "-port" => self.port = Some(u16::try_from(number()?).ok()?),
            "-m" => self.count_max = Some(number()?),
            "-ds" => self.shift_width = Some(u32::try_from(number()?).ok()?),
            "-ts" => self.stamp = number()?.cast_unsigned(),
            "-mport" => self.master_port = Some(u32::try_from(number()?).ok()?),
            "-sid" => self.server_id = Some(u32::try_from(number()?).ok()?),
            "-sep" => self.form.separator = Some(*words.next()?.as_bytes().first()?),
            "-fm" => self.prefix = Some(words.next()?),
            "-ah" => self.headers.push((words.next()?, words.next()?)),
            "-st" => self.shows_statistics = true,
            "-sx" => self.form.reads_hex = true,
            "-px" => self.form.writes_hex = true,
            "-pz" => self.has_no_line_end = true,
            "-pv" => self.shows_values = true,
            "-dk" => self.put_mode = Some("-dk"),
            "-dc" => self.put_mode = Some("-dc"),
            "-dai" => self.put_mode = Some("-dai"),
            "-dad" => self.put_mode = Some("-dad"),
            "-xlr" => self.lock |= 1,
            "-xlg" => self.lock |= 2,
            "-mnu" => self.is_not_logged = true,
            "-nr" => self.has_no_reply = true,
            "-sc" => self.is_lowered = true,
            "-rcc" => self.checks = true,
            "-ph" => self.shows_text = true,
            "-ih" => self.shows_head = true,
            _ => return None,
        }
        Some(())
    }

    fn options(&self) -> u32 {
        if self.checks { CHECKS_OUTCOMES } else { 0 }
    }

    fn perform(
        &self,
        verb: &str,
        mut server: ServerConnection,
        arguments: &[String],
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        let form = self.form;
        let bytes: Vec<Vec<u8>> = arguments.iter().map(|argument| form.bytes(argument)).collect();
        let text = |index: usize| arguments.get(index).map_or("", String::as_str);
        let other = ClientError::Other;
        match verb {
            "inform" => self.inform(&mut server, out)?,
            "put" => self.put(&mut server, &bytes[0], &bytes[1], text(1), out)?,
            "out" => server.ask(&TyrantRequest::Out { key: &bytes[0] }, ClientError::NoRecord)?,
            "get" => {
                server.ask(&TyrantRequest::Get { key: &bytes[0] }, ClientError::NoRecord)?;
                form.put(&server.bytes()?, out)?;
                if !self.has_no_line_end {
                    writeln!(out)?;
                }
            }
            "mget" => self.records(&mut server, &bytes, out)?,
            "list" => self.list(&mut server, out)?,
            "ext" => {
                let (name, key) = (text(0).as_bytes(), bytes.get(1).map_or(&b""[..], Vec::as_slice));
                let value = bytes.get(2).map_or(&b""[..], Vec::as_slice);
                server.ask(&TyrantRequest::Ext { name, options: self.lock, key, value }, other)?;
                form.put(&server.bytes()?, out)?;
                writeln!(out)?;
            }
            "sync" => server.ask(&TyrantRequest::Sync, other)?,
            "vanish" => server.ask(&TyrantRequest::Vanish, other)?,
            "optimize" => server.ask(&TyrantRequest::Optimize { tuning: text(0).as_bytes() }, other)?,
            "copy" => server.ask(&TyrantRequest::Copy { path: text(0).as_bytes() }, other)?,
            "misc" => {
                let fields: FieldBuffer = bytes[1..].iter().map(Vec::as_slice).collect();
                let options = if self.is_not_logged { MISC_NOT_LOGGED } else { 0 };
                let name = text(0).as_bytes();
                server.ask(&TyrantRequest::Misc { name, options, arguments: fields.list() }, other)?;
                for _ in 0..server.u32()? {
                    form.put(&server.bytes()?, out)?;
                    writeln!(out)?;
                }
            }
            "importtsv" => self.import(&mut server, arguments.first(), out)?,
            "restore" => {
                let path = text(0).as_bytes();
                let (since_micros, options) = (self.stamp, self.options());
                server.ask(&TyrantRequest::Restore { path, since_micros, options }, other)?;
            }
            "setmst" => {
                let host = text(0).as_bytes();
                let port = if host.is_empty() { 0 } else { self.master_port.unwrap_or(1978) };
                let (since_micros, options) = (self.stamp, self.options());
                server.ask(&TyrantRequest::SetMst { host, port, since_micros, options }, other)?;
            }
            _ => self.follow(&mut server, out)?,
        }
        Ok(())
    }

    fn inform(&self, server: &mut ServerConnection, out: &mut impl Write) -> Result<(), ToolFailure> {
        if self.shows_statistics {
            server.ask(&TyrantRequest::Stat, ClientError::Other)?;
            out.write_all(&server.bytes()?)?;
            return Ok(());
        }
        for (name, request) in [("record number", TyrantRequest::RNum), ("file size", TyrantRequest::Size)] {
            server.ask(&request, ClientError::Other)?;
            writeln!(out, "{name}: {}", u64::from_be_bytes(server.array()?))?;
        }
        Ok(())
    }

    fn put(
        &self,
        server: &mut ServerConnection,
        key: &[u8],
        value: &[u8],
        text: &str,
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        let put = |mode| TyrantRequest::Put { mode, key, value };
        match (self.put_mode, self.shift_width) {
            (Some("-dk"), _) => server.ask(&put(TyrantPutMode::Keep), ClientError::Existing)?,
            (Some("-dc"), _) => server.ask(&put(TyrantPutMode::Cat), ClientError::Other)?,
            (Some("-dai"), _) => {
                let delta = whole_in(text) as i32;
                server.ask(&TyrantRequest::AddInt { key, delta }, ClientError::Existing)?;
                writeln!(out, "{}", i32::from_be_bytes(server.array()?))?;
            }
            (Some(_), _) => {
                let delta = number_in(text);
                server.ask(&TyrantRequest::AddDouble { key, delta }, ClientError::Existing)?;
                writeln!(out, "{:.6}", todana_protocol::tyrant::number::decode(server.array()?))?;
            }
            (None, Some(width)) => {
                server.ask(&TyrantRequest::PutShl { key, value, width }, ClientError::Other)?;
            }
            (None, None) => server.ask(&put(TyrantPutMode::Put), ClientError::Other)?,
        }
        Ok(())
    }

    /// Prints the records of some keys.
    fn records(
        &self,
        server: &mut ServerConnection,
        keys: &[Vec<u8>],
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        let keys: FieldBuffer = keys.iter().map(Vec::as_slice).collect();
        server.ask(&TyrantRequest::MGet { keys: keys.list() }, ClientError::NoRecord)?;
        for _ in 0..server.u32()? {
            let (key_len, value_len) = (server.u32()? as usize, server.u32()? as usize);
            let (key, value) = (server.take(key_len)?, server.take(value_len)?);
            self.form.put(&key, out)?;
            out.write_all(b"\t")?;
            self.form.put(&value, out)?;
            writeln!(out)?;
        }
        Ok(())
    }

    fn list(&self, server: &mut ServerConnection, out: &mut impl Write) -> Result<(), ToolFailure> {
        let max = self.count_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let mut keys = Vec::new();
        if let Some(prefix) = &self.prefix {
            let limit = u32::try_from(max).ok();
            let prefix = self.form.bytes(prefix);
            server.ask(&TyrantRequest::FwmKeys { prefix: &prefix, limit }, ClientError::Other)?;
            for _ in 0..server.u32()? {
                keys.push(server.bytes()?);
            }
            for keys in keys.chunks(KEYS_AT_ONCE) {
                self.put_keys(server, keys, out)?;
            }
            return Ok(());
        }
        server.ask(&TyrantRequest::IterInit, ClientError::Other)?;
        let mut listed = 0;
        while listed < max {
            match server.ask(&TyrantRequest::IterNext, ClientError::NoRecord) {
                Ok(()) => keys.push(server.bytes()?),
                Err(ClientError::NoRecord) => break,
                Err(error) => return Err(error.into()),
            }
            listed += 1;
            if keys.len() == KEYS_AT_ONCE {
                self.put_keys(server, &keys, out)?;
                keys.clear();
            }
        }
        self.put_keys(server, &keys, out)
    }

    /// Prints keys, and their values if they are wanted.
    fn put_keys(
        &self,
        server: &mut ServerConnection,
        keys: &[Vec<u8>],
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        if self.shows_values && !keys.is_empty() {
            return self.records(server, keys, out);
        }
        for key in keys {
            self.form.put(key, out)?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// Stores the lines of a file. Lines without a tab are skipped.
    fn import(
        &self,
        server: &mut ServerConnection,
        path: Option<&String>,
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        let mode = if self.has_no_reply { TyrantPutMode::NoReply } else { TyrantPutMode::Put };
        tsv_input::import(path, self.is_lowered, out, |key, value| {
            if let Some(separator) = self.form.separator {
                value.iter_mut().filter(|byte| **byte == separator).for_each(|byte| *byte = 0);
            }
            let request = TyrantRequest::Put { mode, key, value };
            match mode {
                TyrantPutMode::NoReply => server.send(&request)?,
                _ => server.ask(&request, ClientError::Other)?,
            }
            Ok(())
        })?;
        if self.has_no_reply {
            // The reply to this request shows that the server has received all records before it.
            server.ask(&TyrantRequest::RNum, ClientError::Other)?;
        }
        Ok(())
    }

    /// Prints the changes of a master until the connection ends.
    fn follow(&self, server: &mut ServerConnection, out: &mut impl Write) -> Result<(), ToolFailure> {
        let server_id = self.server_id.unwrap_or(u32::from(u16::MAX));
        server.send(&TyrantRequest::Repl { since_micros: self.stamp.max(1), server_id })?;
        let master_id = server.u32()? as u16;
        loop {
            match server.byte()? {
                None => return Ok(()),
                Some(update_log::RECORD) => {
                    let stamp_micros = u64::from_be_bytes(server.array()?);
                    let server_id = server.u32()? as u16;
                    let body = server.bytes()?;
                    let record = update_log::LogRecord { stamp_micros, server_id, master_id, body: &body };
                    let mut bytes = Vec::new();
                    if self.shows_text {
                        log_text::put_line(&record, &mut bytes);
                    } else {
                        record.put(&mut bytes);
                    }
                    out.write_all(&bytes)?;
                    out.flush()?;
                }
                // Such a message contains no change.
                Some(_) => {}
            }
        }
    }

    fn http(&self, url: &str) -> Result<(), ToolFailure> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, port) = match host.rsplit_once(':') {
            Some((name, digits)) => match digits.parse() {
                Ok(port) => (name, port),
                Err(_) => return Err(ClientError::HostNotFound.into()),
            },
            None => (host, 80),
        };
        let mut head = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        self.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        let answer = ServerConnection::open(name, Some(port))?.exchange(head.as_bytes())?;
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or(ClientError::Receive)?;
        let mut out = std::io::stdout().lock();
        if self.shows_head {
            let head = String::from_utf8_lossy(&answer[..end + 4]).replace("\r\n", "\n");
            out.write_all(head.as_bytes())?;
        }
        out.write_all(&answer[end + 4..])?;
        Ok(())
    }
}
