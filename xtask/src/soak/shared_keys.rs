//! Keys that all workers of a server write to. No worker knows their exact values, but invariants
//! hold:
//!
//! - A counter is the sum of all additions.
//! - Of several clients that compare and set the same version, exactly one succeeds.
//! - A value is one that a client stored, never a mixture of two.

use super::connection::ClientConnection;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const COUNT: usize = 4;
const BLOB_LEN_MAX: usize = 60_000;

#[derive(Default)]
pub(super) struct SharedKeys {
    /// The sum added to each counter.
    added: [AtomicU64; COUNT],
    /// The number of successful `cas` requests for each key.
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

/// Sends `get` or `gets` for one key and returns its value and version.
fn get(connection: &mut ClientConnection, verb: &str, key: &str) -> io::Result<Option<(Vec<u8>, u64)>> {
    let line = connection.ask(&format!("{verb} {key}"))?;
    if line == "END" {
        return Ok(None);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let (len, version) = match words[..] {
        ["VALUE", name, "0", len, ref version @ ..] if name == key => {
            (len.parse().ok(), version.first().and_then(|text| text.parse().ok()).unwrap_or(0))
        }
        _ => return wrong(format!("{verb} {key}: unexpected reply {line:?}")),
    };
    let Some(len): Option<usize> = len else {
        return wrong(format!("{verb} {key}: unexpected reply {line:?}"));
    };
    let mut value = connection.exactly(len + 7)?;
    if !value.ends_with(b"\r\nEND\r\n") {
        return wrong(format!("{key}: the value is not as long as its header says"));
    }
    value.truncate(len);
    Ok(Some((value, version)))
}

impl SharedKeys {
    /// Creates the keys.
    pub(super) fn prepare(&self, connection: &mut ClientConnection) -> io::Result<()> {
        for n in 0..COUNT {
            for kind in ["count", "race"] {
                connection.send(format!("set shared:{kind}:{n} 0 0 1\r\n0\r\n").as_bytes())?;
                let line = connection.line()?;
                if line != "STORED" {
                    return wrong(line);
                }
            }
        }
        Ok(())
    }

    /// Sends a few requests and returns their number.
    pub(super) fn send_requests(
        &self,
        connection: &mut ClientConnection,
        random: &mut fastrand::Rng,
    ) -> io::Result<u64> {
        let n = random.usize(..COUNT);
        match random.u32(..3) {
            0 => self.add(connection, n, random),
            1 => self.race(connection, n),
            _ => blob(connection, n, random),
        }
    }

    fn add(
        &self,
        connection: &mut ClientConnection,
        n: usize,
        random: &mut fastrand::Rng,
    ) -> io::Result<u64> {
        let mut last = 0;
        for _ in 0..4 {
            let delta = random.u64(1..1000);
            let is_meta = random.bool();
            // Counted before the request is sent, so that no client sees a sum above the counted
            // one.
            self.added[n].fetch_add(delta, Ordering::SeqCst);
            let number = if is_meta {
                let head = connection.ask(&format!("ma shared:count:{n} D{delta} v"))?;
                if !head.starts_with("VA ") {
                    return wrong(format!("ma: unexpected reply {head:?}"));
                }
                connection.line()?
            } else {
                connection.ask(&format!("incr shared:count:{n} {delta}"))?
            };
            let Ok(number) = number.parse::<u64>() else {
                return wrong(format!("addition: unexpected reply {number:?}"));
            };
            let most = self.added[n].load(Ordering::SeqCst);
            if number < last + delta || number > most {
                return wrong(format!(
                    "counter {n}: is {number} after {last} + {delta}; the sum of all additions is {most}"
                ));
            }
            last = number;
        }
        Ok(4)
    }

    /// Adds 1 with `gets` and `cas`.
    fn race(&self, connection: &mut ClientConnection, n: usize) -> io::Result<u64> {
        let key = format!("shared:race:{n}");
        let Some((value, version)) = get(connection, "gets", &key)? else {
            return wrong(format!("{key}: not found"));
        };
        let Some(number) = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok()) else {
            return wrong(format!("{key}: holds {}", value.escape_ascii()));
        };
        let next = (number + 1).to_string();
        connection.send(format!("cas {key} 0 0 {} {version}\r\n{next}\r\n", next.len()).as_bytes())?;
        match connection.line()?.as_str() {
            "STORED" => {
                self.won[n].fetch_add(1, Ordering::SeqCst);
                Ok(2)
            }
            "EXISTS" => Ok(2),
            other => wrong(format!("cas: unexpected reply {other:?}")),
        }
    }

    /// Checks the sums after all clients have stopped writing.
    pub(super) fn verify(&self, connection: &mut ClientConnection) -> Result<(), String> {
        for n in 0..COUNT {
            for (kind, sum) in [("count", &self.added[n]), ("race", &self.won[n])] {
                let key = format!("shared:{kind}:{n}");
                let held = get(connection, "get", &key).map_err(|error| format!("{key}: {error}"))?;
                let held = held.map(|(value, _)| String::from_utf8_lossy(&value).trim_end().to_string());
                let sum = sum.load(Ordering::SeqCst).to_string();
                if held.as_ref() != Some(&sum) {
                    return Err(format!("{key}: holds {held:?}, expected {sum}"));
                }
            }
        }
        Ok(())
    }
}

/// Replaces, reads or deletes a value that begins with its own checksum.
fn blob(connection: &mut ClientConnection, n: usize, random: &mut fastrand::Rng) -> io::Result<u64> {
    let key = format!("shared:blob:{n}");
    match random.u32(..10) {
        0 => match connection.ask(&format!("delete {key}"))?.as_str() {
            "DELETED" | "NOT_FOUND" => {}
            other => return wrong(format!("delete: unexpected reply {other:?}")),
        },
        1..=3 => {
            let mut value = vec![0; 8];
            value.resize_with(random.usize(8..BLOB_LEN_MAX), || random.u8(..));
            let sum = checksum(&value[8..]).to_be_bytes();
            value[..8].copy_from_slice(&sum);
            connection.send(
                &[format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), &value[..], b"\r\n"].concat(),
            )?;
            let line = connection.line()?;
            if line != "STORED" {
                return wrong(format!("set: unexpected reply {line:?}"));
            }
        }
        _ => {
            if let Some((value, _)) = get(connection, "get", &key)? {
                let is_intact = value
                    .split_first_chunk::<8>()
                    .is_some_and(|(sum, rest)| u64::from_be_bytes(*sum) == checksum(rest));
                if !is_intact {
                    return wrong(format!("{key}: the value does not match its checksum"));
                }
            }
        }
    }
    Ok(1)
}
