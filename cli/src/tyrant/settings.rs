//! Parses ttserver's command line.

use super::usage;
use crate::suggestions::did_you_mean;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use todana_server::{CommandMask, DatabaseName, LogKinds, PeriodicCall, ScriptText};

/// The most threads. A larger number is reduced to this one.
const THREADS_MAX: i64 = 512;
/// The default of the maximum length of a log file, in bytes.
const UPDATE_LOG_LEN: u64 = 1 << 30;
/// The default pid file of a daemon.
const DAEMON_PID_FILE: &str = "ttserver.pid";

/// The most functions that are called at intervals.
const PERIODIC_MAX: usize = 7;
/// The file with the position in the master's log, by default.
const POSITION_FILE: &str = "ttserver.rts";

/// The names of all options, for suggestions in errors.
const OPTIONS: [&str; 27] = [
    "-host", "-port", "-thnum", "-tout", "-dmn", "-pid", "-kl", "-log", "-ld", "-le", "-ulog", "-ulim",
    "-uas", "-sid", "-mhost", "-mport", "-rts", "-rcc", "-skel", "-mul", "-ext", "-extpc", "-extd", "-extt",
    "-extm", "-mask", "-unmask",
];

/// The action that a command line requests.
#[derive(Debug)]
pub(super) enum TyrantStart {
    /// Print a text and exit.
    Print(String),
    Serve(Box<TyrantSettings>),
}

/// The address on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListenAddress {
    /// A host (`None`: all addresses) and a port (`None`: the system chooses it).
    Tcp { host: Option<String>, port: Option<u16> },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The settings of a server, as the command line states them.
#[derive(Debug)]
pub(super) struct TyrantSettings {
    pub(super) address: ListenAddress,
    /// The number of worker threads, if given.
    pub(super) threads: Option<usize>,
    /// The time, in seconds, within which the rest of a request must arrive; 0 for no limit.
    pub(super) timeout_s: u32,
    pub(super) is_daemon: bool,
    pub(super) pid_file: Option<PathBuf>,
    /// Ends the process that the pid file names (`-kl`).
    pub(super) ends_other: bool,
    /// The log file; `None` for standard output.
    pub(super) log: Option<PathBuf>,
    pub(super) log_kinds: LogKinds,
    pub(super) logs_notes: bool,
    pub(super) update_log: Option<UpdateLogSettings>,
    /// The ID of this server in replication, if given.
    pub(super) server_id: Option<u16>,
    pub(super) replication: MasterSettings,
    pub(super) mask: CommandMask,
    pub(super) script: Option<ScriptText>,
    pub(super) periodic: Vec<PeriodicCall>,
    /// The directory in which scripts may use files.
    pub(super) files: Option<PathBuf>,
    /// The time limit of a call of a function, and the memory limit of a script in bytes. ttserver
    /// has neither.
    pub(super) script_time_max: Option<Duration>,
    pub(super) script_memory_max: Option<usize>,
    pub(super) database: DatabaseName,
    /// Warnings about the options, as ttserver prints them.
    pub(super) warnings: Vec<String>,
    /// Notes about options that were accepted but have no effect.
    pub(super) notes: Vec<String>,
}

/// The settings of the update log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpdateLogSettings {
    pub(super) directory: PathBuf,
    /// The length in bytes at which a new log file is started.
    pub(super) file_len_max: u64,
    /// Replies do not wait until the log is written.
    pub(super) is_asynchronous: bool,
}

/// The settings of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MasterSettings {
    /// Host and port.
    pub(super) master: Option<(String, u16)>,
    /// The file with the position in the master's log.
    pub(super) position: PathBuf,
    /// Stop following at the first record whose outcome differs.
    pub(super) checks_outcomes: bool,
}

/// The options as they stand on the command line.
#[derive(Default)]
struct GivenOptions {
    host: Option<String>,
    port: Option<i64>,
    threads: Option<i64>,
    timeout_s: Option<i64>,
    is_daemon: bool,
    pid_file: Option<PathBuf>,
    ends_other: bool,
    log: Option<PathBuf>,
    log_kinds: LogKinds,
    logs_notes: bool,
    update_log: Option<PathBuf>,
    update_log_len: Option<i64>,
    is_asynchronous: bool,
    server_id: Option<i64>,
    master_host: Option<String>,
    master_port: Option<i64>,
    position: Option<PathBuf>,
    checks_outcomes: bool,
    mask: CommandMask,
    script: Option<ScriptText>,
    periodic: Vec<PeriodicCall>,
    files: Option<PathBuf>,
    script_time_max: Option<Duration>,
    script_memory_max: Option<i64>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl TyrantStart {
    /// Parses a command line. The error names the wrong option.
    pub(super) fn read(words: Vec<OsString>) -> Result<TyrantStart, String> {
        let mut given = GivenOptions::default();
        let mut database = None;
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Ok(word) = word.into_string() else {
                return Err("the command line must be UTF-8".into());
            };
            match word.as_str() {
                "--version" if database.is_none() => return Ok(TyrantStart::Print(usage::version())),
                "--help" if database.is_none() => return Ok(TyrantStart::Print(usage::help())),
                // As in ttserver, a word after the database is not an option.
                _ if database.is_none() && word.starts_with('-') => given.option(&word, &mut words)?,
                _ if database.is_none() => database = Some(word),
                _ => return Err(format!("{word}: only one database can be given ({})", usage::HINT)),
            }
        }
        given.into_settings(database).map(|settings| TyrantStart::Serve(Box::new(settings)))
    }
}

/// Returns the next word, which is the value of an option.
fn value(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<String, String> {
    let value = words.next().ok_or_else(|| format!("{option}: needs a value ({})", usage::HINT))?;
    value.into_string().map_err(|_| format!("{option}: its value is not UTF-8"))
}

/// Parses an integer. A suffix k, m, g, t, p or e, in either case, multiplies it by a power of
/// 1024.
fn whole(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Option<i64>, String> {
    let text = value(option, words)?;
    let shift = text
        .bytes()
        .last()
        .and_then(|last| b"kmgtpe".iter().position(|&unit| unit == last.to_ascii_lowercase()));
    let (digits, shift) = match shift {
        Some(power) => (&text[..text.len() - 1], 10 * (power as u32 + 1)),
        None => (&text[..], 0),
    };
    let number = digits.parse::<i64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.map(Some).ok_or_else(|| format!("{option} {text}: must be a whole number"))
}

/// Parses a time that is longer than 0 seconds.
fn seconds(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Duration, String> {
    let text = value(option, words)?;
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.001..1e9).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{option} {text}: must be a number of seconds above 0"))
}

fn path(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Option<PathBuf>, String> {
    let text = value(option, words)?;
    if text.is_empty() {
        return Err(format!("{option}: must not be empty"));
    }
    Ok(Some(text.into()))
}

fn mask(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<CommandMask, String> {
    let text = value(option, words)?;
    // ttserver ignores an unknown word, and so allows a command that the user wants to forbid.
    CommandMask::parse(&text).map_err(|word| format!("{option} {text}: {word}: unknown command"))
}

impl GivenOptions {
    fn option(&mut self, option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<(), String> {
        match option {
            "-host" => self.host = Some(value(option, words)?),
            "-port" => self.port = whole(option, words)?,
            "-thnum" => self.threads = whole(option, words)?,
            "-tout" => self.timeout_s = whole(option, words)?,
            "-dmn" => self.is_daemon = true,
            "-pid" => self.pid_file = path(option, words)?,
            "-kl" => self.ends_other = true,
            "-log" => self.log = path(option, words)?,
            "-ld" => (self.log_kinds, self.logs_notes) = (LogKinds::All, true),
            "-le" => (self.log_kinds, self.logs_notes) = (LogKinds::System, false),
            "-ulog" => self.update_log = path(option, words)?,
            "-ulim" => self.update_log_len = whole(option, words)?,
            "-uas" => self.is_asynchronous = true,
            "-sid" => self.server_id = whole(option, words)?,
            "-mask" => self.mask = self.mask.with(mask(option, words)?),
            "-unmask" => self.mask = self.mask.without(mask(option, words)?),
            "-mul" => {
                let number = whole(option, words)?.unwrap_or_default();
                self.notes.push(format!(
                    "-mul {number}: has no effect; writers of one database do not wait for each other"
                ));
            }
            "-mhost" => self.master_host = Some(value(option, words)?),
            "-mport" => self.master_port = whole(option, words)?,
            "-rts" => self.position = path(option, words)?,
            "-rcc" => self.checks_outcomes = true,
            "-ext" => {
                let text = value(option, words)?;
                self.script = Some(match text.strip_prefix('@') {
                    Some(text) => ScriptText::Inline(text.to_owned()),
                    None if text.is_empty() => return Err("-ext: must not be empty".into()),
                    None => ScriptText::File(text.into()),
                });
            }
            "-extpc" => {
                let name = value(option, words)?;
                let interval = seconds(&format!("-extpc {name}"), words)?;
                if self.periodic.len() == PERIODIC_MAX {
                    return Err(format!(
                        "-extpc {name}: only {PERIODIC_MAX} functions can be called at intervals"
                    ));
                }
                self.periodic.push(PeriodicCall { name, interval });
            }
            "-extd" => self.files = path(option, words)?,
            "-extt" => self.script_time_max = Some(seconds(option, words)?),
            "-extm" => self.script_memory_max = whole(option, words)?,
            "-skel" => {
                return Err(format!("-skel {}: libraries cannot be loaded", value(option, words)?));
            }
            _ => {
                return Err(format!(
                    "{option}: unknown option{} ({})",
                    did_you_mean(option, &OPTIONS),
                    usage::HINT
                ));
            }
        }
        Ok(())
    }

    fn into_settings(mut self, database: Option<String>) -> Result<TyrantSettings, String> {
        let mut database = database.unwrap_or_else(|| "*".into());
        if self.is_daemon {
            self.pid_file.get_or_insert_with(|| DAEMON_PID_FILE.into());
            self.root_paths(&mut database);
        }
        if self.script.is_none() && !self.periodic.is_empty() {
            self.notes.push("-extpc: has no effect without -ext".into());
        }
        let threads = match self.threads {
            None => None,
            Some(1..) => self.threads.map(|threads| threads.min(THREADS_MAX) as usize),
            Some(number) => return Err(format!("-thnum {number}: must be at least 1")),
        };
        let server_id = match self.server_id {
            Some(number) if number > i64::from(u16::MAX) => {
                self.warnings.push(format!("the SID is ignored because it exceeds {}", u16::MAX));
                None
            }
            number => number.and_then(|number| u16::try_from(number).ok()).filter(|&number| number > 0),
        };
        if server_id.is_none() && self.update_log.take().is_some() {
            self.warnings.push("update logging is omitted because the SID is not specified".into());
        }
        if server_id.is_none() && self.master_host.take().is_some() {
            self.warnings.push("replication is omitted because the SID is not specified".into());
        }
        let file_len_max = self.update_log_len.and_then(|len| u64::try_from(len).ok()).filter(|&len| len > 0);
        let database = DatabaseName::parse_as_original(&database).map_err(|error| error.to_string())?;
        self.notes.extend(
            database.notes.iter().chain(&database.warnings).map(|note| format!("{database}: {note}")),
        );
        let replication = self.replication()?;
        Ok(TyrantSettings {
            address: self.address()?,
            threads,
            timeout_s: self.timeout_s.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(0),
            is_daemon: self.is_daemon,
            pid_file: self.pid_file,
            ends_other: self.ends_other,
            log: self.log,
            log_kinds: self.log_kinds,
            logs_notes: self.logs_notes,
            update_log: self.update_log.map(|directory| UpdateLogSettings {
                directory,
                file_len_max: file_len_max.unwrap_or(UPDATE_LOG_LEN),
                is_asynchronous: self.is_asynchronous,
            }),
            replication,
            server_id,
            mask: self.mask,
            script: self.script,
            periodic: self.periodic,
            files: self.files,
            script_time_max: self.script_time_max,
            script_memory_max: self
                .script_memory_max
                .and_then(|bytes| usize::try_from(bytes).ok())
                .filter(|&bytes| bytes > 0),
            database,
            warnings: self.warnings,
            notes: self.notes,
        })
    }

    fn replication(&mut self) -> Result<MasterSettings, String> {
        let position = self.position.take().unwrap_or_else(|| POSITION_FILE.into());
        let port = self.master_port.unwrap_or(1978);
        let port = u16::try_from(port).map_err(|_| format!("-mport {port}: must be 0 to 65535"))?;
        // As in the original, an empty host and port 0 follow no master.
        let host = self.master_host.take().filter(|host| !host.is_empty() && port > 0);
        Ok(MasterSettings {
            master: host.map(|host| (host, port)),
            position,
            checks_outcomes: self.checks_outcomes,
        })
    }

    fn address(&self) -> Result<ListenAddress, String> {
        let host = self.host.clone().filter(|host| !host.is_empty());
        match (self.port.unwrap_or(1978), host) {
            (0, Some(path)) => Ok(ListenAddress::Unix(path.into())),
            (0, None) => Err("-port 0: needs the path of a Unix socket; add -host PATH".into()),
            // -1 lets the system choose the port, which ttserver does not offer. The log names the
            // chosen port.
            (-1, host) => Ok(ListenAddress::Tcp { host, port: None }),
            (port, host) => match u16::try_from(port) {
                Ok(port) => Ok(ListenAddress::Tcp { host, port: Some(port) }),
                Err(_) => Err(format!("-port {port}: must be 0 to 65535")),
            },
        }
    }

    /// Converts relative paths to paths in the root directory, in which a daemon works. Adds a
    /// warning for each of them.
    fn root_paths(&mut self, database: &mut String) {
        let mut warn =
            |what: &str, path: &str| self.warnings.push(format!("{what}({path}) is not the absolute path"));
        if !database.starts_with(['/', '*', '+', ':', '%', '-']) && !database.starts_with("mem:") {
            warn("dbname", database);
            database.insert(0, '/');
        }
        if let (Some(0), Some(host)) = (self.port, &mut self.host)
            && !host.starts_with('/')
        {
            warn("host", host);
            host.insert(0, '/');
        }
        if let Some(ScriptText::File(path)) = &mut self.script
            && !path.is_absolute()
        {
            warn("ext", &path.display().to_string());
            *path = Path::new("/").join(&*path);
        }
        for (name, path) in [
            ("pid", &mut self.pid_file),
            ("log", &mut self.log),
            ("ulog", &mut self.update_log),
            ("rts", &mut self.position),
        ] {
            if let Some(path) = path.as_mut().filter(|path| !path.is_absolute()) {
                warn(name, &path.display().to_string());
                *path = Path::new("/").join(&*path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<TyrantSettings, String> {
        match TyrantStart::read(line.split_whitespace().map(OsString::from).collect())? {
            TyrantStart::Serve(settings) => Ok(*settings),
            TyrantStart::Print(text) => Err(text),
        }
    }

    #[test]
    fn options_of_original_are_accepted() {
        let settings = asked(
            "-host localhost -port 1979 -thnum 16 -tout 15 -pid p -kl -log l -le -ulog u -ulim 128m -uas -sid 7 \
             -mask allmanage,vanish -unmask sync casket.tch#bnum=1000000#xmsiz=64m",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.address, ListenAddress::Tcp { host: Some("localhost".into()), port: Some(1979) });
        assert_eq!((settings.threads, settings.timeout_s, settings.server_id), (Some(16), 15, Some(7)));
        let log = UpdateLogSettings { directory: "u".into(), file_len_max: 128 << 20, is_asynchronous: true };
        assert_eq!(settings.update_log, Some(log));
        assert_eq!(settings.database.path, Some("casket.tch".into()));
        assert!(settings.ends_other && !settings.mask.is_empty() && settings.log_kinds == LogKinds::System);
        assert_eq!(settings.notes.len(), 2, "{:?}", settings.notes);
    }

    #[test]
    fn defaults_are_those_of_original() {
        let settings = asked("").unwrap();
        assert_eq!(settings.address, ListenAddress::Tcp { host: None, port: Some(1978) });
        assert_eq!((settings.timeout_s, settings.log_kinds), (0, LogKinds::All));
        assert_eq!(settings.database.to_string(), "*");
        assert!(settings.warnings.is_empty() && settings.notes.is_empty() && settings.pid_file.is_none());
        let unix = asked("-port 0 -host /tmp/s").unwrap();
        assert_eq!(unix.address, ListenAddress::Unix("/tmp/s".into()));
    }

    #[test]
    fn daemon_works_in_the_root_directory() {
        let settings = asked("-dmn -log l -sid 1 -ulog /u x.tch").unwrap();
        assert_eq!(settings.pid_file, Some("/ttserver.pid".into()));
        assert_eq!(settings.database.path, Some("/x.tch".into()));
        assert_eq!(settings.log, Some("/l".into()));
        let expected = ["dbname(x.tch)", "pid(ttserver.pid)", "log(l)"];
        assert_eq!(settings.warnings, expected.map(|path| format!("{path} is not the absolute path")));
    }

    #[test]
    fn update_log_needs_a_server_id() {
        let settings = asked("-ulog u").unwrap();
        assert_eq!((settings.update_log, settings.warnings.len()), (None, 1));
        let settings = asked("-sid 70000 -ulog u").unwrap();
        assert_eq!((settings.server_id, settings.warnings.len()), (None, 2));
    }

    #[test]
    fn master_needs_a_server_id() {
        let settings = asked("-sid 7 -mhost a.example -mport 1979 -rts r -rcc").unwrap();
        let master = Some(("a.example".into(), 1979));
        assert_eq!(
            settings.replication,
            MasterSettings { master, position: "r".into(), checks_outcomes: true }
        );
        let settings = asked("-sid 7 -mhost a.example").unwrap();
        assert_eq!(settings.replication.master, Some(("a.example".into(), 1978)));
        assert_eq!(settings.replication.position, Path::new("ttserver.rts"));
        let settings = asked("-mhost a.example").unwrap();
        assert_eq!((settings.replication.master, settings.warnings.len()), (None, 1));
    }

    #[test]
    fn wrong_options_are_named() {
        for (line, beginning) in [
            ("-x", "-x: unknown option"),
            ("-port", "-port: needs a value"),
            ("-port x", "-port x: must be a whole number"),
            ("-port 70000", "-port 70000: must be"),
            ("-port 0", "-port 0: needs the path"),
            ("-sid 1 -mhost a -mport 70000", "-mport 70000: must be"),
            ("-thnum 0", "-thnum 0: must be at least 1"),
            ("-mask put,pit", "-mask put,pit: pit: unknown command"),
            ("-skel x.so", "-skel x.so: "),
            ("-extpc f", "-extpc f: needs a value"),
            ("-extpc f 0", "-extpc f 0: must be a number of seconds"),
            ("* +", "+: only one database"),
            ("x.txt", "database \"x.txt\": "),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.starts_with(beginning), "{line}: {error}");
        }
    }
}
