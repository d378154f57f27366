//! Parses the addresses of `-l`: `host`, `host:port`, `[v6]:port` or `*`, with prefixes for
//! protocol and TLS.

use super::settings::AcceptedProtocol;

/// How a listener uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerTls {
    /// No TLS (`notls:`).
    Off,
    /// TLS without client certificates (`btls:`).
    Basic,
    /// TLS with required client certificates (`mtls:`).
    Mutual,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenAddress {
    /// The host, with or without a port, in the form that the server accepts.
    pub(super) place: String,
    /// The protocol; `None` for the default of the server.
    pub(super) protocol: Option<AcceptedProtocol>,
    /// The use of TLS; `None` for the default of the server.
    pub(super) tls: Option<ListenerTls>,
    /// True if memcached's proxy was requested at this address (`proto[proxy]:`).
    pub(super) is_proxy: bool,
}

impl ListenAddress {
    /// Parses a list that is separated by commas or semicolons. An empty list means all addresses.
    pub(super) fn read(list: &str) -> Vec<ListenAddress> {
        let pieces = list.split([',', ';']).map(str::trim).filter(|piece| !piece.is_empty());
        let mut all: Vec<ListenAddress> = pieces.map(ListenAddress::one).collect();
        if all.is_empty() {
            all.push(ListenAddress::one("*"));
        }
        all
    }

    fn one(text: &str) -> ListenAddress {
        let mut listen = ListenAddress { place: String::new(), protocol: None, tls: None, is_proxy: false };
        let mut rest = text;
        loop {
            let tls =
                [("notls:", ListenerTls::Off), ("btls:", ListenerTls::Basic), ("mtls:", ListenerTls::Mutual)];
            if let Some((behind, kind)) =
                tls.iter().find_map(|(prefix, kind)| Some((rest.strip_prefix(prefix)?, *kind)))
            {
                (listen.tls, rest) = (Some(kind), behind);
            } else if let Some((name, behind)) =
                rest.strip_prefix("proto[").and_then(|inner| inner.split_once("]:"))
            {
                listen.protocol = match name {
                    "ascii" => Some(AcceptedProtocol::Ascii),
                    "binary" => Some(AcceptedProtocol::Binary),
                    _ => Some(AcceptedProtocol::Auto),
                };
                listen.is_proxy |= name == "proxy";
                rest = behind;
            } else if let Some((_, behind)) =
                rest.strip_prefix("tag_").and_then(|inner| inner.split_once("_:"))
            {
                // The prefix names routes of memcached's proxy, which does not exist here.
                rest = behind;
            } else {
                listen.place = rest.to_string();
                return listen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> (String, Option<AcceptedProtocol>, Option<ListenerTls>) {
        let all = ListenAddress::read(text);
        assert_eq!(all.len(), 1, "{text:?}");
        (all[0].place.clone(), all[0].protocol, all[0].tls)
    }

    #[test]
    fn lists_are_taken_apart() {
        let places = |text: &str| ListenAddress::read(text).into_iter().map(|l| l.place).collect::<Vec<_>>();
        assert_eq!(places("127.0.0.1"), ["127.0.0.1"]);
        assert_eq!(places("127.0.0.1:1, [::1]:2;*"), ["127.0.0.1:1", "[::1]:2", "*"]);
        assert_eq!(places(",127.0.0.1,"), ["127.0.0.1"]);
        assert_eq!(places(""), ["*"]);
    }

    #[test]
    fn prefixes_are_understood_in_any_order() {
        assert_eq!(one("notls:127.0.0.1:5"), ("127.0.0.1:5".into(), None, Some(ListenerTls::Off)));
        assert_eq!(one("mtls:[::1]:5"), ("[::1]:5".into(), None, Some(ListenerTls::Mutual)));
        assert_eq!(one("btls:host"), ("host".into(), None, Some(ListenerTls::Basic)));
        assert_eq!(one("proto[ascii]:127.0.0.1"), ("127.0.0.1".into(), Some(AcceptedProtocol::Ascii), None));
        assert_eq!(one("proto[negotiating]:::1"), ("::1".into(), Some(AcceptedProtocol::Auto), None));
        assert!(
            ListenAddress::read("proto[proxy]:::1")[0].is_proxy
                && !ListenAddress::read("proto[ascii]:::1")[0].is_proxy
        );
        assert_eq!(one("tag_x_:127.0.0.1"), ("127.0.0.1".into(), None, None));
        let all = ("::1".to_string(), Some(AcceptedProtocol::Binary), Some(ListenerTls::Off));
        assert_eq!(one("tag_x_:proto[binary]:notls:::1"), all);
        assert_eq!(one("notls:proto[binary]:tag_x_:::1"), all);
        assert_eq!(one("::1").0, "::1");
    }
}
