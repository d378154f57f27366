//! Reads the parameters of a request: `NAME=VALUE` with `&` between them, percent-encoded. A `+` is
//! not a space.

use super::ApiError;
use crate::observation::admin::http::HttpStatus;
use percent_encoding::percent_decode_str;

pub(super) struct ApiQuery(Vec<(String, Vec<u8>)>);

impl ApiQuery {
    pub(super) fn parse(query: &str) -> ApiQuery {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_string(), percent_decode_str(value).collect())
        });
        ApiQuery(pairs.collect())
    }

    /// Returns the bytes of a parameter: the first one of this name.
    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// Returns a parameter as text. Bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.bytes(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// Returns a parameter as a number, or `default` if it is missing.
    pub(super) fn number(&self, name: &str, default: u64) -> Result<u64, ApiError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| ApiError::new(HttpStatus::BadRequest, format!("{name} must be a number")))
    }

    /// Returns the bytes of a parameter. Fails if it is missing.
    pub(super) fn required(&self, name: &str) -> Result<&[u8], ApiError> {
        self.bytes(name).ok_or_else(|| ApiError::new(HttpStatus::BadRequest, format!("{name} is missing")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_any_bytes() {
        let query = ApiQuery::parse("key=a%00%ff+b%2&&limit=7&x&key=second");
        assert_eq!(query.bytes("key"), Some(&b"a\0\xff+b%2"[..]));
        assert_eq!(query.number("limit", 1).ok(), Some(7));
        assert_eq!(query.number("missing", 1).ok(), Some(1));
        assert_eq!(query.bytes("x"), Some(&b""[..]));
        assert!(query.number("key", 1).is_err() && query.required("missing").is_err());
    }
}
