//! Parses moxi's command line.

use super::behavior::MoxiBehavior;
use super::cluster::{self, MoxiCluster};
use super::{failure, usage};
use crate::memcached::getopt::{GivenOption, OptionSpec, OptionWords};
use crate::memcached::number::leading_integer;
use crate::serving::ServerFailure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use todana_server::DialectChoice;

const VALUED: &[u8] = b"ZzlpUsatcRbBPuOYmfnD";
const FLAGS: &[u8] = b"drkvXhiMLC";

/// Options of moxi's half that is a memcached of its own.
const OF_MEMCACHED: &[u8] = b"mMfnLDC";

/// The settings of a proxy, as the command line states them.
#[derive(Clone, Debug)]
pub(super) struct MoxiSettings {
    pub(super) clusters: Vec<MoxiCluster>,
    pub(super) behavior: MoxiBehavior,
    /// The addresses to listen on; `None` for all.
    pub(super) listen: Option<String>,
    pub(super) unix_socket: Option<PathBuf>,
    pub(super) unix_mask: u32,
    pub(super) threads: usize,
    pub(super) connections_max: usize,
    pub(super) requests_per_event: u32,
    pub(super) backlog: u32,
    pub(super) protocol: DialectChoice,
    pub(super) is_daemon: bool,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) core_dumps: bool,
    pub(super) lock_memory: bool,
    pub(super) verbosity: u8,
    pub(super) log: Option<PathBuf>,
    pub(super) ends_with_input: bool,
    /// Notes about options without effect.
    pub(super) notes: Vec<String>,
}

/// The action that a command line requests.
#[derive(Debug)]
pub(super) enum MoxiStart {
    /// Print a text and exit.
    Print(String),
    Serve(Box<MoxiSettings>),
}

impl MoxiSettings {
    /// Parses a command line. `variable` returns a variable of the environment.
    pub(super) fn read(
        program: &str,
        words: Vec<OsString>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<MoxiStart, ServerFailure> {
        let fail = |problem: String| failure(program, &problem);
        let mut settings = MoxiSettings::new();
        settings.behavior.user = variable("MOXI_SASL_PLAIN_USR").unwrap_or_default();
        settings.behavior.password = variable("MOXI_SASL_PLAIN_PWD").unwrap_or_default();
        let spec = |letters: &[u8], takes_value| -> Vec<OptionSpec> {
            letters.iter().map(|&letter| OptionSpec { letter, long: "", takes_value }).collect()
        };
        let specs: Vec<OptionSpec> = spec(VALUED, true).into_iter().chain(spec(FLAGS, false)).collect();
        let mut options = OptionWords::new(&specs, words);
        let mut clusters = Vec::new();
        for given in options.by_ref() {
            let given = given.map_err(|fault| fail(format!("{fault}\nIllegal argument \"?\"")))?;
            match given.letter {
                b'h' => return Ok(MoxiStart::Print(usage::help())),
                b'i' => return Ok(MoxiStart::Print(usage::licence())),
                b'z' => clusters.push(value_or_file(&given.value).map_err(fail)?),
                b'Z' => {
                    let text = value_or_file(&given.value).map_err(fail)?;
                    settings.behavior.read(&text).map_err(fail)?;
                }
                _ => settings.take(given).map_err(fail)?,
            }
        }
        // A word without a letter is the address of a REST stream.
        let operands = options.operands();
        clusters.extend(operands.iter().map(|word| format!("url={}", word.to_string_lossy())));
        if clusters.is_empty() {
            return Err(fail("need cluster configuration".into()));
        }
        for text in clusters {
            settings.clusters.extend(cluster::parse(&text, settings.behavior.weight).map_err(fail)?);
        }
        settings.notes.append(&mut settings.behavior.notes);
        Ok(MoxiStart::Serve(Box::new(settings)))
    }

    fn new() -> MoxiSettings {
        MoxiSettings {
            clusters: Vec::new(),
            behavior: MoxiBehavior::default(),
            listen: None,
            unix_socket: None,
            unix_mask: 0o700,
            threads: 4,
            connections_max: 1024,
            requests_per_event: 20,
            backlog: 1024,
            protocol: DialectChoice::Auto,
            is_daemon: false,
            pid_file: None,
            user: None,
            core_dumps: false,
            lock_memory: false,
            verbosity: 0,
            log: None,
            ends_with_input: false,
            notes: Vec::new(),
        }
    }

    fn take(&mut self, GivenOption { letter, value }: GivenOption) -> Result<(), String> {
        let text = String::from_utf8_lossy(&value).trim().to_string();
        let path = || PathBuf::from(OsString::from_vec(value.clone()));
        let name = char::from(letter);
        let count = || match usize::try_from(leading_integer(&value)) {
            Ok(count) if count > 0 && count <= i32::MAX as usize => Ok(count),
            _ => Err(format!("-{name}: must be greater than 0")),
        };
        let count32 = || count().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        match letter {
            b'l' => self.listen = Some(text),
            b'p' if leading_integer(&value) != 0 => {
                return Err(
                    "-p: moxi's half that is a memcached is not included; use todana serve for it".into()
                );
            }
            b's' => self.unix_socket = Some(path()),
            b'a' => {
                let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
                self.unix_mask = mode.ok_or_else(|| format!("-a: must be octal, not {text:?}"))?;
            }
            b't' => self.threads = count()?,
            b'c' => self.connections_max = count()?,
            b'R' => self.requests_per_event = count32()?,
            b'b' => self.backlog = count32()?,
            b'B' => {
                self.protocol = match text.as_str() {
                    "auto" => DialectChoice::Auto,
                    "ascii" => DialectChoice::Text,
                    "binary" => DialectChoice::Binary,
                    _ => return Err(format!("-B: must be auto, ascii or binary, not {text:?}")),
                };
            }
            b'd' => self.is_daemon = true,
            b'P' => self.pid_file = Some(path()).filter(|_| !text.is_empty()),
            b'u' => self.user = Some(text),
            b'r' => self.core_dumps = true,
            b'k' => self.lock_memory = true,
            b'v' => self.verbosity = self.verbosity.saturating_add(1),
            b'O' => self.log = Some(path()),
            b'Y' => self.ends_with_input = text.starts_with(['y', 'Y']),
            b'X' => return Err("-X: servers that each request names are not supported".into()),
            b'U' => self.notes.push("-U has no effect: there is no UDP".into()),
            letter if OF_MEMCACHED.contains(&letter) => {
                self.notes
                    .push(format!("-{name} has no effect: moxi's half that is a memcached is not included"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns a value, or the content of the file that it names by a slash or a dot in front.
fn value_or_file(value: &[u8]) -> Result<String, String> {
    if !value.starts_with(b"/") && !value.starts_with(b".") {
        return Ok(String::from_utf8_lossy(value).into_owned());
    }
    let path = PathBuf::from(OsStr::from_bytes(value));
    crate::proxy::text_of(&path)
}
