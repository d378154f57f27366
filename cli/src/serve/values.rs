//! Parses the values of options, with errors in plain words.

use crate::suggestions::did_you_mean_database;
use crate::time_to_live;
use clap::ValueEnum;
use std::time::Duration;
use todana_server::{CheckpointCompression, DatabaseName, EvictionGoal, IoMode, SyncPolicy};

/// Whether clients need a certificate.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ClientCertificates {
    /// Clients are not asked for a certificate
    Off,
    /// A client may send a certificate; an invalid certificate is refused
    Optional,
    /// Every client must send a valid certificate
    Required,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsVersion {
    #[value(name = "1.2")]
    V1_2,
    #[value(name = "1.3")]
    V1_3,
}

/// The words of `-o` that have an effect. Under the name `memcached`, all of memcached's words are
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExtendedWord {
    #[value(name = "negative_exptime=sliding")]
    NegativeIsSliding,
    #[value(name = "negative_exptime=expired")]
    NegativeIsExpired,
    #[value(name = "debug_commands")]
    DebugCommands,
    #[value(name = "emulate_full")]
    EmulateFull,
}

/// The use of dictionaries and key shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordCompression {
    /// Where they make records shorter
    Auto,
    Never,
}

/// The protocol that connections may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServedProtocol {
    Auto,
    Ascii,
    Binary,
}

/// The interface of the system by which the server receives and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SocketInterface {
    /// io_uring if the system allows it, otherwise epoll; `todana proxy` then uses epoll
    Auto,
    /// io_uring; the server does not start if the system does not allow it
    Uring,
    /// epoll
    Epoll,
}

impl From<SocketInterface> for IoMode {
    fn from(interface: SocketInterface) -> IoMode {
        match interface {
            SocketInterface::Auto => IoMode::Auto,
            SocketInterface::Uring => IoMode::Uring,
            SocketInterface::Epoll => IoMode::Epoll,
        }
    }
}

/// The compression of snapshots.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SnapshotPacking {
    None,
    Zlib,
}

/// The purpose of evictions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EvictedFor {
    Objects,
    Bytes,
}

impl From<EvictedFor> for EvictionGoal {
    fn from(goal: EvictedFor) -> EvictionGoal {
        match goal {
            EvictedFor::Objects => EvictionGoal::Objects,
            EvictedFor::Bytes => EvictionGoal::Bytes,
        }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogLineFormat {
    /// One line of text per event
    Text,
    /// One JSON object per line
    Json,
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    // Deployment tools pass `-m 8192` as one word, so the value starts with a blank.
    let text = text.trim();
    text.parse().map_err(|_| match text.parse::<i128>() {
        Ok(_) => "out of range".into(),
        Err(_) => "must be a whole number".into(),
    })
}

pub(super) fn port(text: &str) -> Result<i32, String> {
    match number::<i32>(text)? {
        port @ -1..=65535 => Ok(port),
        port => Err(format!("must be -1 to 65535, not {port}")),
    }
}

/// The default of `--sync`.
pub(crate) const SYNC_DEFAULT: SyncPolicy = SyncPolicy::Every(Duration::from_secs(1));

pub(crate) fn sync(text: &str) -> Result<SyncPolicy, String> {
    match text.trim() {
        "always" => Ok(SyncPolicy::Always),
        "never" => Ok(SyncPolicy::Never),
        text => match text.parse() {
            Ok(ms @ 1..=3_600_000) => Ok(SyncPolicy::Every(Duration::from_millis(ms))),
            _ => Err("must be always, never or 1 to 3600000 milliseconds".into()),
        },
    }
}

pub(super) fn database(text: &str) -> Result<DatabaseName, String> {
    DatabaseName::parse(text).map_err(|error| format!("{error}{}", did_you_mean_database(text)))
}

/// Parses a duration of at least a second: `90`, `5m`, `1h`, `2d`.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    match time_to_live::seconds(text)? {
        seconds @ 1.. => Ok(seconds as u64),
        _ => Err("must be at least 1".into()),
    }
}

/// Parses a duration, which may be 0.
pub(super) fn idle_timeout(text: &str) -> Result<u32, String> {
    u32::try_from(time_to_live::seconds(text)?).map_err(|_| "out of range".into())
}

/// Parses a size in MiB, or with a unit: `1024`, `512m`, `1G`.
pub(crate) fn mebibytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit_mib) = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => return Err("must be at least 1 MiB; give MiB, or m, g or t after the number".into()),
        Some('m') => (&text[..text.len() - 1], 1),
        Some('g') => (&text[..text.len() - 1], 1 << 10),
        Some('t') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    number::<u64>(digits)?.checked_mul(unit_mib).ok_or_else(|| "out of range".into())
}

/// Parses a size of at least 4k, so that there is space for more than a header and a name.
pub(super) fn some_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size < 4096 { Err("must be at least 4k".into()) } else { Ok(size) })
}

pub(super) fn compression(text: &str) -> Result<CheckpointCompression, String> {
    let wrong = || "must be none, zstd or zstd:1 to zstd:22".to_string();
    match text.trim().split_once(':') {
        None if text.trim() == "none" => Ok(CheckpointCompression::None),
        None if text.trim() == "zstd" => Ok(CheckpointCompression::Zstd(1)),
        Some(("zstd", level)) => {
            let level = level.parse().ok().filter(|level| (1..=22).contains(level));
            level.map(CheckpointCompression::Zstd).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

pub(super) fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text.trim(), 8).map_err(|_| "must be an octal number".into())
}

pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        &[delimiter] if delimiter.is_ascii_graphic() => Ok(delimiter),
        _ => Err("must be a single character that is allowed in keys".into()),
    }
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => (&text[..text.len() - 1], 1 << 10),
        Some('m') => (&text[..text.len() - 1], 1 << 20),
        Some('g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "must be a number, optionally with k, m or g after it")?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_their_units() {
        for (text, value) in [("1024", 1024), ("2k", 2048), ("1m", 1 << 20), (" 1G", 1 << 30)] {
            assert_eq!(size(text), Ok(value));
        }
        for text in ["", "m", "1t", "-1", "99999999999999999999k"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn memory_is_in_mebibytes_by_default() {
        for (text, value) in
            [("64", 64), (" 8192", 8192), ("512m", 512), ("1G", 1024), ("2t", 2 << 20), ("0", 0)]
        {
            assert_eq!(mebibytes(text), Ok(value), "{text}");
        }
        assert!(mebibytes("1k").unwrap_err().starts_with("must be at least 1 MiB"));
        for (text, wrong) in
            [("g", "must be a whole number"), ("1.5g", "must be a whole number"), ("-1", "out of range")]
        {
            assert_eq!(mebibytes(text), Err(wrong.into()), "{text}");
        }
        assert_eq!(mebibytes("18446744073709551615g"), Err("out of range".into()));
    }

    #[test]
    fn compression_has_its_levels() {
        assert_eq!(compression("none"), Ok(CheckpointCompression::None));
        assert_eq!(compression("zstd"), Ok(CheckpointCompression::Zstd(1)));
        assert_eq!(compression(" zstd:19"), Ok(CheckpointCompression::Zstd(19)));
        for text in ["", "zstd:", "zstd:0", "zstd:23", "gzip", "none:1"] {
            assert!(compression(text).is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_numbers_differ_from_large_ones() {
        assert_eq!(number::<u64>(" 8192"), Ok(8192));
        for text in ["", "1g", "1.5", "x"] {
            assert_eq!(number::<u64>(text), Err("must be a whole number".into()), "{text:?}");
        }
        assert_eq!(number::<u64>("-3"), Err("out of range".into()));
        assert_eq!(number::<u32>("4294967296"), Err("out of range".into()));
    }
}
