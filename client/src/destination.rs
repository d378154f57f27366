//! Parses a server's address together with a user and a password.

use crate::{Address, InvalidAddress};
use std::fmt;
use std::str::FromStr;

/// A server's address, optionally with a user and a password: `todana://user:password@host:port`.
/// User and password are percent-encoded (`%40` for `@`). `Display` and `Debug` leave them out.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginDestination {
    /// The server's address.
    pub address: Address,
    /// The user for the login.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

impl fmt::Debug for LoginDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LoginDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl FromStr for LoginDestination {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<LoginDestination, InvalidAddress> {
        let parts = text.split_once("://").and_then(|(scheme, rest)| {
            let (who, place) = rest.rsplit_once('@')?;
            Some((scheme, who, place))
        });
        let Some((scheme, who, place)) = parts else {
            return Ok(LoginDestination { address: text.parse()?, user: None, password: None });
        };
        // The error shows the text without the user and the password.
        let shown = format!("{scheme}://...@{place}");
        let address = format!("{scheme}://{place}").parse()?;
        let (user, password) = match who.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (who, None),
        };
        let decoded = |text: &str| decoded(text).ok_or_else(|| InvalidAddress::new(&shown));
        let user = decoded(user)?;
        if user.is_empty() {
            return Err(InvalidAddress::new(&shown));
        }
        Ok(LoginDestination { address, user: Some(user), password: password.map(decoded).transpose()? })
    }
}

/// Decodes percent-encoded text. Returns `None` if it is invalid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2).filter(|hex| !hex.starts_with('+'))?, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_parsed_and_not_shown() {
        for (text, address, user, password) in [
            ("localhost", "localhost:11211", None, None),
            ("todana://alice@h:1", "h:1", Some("alice"), None),
            ("todanas://alice:s3cret@h", "todanas://h:11211", Some("alice"), Some("s3cret")),
            ("todana://a%40b:p%3a%25@w@[::1]:5", "[::1]:5", Some("a@b"), Some("p:%@w")),
            ("todana://alice:@h", "h:11211", Some("alice"), Some("")),
        ] {
            let destination: LoginDestination = text.parse().unwrap();
            assert_eq!(
                (destination.user.as_deref(), destination.password.as_deref()),
                (user, password),
                "{text}"
            );
            assert_eq!(
                (destination.to_string(), format!("{destination:?}")),
                (address.into(), address.into())
            );
        }
    }

    #[test]
    fn invalid_address_is_refused_without_showing_the_password() {
        for text in ["todana://:p@h", "todana://a:%zz@h", "todana://a:%4@h", "todana://a:%ff@h", "a:s3cret@h"]
        {
            let error = text.parse::<LoginDestination>().unwrap_err().to_string();
            assert!(error.contains("not an address"), "{error}");
        }
        let error = "todana://a:s3cret%@h".parse::<LoginDestination>().unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
