//! Parses and checks memcached's command line.
//!
//! Not here: whether the server can satisfy the settings (`mapping`).

use super::extended::ExtendedSettings;
use super::getopt::{GivenOption, OptionSpec, OptionWords, flag, valued};
use super::number::{leading_fraction, leading_integer, starts_with_number};
use super::server_failure::ServerFailure;
use super::usage;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// All options, in the order in which messages list them.
const SWITCHES: [OptionSpec; 37] = [
    flag(b'A', "enable-shutdown"),
    valued(b'a', "unix-mask"),
    flag(b'Z', "enable-ssl"),
    valued(b'p', "port"),
    valued(b's', "unix-socket"),
    valued(b'U', "udp-port"),
    valued(b'm', "memory-limit"),
    flag(b'M', "disable-evictions"),
    valued(b'c', "conn-limit"),
    flag(b'k', "lock-memory"),
    flag(b'h', "help"),
    flag(b'i', "license"),
    flag(b'V', "version"),
    flag(b'r', "enable-coredumps"),
    flag(b'v', "verbose"),
    flag(b'd', "daemon"),
    valued(b'l', "listen"),
    valued(b'u', "user"),
    valued(b'P', "pidfile"),
    valued(b'f', "slab-growth-factor"),
    valued(b'n', "slab-min-size"),
    valued(b't', "threads"),
    valued(b'D', ""),
    flag(b'L', "enable-largepages"),
    valued(b'R', "max-reqs-per-event"),
    flag(b'C', "disable-cas"),
    valued(b'b', "listen-backlog"),
    valued(b'B', "protocol"),
    valued(b'I', "max-item-size"),
    flag(b'S', "enable-sasl"),
    flag(b'F', "disable-flush-all"),
    flag(b'X', "disable-dumping"),
    flag(b'W', "disable-watch"),
    valued(b'Y', "auth-file"),
    valued(b'e', "memory-file"),
    valued(b'o', "extended"),
    valued(b'N', "napi-ids"),
];

/// With more worker threads than this, memcached prints a warning.
const THREADS_ADVISED: usize = 64;
const ITEM_SIZE_MIN: u64 = 1024;
const ITEM_SIZE_MAX: u64 = 1 << 30;

/// The value of a port option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortChoice {
    Off,
    /// The system chooses the port.
    Any,
    Number(u16),
}

/// The protocol that connections may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedProtocol {
    /// The first byte of a connection selects the protocol.
    Auto,
    Ascii,
    Binary,
}

/// The settings of a server, as the command line states them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemcachedSettings {
    pub(super) tcp_port: PortChoice,
    pub(super) udp_port: PortChoice,
    pub(super) unix_socket: Option<PathBuf>,
    /// The permissions of the Unix socket.
    pub(super) unix_mask: u32,
    /// The values of all `-l` options, joined by commas; `None` for all addresses.
    pub(super) listen: Option<String>,
    pub(super) listen_backlog: u32,
    pub(super) protocol: AcceptedProtocol,
    pub(super) tls: bool,
    pub(super) sasl: bool,
    /// The file of users and passwords for the text protocol.
    pub(super) auth_file: Option<PathBuf>,
    pub(super) memory_limit_mib: u64,
    pub(super) refuse_when_full: bool,
    pub(super) item_size_max: u64,
    pub(super) connections_max: usize,
    pub(super) threads: usize,
    pub(super) requests_per_event: u32,
    pub(super) verbosity: u8,
    pub(super) daemon: bool,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) core_dumps: bool,
    pub(super) lock_memory: bool,
    pub(super) shutdown_allowed: bool,
    pub(super) flush_allowed: bool,
    pub(super) dump_allowed: bool,
    pub(super) watch_allowed: bool,
    pub(super) cas_enabled: bool,
    /// The character at which a key's prefix ends. Statistics are counted by prefix.
    pub(super) prefix_delimiter: Option<u8>,
    /// The path of `-e`.
    pub(super) memory_file: Option<PathBuf>,
    pub(super) extended: ExtendedSettings,
    /// The letters of all given options, in order and each once.
    pub(super) given: Vec<u8>,
    /// Warnings that are printed on standard error at any verbosity.
    pub(super) warnings: Vec<String>,
}

impl Default for MemcachedSettings {
    fn default() -> Self {
        MemcachedSettings {
            tcp_port: PortChoice::Number(11211),
            udp_port: PortChoice::Off,
            unix_socket: None,
            unix_mask: 0o700,
            listen: None,
            listen_backlog: 1024,
            protocol: AcceptedProtocol::Auto,
            tls: false,
            sasl: false,
            auth_file: None,
            memory_limit_mib: 64,
            refuse_when_full: false,
            item_size_max: 1 << 20,
            connections_max: 1024,
            threads: 4,
            requests_per_event: 20,
            verbosity: 0,
            daemon: false,
            pid_file: None,
            user: None,
            core_dumps: false,
            lock_memory: false,
            shutdown_allowed: false,
            flush_allowed: true,
            dump_allowed: true,
            watch_allowed: true,
            cas_enabled: true,
            prefix_delimiter: None,
            memory_file: None,
            extended: ExtendedSettings::default(),
            given: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// The action that a command line requests.
#[derive(Debug)]
pub(super) enum MemcachedStart {
    /// Print a text and exit.
    Print(String),
    Serve(Box<MemcachedSettings>),
}

impl MemcachedSettings {
    /// Parses a command line. As in memcached, the first wrong option is reported. If `-h` or `-V`
    /// comes before it, the text of that option is printed instead.
    pub(super) fn read(program: &str, words: Vec<OsString>) -> Result<MemcachedStart, ServerFailure> {
        let mut settings = MemcachedSettings::default();
        for given in OptionWords::new(&SWITCHES, words) {
            let given = given.map_err(|fault| {
                ServerFailure::bad_value(format!("{program}: {fault}\nIllegal argument \"?\""))
            })?;
            match given.letter {
                b'h' => return Ok(MemcachedStart::Print(usage::help())),
                b'i' => return Ok(MemcachedStart::Print(usage::licence())),
                b'V' => return Ok(MemcachedStart::Print(usage::version())),
                _ => settings.take(given)?,
            }
        }
        // If only one of the two ports is given, it applies to both, except for `-U 0`.
        if settings.has(b'U') && !settings.has(b'p') && settings.udp_port != PortChoice::Off {
            settings.tcp_port = settings.udp_port;
        }
        settings.check()?;
        Ok(MemcachedStart::Serve(Box::new(settings)))
    }

    pub(super) fn has(&self, letter: u8) -> bool {
        self.given.contains(&letter)
    }

    fn take(&mut self, given: GivenOption) -> Result<(), ServerFailure> {
        let GivenOption { letter, value } = given;
        if !self.has(letter) {
            self.given.push(letter);
        }
        // Helm charts pass `-u memcache` as one word, so the value starts with a blank.
        let value = if letter == b'D' { &value[..] } else { value.trim_ascii_start() };
        match letter {
            b'A' => self.shutdown_allowed = true,
            b'a' => self.unix_mask = octal(value)?,
            b'B' => self.protocol = protocol(value)?,
            b'b' => self.listen_backlog = unsigned(value),
            b'C' => self.cas_enabled = false,
            b'c' => self.connections_max = at_least_one(value, "Maximum connections")?,
            b'D' => {
                let delimiter = value.first().copied();
                self.prefix_delimiter =
                    Some(delimiter.ok_or_else(|| ServerFailure::bad_value("No delimiter specified"))?);
            }
            b'd' => self.daemon = true,
            b'e' => self.memory_file = Some(path(value)),
            b'F' => self.flush_allowed = false,
            b'f' if leading_fraction(value) <= 1.0 => {
                return Err(ServerFailure::bad_value("Factor must be greater than 1"));
            }
            b'I' => self.item_size_max = size(value),
            b'k' => self.lock_memory = true,
            b'l' => self.listen = Some(list(self.listen.take(), value)),
            b'M' => self.refuse_when_full = true,
            b'm' => self.memory_limit_mib = u64::try_from(leading_integer(value)).unwrap_or(0),
            b'N' => {
                at_least_one(value, "Maximum number of NAPI IDs")?;
            }
            b'n' if leading_integer(value) == 0 => {
                return Err(ServerFailure::bad_value("Chunk size must be greater than 0"));
            }
            b'o' => self.extended.read(value, &mut self.warnings)?,
            // Scripts pass `-P "$PIDFILE"` even if the variable is empty.
            b'P' => self.pid_file = Some(path(value)).filter(|_| !value.is_empty()),
            b'p' => self.tcp_port = port(value)?,
            b'R' => {
                self.requests_per_event = unsigned(value);
                if self.requests_per_event == 0 {
                    return Err(ServerFailure::bad_value(
                        "Number of requests per event must be greater than 0",
                    ));
                }
            }
            b'r' => self.core_dumps = true,
            b'S' => self.sasl = true,
            b's' => self.unix_socket = Some(path(value)),
            b't' => {
                self.threads = at_least_one(value, "Number of threads")?;
                if self.threads > THREADS_ADVISED {
                    self.warnings.push(
                        "WARNING: Setting a high number of worker threads is not recommended.\n \
                         Set this value to the number of cores in your machine or less."
                            .into(),
                    );
                }
            }
            b'U' => self.udp_port = port(value)?,
            b'u' => self.user = Some(String::from_utf8_lossy(value).trim_end().to_string()),
            b'v' => self.verbosity = self.verbosity.saturating_add(1),
            b'W' => self.watch_allowed = false,
            b'X' => self.dump_allowed = false,
            b'Y' => self.auth_file = Some(path(value)),
            b'Z' => self.tls = true,
            // The options -f, -L and -n have no effect apart from their checks.
            _ => {}
        }
        Ok(())
    }

    /// Checks settings that depend on each other.
    fn check(&mut self) -> Result<(), ServerFailure> {
        if self.item_size_max < ITEM_SIZE_MIN {
            return Err(ServerFailure::usage("Item max size cannot be less than 1024 bytes."));
        }
        if self.item_size_max > self.memory_limit_mib.saturating_mul(1 << 20) / 2 {
            return Err(ServerFailure::usage("Cannot set item size limit higher than 1/2 of memory max."));
        }
        if self.item_size_max > ITEM_SIZE_MAX {
            return Err(ServerFailure::usage("Cannot set item size limit higher than a gigabyte."));
        }
        self.extended.check()?;
        if self.sasl {
            if self.has(b'B') && self.protocol != AcceptedProtocol::Binary {
                return Err(ServerFailure::usage(
                    "ERROR: You cannot allow the ASCII protocol while using SASL.",
                ));
            }
            self.protocol = AcceptedProtocol::Binary;
        }
        if self.auth_file.is_some() {
            if self.protocol == AcceptedProtocol::Binary {
                return Err(ServerFailure::usage(
                    "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens.",
                ));
            }
            if self.udp_port != PortChoice::Off {
                return Err(ServerFailure::usage(
                    "Cannot use UDP with ascii authentication enabled (-U 0 to disable)",
                ));
            }
            self.protocol = AcceptedProtocol::Ascii;
        }
        Ok(())
    }
}

fn path(value: &[u8]) -> PathBuf {
    OsString::from_vec(value.to_vec()).into()
}

/// Converts a number like C's `(unsigned) atoi`: a negative number becomes a very large one.
fn unsigned(value: &[u8]) -> u32 {
    let number = leading_integer(value);
    if number < 0 { u32::MAX } else { u32::try_from(number).unwrap_or(u32::MAX) }
}

fn at_least_one(value: &[u8], what: &str) -> Result<usize, ServerFailure> {
    match usize::try_from(leading_integer(value).min(i64::from(i32::MAX))) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(ServerFailure::bad_value(format!("{what} must be greater than 0"))),
    }
}

fn port(value: &[u8]) -> Result<PortChoice, ServerFailure> {
    let number = leading_integer(value);
    match number {
        // memcached reads `-p ""` and `-p x` as 0 and then listens on no port. No script can want
        // that, so the value is refused.
        _ if !starts_with_number(value) => {}
        -1 => return Ok(PortChoice::Any),
        0 => return Ok(PortChoice::Off),
        _ => {
            if let Ok(number) = u16::try_from(number) {
                return Ok(PortChoice::Number(number));
            }
        }
    }
    Err(ServerFailure::usage(format!("ERROR: Invalid port number {}.", String::from_utf8_lossy(value))))
}

fn octal(value: &[u8]) -> Result<u32, ServerFailure> {
    let text = String::from_utf8_lossy(value);
    let number = u32::from_str_radix(text.trim(), 8);
    number
        .map(|mode| mode & 0o777)
        .map_err(|_| ServerFailure::usage(format!("ERROR: Invalid access mask {text}: it must be octal.")))
}

/// Parses a number of bytes with an optional suffix k, m or g. Returns 0 if there is no number.
fn size(value: &[u8]) -> u64 {
    let unit = match value.trim_ascii_end().last() {
        Some(b'k' | b'K') => 1 << 10,
        Some(b'm' | b'M') => 1 << 20,
        Some(b'g' | b'G') => 1 << 30,
        _ => 1,
    };
    u64::try_from(leading_integer(value)).unwrap_or(0).saturating_mul(unit)
}

fn protocol(value: &[u8]) -> Result<AcceptedProtocol, ServerFailure> {
    match value.trim_ascii_end() {
        b"auto" => Ok(AcceptedProtocol::Auto),
        b"ascii" => Ok(AcceptedProtocol::Ascii),
        b"binary" => Ok(AcceptedProtocol::Binary),
        _ => Err(ServerFailure::usage(format!(
            "Invalid value for binding protocol: {}\n -- should be one of auto, binary, or ascii",
            String::from_utf8_lossy(value)
        ))),
    }
}

fn list(before: Option<String>, value: &[u8]) -> String {
    let value = String::from_utf8_lossy(value);
    match before {
        Some(before) => format!("{before},{value}"),
        None => value.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<MemcachedSettings, ServerFailure> {
        match MemcachedSettings::read("memcached", line.iter().map(OsString::from).collect())? {
            MemcachedStart::Serve(settings) => Ok(*settings),
            MemcachedStart::Print(text) => panic!("{line:?} prints {text}"),
        }
    }

    #[test]
    fn every_letter_and_every_long_name_is_unique() {
        for (index, switch) in SWITCHES.iter().enumerate() {
            for other in &SWITCHES[index + 1..] {
                assert!(switch.letter != other.letter && switch.long != other.long, "{switch:?}");
            }
        }
    }

    #[test]
    fn defaults_are_those_of_memcached() {
        assert_eq!(read(&[]).unwrap(), MemcachedSettings::default());
    }

    #[test]
    fn single_port_applies_to_tcp_and_udp() {
        let ports = |line: &[&str]| {
            let settings = read(line).unwrap();
            (settings.tcp_port, settings.udp_port)
        };
        assert_eq!(ports(&["-U", "5"]), (PortChoice::Number(5), PortChoice::Number(5)));
        assert_eq!(ports(&["-U", "0"]), (PortChoice::Number(11211), PortChoice::Off));
        assert_eq!(ports(&["-U", "-1"]), (PortChoice::Any, PortChoice::Any));
        assert_eq!(ports(&["-p", "6", "-U", "5"]), (PortChoice::Number(6), PortChoice::Number(5)));
        assert_eq!(ports(&["-p", "0", "-U", "5"]), (PortChoice::Off, PortChoice::Number(5)));
        assert_eq!(ports(&["-p", "6"]), (PortChoice::Number(6), PortChoice::Off));
    }

    #[test]
    fn blanks_before_a_value_are_ignored() {
        let settings =
            read(&["-m 8192", "-u 11211", "-l 127.0.0.1", "-o modern", "-P /run/x", "-I 2m"]).unwrap();
        assert_eq!(settings.memory_limit_mib, 8192);
        assert_eq!(settings.user.as_deref(), Some("11211"));
        assert_eq!(settings.listen.as_deref(), Some("127.0.0.1"));
        assert_eq!(settings.pid_file, Some("/run/x".into()));
        assert_eq!(settings.item_size_max, 2 << 20);
        assert_eq!(read(&["-D", " "]).unwrap().prefix_delimiter, Some(b' '), "a blank may be the delimiter");
    }

    #[test]
    fn protocol_follows_from_the_kind_of_login() {
        assert_eq!(read(&["-S"]).unwrap().protocol, AcceptedProtocol::Binary);
        assert_eq!(read(&["-Y", "/x"]).unwrap().protocol, AcceptedProtocol::Ascii);
        assert_eq!(read(&["-S", "-Y", "/x"]).unwrap_err().code, 64);
    }

    #[test]
    fn item_sizes_take_units() {
        for (text, bytes) in
            [("2048", 2048), ("1500k", 1500 << 10), ("3M", 3 << 20), ("", 0), ("-1", 0), ("x", 0)]
        {
            assert_eq!(size(text.as_bytes()), bytes, "{text:?}");
        }
    }
}
