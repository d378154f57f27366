//! Parses twemproxy's command line.

use super::usage;
use crate::memcached::getopt::{GivenOption, OptionSpec, OptionWords, flag, valued};
use crate::serving::ServerFailure;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// All options, in the order of the help.
const OPTIONS: [OptionSpec; 13] = [
    flag(b'h', "help"),
    flag(b'V', "version"),
    flag(b't', "test-conf"),
    flag(b'd', "daemonize"),
    flag(b'D', "describe-stats"),
    valued(b'v', "verbose"),
    valued(b'o', "output"),
    valued(b'c', "conf-file"),
    valued(b's', "stats-port"),
    valued(b'a', "stats-addr"),
    valued(b'i', "stats-interval"),
    valued(b'p', "pid-file"),
    valued(b'm', "mbuf-size"),
];

/// The settings of a proxy, as the command line states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NutcrackerSettings {
    pub(super) config: PathBuf,
    /// True if only the file is checked.
    pub(super) is_test: bool,
    pub(super) is_daemon: bool,
    /// The level of the log in twemproxy's numbers, from 0 to 11.
    level: u64,
    pub(super) log: Option<PathBuf>,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) stats_address: String,
    pub(super) stats_port: u16,
}

/// The action that a command line requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NutcrackerStart {
    /// Print a text on standard error and exit.
    Print(String),
    Serve(Box<NutcrackerSettings>),
}

impl NutcrackerSettings {
    /// Parses a command line. As in twemproxy, all options are checked before one is followed.
    pub(super) fn read(words: Vec<OsString>) -> Result<NutcrackerStart, ServerFailure> {
        let mut settings = NutcrackerSettings {
            config: "/etc/nutcracker/nutcracker.yml".into(),
            is_test: false,
            is_daemon: false,
            level: 5,
            log: None,
            pid_file: None,
            stats_address: "0.0.0.0".into(),
            stats_port: 22222,
        };
        let (mut help, mut version, mut description) = (false, false, false);
        for given in OptionWords::new(&OPTIONS, words) {
            let given = given.map_err(|fault| wrong(&in_own_words(&fault)))?;
            match given.letter {
                // twemproxy prints the version before the help.
                b'h' => (help, version) = (true, true),
                b'V' => version = true,
                b'D' => (description, version) = (true, true),
                _ => settings.take(given)?,
            }
        }
        if version {
            let mut text = usage::version();
            text += if help { usage::HELP } else { "" };
            text += if description { usage::STATISTICS } else { "" };
            return Ok(NutcrackerStart::Print(text));
        }
        Ok(NutcrackerStart::Serve(Box::new(settings)))
    }

    fn take(&mut self, GivenOption { letter, value }: GivenOption) -> Result<(), ServerFailure> {
        let text = String::from_utf8_lossy(&value).into_owned();
        let number = || {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u64>().ok().filter(|_| is_number);
            number.ok_or_else(|| wrong(&missing(letter)))
        };
        match letter {
            b't' => self.is_test = true,
            b'd' => self.is_daemon = true,
            b'v' => self.level = number()?,
            b'o' => self.log = Some(OsString::from_vec(value).into()),
            b'c' => self.config = OsString::from_vec(value).into(),
            b'p' => self.pid_file = Some(OsString::from_vec(value).into()),
            b's' => {
                let port = number()?;
                let valid = u16::try_from(port).ok().filter(|port| *port > 0);
                self.stats_port =
                    valid.ok_or_else(|| wrong(&format!("option -s value {port} is not a valid port")))?;
            }
            b'a' => self.stats_address = text,
            // The statistics are always current.
            b'i' => drop(number()?),
            _ => {
                let size = number()?;
                if size == 0 {
                    return Err(wrong(&missing(letter)));
                }
                if !(512..=16_777_216).contains(&size) {
                    return Err(wrong("mbuf chunk size must be between 512 and 16777216 bytes"));
                }
            }
        }
        Ok(())
    }

    /// Returns the verbosity of the log. twemproxy's default level includes notices.
    pub(super) fn verbosity(&self) -> u8 {
        match self.level {
            0..=4 => 0,
            5..=7 => 1,
            _ => 2,
        }
    }
}

/// Returns the failure for wrong usage.
fn wrong(problem: &str) -> ServerFailure {
    ServerFailure::new(1, format!("nutcracker: {problem}\n{}", usage::USAGE.trim_end()))
}

/// Returns twemproxy's message about an option without its value.
fn missing(letter: u8) -> String {
    let what = match letter {
        b'o' | b'c' | b'p' => "a file name",
        b'a' => "a string",
        b'm' => "a non-zero number",
        _ => "a number",
    };
    format!("option -{} requires {what}", char::from(letter))
}

/// Replaces getopt's message by twemproxy's.
fn in_own_words(fault: &str) -> String {
    if let Some(name) = fault.strip_prefix("option requires an argument -- ") {
        return missing(name.trim_matches('\'').bytes().next().unwrap_or(b'?'));
    }
    if let Some(rest) = fault.strip_prefix("option '--")
        && let Some(long) = rest.strip_suffix("' requires an argument")
        && let Some(option) = OPTIONS.iter().find(|option| option.long == long)
    {
        return missing(option.letter);
    }
    fault.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<NutcrackerStart, ServerFailure> {
        NutcrackerSettings::read(words.iter().map(OsString::from).collect())
    }

    /// The messages are those of nutcracker 0.5.0 of Debian.
    #[test]
    fn wrong_words_have_twemproxys_messages() {
        for (words, message) in [
            (&["-x"][..], "invalid option -- 'x'"),
            (&["-v", "x"], "option -v requires a number"),
            (&["-v"], "option -v requires a number"),
            (&["-s", "0"], "option -s value 0 is not a valid port"),
            (&["-s", "70000"], "option -s value 70000 is not a valid port"),
            (&["-s", "x"], "option -s requires a number"),
            (&["-i", "x"], "option -i requires a number"),
            (&["-m", "10"], "mbuf chunk size must be between 512 and 16777216 bytes"),
            (&["-m", "x"], "option -m requires a non-zero number"),
            (&["-c"], "option -c requires a file name"),
            (&["--conf-file"], "option -c requires a file name"),
            (&["-h", "-x"], "invalid option -- 'x'"),
        ] {
            let failure = read(words).unwrap_err();
            let start = format!("nutcracker: {message}\nUsage: nutcracker [-?hVdDt] ");
            assert!(failure.code == 1 && failure.message.starts_with(&start), "{words:?}: {failure:?}");
        }
    }

    #[test]
    fn all_options_are_read() {
        let words = "-t -d -v 11 -o l -c f -s 9 -a ::1 -i 0 -p P -m 512 extra";
        let words: Vec<&str> = words.split(' ').collect();
        let expected = NutcrackerSettings {
            config: "f".into(),
            is_test: true,
            is_daemon: true,
            level: 11,
            log: Some("l".into()),
            pid_file: Some("P".into()),
            stats_address: "::1".into(),
            stats_port: 9,
        };
        assert_eq!(read(&words), Ok(NutcrackerStart::Serve(Box::new(expected))));
        for (word, part) in [("-h", "Options:"), ("-V", "This is nutcracker-"), ("-D", "pool stats:")] {
            let Ok(NutcrackerStart::Print(text)) = read(&[word]) else { panic!("{word} prints") };
            assert!(text.contains(part), "{text}");
        }
    }
}
