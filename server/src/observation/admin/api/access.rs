//! Decides which requests for the JSON interface are answered.

use super::ApiError;
use crate::observation::admin::http::{HttpRequest, HttpStatus};
use crate::session::login::are_equal;

/// The rule for requests to the JSON interface.
pub(in crate::observation::admin) struct ApiAccess {
    /// The token that every request must have.
    token: Option<String>,
    /// True if the pages listen on loopback only and clients need neither a login nor a
    /// certificate, so that a request without a token reads nothing that its sender could not read
    /// from the server itself.
    is_open: bool,
    /// True if requests may change records.
    may_write: bool,
}

impl ApiAccess {
    pub(in crate::observation::admin) fn new(
        token: Option<String>,
        is_open: bool,
        may_write: bool,
    ) -> ApiAccess {
        ApiAccess { token, is_open, may_write }
    }

    /// Fails if a request is not permitted.
    pub(super) fn check(&self, request: &HttpRequest) -> Result<(), ApiError> {
        let refuse = |status, why: &str| Err(ApiError::new(status, why));
        if request.is_cross_site {
            return refuse(HttpStatus::Forbidden, "the request is from a page of another site");
        }
        match (&self.token, &request.token) {
            (None, _) if self.is_open => {}
            (None, _) => {
                let why = "start the server with --admin-token-file to use this page";
                return refuse(HttpStatus::Forbidden, why);
            }
            (Some(token), Some(given)) if are_equal(token.as_bytes(), given.as_bytes()) => {}
            (Some(_), _) => return refuse(HttpStatus::Unauthorized, "the token is missing or wrong"),
        }
        if !request.method.only_reads() && !self.may_write {
            return refuse(HttpStatus::Forbidden, "start the server with --admin-write to allow changes");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::admin::http::{ParsedRequest, parse};

    fn status(access: &ApiAccess, method: &str, headers: &str) -> Option<HttpStatus> {
        let text = format!("{method} /api/status HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        let ParsedRequest::Whole(request, _) = parse(text.as_bytes()) else { panic!("{text}") };
        access.check(&request).err().map(|ApiError(status, _)| status)
    }

    #[test]
    fn only_permitted_requests_are_answered() {
        let right = "Authorization: Bearer secret\r\n";
        let wrong = "Authorization: Bearer Secret\r\n";
        let cross = "Authorization: Bearer secret\r\nOrigin: http://b\r\n";
        let (forbidden, unauthorized) = (Some(HttpStatus::Forbidden), Some(HttpStatus::Unauthorized));
        for (token, is_open, may_write, method, headers, expected) in [
            (None, true, false, "GET", "", None),
            (None, true, false, "GET", "Sec-Fetch-Site: cross-site\r\n", forbidden),
            (None, true, false, "DELETE", "", forbidden),
            (None, true, true, "DELETE", "", None),
            (None, true, true, "DELETE", "Origin: http://b\r\n", forbidden),
            (None, false, true, "GET", "", forbidden),
            (Some("secret"), true, true, "GET", "", unauthorized),
            (Some("secret"), false, true, "GET", wrong, unauthorized),
            (Some("secret"), false, false, "GET", right, None),
            (Some("secret"), false, false, "PUT", right, forbidden),
            (Some("secret"), false, true, "PUT", right, None),
            (Some("secret"), false, true, "PUT", cross, forbidden),
        ] {
            let access = ApiAccess::new(token.map(str::to_string), is_open, may_write);
            assert_eq!(status(&access, method, headers), expected, "{token:?} {is_open} {method} {headers}");
        }
    }
}
