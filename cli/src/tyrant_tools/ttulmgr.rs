//! `ttulmgr`: converts update logs of Tokyo Tyrant to text and back.

use super::ToolFailure;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use todana::tyrant::{TyrantLogFile, log_files, read_log_file};
use todana_protocol::tyrant::log_text::{LogLine, parse_line, put_line};
use todana_protocol::tyrant::update_log::file_name;

const USAGE: [&str; 2] = ["export [-ts num] [-sid num] upath", "import upath"];

/// When a file has this length, a new one is started.
const FILE_LEN_MAX: u64 = 1 << 30;

pub(super) fn run(program: &str, words: Vec<String>) -> Result<(), ToolFailure> {
    let usage = || ToolFailure::usage(program, "update logs of Tokyo Tyrant as text", &USAGE);
    let mut words = words.into_iter();
    let verb = words.next().ok_or_else(usage)?;
    let (mut since, mut server_id, mut path) = (0, None, None);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(usage);
        match word.as_str() {
            "-ts" if verb == "export" && path.is_none() => since = number()?,
            "-sid" if verb == "export" && path.is_none() => server_id = Some(number()?),
            _ if path.is_none() && !word.starts_with('-') => path = Some(PathBuf::from(word)),
            _ => return Err(usage()),
        }
    }
    let path = path.ok_or_else(usage)?;
    match verb.as_str() {
        "export" => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            export(&path, since, server_id, &mut out)?;
            out.flush()?;
            Ok(())
        }
        "import" => import(&path, &mut std::io::stdin().lock()),
        _ => Err(usage()),
    }
}

/// Returns the files of a log, in order.
fn files(directory: &Path) -> Result<Vec<TyrantLogFile>, ToolFailure> {
    log_files(directory).map_err(|error| ToolFailure(format!(": {}: {error}", directory.display())))
}

/// Prints the records of a directory from a time stamp on. If a server ID is given, leaves out the
/// records that this server has made or passed on, as for a replica.
fn export(
    directory: &Path,
    since: u64,
    server_id: Option<u64>,
    out: &mut impl Write,
) -> Result<(), ToolFailure> {
    let mut line = Vec::new();
    for file in files(directory)? {
        // Bytes that are no record end a file, as they do for a server.
        read_log_file(File::open(file.path)?, ToolFailure::from, &mut |_, record| {
            let ids = [record.server_id, record.master_id].map(u64::from);
            let is_wanted = server_id.is_none_or(|server_id| !ids.contains(&server_id));
            if record.stamp_micros >= since && is_wanted {
                line.clear();
                put_line(record, &mut line);
                out.write_all(&line)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Appends the records of a text to the log of a directory.
fn import(directory: &Path, input: &mut impl BufRead) -> Result<(), ToolFailure> {
    let mut number = files(directory)?.last().map_or(1, |file| file.number);
    let mut log = open(directory, number)?;
    let (mut line, mut body, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let mut count = 0_u64;
    while input.read_until(b'\n', &mut line)? > 0 {
        count += 1;
        match parse_line(line.strip_suffix(b"\n").unwrap_or(&line), &mut body) {
            LogLine::Record(record) => {
                bytes.clear();
                record.put(&mut bytes);
                log.write_all(&bytes)?;
            }
            LogLine::Damaged => {
                eprintln!("line {count}: the record was damaged when it was exported; skipped")
            }
            LogLine::Malformed if line.trim_ascii().is_empty() => {}
            LogLine::Malformed => return Err(ToolFailure(format!(": error: line {count}: is no record"))),
        }
        line.clear();
        if log.metadata()?.len() >= FILE_LEN_MAX {
            number += 1;
            log = open(directory, number)?;
        }
    }
    log.sync_all()?;
    Ok(())
}

fn open(directory: &Path, number: u32) -> Result<File, ToolFailure> {
    let path = directory.join(file_name(number));
    let opened = OpenOptions::new().append(true).create(true).open(&path);
    opened.map_err(|error| ToolFailure(format!(": error: {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::{export, import};

    const TEXT: &str = "1000\t7:0\tput\tC8 10 00 00 00 01 00 00 00 01 6B 76 00\n\
                        2000\t8:7\tout\tC8 20 00 00 00 01 6B 01\n";

    fn exported(directory: &std::path::Path, since: u64, server_id: Option<u64>) -> String {
        let mut out = Vec::new();
        export(directory, since, server_id, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn imported_records_are_exported() {
        let folder = tempfile::tempdir().unwrap();
        import(folder.path(), &mut TEXT.as_bytes()).unwrap();
        assert!(folder.path().join("00000001.ulog").exists());
        assert_eq!(exported(folder.path(), 0, None), TEXT);
        let second = &TEXT[TEXT.find('\n').unwrap() + 1..];
        assert_eq!(exported(folder.path(), 1001, None), second);
        assert_eq!(exported(folder.path(), 0, Some(9)), TEXT);
        assert_eq!(exported(folder.path(), 0, Some(8)), TEXT[..TEXT.len() - second.len()]);
        assert_eq!(exported(folder.path(), 0, Some(7)), "");
        import(folder.path(), &mut second.as_bytes()).unwrap();
        assert_eq!(exported(folder.path(), 0, None), format!("{TEXT}{second}"));
        assert!(import(folder.path(), &mut &b"rubbish\n"[..]).is_err());
    }

    #[test]
    fn torn_record_ends_a_file() {
        let folder = tempfile::tempdir().unwrap();
        import(folder.path(), &mut TEXT.as_bytes()).unwrap();
        let path = folder.path().join("00000001.ulog");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(exported(folder.path(), 0, None).lines().count(), 1);
    }
}
