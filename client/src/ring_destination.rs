//! Parses a list of servers together with the ring over them.

use crate::ring::{KeyFilter, Ring, RingError, RingOptions, ServerEntry};
use std::fmt;
use std::str::FromStr;

/// The word before a list of servers.
const SCHEME: &str = "ring:";

/// The options of a ring, as the configuration of a proxy names them.
const OPTIONS: [&str; 9] =
    ["ring", "hash", "mode", "points", "seed", "salt", "hash-tag", "hash-stop", "hash-without"];

/// Servers and the ring over them: `ring:cache1,cache2:11212 weight=2,ring=twemproxy,hash=md5`.
///
/// Each server is a [`ServerEntry`]. The other words are the options of a pool of `todana proxy`:
/// `ring`, `hash`, `mode`, `points`, `seed`, `salt`, `hash-tag`, `hash-stop` and `hash-without`, of
/// which the last may be repeated. Their values cannot contain commas.
///
/// ```
/// use todana_client::RingDestination;
///
/// let destination: RingDestination = "ring:cache1,cache2,ring=pymemcache".parse()?;
/// assert_eq!(destination.servers[1].label(), "cache2:11211");
/// assert_eq!(destination.options.kind.to_string(), "pymemcache");
/// # Ok::<(), todana_client::ring::RingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingDestination {
    /// The servers.
    pub servers: Vec<ServerEntry>,
    /// The options of the ring.
    pub options: RingOptions,
}

impl RingDestination {
    /// Returns true if a text begins as that of a ring, even an invalid one.
    pub fn is_named(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for RingDestination {
    type Err = RingError;

    fn from_str(text: &str) -> Result<RingDestination, RingError> {
        let list = text.strip_prefix(SCHEME).unwrap_or(text);
        let (mut servers, mut options) = (Vec::new(), RingOptions::default());
        let (mut tag, mut stop, mut without) = ("", "", Vec::new());
        let mut seen: Vec<&str> = Vec::new();
        for word in list.split(',') {
            let option = word.split_once('=').filter(|(name, _)| !name.contains([' ', ':', '/', '.']));
            let Some((name, value)) = option else {
                servers.push(word.parse()?);
                continue;
            };
            if !OPTIONS.contains(&name) {
                return Err(RingError::new(format!("{name}: unknown option; known: {}", OPTIONS.join(" "))));
            }
            if seen.contains(&name) && name != "hash-without" {
                return Err(RingError::new(format!("{name}: occurs twice")));
            }
            seen.push(name);
            let text = || Some(value.to_string());
            match name {
                "ring" => options.kind = value.parse()?,
                "hash" => options.hash = text(),
                "mode" => options.mode = text(),
                "points" => {
                    let problem = || RingError::new(format!("points: {value:?} is not a number"));
                    options.points = Some(value.parse().map_err(|_| problem())?);
                }
                "seed" => options.seed = text(),
                "salt" => options.salt = text(),
                "hash-tag" => tag = value,
                "hash-stop" => stop = value,
                _ => without.push(value.to_string()),
            }
        }
        options.key_filter = KeyFilter::new(tag, stop, &without)?;
        // The ring reports what its options and servers do not allow.
        Ring::new(&options, &servers, |_| true)?;
        Ok(RingDestination { servers, options })
    }
}

impl fmt::Display for RingDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.servers.iter().map(ServerEntry::label).collect();
        write!(f, "{SCHEME}{}", labels.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingKind;

    #[test]
    fn servers_and_options_are_read() {
        let (servers, options) =
            ("a,tls:b:2 weight=3 name=x,unix:/run/c=d", "ring=twemproxy,hash=md5,hash-tag={}");
        let text = format!("ring:{servers},{options},hash-without=p:,hash-without=q:");
        let destination: RingDestination = text.parse().unwrap();
        assert_eq!(destination.to_string(), "ring:a:11211,x,unix:/run/c=d");
        assert_eq!(destination.servers[1], "tls:b:2 weight=3 name=x".parse().unwrap());
        let key_filter = KeyFilter::new("{}", "", &["p:".into(), "q:".into()]).unwrap();
        let hash = Some("md5".to_string());
        let expected = RingOptions { kind: RingKind::Twemproxy, key_filter, hash, ..RingOptions::default() };
        assert_eq!(destination.options, expected);
        let points: RingDestination =
            "ring:a,ring=memcached-proxy-ring,mode=ketama,points=8".parse().unwrap();
        assert_eq!((points.options.points, points.options.mode.as_deref()), (Some(8), Some("ketama")));
    }

    #[test]
    fn problems_are_named() {
        for (text, problem) in [
            ("ring:", "server \"\": no address"),
            ("ring:a,,b", "server \"\": no address"),
            ("ring:ring=twemproxy", "no servers; a list must have from 1"),
            ("ring:a,a", "server a:11211: occurs twice"),
            ("ring:a:x", "port \"x\" must be"),
            ("ring:a,ring=ketama", "\"ketama\": unknown ring; known: libmemcached"),
            ("ring:a,rnig=todana", "rnig: unknown option; known: ring hash"),
            ("ring:a,ring=todana,ring=todana", "ring: occurs twice"),
            ("ring:a,points=many", "points: \"many\" is not a number"),
            ("ring:a,points=3", "ring libmemcached: has no option points"),
            ("ring:a,hash-tag={", "must be two characters"),
        ] {
            let error = text.parse::<RingDestination>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
