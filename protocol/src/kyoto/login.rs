//! Decodes HTTP Basic authentication (RFC 7617): a name and a password in each request.

use super::http::{BodyFraming, HttpForm, HttpHead};
use super::{DecoderState, KyotoDecoder, KyotoLimits, KyotoStep};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest head that is accepted before a login, in bytes: two lines of the maximum length.
pub(super) const HEAD_LEN_MAX: usize = 16 << 10;

/// The name and password of a request.
pub struct BasicCredentials {
    /// The name, a colon and the password.
    text: Vec<u8>,
    colon: usize,
}

impl BasicCredentials {
    /// Parses the value of an `Authorization` header. Returns `None` unless it is `Basic` with a
    /// name and a password.
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
    /// Accepts the login of [`KyotoStep::Login`]. The next step returns the request.
    pub fn accept_login(&mut self) {
        self.is_authenticated = true;
        if let DecoderState::AwaitingLogin { head, head_len } = self.mode {
            self.mode = DecoderState::LoginAccepted { head, head_len };
        }
    }

    /// Refuses the login of [`KyotoStep::Login`]. The decoder then skips the body of the request,
    /// or closes the connection if the length of the body is unknown. Returns the form of the
    /// answer, which [`answer_unauthorized`](super::answer_unauthorized) writes.
    pub fn refuse_login(&mut self, limits: &KyotoLimits<'_>) -> HttpForm {
        self.is_authenticated = false;
        let DecoderState::AwaitingLogin { head, head_len } = self.mode else {
            self.mode = DecoderState::Closed;
            return HttpForm::new(false, false);
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
            len.map_or(DecoderState::Closed, |len| DecoderState::Discard { left: u64::from(head_len) + len });
        HttpForm { keeps_alive: len.is_some(), ..form }
    }
}

/// Returns the step that asks the caller to check the login.
pub(super) fn ask<'a>(input: &'a [u8], head: &HttpHead) -> KyotoStep<'a> {
    let authorization = head.authorization().map(|place| &input[place]);
    KyotoStep::Login { consumed: 0, authorization }
}
