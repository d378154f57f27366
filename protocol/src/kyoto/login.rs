//! HTTP Basic authentication (RFC 7617): a name and a password with each request.

use super::http::{BodyFraming, HttpForm, HttpHead};
use super::{DecoderState, KyotoDecoder, KyotoLimits, KyotoStep};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest head that is accepted before a login, in bytes: two lines of maximum length.
pub(super) const HEAD_LEN_MAX: usize = 16 << 10;

/// The name and password of a request.
pub struct BasicCredentials {
    /// The name, a colon and the password.
    text: Vec<u8>,
    colon: usize,
}

impl BasicCredentials {
    /// Parses the value of an `Authorization` header; returns `None` unless it is `Basic` with name
    /// and password.
    ///
    /// ```
    /// use todana_protocol::kyoto::BasicCredentials;
    ///
    /// let credentials = BasicCredentials::read(b"Basic YWxpY2U6YTpi").unwrap();
    /// assert_eq!((credentials.user(), credentials.password()), (&b"alice"[..], &b"a:b"[..]));
    /// assert!(BasicCredentials::read(b"Bearer YWxpY2U6YTpi").is_none());
    /// ```
    pub fn read(authorization: &[u8]) -> Option<BasicCredentials> {
        let (scheme, rest) = authorization.split_at_checked(b"Basic ".len())?;
        if !scheme.eq_ignore_ascii_case(b"Basic ") {
            return None;
        }
        let text = STANDARD.decode(rest.trim_ascii()).ok()?;
        // A name cannot contain a colon; a password can.
        let colon = text.iter().position(|&byte| byte == b':')?;
        Some(BasicCredentials { text, colon })
    }

    /// Returns the user's name.
    pub fn user(&self) -> &[u8] {
        &self.text[..self.colon]
    }

    /// Returns the password.
    pub fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

impl KyotoDecoder {
    /// Accepts the request of [`KyotoStep::Login`]; the next step returns it.
    pub fn admit(&mut self) {
        self.is_admitted = true;
        if let DecoderState::Asking { head, head_len } = self.mode {
            self.mode = DecoderState::Admitted { head, head_len };
        }
    }

    /// Refuses the request of [`KyotoStep::Login`]. Its body is skipped, or the connection is
    /// closed if the body has no known length. Returns the form of the answer, which
    /// [`answer_stranger`](super::answer_stranger) writes.
    pub fn turn_away(&mut self, limits: &KyotoLimits<'_>) -> HttpForm {
        self.is_admitted = false;
        let DecoderState::Asking { head, head_len } = self.mode else {
            self.mode = DecoderState::Closed;
            return HttpForm { keeps_alive: false, is_head: false };
        };
        let form = head.form();
        let len = match head.body() {
            BodyFraming::Sized(len) | BodyFraming::Ignored(len) if len <= limits.bounded().body_len_max => {
                Some(len)
            }
            _ => None,
        };
        let len = len.filter(|_| form.keeps_alive);
        self.mode =
            len.map_or(DecoderState::Closed, |len| DecoderState::Swallow { left: u64::from(head_len) + len });
        HttpForm { keeps_alive: len.is_some(), ..form }
    }
}

/// Returns the step that asks for authentication.
pub(super) fn ask<'a>(input: &'a [u8], head: &HttpHead) -> KyotoStep<'a> {
    let authorization = head.authorization().map(|place| &input[place]);
    KyotoStep::Login { consumed: 0, authorization }
}
