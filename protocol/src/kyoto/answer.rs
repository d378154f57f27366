//! Writes HTTP answers: their heads, and the names and values of answers and of outgoing calls.

use super::columns::ColumnEncoding;
use super::date::format_date;
use super::{AnswerStatus, CallFailure, HttpForm, RequestRefusal};
use crate::ReplySink;

/// The headers that all answers of one second have in common. They are formatted once per second
/// and not for every answer.
#[derive(Clone, Debug)]
pub struct AnswerBanner {
    text: String,
    /// The offset of the date in the text.
    date_at: usize,
    time: u64,
}

impl AnswerBanner {
    /// Creates the banner of a server with this version. `time` is in seconds since 1970.
    pub fn new(version: &str, time: u64) -> AnswerBanner {
        let text = format!("Server: KyotoTycoon/{version}\r\nDate: ");
        let mut banner = AnswerBanner { date_at: text.len(), text, time };
        banner.write(time);
        banner
    }

    /// Updates the time. A call that does not change the second costs almost nothing.
    #[inline]
    pub fn set_time(&mut self, time: u64) {
        if time != self.time {
            self.write(time);
        }
    }

    fn write(&mut self, time: u64) {
        self.time = time;
        self.text.truncate(self.date_at);
        self.text.push_str(&format_date(time));
        self.text.push_str("\r\n");
    }
}

/// The pairs of a long answer or of a call, collected in reusable memory.
#[derive(Debug, Default)]
pub struct AnswerPairs {
    text: Vec<u8>,
    pairs: Vec<PairRange>,
}

/// The range of a pair in the text: the name, directly followed by the value.
#[derive(Clone, Copy, Debug)]
struct PairRange {
    start: usize,
    name_len: u32,
    value_len: u32,
}

/// The number of bytes of text whose memory is kept between answers. `KEPT_PAIRS` is the same for
/// the number of pairs.
const KEPT_LEN: usize = 1 << 16;
const KEPT_PAIRS: usize = 1 << 12;

impl AnswerPairs {
    /// Removes all pairs, and releases the memory of a large answer.
    pub fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
        if self.text.capacity() > KEPT_LEN {
            self.text = Vec::new();
        }
        if self.pairs.capacity() > KEPT_PAIRS {
            self.pairs = Vec::new();
        }
    }

    /// Adds a pair. Each name must be added only once.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_joined(b"", name, value);
    }

    /// Adds a pair of a bulk answer. Its name is `_` followed by the key.
    pub fn push_record(&mut self, key: &[u8], value: &[u8]) {
        self.push_joined(b"_", key, value);
    }

    /// Adds a pair whose value is a number.
    pub fn push_number(&mut self, name: &[u8], number: impl itoa::Integer) {
        self.push(name, itoa::Buffer::new().format(number).as_bytes());
    }

    /// Returns the total length of names and values in bytes.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Writes the complete answer of a call.
    pub fn write(
        &self,
        form: &HttpForm,
        banner: &AnswerBanner,
        status: AnswerStatus,
        out: &mut impl ReplySink,
    ) {
        let (encoding, order) = self.order();
        match order {
            Some(order) => {
                let pairs = order.iter().map(|&index| self.get(&self.pairs[index as usize]));
                write_pairs(form, banner, status, encoding, pairs, out);
            }
            None => write_pairs(form, banner, status, encoding, self.pairs(), out),
        }
    }

    /// Writes a call, as a client does.
    pub fn write_call(&self, name: &str, host: &str, out: &mut impl ReplySink) {
        let (encoding, order) = self.order();
        let order = order.unwrap_or_else(|| (0..self.pairs.len() as u32).collect());
        let pairs = order.iter().map(|&index| self.get(&self.pairs[index as usize]));
        let body_len = body_len(encoding, pairs.clone());
        let len = itoa::Buffer::new().format(body_len).to_owned();
        let head = ["POST /rpc/", name, " HTTP/1.1\r\nHost: ", host, "\r\nContent-Length: ", &len];
        head.into_iter().for_each(|text| out.put(text.as_bytes()));
        out.put(b"\r\nContent-Type: ");
        out.put(encoding.content_type().as_bytes());
        out.put(b"\r\n\r\n");
        put_pairs(encoding, pairs, out);
    }

    /// Returns the encoding for these pairs, and the order of the pairs by their encoded names. The
    /// order is `None` if the pairs are already in this order.
    fn order(&self) -> (ColumnEncoding, Option<Vec<u32>>) {
        let encoding = ColumnEncoding::choose(self.pairs().flat_map(|(name, value)| [name, value]));
        if encoding == ColumnEncoding::Raw {
            if self.pairs().is_sorted_by(|one, next| one.0 <= next.0) {
                return (encoding, None);
            }
            let name = |&index: &u32| self.get(&self.pairs[index as usize]).0;
            let mut order: Vec<u32> = (0..self.pairs.len() as u32).collect();
            order.sort_by(|one, other| name(one).cmp(name(other)));
            return (encoding, Some(order));
        }
        // The encoded names follow one another in one buffer. `ends` holds the end of each name.
        let names_len = self.pairs().map(|(name, _)| encoding.encoded_len(name)).sum();
        let (mut names, mut ends) = (Vec::with_capacity(names_len), Vec::with_capacity(self.pairs.len()));
        for (name, _) in self.pairs() {
            encoding.encode(name, &mut names);
            ends.push(names.len());
        }
        let name = |&index: &u32| {
            let index = index as usize;
            &names[index.checked_sub(1).map_or(0, |before| ends[before])..ends[index]]
        };
        let mut order: Vec<u32> = (0..self.pairs.len() as u32).collect();
        order.sort_by(|one, other| name(one).cmp(name(other)));
        (encoding, Some(order))
    }

    fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.pairs.iter().map(|pair| self.get(pair))
    }

    fn push_joined(&mut self, before: &[u8], name: &[u8], value: &[u8]) {
        let start = self.text.len();
        for bytes in [before, name, value] {
            self.text.extend_from_slice(bytes);
        }
        let name_len = (before.len() + name.len()) as u32;
        self.pairs.push(PairRange { start, name_len, value_len: value.len() as u32 });
    }

    fn get(&self, pair: &PairRange) -> (&[u8], &[u8]) {
        let name_end = pair.start + pair.name_len as usize;
        (&self.text[pair.start..name_end], &self.text[name_end..name_end + pair.value_len as usize])
    }
}

/// Writes the answer of a call with few pairs. The names must consist of letters and must be in
/// ascending order. Copies nothing except to `out`.
#[inline]
pub fn answer(
    form: &HttpForm,
    banner: &AnswerBanner,
    status: AnswerStatus,
    pairs: &[(&str, &[u8])],
    out: &mut impl ReplySink,
) {
    debug_assert!(pairs.is_sorted_by(|one, next| one.0 < next.0));
    let pairs = pairs.iter().map(|&(name, value)| (name.as_bytes(), value));
    let encoding = ColumnEncoding::choose(pairs.clone().flat_map(|(name, value)| [name, value]));
    write_pairs(form, banner, status, encoding, pairs, out);
}

/// Writes the answer of a failed call.
pub fn answer_failure(
    form: &HttpForm,
    banner: &AnswerBanner,
    failure: &CallFailure<'_>,
    out: &mut impl ReplySink,
) {
    answer(form, banner, failure.status(), &[("ERROR", &failure.text())], out);
}

/// Writes the answer to an invalid request. The caller must close the connection after it.
pub fn answer_refusal(banner: &AnswerBanner, refusal: RequestRefusal, out: &mut impl ReplySink) {
    let (status, text) = match refusal {
        RequestRefusal::ForeignPage => {
            (AnswerStatus::Forbidden, "403 Forbidden (web pages may not ask; --allow-pages allows it)\n")
        }
        RequestRefusal::HeadTooLarge => {
            (AnswerStatus::HeadTooLarge, "431 Request Header Fields Too Large (the head is too large)\n")
        }
        RequestRefusal::ForeignHost => (
            AnswerStatus::Forbidden,
            "403 Forbidden (this host name is not the server's; --http-host allows it)\n",
        ),
        RequestRefusal::Link => (
            AnswerStatus::Forbidden,
            "403 Forbidden (a browser's GET may not change anything; --allow-pages allows it)\n",
        ),
        RequestRefusal::TooLarge => {
            (AnswerStatus::TooLarge, "413 Request Entity Too Large (request entity too large)\n")
        }
        RequestRefusal::Interrupted => {
            (AnswerStatus::BadRequest, "400 Bad Request (receiving data failed)\n")
        }
        RequestRefusal::InvalidChunk => (AnswerStatus::BadRequest, "400 Bad Request (invalid chunk)\n"),
        RequestRefusal::Binary | RequestRefusal::Unauthenticated => return super::binary::put_error(out),
    };
    let form = HttpForm::new(false, false);
    put_head(&form, banner, status, Some(text.len()), out);
    out.put(b"Content-Type: text/plain\r\n\r\n");
    out.put(text.as_bytes());
}

/// Writes the answer to a request without a valid login.
pub fn answer_unauthorized(form: &HttpForm, banner: &AnswerBanner, out: &mut impl ReplySink) {
    let text = "401 Unauthorized (each request needs the name and password of a user)\n";
    put_head(form, banner, AnswerStatus::Unauthorized, (!form.is_head).then_some(text.len()), out);
    out.put(b"Content-Type: text/plain\r\nWWW-Authenticate: Basic realm=\"todana\"\r\n\r\n");
    if !form.is_head {
        out.put(text.as_bytes());
    }
}

fn write_pairs<'a>(
    form: &HttpForm,
    banner: &AnswerBanner,
    status: AnswerStatus,
    encoding: ColumnEncoding,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    out: &mut impl ReplySink,
) {
    let len = (!form.is_head).then(|| body_len(encoding, pairs.clone()));
    put_head(form, banner, status, len, out);
    out.put(b"Content-Type: ");
    out.put(encoding.content_type().as_bytes());
    out.put(b"\r\n\r\n");
    if !form.is_head {
        put_pairs(encoding, pairs, out);
    }
}

fn body_len<'a>(encoding: ColumnEncoding, pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> usize {
    pairs.map(|(name, value)| encoding.encoded_len(name) + encoding.encoded_len(value) + b"\t\n".len()).sum()
}

fn put_pairs<'a>(
    encoding: ColumnEncoding,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut impl ReplySink,
) {
    for (name, value) in pairs {
        encoding.encode(name, out);
        out.put(b"\t");
        encoding.encode(value, out);
        out.put(b"\n");
    }
}

/// Writes the head of an answer up to and including `Content-Length`. The headers that follow must
/// be sorted by name.
#[inline]
pub(super) fn put_head(
    form: &HttpForm,
    banner: &AnswerBanner,
    status: AnswerStatus,
    body_len: Option<usize>,
    out: &mut impl ReplySink,
) {
    out.put(status.line().as_bytes());
    out.put(banner.text.as_bytes());
    if !form.keeps_alive {
        out.put(b"Connection: close\r\n");
    }
    if let Some(position) = form.position {
        out.put(format!("X-Todana-Position: {position}\r\n").as_bytes());
    }
    if let Some(len) = body_len {
        out.put(b"Content-Length: ");
        out.put(itoa::Buffer::new().format(len).as_bytes());
        out.put(b"\r\n");
    }
}
