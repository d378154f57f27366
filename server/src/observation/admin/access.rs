//! Decides which requests for the JSON interface are answered.

use super::http::{HttpRequest, HttpResponse, HttpStatus};
use crate::session::login::are_equal;

/// The rule for requests to the JSON interface.
pub(super) struct ApiAccess {
    /// The token that every request must have.
    token: Option<String>,
    /// True if the pages listen on loopback only and clients need no login, so that a request
    /// without a token reads nothing that its sender could not read from the server itself.
    is_open: bool,
    /// True if requests may change records.
    may_write: bool,
}

impl ApiAccess {
    pub(super) fn new(token: Option<String>, is_open: bool, may_write: bool) -> ApiAccess {
        ApiAccess { token, is_open, may_write }
    }

    /// Returns the response to a request that is not permitted.
    pub(super) fn refusal(&self, request: &HttpRequest) -> Option<HttpResponse> {
        let refuse = |status, why: &str| {
            let body = serde_json::json!({ "error": why }).to_string();
            Some(HttpResponse::whole(status, "application/json", body.into_bytes()))
        };
        if request.is_cross_site {
            return refuse(HttpStatus::Forbidden, "the request is from a page of another site");
        }
        let is_admitted = match (&self.token, &request.token) {
            (None, _) => self.is_open,
            (Some(token), Some(given)) => are_equal(token.as_bytes(), given.as_bytes()),
            (Some(_), None) => false,
        };
        if !is_admitted && self.token.is_none() {
            return refuse(
                HttpStatus::Forbidden,
                "start the server with --admin-token-file to use this page",
            );
        }
        if !is_admitted {
            return refuse(HttpStatus::Unauthorized, "the token is missing or wrong");
        }
        if !request.method.only_reads() && !self.may_write {
            return refuse(HttpStatus::Forbidden, "start the server with --admin-write to allow changes");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::{ParsedRequest, parse};
    use super::*;

    fn status(access: &ApiAccess, method: &str, headers: &str) -> Option<HttpStatus> {
        let text = format!("{method} /api/status HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        let ParsedRequest::Whole(request, _) = parse(text.as_bytes()) else { panic!("{text}") };
        access.refusal(&request).map(|response| response.status)
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
