//! The beginning of a connection to a server: the question which dialect it knows, and a login.

use super::operation::{NotSpoken, ServerDialect};
use super::packet::{RequestPacket, put_packet, sole_packet};
use super::reply::{ClientResponse, MalformedReply, decode};
use crate::memcached::binary::PacketStatus;

/// The first version of memcached whose meta dialect has its final form.
const META_SINCE: [u32; 3] = [1, 6, 12];

/// The longest user and password together, in bytes.
const LOGIN_LEN_MAX: usize = 16 << 10;

/// The opcode of a question for the version.
const VERSION: u8 = 0x0b;

/// The opcode of a SASL exchange with one message.
const AUTHENTICATE: u8 = 0x21;

/// The answer of a server to the question which dialect it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedServer {
    /// It knows this dialect: the text or the meta dialect.
    Knows(ServerDialect),
    /// It refuses all commands before a login.
    NeedsLogin,
}

/// Writes the question which dialect the server knows. A server that needs a login may close the
/// connection instead of an answer, so log in first.
pub fn put_detection(out: &mut Vec<u8>) {
    out.extend_from_slice(b"mn\r\nversion\r\n");
}

/// Writes the question for the version of the server.
pub fn put_version(dialect: ServerDialect, out: &mut Vec<u8>) {
    match dialect {
        ServerDialect::Binary => {
            let packet = RequestPacket { opcode: VERSION, ..RequestPacket::default() };
            put_packet(&packet, out).expect("a packet without a key can be written");
        }
        ServerDialect::Text | ServerDialect::Meta => out.extend_from_slice(b"version\r\n"),
    }
}

/// Decodes the answer to [`put_detection`]. Returns its length and meaning, or `None` if it is
/// incomplete.
pub fn detected_server(input: &[u8]) -> Result<Option<(usize, DetectedServer)>, MalformedReply> {
    const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";
    let Some((first_len, first)) = decode(input, 0)? else { return Ok(None) };
    let Some((len, second)) = decode(&input[first_len..], 0)? else { return Ok(None) };
    let server = match (first, second) {
        (_, ClientResponse::Refused(refusal)) if refusal.line == UNAUTHENTICATED => {
            DetectedServer::NeedsLogin
        }
        (ClientResponse::Meta { code: [b'M', b'N'], .. }, ClientResponse::Line(line))
            if version_of(line).ok_or(MalformedReply)? >= META_SINCE =>
        {
            DetectedServer::Knows(ServerDialect::Meta)
        }
        (
            ClientResponse::Meta { code: [b'M', b'N'], .. } | ClientResponse::Refused(_),
            ClientResponse::Line(line),
        ) if line.starts_with(b"VERSION ") => DetectedServer::Knows(ServerDialect::Text),
        _ => return Err(MalformedReply),
    };
    Ok(Some((first_len + len, server)))
}

/// Returns the first numbers of a line like `VERSION 1.6.45`. A missing number counts as 0.
fn version_of(line: &[u8]) -> Option<[u32; 3]> {
    let mut numbers = line.strip_prefix(b"VERSION ")?.split(|byte| !byte.is_ascii_digit());
    let mut next = || numbers.next().and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Some([next().unwrap_or(0), next().unwrap_or(0), next().unwrap_or(0)])
}

/// The answer of a server to a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginReply {
    /// The client may send commands.
    Accepted,
    /// The user or the password is wrong, or the server has no logins.
    Refused,
}

/// Writes a login: SASL PLAIN in the binary dialect, otherwise the `set` of memcached's option
/// `-Y`. Fails with [`NotSpoken::Key`] if the user or the password cannot be sent.
///
/// A text server without logins stores this `set` as a record, which any client can read. So ask
/// the server first (`version`), and log in only if it refuses.
pub fn put_login(
    dialect: ServerDialect,
    user: &[u8],
    password: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), NotSpoken> {
    let is_binary = dialect == ServerDialect::Binary;
    let is_sent = match is_binary {
        true => !user.contains(&0) && !password.contains(&0),
        // The first blank separates the two, and blanks at the ends do not count.
        false => !user.contains(&b' ') && !password.is_empty() && password.trim_ascii() == password,
    };
    if !is_sent || user.is_empty() || user.len() + password.len() + 2 > LOGIN_LEN_MAX {
        return Err(NotSpoken::Key);
    }
    if is_binary {
        let value = &[b"\0", user, b"\0", password].concat();
        let packet = RequestPacket { opcode: AUTHENTICATE, key: b"PLAIN", value, ..RequestPacket::default() };
        return put_packet(&packet, out);
    }
    let len = (user.len() + 1 + password.len()).to_string();
    let parts = [b"set login 0 0 ", len.as_bytes(), b"\r\n", user, b" ", password, b"\r\n"];
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// Decodes the complete reply to [`put_login`].
pub fn decode_login_reply(dialect: ServerDialect, reply: &[u8]) -> Result<LoginReply, MalformedReply> {
    let is_accepted = match dialect {
        ServerDialect::Binary => sole_packet(reply, AUTHENTICATE)?.status() == Some(PacketStatus::Success),
        ServerDialect::Text | ServerDialect::Meta => match decode(reply, 0)? {
            Some((len, ClientResponse::Line(b"STORED"))) if len == reply.len() => true,
            Some((len, ClientResponse::Refused(_))) if len == reply.len() => false,
            _ => return Err(MalformedReply),
        },
    };
    Ok(if is_accepted { LoginReply::Accepted } else { LoginReply::Refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_decides_whether_meta_is_spoken() {
        let meta = DetectedServer::Knows(ServerDialect::Meta);
        let text = DetectedServer::Knows(ServerDialect::Text);
        let cases: [(&[u8], _); _] = [
            (b"MN\r\nVERSION 1.6.45\r\n", meta),
            (b"MN\r\nVERSION 1.6.12\r\n", meta),
            (b"MN\r\nVERSION 1.6.12_2-gabc\r\n", meta),
            (b"MN\r\nVERSION 1.10\r\n", meta),
            (b"MN\r\nVERSION 2\r\n", meta),
            (b"MN\r\nVERSION 1.6.9\r\n", text),
            (b"MN\r\nVERSION x\r\n", text),
            (b"ERROR\r\nVERSION 1.4.39\r\n", text),
            (b"ERROR\r\nVERSION 1.6.45\r\n", text),
            (b"CLIENT_ERROR bad command line format\r\nVERSION 1.2\r\n", text),
            (b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR unauthenticated\r\n", DetectedServer::NeedsLogin),
        ];
        for (input, server) in cases {
            assert_eq!(detected_server(input), Ok(Some((input.len(), server))), "{}", input.escape_ascii());
            for cut in 0..input.len() {
                assert_eq!(detected_server(&input[..cut]), Ok(None));
            }
        }
        for input in [&b"MN\r\nERROR\r\n"[..], b"EN\r\nVERSION 1.6.45\r\n", b"MN\r\nMN\r\n", b"VA 1\r\n"] {
            assert_eq!(detected_server(input), Err(MalformedReply), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn version_has_the_documented_bytes() {
        let mut out = Vec::new();
        put_version(ServerDialect::Meta, &mut out);
        assert_eq!(out, b"version\r\n");
        out.clear();
        put_version(ServerDialect::Binary, &mut out);
        assert_eq!(out, [&b"\x80\x0b"[..], &[0; 22]].concat());
    }

    #[test]
    fn login_has_the_documented_bytes() {
        let mut out = Vec::new();
        put_login(ServerDialect::Text, b"user", b"two words", &mut out).unwrap();
        assert_eq!(out, b"set login 0 0 14\r\nuser two words\r\n");
        out.clear();
        put_login(ServerDialect::Binary, b"us er", b"", &mut out).unwrap();
        let header = b"\x80\x21\0\x05\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(out, [&header[..], b"PLAIN\0us er\0"].concat());
        let refused: [(_, &[u8], &[u8]); _] = [
            (ServerDialect::Text, b"us er", b"x"),
            (ServerDialect::Text, b"user", b""),
            (ServerDialect::Text, b"user", b"x "),
            (ServerDialect::Meta, b"", b"x"),
            (ServerDialect::Binary, b"u\0", b"x"),
            (ServerDialect::Binary, b"u", b"\0"),
            (ServerDialect::Binary, b"u", &[b'x'; LOGIN_LEN_MAX]),
        ];
        out.clear();
        for (dialect, user, password) in refused {
            assert_eq!(put_login(dialect, user, password, &mut out), Err(NotSpoken::Key));
        }
        assert_eq!(out, b"");
    }

    #[test]
    fn login_is_accepted_or_refused() {
        let text = |reply| decode_login_reply(ServerDialect::Text, reply);
        assert_eq!(text(b"STORED\r\n"), Ok(LoginReply::Accepted));
        assert_eq!(text(b"CLIENT_ERROR authentication failure\r\n"), Ok(LoginReply::Refused));
        for malformed in [&b""[..], b"STORED", b"STORED\r\nSTORED\r\n", b"END\r\n", b"VALUE k 0 1\r\nx\r\n"] {
            assert_eq!(text(malformed), Err(MalformedReply));
        }
        let header = |status| [b"\x81\x21\0\0\0\0\0", &[status][..], &[0; 16]].concat();
        let binary = |reply: &[u8]| decode_login_reply(ServerDialect::Binary, reply);
        assert_eq!(binary(&header(0)), Ok(LoginReply::Accepted));
        for status in [0x20, 0x21, 0x81, 0xff] {
            assert_eq!(binary(&header(status)), Ok(LoginReply::Refused));
        }
        assert_eq!(binary(&header(0)[..23]), Err(MalformedReply));
        assert_eq!(binary(&[b"\x81\x22", &header(0)[2..]].concat()), Err(MalformedReply));
    }
}
