//! Selects cipher suites by OpenSSL's notation for lists of suites, among the suites that rustls
//! has.
//!
//! A list consists of words separated by colons, commas, semicolons, blanks or `@`. A word is the
//! name of a suite, or several properties joined by `+`; it means that suite, or all suites with
//! all these properties. A character before a word changes its effect: `!` removes the suites, and
//! later words cannot add them again; `-` removes the suites, and later words can; `+` moves the
//! suites to the end of the list. As in OpenSSL, unknown words are ignored; `@STRENGTH` and
//! `@SECLEVEL=` are such words. If a list names no suite of TLS 1.3, it selects all of them. A list
//! that selects no suite of TLS 1.2 is refused, unless it consists of names of suites of TLS 1.3.

use rustls::crypto::ring::cipher_suite as suites;
use rustls::{CipherSuite, SupportedCipherSuite};

/// A suite of rustls, with its properties in OpenSSL's words.
struct KnownSuite {
    name: &'static str,
    suite: SupportedCipherSuite,
    words: &'static [&'static str],
}

/// The properties that all suites of TLS 1.2 in rustls have.
const OF_ALL: [&str; 10] =
    ["ALL", "DEFAULT", "HIGH", "TLSv1.2", "ECDHE", "EECDH", "kECDHE", "kEECDH", "ECDH", "AEAD"];

static KNOWN: [KnownSuite; 6] = [
    KnownSuite {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        suite: suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        words: &["aECDSA", "ECDSA", "AES", "AESGCM", "AES256", "SHA384"],
    },
    KnownSuite {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        suite: suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        words: &["aRSA", "RSA", "AES", "AESGCM", "AES256", "SHA384"],
    },
    KnownSuite {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        suite: suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        words: &["aECDSA", "ECDSA", "AES", "AESGCM", "AES128", "SHA256"],
    },
    KnownSuite {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        suite: suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        words: &["aRSA", "RSA", "AES", "AESGCM", "AES128", "SHA256"],
    },
    KnownSuite {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        suite: suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["aECDSA", "ECDSA", "CHACHA20"],
    },
    KnownSuite {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        suite: suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["aRSA", "RSA", "CHACHA20"],
    },
];

static KNOWN_1_3: [(&str, CipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

impl KnownSuite {
    fn fits(&self, word: &str) -> bool {
        word == self.name || word.split('+').all(|part| OF_ALL.contains(&part) || self.words.contains(&part))
    }
}

/// Returns the suites of `all` that a list selects, those of TLS 1.3 first, in the order of the
/// list. Returns `None` if the list is refused.
pub(super) fn chosen(list: &str, all: &[SupportedCipherSuite]) -> Option<Vec<SupportedCipherSuite>> {
    let (mut suites_1_3, mut suites_1_2, mut banned): (Vec<CipherSuite>, Vec<usize>, Vec<usize>) =
        Default::default();
    let mut names_only_1_3 = true;
    for word in list.split([':', ',', ' ', ';', '@']).filter(|word| !word.is_empty()) {
        if let Some((_, suite)) = KNOWN_1_3.iter().find(|(name, _)| *name == word) {
            suites_1_3.push(*suite);
            continue;
        }
        names_only_1_3 = false;
        let (sign, word) = match word.split_at_checked(1) {
            Some((sign @ ("!" | "-" | "+"), rest)) => (sign, rest),
            _ => ("", word),
        };
        let fitting: Vec<usize> = (0..KNOWN.len()).filter(|&at| KNOWN[at].fits(word)).collect();
        match sign {
            "" => {
                let new = fitting.iter().filter(|at| !suites_1_2.contains(at) && !banned.contains(at));
                let new: Vec<usize> = new.copied().collect();
                suites_1_2.extend(new);
            }
            "+" => {
                let (moved, kept) = suites_1_2.iter().partition::<Vec<usize>, _>(|at| fitting.contains(at));
                suites_1_2 = [kept, moved].concat();
            }
            sign => {
                suites_1_2.retain(|at| !fitting.contains(at));
                if sign == "!" {
                    banned.extend(fitting);
                }
            }
        }
    }
    if suites_1_2.is_empty() && (suites_1_3.is_empty() || !names_only_1_3) {
        return None;
    }
    let find = |wanted: CipherSuite| all.iter().find(|suite| suite.suite() == wanted).copied();
    let mut found: Vec<SupportedCipherSuite> = if suites_1_3.is_empty() {
        all.iter().filter(|suite| suite.tls13().is_some()).copied().collect()
    } else {
        suites_1_3.into_iter().filter_map(find).collect()
    };
    found.extend(suites_1_2.into_iter().map(|at| KNOWN[at].suite));
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Option<Vec<&'static str>> {
        let all = rustls::crypto::ring::default_provider().cipher_suites;
        let found = chosen(list, &all)?;
        let name = |suite: &SupportedCipherSuite| {
            let suites_1_3 = KNOWN_1_3.iter().find(|known| known.1 == suite.suite()).map(|known| known.0);
            let suites_1_2 = || KNOWN.iter().find(|known| known.suite == *suite).map(|known| known.name);
            suites_1_3.or_else(suites_1_2).unwrap()
        };
        Some(found.iter().map(name).collect())
    }

    const ALL_1_3: [&str; 3] =
        ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"];

    #[test]
    fn every_suite_has_its_openssl_name() {
        let all = rustls::crypto::ring::default_provider().cipher_suites;
        assert_eq!(all.len(), KNOWN.len() + KNOWN_1_3.len());
        for suite in all {
            let is_known = KNOWN.iter().any(|known| known.suite == suite)
                || KNOWN_1_3.iter().any(|known| known.1 == suite.suite());
            assert!(is_known, "{suite:?}");
        }
    }

    #[test]
    fn list_selects_ciphers_in_order_beside_tls13() {
        let with_1_3 = |rest: &[&'static str]| Some([&ALL_1_3[..], rest].concat());
        let both = ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"];
        assert_eq!(names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305"), with_1_3(&both));
        assert_eq!(
            names("ECDHE+AESGCM+aRSA"),
            with_1_3(&["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"])
        );
        assert_eq!(names("HIGH:!ECDSA:!AES:!aNULL:!MD5"), with_1_3(&["ECDHE-RSA-CHACHA20-POLY1305"]));
        assert_eq!(
            names("aRSA:-AES256:+AES128"),
            with_1_3(&["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256"])
        );
        assert_eq!(names("DEFAULT@SECLEVEL=2:@STRENGTH").map(|names| names.len()), Some(9));
        assert_eq!(names("!AES:AES:CHACHA20+aRSA"), with_1_3(&["ECDHE-RSA-CHACHA20-POLY1305"]));
    }

    #[test]
    fn named_tls_1_3_suites_exclude_the_others() {
        assert_eq!(names("TLS_AES_128_GCM_SHA256"), Some(vec!["TLS_AES_128_GCM_SHA256"]));
        assert_eq!(
            names("TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256"),
            Some(vec!["TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"])
        );
    }

    #[test]
    fn list_without_suites_is_refused() {
        for list in ["", "bogus", "AES128-SHA:DHE-RSA-AES128-SHA", "ALL:!ALL", "TLS_AES_128_GCM_SHA256:bogus"]
        {
            assert_eq!(names(list), None, "{list}");
        }
    }
}
