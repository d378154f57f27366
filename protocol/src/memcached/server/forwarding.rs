//! Writes requests for another server, so that each has exactly one reply, and knows which of those
//! replies the client does not want.

use super::form::{FormKind, MetaForm, MetaVerb, ReplyForm};
use super::words::without_trailing_spaces;
use crate::memcached::binary;
use crate::memcached::client::TimeLeft;
use memchr::memchr;

impl ReplyForm<'_> {
    /// Writes a text or meta request, to which this form belongs, without `noreply` and the flag
    /// `q`. `request` is the complete request: its line, and its data block if it has one.
    pub fn put_answered(&self, request: &[u8], out: &mut Vec<u8>) {
        let line_len = memchr(b'\n', request).map_or(request.len(), |at| at + 1);
        let (line, block) = request.split_at(line_len);
        let words = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
        match self.0 {
            // After a line with surplus words, another server may take the block for commands.
            FormKind::Silent | FormKind::StoreLine | FormKind::Line if !block.is_empty() => {
                let count = if words.starts_with(b"cas") { 6 } else { 5 };
                let words = words.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).take(count);
                for (index, word) in words.enumerate() {
                    out.extend_from_slice(if index == 0 { b"" } else { b" " });
                    out.extend_from_slice(word);
                }
            }
            FormKind::Silent => {
                let words = without_trailing_spaces(words);
                out.extend_from_slice(words.strip_suffix(b" noreply").unwrap_or(words));
            }
            FormKind::Meta(MetaForm { is_quiet: true, .. }) => {
                let words = words.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
                for (index, word) in words.enumerate() {
                    // The second word is the key.
                    if index == 1 || word.first() != Some(&b'q') {
                        out.extend_from_slice(if index == 0 { b"" } else { b" " });
                        out.extend_from_slice(word);
                    }
                }
            }
            _ => {
                out.extend_from_slice(request);
                return;
            }
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(block);
    }

    /// Returns true if the client does not want this reply to its request as
    /// [`put_answered`](Self::put_answered) has written it. A meta reply is known by its code.
    pub fn hidden_replies(&self) -> HiddenReplies {
        match self.0 {
            FormKind::Silent => HiddenReplies::All,
            FormKind::Meta(MetaForm { is_quiet: true, verb, .. }) => match verb {
                MetaVerb::Get => HiddenReplies::Codes(&[b"EN"]),
                MetaVerb::Store | MetaVerb::Delete => HiddenReplies::Codes(&[b"HD"]),
                MetaVerb::Arithmetic => HiddenReplies::Codes(&[b"HD", b"VA"]),
                MetaVerb::Inspect => HiddenReplies::None,
            },
            _ => HiddenReplies::None,
        }
    }

    /// Returns true if the request is a meta command.
    pub fn is_meta(&self) -> bool {
        matches!(self.0, FormKind::Meta(_) | FormKind::Noop)
    }

    /// Returns true if the reply to a meta command shows its key or its opaque, also without a
    /// record.
    pub fn shows_request(&self) -> bool {
        match self.0 {
            FormKind::Meta(form) => form.returns.as_slice().iter().any(|letter| b"kO".contains(letter)),
            _ => false,
        }
    }

    /// Returns true if the request is a binary packet.
    pub fn is_binary(&self) -> bool {
        matches!(self.0, FormKind::Binary(_))
    }

    /// Returns true if the reply shows nothing of a record but its key, its value, and what follows
    /// from them, and the client's flags.
    pub fn shows_only_value(&self) -> bool {
        match self.0 {
            FormKind::Value(form) => !form.with_version,
            FormKind::Meta(form) => {
                form.known_version.is_none()
                    && form.returns.as_slice().iter().all(|letter| b"kfsvObq".contains(letter))
            }
            FormKind::Binary(_) => true,
            _ => false,
        }
    }

    /// Returns the time to live that the reply shows.
    pub fn time_left(&self) -> TimeLeft {
        match self.0 {
            FormKind::Meta(form) if form.returns.as_slice().contains(&b't') => match form.ttl_before {
                true => TimeLeft::Before,
                false => TimeLeft::After,
            },
            _ => TimeLeft::Unread,
        }
    }

    /// Writes an error line, such as `SERVER_ERROR x`. In the binary dialect, the status says that
    /// a later attempt may succeed, and the line is the body. After `noreply`, writes nothing.
    pub fn put_failure(&self, line: &[u8], out: &mut Vec<u8>) {
        match &self.0 {
            FormKind::Silent => {}
            FormKind::Binary(form) => binary::put_failure(form, line, out),
            _ => {
                out.extend_from_slice(line);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Returns true if the request is a key of `get`, `gets`, `gat` or `gats`.
    pub fn is_value(&self) -> bool {
        matches!(self.0, FormKind::Value(_))
    }
}

/// The replies that a client does not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenReplies {
    /// It wants each reply.
    None,
    /// It wants no reply.
    All,
    /// It does not want meta replies with these codes.
    Codes(&'static [&'static [u8; 2]]),
}

impl HiddenReplies {
    /// Returns true if the client does not want this reply.
    pub fn contain(self, reply: &[u8]) -> bool {
        match self {
            HiddenReplies::None => false,
            HiddenReplies::All => true,
            HiddenReplies::Codes(codes) => codes
                .iter()
                .any(|code| reply.starts_with(*code) && matches!(reply.get(2), Some(b' ' | b'\r'))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::{MemcachedDecoder, MemcachedLimits, MemcachedStep};

    #[test]
    fn forwarded_request_is_answered_once() {
        let cases: [(&[u8], &[u8], HiddenReplies); _] = [
            (b"set k 0 0 1\r\nx\r\n", b"set k 0 0 1\r\nx\r\n", HiddenReplies::None),
            (b"set k 0 0 1 noreply\r\nx\r\n", b"set k 0 0 1\r\nx\r\n", HiddenReplies::All),
            (b"set k 0 0 1 x y\r\nx\r\n", b"set k 0 0 1\r\nx\r\n", HiddenReplies::None),
            (b"cas k 0 0 1 7 noreply\r\nx\r\n", b"cas k 0 0 1 7\r\nx\r\n", HiddenReplies::All),
            (b"delete noreply noreply \r\n", b"delete noreply\r\n", HiddenReplies::All),
            (b"incr k 5 noreply\n", b"incr k 5\r\n", HiddenReplies::All),
            (b"mg q v\r\n", b"mg q v\r\n", HiddenReplies::None),
            (b"mg q q v O7\r\n", b"mg q v O7\r\n", HiddenReplies::Codes(&[b"EN"])),
            (b"ms k 1 q\r\nq\r\n", b"ms k 1\r\nq\r\n", HiddenReplies::Codes(&[b"HD"])),
            (b"ma k q v\r\n", b"ma k v\r\n", HiddenReplies::Codes(&[b"HD", b"VA"])),
        ];
        for (request, forwarded, hidden) in cases {
            let (mut decoder, mut scratch, mut out) = (MemcachedDecoder::default(), Vec::new(), Vec::new());
            let step = decoder.decode(&MemcachedLimits::default(), request, &mut scratch);
            let MemcachedStep::Request { consumed, request: decoded } = step else { panic!("{step:?}") };
            assert_eq!(consumed, request.len());
            decoded.form.put_answered(request, &mut out);
            assert_eq!(out, forwarded);
            assert_eq!(decoded.form.hidden_replies(), hidden);
        }
        let quiet = HiddenReplies::Codes(&[b"HD", b"VA"]);
        let hidden = [&b"HD\r\n"[..], b"VA 1 t0\r\n1\r\n", b"NF\r\n", b"HDX\r\n", b"SERVER_ERROR x\r\n"];
        assert_eq!(hidden.map(|reply| quiet.contain(reply)), [true, true, false, false, false]);
    }
}
