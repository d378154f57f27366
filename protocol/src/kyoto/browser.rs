//! Detects requests that a browser sent, because a web page asked for it or because a person typed
//! an address.
//!
//! A page of another site can make a browser send requests to any address. A page whose name
//! resolves to this server (DNS rebinding) can also read the answers. Browsers may therefore only
//! use host names that no foreign page can have. A GET of a browser, as sent for a link or an
//! image, must not change anything.
//!
//! Other clients send none of these headers and are not restricted. `Sec-Fetch-Mode` and
//! `Accept-Language: *` do not identify a browser, because Node's `fetch` sends both. The
//! `User-Agent` of PowerShell begins like that of a browser and is excluded too.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The marker in the `User-Agent` of Windows PowerShell and PowerShell.
const POWERSHELL: &[u8] = b"PowerShell/";

/// The kind of sender that a header reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowserMark {
    /// A browser.
    Browser,
    /// A browser on behalf of a web page. The page belongs to another site, because this server has
    /// no pages of its own.
    Page,
}

impl BrowserMark {
    /// Returns the sender that a header reveals, or `None` if other clients send this header as
    /// well.
    pub fn of(name: &[u8], value: &[u8]) -> Option<BrowserMark> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let value = value.trim_ascii();
        let begins = |start: &str| {
            value.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()))
        };
        match name.len() {
            3 if is("dnt") => Some(BrowserMark::Browser),
            6 if is("origin") => Some(BrowserMark::Page),
            7 if is("referer") => Some(BrowserMark::Page),
            7 if is("sec-gpc") => Some(BrowserMark::Browser),
            8 if is("priority") => Some(BrowserMark::Browser),
            10 if is("user-agent") && (begins("mozilla/") || begins("opera/")) => {
                let is_powershell = value.windows(POWERSHELL.len()).any(|part| part == POWERSHELL);
                (!is_powershell).then_some(BrowserMark::Browser)
            }
            14 if is("sec-fetch-site") && (begins("cross-site") || begins("same-site")) => {
                Some(BrowserMark::Page)
            }
            14 if is("sec-fetch-site") || is("sec-fetch-dest") => Some(BrowserMark::Browser),
            15 if is("accept-language") && value != b"*" => Some(BrowserMark::Browser),
            _ => None,
        }
    }
}

/// Returns true if the value of a `Host` header, without its port, is an IP address, `localhost` or
/// one of these names. The owner of a foreign site cannot make such a name resolve to this server.
pub fn is_own_host(host: &[u8], names: &[String]) -> bool {
    let Ok(host) = std::str::from_utf8(host.trim_ascii()) else { return false };
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_localhost = name.eq_ignore_ascii_case("localhost");
    is_localhost
        || name.parse::<Ipv4Addr>().is_ok()
        || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_headers_are_detected_and_others_ignored() {
        for (header, mark) in [
            ("Origin: null", Some(BrowserMark::Page)),
            ("REFERER: http://evil.example/", Some(BrowserMark::Page)),
            ("Sec-Fetch-Site:  Same-Site ", Some(BrowserMark::Page)),
            ("Sec-Fetch-Site: cross-site", Some(BrowserMark::Page)),
            ("Sec-Fetch-Site: same-origin", Some(BrowserMark::Browser)),
            ("Sec-Fetch-Site: none", Some(BrowserMark::Browser)),
            ("Sec-Fetch-Dest: image", Some(BrowserMark::Browser)),
            ("User-Agent: Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", Some(BrowserMark::Browser)),
            ("User-Agent: Opera/9.80", Some(BrowserMark::Browser)),
            ("Accept-Language: de-DE,de;q=0.9", Some(BrowserMark::Browser)),
            ("DNT: 1", Some(BrowserMark::Browser)),
            ("Sec-GPC: 1", Some(BrowserMark::Browser)),
            ("Priority: u=0, i", Some(BrowserMark::Browser)),
            (
                "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.19041.1",
                None,
            ),
            (
                "User-Agent: Mozilla/5.0 (Windows NT 10.0; Microsoft Windows 10.0.19045; en-US) PowerShell/7.4.0",
                None,
            ),
            ("User-Agent: libwww-perl/6.67", None),
            ("User-Agent: node", None),
            ("Accept-Language: *", None),
            ("Sec-Fetch-Mode: cors", None),
            ("Accept: */*", None),
            ("Host: evil.example", None),
        ] {
            let (name, value) = header.split_once(':').unwrap();
            assert_eq!(BrowserMark::of(name.as_bytes(), value.as_bytes()), mark, "{header}");
        }
    }

    #[test]
    fn own_hosts_are_addresses_localhost_and_configured_names() {
        let names = ["cache.internal".to_string()];
        for host in [
            "127.0.0.1",
            "10.0.0.5:11211",
            "[::1]:11211",
            "[fe80::1]",
            "localhost",
            "LocalHost.:1978",
            " Cache.Internal:1 ",
        ] {
            assert!(is_own_host(host.as_bytes(), &names), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:11211",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "cache",
            "[::1",
            "\u{e9}",
        ] {
            assert!(!is_own_host(host.as_bytes(), &names), "{host}");
        }
        assert!(!is_own_host(b"127.0.0.1\xFF", &names));
    }
}
