//! Parses the option `-o`: a comma-separated list of `word`, `no_word` or `word=value`.

use super::number::{leading_fraction, leading_integer, whole};
use super::server_failure::ServerFailure;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Words without a value.
const FLAGS: [&str; 18] = [
    "maxconns_fast",
    "hashexpand",
    "slab_reassign",
    "slab_automove",
    "track_sizes",
    "modern",
    "chunked_items",
    "inline_ascii_resp",
    "lru_crawler",
    "lru_maintainer",
    "drop_privileges",
    "relaxed_privileges",
    "ssl_session_cache",
    "ssl_kernel_tls",
    "ext_drop_unread",
    "debug_commands",
    "emulate_full",
    "resp_obj_mem_limit",
];

/// The TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) chain_cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) ca_cert: Option<PathBuf>,
    pub(super) ciphers: Option<String>,
    /// How client certificates are verified: 0 none, 1 request, 2 require, 3 once.
    pub(super) verify_mode: u8,
    /// OpenSSL's number for the format of the private key; `None` means PEM.
    pub(super) key_format: Option<i64>,
    /// The oldest accepted version: 0 for TLS 1.0 to 3 for TLS 1.3; `None` means TLS 1.2.
    pub(super) min_version: Option<u8>,
    pub(super) session_cache: bool,
    pub(super) kernel: bool,
    pub(super) write_buffer_kib: Option<u32>,
}

/// The meaning of a negative expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NegativeExpiry {
    /// The record expires at once.
    #[default]
    Expired,
    /// The number of seconds counts from the last access.
    Sliding,
}

/// The settings of `-o`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExtendedSettings {
    /// Refuses connections above the limit instead of letting them wait.
    pub(super) maxconns_fast: bool,
    /// The time in seconds after which idle connections are closed; 0 for never.
    pub(super) idle_timeout_s: u32,
    pub(super) track_sizes: bool,
    pub(super) lru_crawler: bool,
    pub(super) lru_maintainer: bool,
    /// The pause between two records, in microseconds.
    pub(super) lru_crawler_sleep_us: u32,
    /// The most records per class; 0 for all.
    pub(super) lru_crawler_tocrawl: u32,
    /// The time to live in seconds below which memcached stores records separately, or `None`.
    pub(super) temporary_ttl_s: Option<u32>,
    pub(super) hot_lru_percent: u32,
    pub(super) warm_lru_percent: u32,
    pub(super) hot_max_factor: f64,
    pub(super) warm_max_factor: f64,
    /// The largest chunk of an item, in KiB.
    pub(super) slab_chunk_max_kib: Option<u32>,
    pub(super) watcher_buffer_kib: u32,
    pub(super) worker_log_buffer_kib: u32,
    /// The most memory for read and reply buffers, in MiB; 0 for no limit.
    pub(super) read_buffer_limit_mib: u32,
    pub(super) tls: TlsSettings,
    pub(super) negative_expiry: NegativeExpiry,
    /// Enables commands for tests.
    pub(super) debug_commands: bool,
    /// Makes every store fail as if memory were full.
    pub(super) emulate_full: bool,
    /// All given words, in order and without their values.
    pub(super) given: Vec<String>,
}

impl Default for ExtendedSettings {
    fn default() -> Self {
        ExtendedSettings {
            maxconns_fast: true,
            idle_timeout_s: 0,
            track_sizes: false,
            lru_crawler: true,
            lru_maintainer: true,
            lru_crawler_sleep_us: 100,
            lru_crawler_tocrawl: 0,
            temporary_ttl_s: None,
            hot_lru_percent: 20,
            warm_lru_percent: 40,
            hot_max_factor: 0.2,
            warm_max_factor: 2.0,
            slab_chunk_max_kib: None,
            watcher_buffer_kib: 256,
            worker_log_buffer_kib: 64,
            read_buffer_limit_mib: 0,
            tls: TlsSettings::default(),
            negative_expiry: NegativeExpiry::default(),
            debug_commands: false,
            emulate_full: false,
            given: Vec::new(),
        }
    }
}

impl ExtendedSettings {
    /// Parses a list.
    pub(super) fn read(&mut self, list: &[u8], warnings: &mut Vec<String>) -> Result<(), ServerFailure> {
        let mut pieces: Vec<&[u8]> = list.split(|&byte| byte == b',').collect();
        // As in memcached, a comma at the end is ignored, but an empty word between commas is an
        // unknown word.
        if pieces.last().is_some_and(|piece| piece.is_empty()) {
            pieces.pop();
        }
        for piece in pieces {
            let mut parts = piece.splitn(2, |&byte| byte == b'=');
            let name =
                String::from_utf8_lossy(parts.next().unwrap_or_default().trim_ascii_start()).into_owned();
            if !self.take(&name, parts.next(), warnings)? {
                let shown = String::from_utf8_lossy(piece);
                return Err(ServerFailure::bad_value(format!("Illegal suboption \"{shown}\"")));
            }
            if !self.given.contains(&name) {
                self.given.push(name);
            }
        }
        Ok(())
    }

    /// Applies a word without a value. Returns false for an unknown word.
    fn take(
        &mut self,
        name: &str,
        value: Option<&[u8]>,
        warnings: &mut Vec<String>,
    ) -> Result<bool, ServerFailure> {
        if name == "slab_automove" && value.is_some_and(|value| !(0..=2).contains(&leading_integer(value))) {
            return Err(ServerFailure::bad_value("slab_automove must be between 0 and 2"));
        }
        let (word, on) = name.strip_prefix("no_").map_or((name, true), |word| (word, false));
        if FLAGS.contains(&word) {
            self.set_flag(word, on, warnings);
            return Ok(true);
        }
        if on { OptionValue { name, value }.take(self) } else { Ok(false) }
    }

    fn set_flag(&mut self, word: &str, on: bool, warnings: &mut Vec<String>) {
        match word {
            "maxconns_fast" => self.maxconns_fast = on,
            "track_sizes" => self.track_sizes = on,
            "lru_crawler" => self.lru_crawler = on,
            "lru_maintainer" => self.lru_maintainer = on,
            "ssl_session_cache" => self.tls.session_cache = on,
            "ssl_kernel_tls" => self.tls.kernel = on,
            "debug_commands" => self.debug_commands = on,
            "emulate_full" => self.emulate_full = on,
            "modern" if !on => {
                self.maxconns_fast = false;
                self.lru_crawler = false;
                self.lru_maintainer = false;
            }
            "resp_obj_mem_limit" => {
                warnings
                    .push("DEPRECATED: resp_obj_mem_limit no longer used. See read_buf_mem_limit,".into());
            }
            _ => {}
        }
    }

    /// Checks settings that depend on each other.
    pub(super) fn check(&self) -> Result<(), ServerFailure> {
        if self.hot_lru_percent + self.warm_lru_percent > 80 {
            return Err(ServerFailure::usage("hot_lru_pct + warm_lru_pct cannot be more than 80% combined"));
        }
        Ok(())
    }
}

/// A word and its value, if it has a value.
struct OptionValue<'a> {
    name: &'a str,
    value: Option<&'a [u8]>,
}

impl<'a> OptionValue<'a> {
    /// Applies the word. Returns false for an unknown word.
    fn take(&self, to: &mut ExtendedSettings) -> Result<bool, ServerFailure> {
        match self.name {
            "hashpower" => self.check_hash_power()?,
            "tail_repair_time" if leading_integer(self.numeric()?) < 10 => {
                return Err(ServerFailure::bad_value("Cannot set tail_repair_time to less than 10 seconds"));
            }
            "tail_repair_time" => {}
            "idle_timeout" => {
                to.idle_timeout_s = u32::try_from(leading_integer(self.numeric()?)).unwrap_or(0);
            }
            "hash_algorithm" if !matches!(self.text()?, b"jenkins" | b"murmur3" | b"xxh3") => {
                return Err(ServerFailure::bad_value(
                    "Unknown hash_algorithm option (jenkins, murmur3, xxh3)",
                ));
            }
            "hash_algorithm" => {}
            "slab_sizes" => self.check_slab_sizes()?,
            "slab_automove_ratio" => {
                let ratio = leading_fraction(self.text()?);
                if !(ratio > 0.0 && ratio < 1.0) {
                    return Err(self.wrong("must be > 0 and < 1"));
                }
            }
            "slab_automove_window" if leading_integer(self.text()?) < 3 => {
                return Err(self.wrong("must be > 2"));
            }
            "slab_automove_window" => {}
            "slab_automove_freeratio" => drop(self.fraction()?),
            "slab_chunk_max" => to.slab_chunk_max_kib = Some(self.number()?),
            "lru_crawler_sleep" => {
                let sleep_us = u32::try_from(leading_integer(self.some_value()?)).ok();
                let fits = sleep_us.filter(|&sleep_us| sleep_us <= 1_000_000);
                to.lru_crawler_sleep_us = fits.ok_or_else(|| {
                    ServerFailure::bad_value("LRU crawler sleep must be between 0 and 1 second")
                })?;
            }
            "lru_crawler_tocrawl" => {
                to.lru_crawler_tocrawl = whole(self.some_value()?).ok_or_else(|| {
                    ServerFailure::bad_value("lru_crawler_tocrawl takes a numeric 32bit value")
                })?;
            }
            "hot_lru_pct" => to.hot_lru_percent = self.percent()?,
            "warm_lru_pct" => to.warm_lru_percent = self.percent()?,
            "hot_max_factor" => to.hot_max_factor = self.factor()?,
            "warm_max_factor" => to.warm_max_factor = self.factor()?,
            "temporary_ttl" => {
                to.temporary_ttl_s = Some(u32::try_from(leading_integer(self.text()?)).unwrap_or(0));
            }
            "watcher_logbuf_size" => to.watcher_buffer_kib = self.number()?,
            "worker_logbuf_size" => to.worker_log_buffer_kib = self.number()?,
            "read_buf_mem_limit" => to.read_buffer_limit_mib = self.number()?,
            "sock_cookie_id" => drop(self.text()?),
            "negative_exptime" => {
                to.negative_expiry = match self.text()? {
                    b"sliding" => NegativeExpiry::Sliding,
                    b"expired" => NegativeExpiry::Expired,
                    _ => return Err(self.wrong("must be sliding or expired")),
                };
            }
            name if name.starts_with("ssl_") => return self.take_tls(&mut to.tls),
            name if name.starts_with("ext_") => return self.check_external(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_tls(&self, tls: &mut TlsSettings) -> Result<bool, ServerFailure> {
        let path = |bytes: &[u8]| Some(PathBuf::from(OsString::from_vec(bytes.to_vec())));
        let invalid =
            || ServerFailure::bad_value(format!("Invalid {}. Use help to see valid options.", self.name));
        let up_to_three = |bytes: &[u8]| u8::try_from(leading_integer(bytes)).ok().filter(|&mode| mode <= 3);
        match self.name {
            "ssl_chain_cert" => tls.chain_cert = path(self.text()?),
            "ssl_key" => tls.key = path(self.text()?),
            "ssl_ca_cert" => tls.ca_cert = path(self.text()?),
            "ssl_ciphers" => tls.ciphers = Some(String::from_utf8_lossy(self.text()?).into_owned()),
            "ssl_verify_mode" => tls.verify_mode = up_to_three(self.text()?).ok_or_else(invalid)?,
            "ssl_min_version" => tls.min_version = Some(up_to_three(self.text()?).ok_or_else(invalid)?),
            "ssl_keyformat" => tls.key_format = Some(leading_integer(self.text()?)),
            "ssl_wbuf_size" => tls.write_buffer_kib = Some(self.number()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the words about external storage for likely typing errors. Otherwise they are
    /// ignored, because they have no effect here.
    fn check_external(&self) -> Result<bool, ServerFailure> {
        match self.name {
            "ext_path" => {
                let path = self.value.filter(|value| !value.is_empty()).ok_or_else(|| {
                    ServerFailure::bad_value("missing argument to ext_path, ie: ext_path=/d/file:5G")
                })?;
                let size = path.rsplit(|&byte| byte == b':').next().filter(|size| size.len() < path.len());
                if size.is_none_or(|size| leading_integer(size) <= 0) {
                    return Err(ServerFailure::bad_value(
                        "must supply size to ext_path, ie: ext_path=/f/e:64m (M|G|T|P supported)\n\
                         failed to parse ext_path argument",
                    ));
                }
            }
            "ext_max_frag" => drop(self.fraction()?),
            _ => drop(self.number()?),
        }
        Ok(true)
    }

    fn check_hash_power(&self) -> Result<(), ServerFailure> {
        let power = leading_integer(self.numeric()?);
        let too = |what: &str| format!("Initial hashtable multiplier of {power} is too {what}");
        match power {
            ..12 => Err(ServerFailure::bad_value(too("low"))),
            33.. => Err(ServerFailure::bad_value(format!(
                "{}\nChoose a value based on \"STAT hash_power_level\" from a running instance",
                too("high")
            ))),
            _ => Ok(()),
        }
    }

    fn check_slab_sizes(&self) -> Result<(), ServerFailure> {
        let sizes = self.text()?.split(|&byte| byte == b'-').map(leading_integer);
        for size in sizes {
            // memcached's item header alone has this size.
            if size < 48 {
                return Err(ServerFailure::usage(format!("slab size {size} is out of valid range")));
            }
        }
        Ok(())
    }

    fn wrong(&self, why: &str) -> ServerFailure {
        ServerFailure::bad_value(format!("{} {why}", self.name))
    }

    // memcached words the error for a missing value in three ways.

    fn text(&self) -> Result<&'a [u8], ServerFailure> {
        self.value.ok_or_else(|| ServerFailure::bad_value(format!("Missing {} argument", self.name)))
    }

    fn numeric(&self) -> Result<&'a [u8], ServerFailure> {
        self.value
            .ok_or_else(|| ServerFailure::bad_value(format!("Missing numeric argument for {}", self.name)))
    }

    fn some_value(&self) -> Result<&'a [u8], ServerFailure> {
        self.value.ok_or_else(|| ServerFailure::bad_value(format!("Missing {} value", self.name)))
    }

    fn number(&self) -> Result<u32, ServerFailure> {
        whole(self.text()?).ok_or_else(|| self.unreadable())
    }

    fn fraction(&self) -> Result<f64, ServerFailure> {
        let text = std::str::from_utf8(self.text()?).ok().and_then(|text| text.trim().parse().ok());
        text.ok_or_else(|| self.unreadable())
    }

    fn unreadable(&self) -> ServerFailure {
        ServerFailure::bad_value(format!("could not parse argument to {}", self.name))
    }

    fn percent(&self) -> Result<u32, ServerFailure> {
        let percent = u32::try_from(leading_integer(self.text()?)).ok();
        percent.filter(|percent| (1..80).contains(percent)).ok_or_else(|| self.wrong("must be > 1 and < 80"))
    }

    fn factor(&self) -> Result<f64, ServerFailure> {
        let factor = leading_fraction(self.text()?);
        if factor > 0.0 { Ok(factor) } else { Err(self.wrong("must be > 0")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Result<ExtendedSettings, String> {
        let mut extended = ExtendedSettings::default();
        extended.read(list.as_bytes(), &mut Vec::new()).map_err(|refusal| refusal.message)?;
        Ok(extended)
    }

    #[test]
    fn values_are_kept_with_their_words() {
        let all = read("idle_timeout=30,track_sizes,ssl_chain_cert=/a=b,ssl_verify_mode=2,no_maxconns_fast")
            .unwrap();
        assert_eq!((all.idle_timeout_s, all.track_sizes, all.maxconns_fast), (30, true, false));
        assert_eq!((all.tls.chain_cert, all.tls.verify_mode), (Some("/a=b".into()), 2));
        assert_eq!(
            all.given,
            ["idle_timeout", "track_sizes", "ssl_chain_cert", "ssl_verify_mode", "no_maxconns_fast"]
        );
    }

    #[test]
    fn the_last_word_counts() {
        assert!(read("no_modern,maxconns_fast").unwrap().maxconns_fast);
        let flat = read("no_modern").unwrap();
        assert!(!flat.maxconns_fast && !flat.lru_crawler && !flat.lru_maintainer);
        assert!(!read("track_sizes,no_track_sizes").unwrap().track_sizes);
    }

    #[test]
    fn an_unknown_word_is_named_as_given() {
        for word in ["foo", "foo=bar", "no_foo", "no_idle_timeout=3", "ssl_chian_cert=/x", "Modern"] {
            assert_eq!(
                read(&format!("modern,{word},track_sizes")),
                Err(format!("Illegal suboption \"{word}\""))
            );
        }
        assert_eq!(read("modern,,track_sizes"), Err("Illegal suboption \"\"".into()));
        assert!(read("").is_ok() && read("modern,").is_ok());
    }
}
