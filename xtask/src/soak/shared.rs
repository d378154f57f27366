//! Keys that all workers of a server write to: nobody knows what they hold, but something must hold
//! of it.
//!
//! Counters add up; of those who compare and set the same version one wins; a value is whole and of
//! one piece.

use super::wire::Wire;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const COUNT: usize = 4;
const BLOB_LEN_MAX: usize = 60_000;

#[derive(Default)]
pub(super) struct Shared {
    /// The sum added to each counter.
    added: [AtomicU64; COUNT],
    /// How often somebody won.
    won: [AtomicU64; COUNT],
}

fn wrong<T>(what: String) -> io::Result<T> {
    Err(io::Error::other(what))
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// `get` or `gets` of one key: value and version.
fn get(wire: &mut Wire, verb: &str, key: &str) -> io::Result<Option<(Vec<u8>, u64)>> {
    let line = wire.ask(&format!("{verb} {key}"))?;
    if line == "END" {
        return Ok(None);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let (len, version) = match words[..] {
        ["VALUE", name, "0", len, ref version @ ..] if name == key => {
            (len.parse().ok(), version.first().and_then(|text| text.parse().ok()).unwrap_or(0))
        }
        _ => return wrong(format!("{verb} {key} was answered {line:?}")),
    };
    let Some(len): Option<usize> = len else { return wrong(format!("{verb} {key} was answered {line:?}")) };
    let mut value = wire.exactly(len + 7)?;
    if !value.ends_with(b"\r\nEND\r\n") {
        return wrong(format!("the value of {key} has not the length it is said to have"));
    }
    value.truncate(len);
    Ok(Some((value, version)))
}

impl Shared {
    /// Makes the keys.
    pub(super) fn prepare(&self, wire: &mut Wire) -> io::Result<()> {
        for n in 0..COUNT {
            for kind in ["count", "race"] {
                wire.send(format!("set shared:{kind}:{n} 0 0 1\r\n0\r\n").as_bytes())?;
                let line = wire.line()?;
                if line != "STORED" {
                    return wrong(line);
                }
            }
        }
        Ok(())
    }

    /// A few requests; returns how many.
    pub(super) fn play(&self, wire: &mut Wire, random: &mut fastrand::Rng) -> io::Result<u64> {
        let n = random.usize(..COUNT);
        match random.u32(..3) {
            0 => self.add(wire, n, random),
            1 => self.race(wire, n),
            _ => blob(wire, n, random),
        }
    }

    fn add(&self, wire: &mut Wire, n: usize, random: &mut fastrand::Rng) -> io::Result<u64> {
        let mut last = 0;
        for _ in 0..4 {
            let delta = random.u64(1..1000);
            let is_meta = random.bool();
            // Before it is sent: what anybody sees was added before.
            self.added[n].fetch_add(delta, Ordering::SeqCst);
            let number = if is_meta {
                let head = wire.ask(&format!("ma shared:count:{n} D{delta} v"))?;
                if !head.starts_with("VA ") {
                    return wrong(format!("ma was answered {head:?}"));
                }
                wire.line()?
            } else {
                wire.ask(&format!("incr shared:count:{n} {delta}"))?
            };
            let Ok(number) = number.parse::<u64>() else {
                return wrong(format!("an addition was answered {number:?}"));
            };
            let most = self.added[n].load(Ordering::SeqCst);
            if number < last + delta || number > most {
                return wrong(format!("counter {n} is {number} after {last} + {delta}, of at most {most}"));
            }
            last = number;
        }
        Ok(4)
    }

    /// Adds 1 by gets and cas.
    fn race(&self, wire: &mut Wire, n: usize) -> io::Result<u64> {
        let key = format!("shared:race:{n}");
        let Some((value, version)) = get(wire, "gets", &key)? else { return wrong(format!("{key} is gone")) };
        let Some(number) = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok()) else {
            return wrong(format!("{key} holds {}", value.escape_ascii()));
        };
        let next = (number + 1).to_string();
        wire.send(format!("cas {key} 0 0 {} {version}\r\n{next}\r\n", next.len()).as_bytes())?;
        match wire.line()?.as_str() {
            "STORED" => {
                self.won[n].fetch_add(1, Ordering::SeqCst);
                Ok(2)
            }
            "EXISTS" => Ok(2),
            other => wrong(format!("cas was answered {other:?}")),
        }
    }

    /// The sums, when nobody writes any more.
    pub(super) fn verify(&self, wire: &mut Wire) -> Result<(), String> {
        for n in 0..COUNT {
            for (kind, sum) in [("count", &self.added[n]), ("race", &self.won[n])] {
                let key = format!("shared:{kind}:{n}");
                let held = get(wire, "get", &key).map_err(|error| format!("{key}: {error}"))?;
                let held = held.map(|(value, _)| String::from_utf8_lossy(&value).trim_end().to_string());
                let sum = sum.load(Ordering::SeqCst).to_string();
                if held.as_ref() != Some(&sum) {
                    return Err(format!("{key} holds {held:?} instead of {sum}"));
                }
            }
        }
        Ok(())
    }
}

/// Replaces, reads or deletes a value that says whether it is whole.
fn blob(wire: &mut Wire, n: usize, random: &mut fastrand::Rng) -> io::Result<u64> {
    let key = format!("shared:blob:{n}");
    match random.u32(..10) {
        0 => match wire.ask(&format!("delete {key}"))?.as_str() {
            "DELETED" | "NOT_FOUND" => {}
            other => return wrong(format!("delete was answered {other:?}")),
        },
        1..=3 => {
            let mut value = vec![0; 8];
            value.resize_with(random.usize(8..BLOB_LEN_MAX), || random.u8(..));
            let sum = checksum(&value[8..]).to_be_bytes();
            value[..8].copy_from_slice(&sum);
            wire.send(
                &[format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), &value[..], b"\r\n"].concat(),
            )?;
            let line = wire.line()?;
            if line != "STORED" {
                return wrong(format!("set was answered {line:?}"));
            }
        }
        _ => {
            if let Some((value, _)) = get(wire, "get", &key)? {
                let is_whole = value
                    .split_first_chunk::<8>()
                    .is_some_and(|(sum, rest)| u64::from_be_bytes(*sum) == checksum(rest));
                if !is_whole {
                    return wrong(format!("{key} is not of one piece"));
                }
            }
        }
    }
    Ok(1)
}
