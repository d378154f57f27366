//! The plug-in servers of `-plsv`. Only the plug-in for memcached's protocol is supported; it is
//! recognised by its file name.

use super::number;
use std::path::Path;

/// The file name of the plug-in for memcached's protocol. The file is never opened, because its
/// function is built in.
const MEMCACHED: &str = "ktplugservmemc.so";
/// The default time, in seconds, for which a client waits for a message of a queue.
const QUEUE_WAIT_S: f64 = 10.0;

/// The settings of the plug-in for memcached's protocol (`-plex`).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PluginSettings {
    /// The host to listen on; `None` for all addresses.
    pub(super) host: Option<String>,
    /// The port; `None` lets the system choose.
    pub(super) port: Option<u16>,
    /// Stores client flags after the value (`opts=f`).
    pub(super) keeps_flags: bool,
    /// Refuses writes (`opts=r`).
    pub(super) is_read_only: bool,
    /// Enables queues (`opts=q`), in which a client waits this time, in seconds, for a message
    /// (`qtout`).
    pub(super) queue_wait_s: Option<f64>,
    /// Notes about words that were accepted but have no effect, for the log.
    pub(super) notes: Vec<String>,
}

impl PluginSettings {
    /// Parses the values of `-plsv` (`file`) and `-plex` (`expression`). The error names the wrong
    /// option.
    pub(super) fn read(file: &str, expression: &str) -> Result<PluginSettings, String> {
        if Path::new(file).file_name().is_none_or(|name| name != MEMCACHED) {
            return Err(format!(
                "-plsv {file}: plug-ins cannot be loaded; only {MEMCACHED}, which serves memcached's clients, is built in"
            ));
        }
        let mut plugin = PluginSettings {
            host: None,
            port: Some(11211),
            keeps_flags: false,
            is_read_only: false,
            queue_wait_s: None,
            notes: Vec::new(),
        };
        let (mut has_queues, mut wait) = (false, None);
        for word in expression.split('#').filter(|word| !word.is_empty()) {
            let wrong = |what: &str| Err(format!("-plex {expression}: {word}: {what}"));
            let Some((name, value)) = word.split_once('=') else {
                return wrong("must have the form NAME=VALUE");
            };
            match name {
                "host" => plugin.host = Some(value.to_owned()).filter(|host| !host.is_empty()),
                "port" => match number::whole(value).map(|port| (port, u16::try_from(port))) {
                    Some((-1, _)) => plugin.port = None,
                    Some((1.., Ok(port))) => plugin.port = Some(port),
                    _ => return wrong("must be 1 to 65535"),
                },
                "opts" | "options" => {
                    for letter in value.chars() {
                        match letter {
                            'f' => plugin.keeps_flags = true,
                            'r' => plugin.is_read_only = true,
                            'q' => has_queues = true,
                            _ => plugin.notes.push(format!("-plex: {letter} of {word} has no effect")),
                        }
                    }
                }
                "qtout" | "qtimeout" => match number::seconds(value) {
                    // As in ktserver, 0 selects the default.
                    Some(seconds) => wait = Some((seconds, word)).filter(|_| seconds > 0.0),
                    None => return wrong("must be a number"),
                },
                "tout" | "timeout" | "th" | "thnum" => {
                    if number::seconds(value).is_none() {
                        return wrong("must be a number");
                    }
                    plugin.notes.push(format!("-plex: {word} has no effect"));
                }
                _ => plugin.notes.push(format!("-plex: {word} has no effect")),
            }
        }
        match wait {
            _ if has_queues => plugin.queue_wait_s = Some(wait.map_or(QUEUE_WAIT_S, |(seconds, _)| seconds)),
            Some((_, word)) => plugin.notes.push(format!("-plex: {word} has no effect without opts=q")),
            None => {}
        }
        Ok(plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_words_are_parsed() {
        let plain = PluginSettings::read("ktplugservmemc.so", "").unwrap();
        assert_eq!(
            (plain.host, plain.port, plain.keeps_flags, plain.is_read_only),
            (None, Some(11211), false, false)
        );
        let words = "host=127.0.0.1#port=12k#tout=5#th=4#opts=fr#qtout=10";
        let full = PluginSettings::read("/usr/libexec/ktplugservmemc.so", words).unwrap();
        assert_eq!((full.host.as_deref(), full.port), (Some("127.0.0.1"), Some(12288)));
        assert!(full.keeps_flags && full.is_read_only);
        assert_eq!((full.notes.len(), full.queue_wait_s), (3, None));
        let wait = |words| PluginSettings::read("ktplugservmemc.so", words).unwrap().queue_wait_s;
        assert_eq!((wait("opts=q"), wait("qtout=0#opts=fq")), (Some(10.0), Some(10.0)));
        assert_eq!((wait("qtimeout=0.5#options=q"), wait("qtout=5")), (Some(0.5), None));
        assert_eq!(PluginSettings::read("ktplugservmemc.so", "port=-1").unwrap().port, None);
    }

    #[test]
    fn wrong_plugin_words_are_named() {
        for (file, expression, named) in [
            ("ktplugservvoid.so", "", "-plsv ktplugservvoid.so: "),
            ("", "", "-plsv : "),
            ("ktplugservmemc.so", "opts=q#qtout=x", "qtout=x: "),
            ("ktplugservmemc.so", "port=0", "port=0: "),
            ("ktplugservmemc.so", "port=x", "port=x: "),
            ("ktplugservmemc.so", "port=70000", "port=70000: "),
            ("ktplugservmemc.so", "tout=soon", "tout=soon: "),
            ("ktplugservmemc.so", "host", "host: "),
        ] {
            let error = PluginSettings::read(file, expression).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
