//! Parses command lines by the rules of getopt_long: clustered letters (`-vvd`), attached values
//! (`-p11211`, `--port=11211`), unambiguous prefixes of long names, operands at any place, and `--`
//! as the end of the options.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::vec::IntoIter;

/// An option that a command line may contain: its letter, which identifies it, and its long name
/// (empty if it has none).
#[derive(Debug)]
pub(crate) struct OptionSpec {
    pub(crate) letter: u8,
    pub(crate) long: &'static str,
    pub(crate) takes_value: bool,
}

/// Returns an option without a value.
pub(crate) const fn flag(letter: u8, long: &'static str) -> OptionSpec {
    OptionSpec { letter, long, takes_value: false }
}

/// Returns an option with a value.
pub(crate) const fn valued(letter: u8, long: &'static str) -> OptionSpec {
    OptionSpec { letter, long, takes_value: true }
}

/// An option that a command line contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenOption {
    pub(crate) letter: u8,
    /// The value; empty for an option without a value.
    pub(crate) value: Vec<u8>,
}

/// Iterates over the options of a command line.
pub(crate) struct OptionWords<'a> {
    switches: &'a [OptionSpec],
    words: IntoIter<OsString>,
    /// The letters of the current word that have not been returned yet.
    cluster: Vec<u8>,
    /// The words so far that are no options.
    operands: Vec<OsString>,
}

/// An error about an option, in getopt's wording.
type OptionFault = String;

impl<'a> OptionWords<'a> {
    pub(crate) fn new(switches: &'a [OptionSpec], words: Vec<OsString>) -> OptionWords<'a> {
        OptionWords { switches, words: words.into_iter(), cluster: Vec::new(), operands: Vec::new() }
    }

    /// Returns the words that are no options. Call it after the last option.
    pub(crate) fn operands(&mut self) -> Vec<OsString> {
        let mut operands = std::mem::take(&mut self.operands);
        operands.extend(self.words.by_ref());
        operands
    }

    fn letter(&mut self, letter: u8, rest: Vec<u8>) -> Result<GivenOption, OptionFault> {
        let shown = letter.escape_ascii();
        let switch = self.switches.iter().find(|switch| switch.letter == letter);
        let Some(switch) = switch else {
            self.cluster = rest;
            return Err(format!("invalid option -- '{shown}'"));
        };
        if !switch.takes_value {
            self.cluster = rest;
            return Ok(GivenOption { letter, value: Vec::new() });
        }
        let value = if rest.is_empty() { self.words.next().map(OsStringExt::into_vec) } else { Some(rest) };
        let value = value.ok_or_else(|| format!("option requires an argument -- '{shown}'"))?;
        Ok(GivenOption { letter, value })
    }

    /// Parses a long option. `word` is the text after the two dashes.
    fn long(&mut self, word: &[u8]) -> Result<GivenOption, OptionFault> {
        let mut parts = word.splitn(2, |&byte| byte == b'=');
        let (name, glued) = (parts.next().unwrap_or_default(), parts.next());
        let shown = String::from_utf8_lossy(name);
        let exact = self.switches.iter().find(|switch| !name.is_empty() && switch.long.as_bytes() == name);
        let near: Vec<&OptionSpec> = match exact {
            Some(switch) => vec![switch],
            None => self.switches.iter().filter(|switch| switch.long.as_bytes().starts_with(name)).collect(),
        };
        let switch = match near[..] {
            [switch] => switch,
            [] => return Err(format!("unrecognized option '--{shown}'")),
            _ => {
                let names: String = near.iter().map(|switch| format!(" '--{}'", switch.long)).collect();
                let shown = String::from_utf8_lossy(word);
                return Err(format!("option '--{shown}' is ambiguous; possibilities:{names}"));
            }
        };
        let (letter, long) = (switch.letter, switch.long);
        let value = match (switch.takes_value, glued) {
            (false, None) => Vec::new(),
            (false, Some(_)) => return Err(format!("option '--{long}' doesn't allow an argument")),
            (true, Some(value)) => value.to_vec(),
            (true, None) => match self.words.next() {
                Some(value) => value.into_vec(),
                None => return Err(format!("option '--{long}' requires an argument")),
            },
        };
        Ok(GivenOption { letter, value })
    }
}

impl Iterator for OptionWords<'_> {
    type Item = Result<GivenOption, OptionFault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let [letter, rest @ ..] = &std::mem::take(&mut self.cluster)[..] {
                return Some(self.letter(*letter, rest.to_vec()));
            }
            let word = self.words.next()?.into_vec();
            match &word[..] {
                b"--" => return None,
                [b'-', b'-', word @ ..] => return Some(self.long(word)),
                [b'-', letters @ ..] if !letters.is_empty() => self.cluster = letters.to_vec(),
                _ => self.operands.push(OsString::from_vec(word)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCHES: [OptionSpec; 6] = [
        OptionSpec { letter: b'p', long: "port", takes_value: true },
        OptionSpec { letter: b'P', long: "pidfile", takes_value: true },
        OptionSpec { letter: b'v', long: "verbose", takes_value: false },
        OptionSpec { letter: b'V', long: "version", takes_value: false },
        OptionSpec { letter: b'd', long: "daemon", takes_value: false },
        OptionSpec { letter: b'D', long: "", takes_value: true },
    ];

    /// Returns each option as `letter=value`, or the error.
    fn read(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        let shown = |given: GivenOption| {
            format!("{}={}", char::from(given.letter), String::from_utf8(given.value).unwrap())
        };
        OptionWords::new(&SWITCHES, words).map(|word| word.map_or_else(|fault| fault, shown)).collect()
    }

    #[test]
    fn letters_may_be_clustered_and_values_glued() {
        assert_eq!(
            read(&["-vvd", "-p", "1", "-p2", "-vp3", "-vp", "4"]),
            ["v=", "v=", "d=", "p=1", "p=2", "v=", "p=3", "v=", "p=4"]
        );
        assert_eq!(read(&["-p", "-v"]), ["p=-v"], "a value may look like an option");
    }

    #[test]
    fn unambiguous_prefixes_of_long_names_are_accepted() {
        assert_eq!(
            read(&["--port", "1", "--port=2", "--po", "3", "--po=", "--d", "--verb"]),
            ["p=1", "p=2", "p=3", "p=", "d=", "v="]
        );
        assert_eq!(read(&["--p=1"]), ["option '--p=1' is ambiguous; possibilities: '--port' '--pidfile'"]);
        assert_eq!(read(&["--p", "1"]), ["option '--p' is ambiguous; possibilities: '--port' '--pidfile'"]);
        assert_eq!(read(&["--port=a=b"]), ["p=a=b"]);
    }

    #[test]
    fn operands_are_ignored_and_two_dashes_end_options() {
        assert_eq!(read(&["x", "-v", "y", "-", "-d", "--", "-v"]), ["v=", "d="]);
    }

    #[test]
    fn faults_are_worded_as_getopt_does() {
        assert_eq!(read(&["-Qv"]), ["invalid option -- 'Q'", "v="]);
        assert_eq!(read(&["-p"]), ["option requires an argument -- 'p'"]);
        assert_eq!(read(&["--port"]), ["option '--port' requires an argument"]);
        assert_eq!(read(&["--daemon=3"]), ["option '--daemon' doesn't allow an argument"]);
        assert_eq!(read(&["--nosuch=1"]), ["unrecognized option '--nosuch'"]);
    }

    #[test]
    fn any_bytes_are_a_word() {
        let words = vec![OsString::from_vec(vec![b'-', 0xff]), OsString::from_vec(vec![b'-', b'p', 0xff])];
        let read: Vec<_> = OptionWords::new(&SWITCHES, words).collect();
        assert_eq!(read[0], Err("invalid option -- '\\xff'".into()));
        assert_eq!(read[1], Ok(GivenOption { letter: b'p', value: vec![0xff] }));
    }
}
