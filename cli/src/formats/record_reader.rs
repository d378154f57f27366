//! Reads record files in all formats.

use super::{
    ChangeSink, FileChange, InputFormat, LoadOptions, LoadTally, LoadedRecord, StoreProblem, expiry_of,
    ttulog, ulog,
};
use crate::amount::amount;
use crate::progress::bytes_read;
use crate::{CommandFailure, tsv};
use indicatif::ProgressBar;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use todana::kyoto::{DumpFailure, UnreadBytes, read_dump};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::snapshot::SnapshotHead;
use todana_server::read_snapshot;

/// The number of bytes by which a format is detected.
const MARK_LEN: usize = 6;

/// Passes the changes of a file to `see` and shows a progress bar. The file `-` is standard input.
pub(crate) fn read(
    file: &Path,
    options: &LoadOptions,
    tally: &mut LoadTally,
    see: &mut ChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let is_directory = file != Path::new("-") && file.is_dir();
    match options.format {
        None if is_directory && !ttulog::files(file)?.is_empty() => {
            return ttulog::read_directory(file, options, tally, see);
        }
        Some(InputFormat::Ttulog) if is_directory => {
            return ttulog::read_directory(file, options, tally, see);
        }
        None if is_directory => return ulog::read(file, options, tally, see),
        Some(InputFormat::Ulog) => return ulog::read(file, options, tally, see),
        Some(_) if is_directory => {
            return Err(CommandFailure::usage(format!(
                "{}: is a directory; only the formats ulog and ttulog are read from a directory",
                file.display()
            )));
        }
        _ => {}
    }
    if let Some(problem) = todana::cabinet_file_problem(file) {
        return Err(CommandFailure::usage(format!("{}: {problem}", file.display())));
    }
    let is_log = options.format == Some(InputFormat::Ttulog);
    if (options.since.is_some() && !is_log) || options.of_database.is_some() {
        return Err(CommandFailure::usage("--since and --of-database: need an update log (ulog)"));
    }
    let (input, bar) = input(file)?;
    let outcome = {
        let mut window = UnreadBytes::new(bar.wrap_read(input));
        let format = match options.format {
            Some(format) => Ok(format),
            None => at_least(&mut window, MARK_LEN).map(|()| recognised(window.unread())),
        };
        if options.format == Some(InputFormat::Ttulog) {
            return ttulog::read_text(file, window, options, tally, see);
        }
        let mut reading = RecordReader { file, options, tally, see };
        match format.map_err(|error| CommandFailure::of_file(file, error))? {
            InputFormat::Ktss => reading.snapshot(window),
            InputFormat::Kcss => reading.read_dump_records(window),
            InputFormat::Kc => reading.database_file(window),
            InputFormat::Ulog | InputFormat::Ttulog => Err(CommandFailure::usage(format!(
                "{}: is a file; an update log of Kyoto Tycoon is a directory",
                file.display()
            ))),
            format => reading.lines(window, format),
        }
    };
    bar.finish_and_clear();
    outcome
}

/// Returns the format that the first bytes of a file indicate.
fn recognised(bytes: &[u8]) -> InputFormat {
    match bytes.get(..MARK_LEN) {
        Some(b"KTSS\n\0") => InputFormat::Ktss,
        Some(b"KCSS\n\0") => InputFormat::Kcss,
        Some([b'K', b'C', b'\n', 0, ..]) => InputFormat::Kc,
        _ => InputFormat::Tsv,
    }
}

/// Opens a file, and returns it with a progress bar for the bytes that are read.
fn input(file: &Path) -> Result<(Box<dyn Read>, ProgressBar), CommandFailure> {
    let (input, len): (Box<dyn Read>, _) = if file == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let opened = File::open(file).map_err(|error| CommandFailure::of_file(file, error))?;
        let len = opened.metadata().map(|metadata| metadata.len()).ok();
        (Box::new(opened), len)
    };
    Ok((input, bytes_read(len)))
}

/// Reads one file.
pub(super) struct RecordReader<'r, 's> {
    pub(super) file: &'r Path,
    pub(super) options: &'r LoadOptions,
    pub(super) tally: &'r mut LoadTally,
    pub(super) see: &'r mut ChangeSink<'s>,
}

impl RecordReader<'_, '_> {
    /// Returns the failure for a place of the file.
    fn at(&self, place: &dyn Display, what: &dyn Display) -> CommandFailure {
        CommandFailure::trouble(format!("{}, {place}: {what}", self.file.display()))
    }

    pub(super) fn at_byte(&self, offset: u64, what: &dyn Display) -> CommandFailure {
        self.at(&format_args!("byte {offset}"), what)
    }

    pub(super) fn io(&self, error: io::Error) -> CommandFailure {
        CommandFailure::of_file(self.file, error)
    }

    /// Passes on a record of a Kyoto format, whose value may start with the expiry.
    pub(super) fn put(
        &mut self,
        place: &dyn Display,
        key: &[u8],
        stored: &StoredValue<'_>,
    ) -> Result<(), CommandFailure> {
        let stored = stored.as_raw().unwrap_or_default();
        let (expiry, value) = self.options.split(stored).map_err(|what| self.at(place, &what))?;
        self.show(place, FileChange::Put(LoadedRecord { key, value, flags: 0, expiry }))
    }

    /// Passes on a change. A refused record is counted and skipped, because the next record may be
    /// accepted.
    pub(super) fn show(&mut self, place: &dyn Display, change: FileChange<'_>) -> Result<(), CommandFailure> {
        match (self.see)(change, self.tally) {
            Ok(()) => Ok(()),
            Err(StoreProblem::ToAll(failure)) => Err(failure),
            Err(StoreProblem::ToRecord(what)) => {
                let file = self.file.display();
                self.tally.refuse(|| format!("the record of {file}, {place}: {what}"));
                Ok(())
            }
        }
    }

    fn snapshot<R: Read>(&mut self, mut window: UnreadBytes<R>) -> Result<(), CommandFailure> {
        let (mut promised, mut found) = (0, 0u64);
        let mut timestamp = None;
        // The failure that ended the reading before the end of the file.
        let mut failure = None;
        let mut begin = |head: SnapshotHead| {
            promised = head.count;
            timestamp = Some(head.timestamp);
            Ok(())
        };
        let mut see = |key: &[u8], stored: &StoredValue<'_>| {
            found += 1;
            self.put(&format_args!("record {found}"), key, stored).map_err(|why| {
                failure = Some(why);
                String::new()
            })
        };
        let outcome = read_snapshot(&mut window, &mut begin, &mut see);
        self.tally.timestamp = timestamp;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let file = self.file.display();
        outcome.map_err(|error| CommandFailure::trouble(format!("{file}: {error}")))?;
        // If a file is cut off between two records, only the count in its head shows that.
        if found < promised {
            let found = amount(found, "record");
            return Err(CommandFailure::trouble(format!(
                "{file}: ends after {found}, but its head announces {promised}; it is cut, or records disappeared while it was written"
            )));
        }
        Ok(())
    }

    fn read_dump_records<R: Read>(&mut self, mut window: UnreadBytes<R>) -> Result<(), CommandFailure> {
        let mut see =
            |at: u64, key: &[u8], stored: &StoredValue<'_>| self.put(&format_args!("byte {at}"), key, stored);
        match read_dump(&mut window, usize::MAX, &mut see) {
            Ok(beyond) => {
                // If Kyoto Cabinet's tools dump to standard output, they append progress messages
                // to the dump.
                let beyond =
                    beyond + io::copy(&mut window, &mut io::sink()).map_err(|error| self.io(error))?;
                if beyond > 0 {
                    eprintln!("todana: {beyond} bytes after the end of the dump are left out");
                }
                Ok(())
            }
            Err(DumpFailure::Stopped(failure)) => Err(failure),
            Err(DumpFailure::Unreadable(error)) => Err(self.io(error)),
            Err(DumpFailure::Cut { offset }) => Err(self.cut(offset)),
            Err(DumpFailure::Damaged { offset, what }) => Err(self.at_byte(offset, &what)),
            Err(DumpFailure::TooLong { offset }) => Err(self.at_byte(offset, &"a record is too long")),
        }
    }

    pub(super) fn cut(&self, offset: u64) -> CommandFailure {
        self.at_byte(offset, &"the file ends within the record that begins here; it is cut")
    }

    fn lines<R: Read>(
        &mut self,
        mut window: UnreadBytes<R>,
        format: InputFormat,
    ) -> Result<(), CommandFailure> {
        let (mut number, mut last_key, mut is_skipped) = (0u64, None, false);
        while let Some((end, next)) = line(&mut window).map_err(|error| self.io(error))? {
            number += 1;
            let (file, text) = (self.file.display(), &window.unread()[..end]);
            let at = |what: &dyn Display| CommandFailure::usage(format!("{file}, line {number}: {what}"));
            let line = match format {
                InputFormat::TsvHex | InputFormat::Tcbmgr => hex_line(text),
                InputFormat::TsvRaw => raw_line(text),
                InputFormat::Tcfmgr => numbered_line(text),
                InputFormat::Tctmgr => row_line(text),
                _ => tsv::parse(text),
            };
            let line = line.map_err(|what| at(&what))?;
            let tsv::TsvLine { key, value, flags, expiry, is_further } = line;
            let is_same_key = last_key.as_ref() == Some(&key);
            if is_further && !is_same_key {
                return Err(at(&tsv::FURTHER_WITHOUT_KEY));
            }
            // The list of a tree has the values of a key in successive lines.
            let adds_value = is_further || (format == InputFormat::Tcbmgr && is_same_key);
            let change = if adds_value {
                FileChange::AddValue { key: &key, value: &value }
            } else {
                FileChange::Put(LoadedRecord { key: &key, value: &value, flags, expiry })
            };
            let skipped = self.tally.skipped;
            // The further values of an expired record are not stored either.
            match if adds_value && is_skipped { Ok(()) } else { (self.see)(change, self.tally) } {
                Ok(()) => {}
                Err(StoreProblem::ToAll(failure)) => return Err(failure),
                Err(StoreProblem::ToRecord(what)) => return Err(at(&what)),
            }
            is_skipped = (adds_value && is_skipped) || self.tally.skipped > skipped;
            last_key = Some(key);
            window.consume(next);
        }
        Ok(())
    }
}

/// Reads until at least `len` unused bytes are in the buffer, or the file ends.
pub(super) fn at_least<R: Read>(input: &mut UnreadBytes<R>, len: usize) -> io::Result<()> {
    while input.unread().len() < len && input.read_more(len)? > 0 {}
    Ok(())
}

/// Reads a line. Returns its length without and with the line end, or `None` at the end of the
/// file.
fn line<R: Read>(input: &mut UnreadBytes<R>) -> io::Result<Option<(usize, usize)>> {
    let mut seen = 0;
    loop {
        if let Some(at) = input.unread()[seen..].iter().position(|&byte| byte == b'\n') {
            return Ok(Some((seen + at, seen + at + 1)));
        }
        seen = input.unread().len();
        if input.read_more(usize::MAX)? == 0 {
            return Ok((seen > 0).then_some((seen, seen)));
        }
    }
}

/// Parses a line without escapes, as Kyoto's tools print it.
fn raw_line(line: &[u8]) -> Result<tsv::TsvLine, &'static str> {
    let mut columns = line.split(|&byte| byte == b'\t');
    match (columns.next(), columns.next(), columns.next()) {
        (Some(key), Some(value), None) => {
            Ok(tsv::TsvLine { key: key.to_vec(), value: value.to_vec(), ..tsv::TsvLine::default() })
        }
        (_, None, _) => Err("no tab between key and value"),
        _ => Err("more than two columns; list with -px, which escapes tabs, and load as tsv-hex"),
    }
}

/// Parses a line that was printed with -px, with or without -pt.
fn hex_line(line: &[u8]) -> Result<tsv::TsvLine, &'static str> {
    let mut columns = line.split(|&byte| byte == b'\t');
    let key = unhex(columns.next().unwrap_or_default())?;
    let value = unhex(columns.next().ok_or("no tab between key and value")?)?;
    let expiry = match columns.next() {
        None => tsv::TsvExpiry::default(),
        Some(time) => {
            let time = std::str::from_utf8(time).ok().and_then(|time| time.trim().parse().ok());
            expiry_of(time.ok_or("the time is not a number")?)
        }
    };
    match columns.next() {
        Some(_) => Err("more than three columns"),
        None => Ok(tsv::TsvLine { key, value, expiry, ..tsv::TsvLine::default() }),
    }
}

/// Parses a line of `tcfmgr list -pv -px`, which prints the number in decimal and only the value in
/// hexadecimal.
fn numbered_line(line: &[u8]) -> Result<tsv::TsvLine, &'static str> {
    let mut columns = line.split(|&byte| byte == b'\t');
    let key = columns.next().unwrap_or_default().to_vec();
    let value = unhex(columns.next().ok_or("no tab between number and value")?)?;
    match columns.next() {
        None if !key.is_empty() && key.iter().all(u8::is_ascii_digit) => {
            Ok(tsv::TsvLine { key, value, ..tsv::TsvLine::default() })
        }
        None => Err("the first column is not a decimal number"),
        Some(_) => Err("more than two columns"),
    }
}

/// Parses a line of `tctmgr list -pv -px`: the key, then names and values of columns. A row without
/// columns has only its key.
fn row_line(line: &[u8]) -> Result<tsv::TsvLine, &'static str> {
    let mut columns = line.split(|&byte| byte == b'\t').map(unhex);
    let key = columns.next().unwrap_or_else(|| Ok(Vec::new()))?;
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    if columns.len() % 2 == 1 {
        return Err("a column has a name and no value");
    }
    // Zero bytes separate the columns of a stored row.
    if columns.iter().any(|column| column.contains(&0)) || columns.iter().step_by(2).any(Vec::is_empty) {
        return Err("the name of a column is empty, or a column contains a zero byte");
    }
    Ok(tsv::TsvLine { key, value: columns.join(&0), ..tsv::TsvLine::default() })
}

fn unhex(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or("a column is not hexadecimal");
    let mut bytes = Vec::with_capacity(text.len() / 3 + 1);
    let mut digits = text.iter().filter(|byte| !matches!(byte, b' ' | b'\r'));
    while let Some(&high) = digits.next() {
        let &low = digits.next().ok_or("a column has half a byte in hexadecimal")?;
        bytes.push((digit(high)? << 4 | digit(low)?) as u8);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_kyoto_tools_are_parsed() {
        let line = hex_line(b"61 09 62\t78 0A 01\t1795418853").unwrap();
        assert_eq!(
            (&line.key[..], &line.value[..], line.expiry.at),
            (&b"a\tb"[..], &b"x\n\x01"[..], 1795418854)
        );
        let line = hex_line(b"6a61\t\t9223372036854775807").unwrap();
        assert_eq!((&line.key[..], &line.value[..], line.expiry.at), (&b"ja"[..], &b""[..], 0));
        for (text, part) in [
            ("61", "no tab"),
            ("6\t61", "half"),
            ("61\tzz", "hexadecimal"),
            ("61\t62\tx", "time"),
            ("6a\t\t1\t1", "three"),
        ] {
            assert!(hex_line(text.as_bytes()).unwrap_err().contains(part), "{text}");
        }
        let line = raw_line(b"a\\tb\tc\\").unwrap();
        assert_eq!((&line.key[..], &line.value[..]), (&b"a\\tb"[..], &b"c\\"[..]));
        assert!(raw_line(b"a\tb\tc").unwrap_err().contains("-px"));
        assert!(raw_line(b"a").unwrap_err().contains("no tab"));
    }

    /// The lines are output of Tokyo Cabinet 1.4.48.
    #[test]
    fn lines_of_tokyo_tools_are_parsed() {
        let numbered = numbered_line(b"12\t61 09 62").unwrap();
        assert_eq!((&numbered.key[..], &numbered.value[..]), (&b"12"[..], &b"a\tb"[..]));
        let row = row_line(b"70 31\t6E 61 6D 65\t62 6F 62\t61 67 65\t").unwrap();
        assert_eq!((&row.key[..], &row.value[..]), (&b"p1"[..], &b"name\0bob\0age\0"[..]));
        let bare = row_line(b"70 32").unwrap();
        assert_eq!((&bare.key[..], &bare.value[..]), (&b"p2"[..], &b""[..]));
        for text in ["12", "\t62", "1\t6", "a\t62", "1\t62\t63"] {
            assert!(numbered_line(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["70\t6E", "70\t6E\t00", "70\t\t61", "7", "70\tzz\t61"] {
            assert!(row_line(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_may_have_any_length() {
        let long = vec![b'x'; 1 << 20];
        let text = [&b"a\n\n"[..], &long, b"\nlast"].concat();
        let mut input = UnreadBytes::new(&text[..]);
        let mut lines = Vec::new();
        while let Some((end, next)) = line(&mut input).unwrap() {
            lines.push(input.unread()[..end].to_vec());
            input.consume(next);
        }
        assert_eq!(lines, [b"a".to_vec(), b"".to_vec(), long, b"last".to_vec()]);
    }

    #[test]
    fn formats_are_recognised_by_their_first_bytes() {
        assert_eq!(recognised(b"KTSS\n\0\0\0"), InputFormat::Ktss);
        assert_eq!(recognised(b"KCSS\n\0"), InputFormat::Kcss);
        assert_eq!(recognised(b"KC\n\0\x10\x0d"), InputFormat::Kc);
        for text in [&b"KTSS\n"[..], b"", b"KTSS\tvalue"] {
            assert_eq!(recognised(text), InputFormat::Tsv);
        }
    }
}
