//! Parses ktserver's command line.

use super::plugin::PluginSettings;
use super::{number, usage};
use crate::suggestions::did_you_mean;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use todana_server::{DatabaseKind, DatabaseName, LogKinds};

/// The file name of the plug-in database that stores nothing. The file is never opened, because its
/// function is built in.
const VOID: &str = "ktplugdbvoid.so";

/// The most threads. A larger number is reduced to this one, as ktserver does with its own maximum.
const THREADS_MAX: i64 = 512;

/// The names of all options, for suggestions in errors.
const OPTIONS: [&str; 37] = [
    "-host", "-port", "-tout", "-th", "-log", "-li", "-ls", "-le", "-lz", "-ulog", "-ulim", "-uasi", "-sid",
    "-ord", "-oat", "-oas", "-onl", "-otl", "-onr", "-asi", "-ash", "-bgs", "-bgsi", "-bgsc", "-dmn", "-pid",
    "-cmd", "-scr", "-scrt", "-scrm", "-mhost", "-mport", "-rts", "-riv", "-plsv", "-plex", "-pldb",
];

/// The action that a command line requests.
#[derive(Debug)]
pub(super) enum KyotoStart {
    /// Print a text and exit.
    Print(String),
    Serve(Box<KyotoSettings>),
}

/// The settings of a server, as the command line states them.
#[derive(Debug)]
pub(super) struct KyotoSettings {
    /// The host to listen on; `None` for all addresses.
    pub(super) host: Option<String>,
    /// The port; `None` lets the system choose.
    pub(super) port: Option<u16>,
    /// The time, in seconds, within which the rest of a request must arrive.
    pub(super) timeout_s: f64,
    /// Number of worker threads, if given.
    pub(super) threads: Option<usize>,
    /// The log file; `None` for standard output.
    pub(super) log: Option<PathBuf>,
    pub(super) log_kinds: LogKinds,
    pub(super) databases: Vec<DatabaseName>,
    pub(super) synchronization: SyncSettings,
    /// Refuses writes (`-ord`).
    pub(super) is_read_only: bool,
    pub(super) is_daemon: bool,
    pub(super) pid_file: Option<PathBuf>,
    /// The directory of the programs that `synchronize` may run.
    pub(super) commands: PathBuf,
    /// The ID of this server in replication, if given.
    pub(super) server_id: Option<u16>,
    pub(super) update_log: Option<UpdateLogSettings>,
    pub(super) replication: ReplicationSettings,
    pub(super) snapshots: Option<SnapshotSettings>,
    pub(super) script: Option<PathBuf>,
    /// The time limit of a script call in seconds, and the memory limit of a script in bytes.
    /// ktserver has neither.
    pub(super) script_time_s: Option<f64>,
    pub(super) script_memory: Option<u64>,
    pub(super) plugin: Option<PluginSettings>,
    /// Logs writes but does not store them (`-pldb ktplugdbvoid.so`).
    pub(super) stores_nothing: bool,
    /// Notes about options that were accepted but have no effect, for the log.
    pub(super) notes: Vec<String>,
}

/// Determines when writes are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SyncSettings {
    /// Writes are on disk before their replies are sent (`-oas`).
    pub(super) is_immediate: bool,
    /// The time in seconds after which writes are synchronized (`-asi`).
    pub(super) interval_s: Option<f64>,
    /// Synchronized writes are on disk, not only passed to the kernel (`-ash`).
    pub(super) is_hard: bool,
}

/// The settings of the update log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UpdateLogSettings {
    pub(super) directory: PathBuf,
    /// The length in bytes at which a new log file is started.
    pub(super) file_len_max: Option<u64>,
    /// The time in seconds after which changes in the log are on disk. With `None`, the kernel
    /// decides.
    pub(super) sync_interval_s: Option<f64>,
}

/// The settings of a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReplicationSettings {
    /// Host and port of the master; `None` until a client names a master.
    pub(super) master: Option<(String, u16)>,
    /// The file that stores the time stamp of the last applied change.
    pub(super) position: Option<PathBuf>,
    /// The time between two requests to an idle master.
    pub(super) interval_ms: Option<f64>,
}

/// The settings of periodic snapshots.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SnapshotSettings {
    pub(super) directory: PathBuf,
    pub(super) interval_s: f64,
    pub(super) compression: Option<String>,
}

/// The options as they stand on the command line.
#[derive(Default)]
struct GivenOptions {
    host: Option<String>,
    port: Option<i64>,
    timeout_s: Option<f64>,
    threads: Option<i64>,
    log: Option<PathBuf>,
    log_kinds: LogKinds,
    synchronization: SyncSettings,
    is_read_only: bool,
    is_daemon: bool,
    pid_file: Option<PathBuf>,
    commands: Option<PathBuf>,
    server_id: Option<i64>,
    update_log: Option<PathBuf>,
    update_log_len: Option<i64>,
    update_log_sync_s: Option<f64>,
    master_host: Option<String>,
    master_port: Option<i64>,
    position: Option<PathBuf>,
    replication_interval_ms: Option<f64>,
    snapshots: Option<PathBuf>,
    snapshot_interval_s: Option<f64>,
    snapshot_compression: Option<String>,
    script: Option<PathBuf>,
    script_time_s: Option<f64>,
    script_memory: Option<i64>,
    plugin: Option<String>,
    plugin_expression: Option<String>,
    database_plugin: Option<String>,
    notes: Vec<String>,
}

impl KyotoStart {
    /// Parses a command line. The error names the wrong option.
    pub(super) fn read(words: Vec<OsString>) -> Result<KyotoStart, String> {
        match words.first().and_then(|word| word.to_str()) {
            Some("--version" | "-version") => return Ok(KyotoStart::Print(usage::version())),
            Some("--help" | "-help" | "-h") => return Ok(KyotoStart::Print(usage::help())),
            _ => {}
        }
        let mut given = GivenOptions::default();
        let mut names = Vec::new();
        let mut words = words.into_iter();
        let mut are_options = true;
        while let Some(word) = words.next() {
            let Ok(word) = word.into_string() else {
                return Err("the command line must be UTF-8".into());
            };
            if are_options && word == "--" {
                are_options = false;
            } else if are_options && word.starts_with('-') && word != "-" {
                given.option(&word, &mut words)?;
            } else {
                // As in ktserver, all words after the first database are databases.
                are_options = false;
                names.push(word);
            }
        }
        given.into_settings(names).map(|settings| KyotoStart::Serve(Box::new(settings)))
    }
}

/// Returns the next word, which is the value of an option.
fn value(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<String, String> {
    let value = words.next().ok_or_else(|| format!("{option}: needs a value ({})", usage::HINT))?;
    value.into_string().map_err(|_| format!("{option}: its value is not UTF-8"))
}

fn whole(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Option<i64>, String> {
    let text = value(option, words)?;
    number::whole(&text).map(Some).ok_or_else(|| format!("{option} {text}: must be a whole number"))
}

fn seconds(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Option<f64>, String> {
    let text = value(option, words)?;
    number::seconds(&text).map(Some).ok_or_else(|| format!("{option} {text}: must be a number from 0"))
}

fn path(option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<Option<PathBuf>, String> {
    let text = value(option, words)?;
    if text.is_empty() {
        return Err(format!("{option}: must not be empty"));
    }
    Ok(Some(text.into()))
}

fn port(option: &str, number: i64) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("{option} {number}: must be 1 to 65535")),
    }
}

impl GivenOptions {
    fn option(&mut self, option: &str, words: &mut impl Iterator<Item = OsString>) -> Result<(), String> {
        let mut note = |why: &str| self.notes.push(format!("{option} has no effect: {why}"));
        match option {
            "-host" => self.host = Some(value(option, words)?),
            "-port" => self.port = whole(option, words)?,
            "-tout" => self.timeout_s = seconds(option, words)?,
            "-th" => self.threads = whole(option, words)?,
            "-log" => self.log = Some(value(option, words)?.into()),
            "-li" => self.log_kinds = LogKinds::All,
            "-ls" => self.log_kinds = LogKinds::System,
            "-le" => self.log_kinds = LogKinds::Errors,
            "-lz" => self.log_kinds = LogKinds::None,
            "-ulog" => self.update_log = path(option, words)?,
            "-ulim" => self.update_log_len = whole(option, words)?,
            "-uasi" => self.update_log_sync_s = seconds(option, words)?,
            "-sid" => self.server_id = whole(option, words)?,
            "-ord" => self.is_read_only = true,
            "-oat" => note("every change is intact after a crash"),
            "-oas" => self.synchronization.is_immediate = true,
            "-onl" | "-otl" => note("locks are always used"),
            "-onr" => note("recovery after a crash is always done"),
            "-asi" => {
                self.synchronization.interval_s = seconds(option, words)?.filter(|&interval| interval > 0.0)
            }
            "-ash" => self.synchronization.is_hard = true,
            "-bgs" => self.snapshots = path(option, words)?,
            "-bgsi" => self.snapshot_interval_s = seconds(option, words)?,
            "-bgsc" => self.snapshot_compression = Some(value(option, words)?),
            "-dmn" => self.is_daemon = true,
            "-pid" => self.pid_file = path(option, words)?,
            "-cmd" => self.commands = path(option, words)?,
            "-scr" => self.script = path(option, words)?,
            "-scrt" => self.script_time_s = seconds(option, words)?,
            "-scrm" => self.script_memory = whole(option, words)?,
            "-mhost" => self.master_host = Some(value(option, words)?),
            "-mport" => self.master_port = whole(option, words)?,
            "-rts" => self.position = path(option, words)?,
            "-riv" => self.replication_interval_ms = seconds(option, words)?,
            "-plsv" => self.plugin = Some(value(option, words)?),
            "-plex" => self.plugin_expression = Some(value(option, words)?),
            "-pldb" => self.database_plugin = Some(value(option, words)?),
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

    fn into_settings(mut self, names: Vec<String>) -> Result<KyotoSettings, String> {
        let stores_nothing = match &self.database_plugin {
            None => false,
            Some(file) if Path::new(file).file_name().is_some_and(|name| name == VOID) => true,
            Some(file) => {
                return Err(format!(
                    "-pldb {file}: plug-ins cannot be loaded; only {VOID}, which stores nothing, is built in"
                ));
            }
        };
        if self.is_daemon {
            self.expect_absolute_paths()?;
        }
        let plugin = match (&self.plugin, &self.plugin_expression) {
            (Some(file), expression) => {
                Some(PluginSettings::read(file, expression.as_deref().unwrap_or_default())?)
            }
            (None, Some(_)) => return Err("-plex: needs -plsv".into()),
            (None, None) => None,
        };
        if let Some(plugin) = &plugin {
            self.notes.extend(plugin.notes.iter().cloned());
        }
        let port_ = match self.port {
            // -1 lets the system choose the port, which ktserver does not offer. The log names the
            // chosen port.
            Some(-1) => None,
            Some(number) => Some(port("-port", number)?),
            None => Some(1978),
        };
        let threads = match self.threads {
            None => None,
            Some(1..) => self.threads.map(|threads| threads.min(THREADS_MAX) as usize),
            Some(number) => return Err(format!("-th {number}: must be at least 1")),
        };
        let server_id = match self.server_id {
            // In ktserver, a negative ID means no ID.
            None | Some(..0) => None,
            Some(number) => {
                Some(u16::try_from(number).map_err(|_| format!("-sid {number}: must be 0 to 65535"))?)
            }
        };
        let names = if names.is_empty() { vec![":".to_owned()] } else { names };
        let databases =
            names.iter().map(|name| DatabaseName::parse_as_original(name).map_err(|error| error.to_string()));
        let mut databases = databases.collect::<Result<Vec<DatabaseName>, String>>()?;
        if stores_nothing {
            // With this plug-in, ktserver ignores the names and only counts the databases.
            databases.iter_mut().for_each(|name| (name.kind, name.path) = (DatabaseKind::MemHash, None));
        }
        let is_relative = |name: &&DatabaseName| name.path.as_ref().is_some_and(|path| !path.is_absolute());
        if let Some(name) = databases.iter().find(is_relative).filter(|_| self.is_daemon) {
            return Err(format!("{name}: a daemon (-dmn) needs absolute paths"));
        }
        Ok(KyotoSettings {
            host: self.host.take().filter(|host| !host.is_empty()),
            port: port_,
            timeout_s: self.timeout_s.filter(|&timeout| timeout > 0.0).unwrap_or(30.0),
            threads,
            // `-` and the empty name both mean standard output.
            log: self.log.take().filter(|path| !["", "-"].iter().any(|none| path.as_os_str() == *none)),
            log_kinds: self.log_kinds,
            databases,
            synchronization: self.synchronization,
            is_read_only: self.is_read_only,
            is_daemon: self.is_daemon,
            pid_file: self.pid_file.take(),
            commands: self.commands.take().unwrap_or_else(|| ".".into()),
            server_id,
            update_log: self.update_log()?,
            replication: self.replication(server_id)?,
            snapshots: self.snapshots(),
            script: self.script.take(),
            script_time_s: self.script_time_s.filter(|&seconds| seconds > 0.0),
            script_memory: self.script_memory.and_then(|len| u64::try_from(len).ok()).filter(|&len| len > 0),
            plugin,
            stores_nothing,
            notes: self.notes,
        })
    }

    /// Fails if a daemon gets a relative path. A daemon works in the root directory, so the path
    /// would name another file.
    fn expect_absolute_paths(&self) -> Result<(), String> {
        let paths = [
            ("-log", &self.log),
            ("-ulog", &self.update_log),
            ("-bgs", &self.snapshots),
            ("-pid", &self.pid_file),
            ("-cmd", &self.commands),
            ("-scr", &self.script),
            ("-rts", &self.position),
        ];
        for (option, path) in paths {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(format!("{option} {}: a daemon (-dmn) needs absolute paths", path.display()));
            }
        }
        Ok(())
    }

    /// Notes that an option has no effect because another option, `missing`, is not given.
    fn note_without(&mut self, missing: &str, option: &str, is_given: bool) {
        if is_given {
            self.notes.push(format!("{option} has no effect without {missing}"));
        }
    }

    fn update_log(&mut self) -> Result<Option<UpdateLogSettings>, String> {
        let Some(directory) = self.update_log.take() else {
            self.note_without("-ulog", "-ulim", self.update_log_len.is_some());
            self.note_without("-ulog", "-uasi", self.update_log_sync_s.is_some());
            return Ok(None);
        };
        if self.server_id.is_none_or(|id| id < 0) {
            return Err(format!("-ulog {}: needs a server ID; add -sid NUMBER", directory.display()));
        }
        Ok(Some(UpdateLogSettings {
            directory,
            file_len_max: self.update_log_len.and_then(|len| u64::try_from(len).ok()).filter(|&len| len > 0),
            sync_interval_s: self.update_log_sync_s.filter(|&interval| interval > 0.0),
        }))
    }

    fn replication(&mut self, server_id: Option<u16>) -> Result<ReplicationSettings, String> {
        let master = match self.master_host.take() {
            None => None,
            Some(host) if server_id.is_none() => {
                return Err(format!("-mhost {host}: needs a server ID; add -sid NUMBER"));
            }
            Some(host) if self.position.is_none() => {
                return Err(format!("-mhost {host}: needs a file for its time stamp; add -rts FILE"));
            }
            Some(host) => Some((host, self.master_port.map_or(Ok(1978), |number| port("-mport", number))?)),
        };
        self.note_without("-mhost", "-mport", master.is_none() && self.master_port.is_some());
        let follows_nobody = self.position.is_none() && self.replication_interval_ms.is_some();
        self.note_without("-rts", "-riv", follows_nobody);
        let (position, interval_ms) = (self.position.take(), self.replication_interval_ms);
        Ok(ReplicationSettings { master, position, interval_ms })
    }

    fn snapshots(&mut self) -> Option<SnapshotSettings> {
        let Some(directory) = self.snapshots.take() else {
            self.note_without("-bgs", "-bgsi", self.snapshot_interval_s.is_some());
            self.note_without("-bgs", "-bgsc", self.snapshot_compression.is_some());
            return None;
        };
        Some(SnapshotSettings {
            directory,
            interval_s: self.snapshot_interval_s.unwrap_or(180.0),
            compression: self.snapshot_compression.take(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<KyotoSettings, String> {
        match KyotoStart::read(line.split_whitespace().map(OsString::from).collect())? {
            KyotoStart::Serve(settings) => Ok(*settings),
            KyotoStart::Print(text) => Err(text),
        }
    }

    #[test]
    fn default_is_one_memory_database_on_all_addresses() {
        let plain = asked("").unwrap();
        assert_eq!((plain.host, plain.port, plain.timeout_s, plain.threads), (None, Some(1978), 30.0, None));
        assert_eq!(plain.databases.iter().map(ToString::to_string).collect::<Vec<_>>(), [":"]);
        assert_eq!((plain.log, plain.log_kinds, plain.notes.len()), (None, LogKinds::All, 0));
        assert!(!plain.is_daemon && !plain.is_read_only);
    }

    #[test]
    fn every_option_of_the_original_is_read() {
        let line = "-host ::1 -port 1979 -tout 5 -th 9999 -log /l -ls -ulog /u -ulim 256m -uasi 2 -sid 7 -ord -oat -oas \
            -onl -otl -onr -asi 3 -ash -bgs /b -bgsi 60 -bgsc zlib -dmn -pid /p -cmd /c -scr /s.lua -mhost m -mport 1980 \
            -rts /r -riv 40 -plsv ktplugservmemc.so -plex opts=f -- % /x.kct#ktopts=p";
        let all = asked(line).unwrap();
        assert_eq!(
            (all.host.as_deref(), all.port, all.timeout_s, all.threads),
            (Some("::1"), Some(1979), 5.0, Some(512))
        );
        assert_eq!((all.log, all.log_kinds), (Some("/l".into()), LogKinds::System));
        let log = UpdateLogSettings {
            directory: "/u".into(),
            file_len_max: Some(256 << 20),
            sync_interval_s: Some(2.0),
        };
        assert_eq!((all.update_log, all.server_id), (Some(log), Some(7)));
        assert!(all.is_read_only && all.is_daemon);
        let synchronization = SyncSettings { is_immediate: true, interval_s: Some(3.0), is_hard: true };
        assert_eq!(all.synchronization, synchronization);
        let snapshots =
            SnapshotSettings { directory: "/b".into(), interval_s: 60.0, compression: Some("zlib".into()) };
        assert_eq!(all.snapshots, Some(snapshots));
        let (master, position) = (Some(("m".into(), 1980)), Some("/r".into()));
        assert_eq!(all.replication, ReplicationSettings { master, position, interval_ms: Some(40.0) });
        assert_eq!(
            (all.pid_file, all.commands, all.script),
            (Some("/p".into()), "/c".into(), Some("/s.lua".into()))
        );
        assert!(all.plugin.is_some_and(|plugin| plugin.keeps_flags));
        assert!(all.databases.len() == 2 && all.databases[1].tuning.persistent);
        assert_eq!(all.notes.len(), 4, "{:?}", all.notes);
    }

    #[test]
    fn options_without_their_counterpart_are_noted() {
        let alone = asked("-ulim 1m -uasi 1 -mport 1980 -riv 40 -bgsi 60 -bgsc lzo").unwrap();
        let expected = [("-ulim", "-ulog"), ("-uasi", "-ulog"), ("-mport", "-mhost"), ("-riv", "-rts")];
        let expected = expected.into_iter().chain([("-bgsi", "-bgs"), ("-bgsc", "-bgs")]);
        let expected: Vec<String> =
            expected.map(|(option, missing)| format!("{option} has no effect without {missing}")).collect();
        assert_eq!(alone.notes, expected);
        let all =
            "-sid 1 -ulog u -ulim 1m -uasi 1 -mhost h -mport 1980 -rts r -riv 40 -bgs b -bgsi 60 -bgsc zlib";
        assert_eq!(asked(all).unwrap().notes, [""; 0]);
    }

    #[test]
    fn no_options_follow_a_database() {
        assert_eq!(asked(": -").unwrap().databases.len(), 2);
        assert!(asked(": -ord").unwrap_err().contains("\"-ord\""));
    }

    #[test]
    fn wrong_options_are_named() {
        for (line, beginning) in [
            ("-foo", "-foo: unknown option ("),
            ("-prot", "-prot: unknown option; did you mean -port? ("),
            ("-port", "-port: needs a value"),
            ("-port 0", "-port 0: "),
            ("-port 70000", "-port 70000: "),
            ("-port x", "-port x: "),
            ("-th 0", "-th 0: "),
            ("-tout soon", "-tout soon: "),
            ("-sid 65536", "-sid 65536: "),
            ("-ulog u", "-ulog u: "),
            ("-mhost h", "-mhost h: "),
            ("-mhost h -sid 1", "-mhost h: "),
            ("-mhost h -sid 1 -rts r -mport 0", "-mport 0: "),
            ("-plex port=1", "-plex: "),
            ("-pldb x.so", "-pldb x.so: "),
            ("-dmn -log l", "-log l: a daemon"),
            ("-dmn -pid ./p", "-pid ./p: a daemon"),
            ("-dmn x.kch", "x.kch: a daemon"),
            ("x.txt", "database \"x.txt\": "),
            ("x.kcx", "database \"x.kcx\": text files"),
            ("e.kch#zcomp=arc#zkey=hush", "database \"e.kch#zcomp=arc#zkey=...\": "),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.starts_with(beginning), "{line}: {error}");
        }
    }
}
