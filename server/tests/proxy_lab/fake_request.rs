//! Divides the bytes that a fake server receives into requests.

/// A request of the text or meta dialect.
pub(crate) struct FakeRequest {
    pub(crate) words: Vec<String>,
    pub(crate) value: Vec<u8>,
}

impl FakeRequest {
    /// Returns the request at the start of `input` and its length, or `None` if it is incomplete.
    /// Fails if no server would accept its form.
    pub(crate) fn parse(input: &[u8]) -> Result<Option<(usize, FakeRequest)>, String> {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let line = String::from_utf8_lossy(&input[..end]).trim_end_matches('\r').to_string();
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        let has_value = matches!(
            words.first().map(String::as_str),
            Some("set" | "add" | "replace" | "append" | "prepend" | "cas" | "ms")
        );
        if !has_value {
            return Ok(Some((end + 1, FakeRequest { words, value: Vec::new() })));
        }
        let len_at = if words[0] == "ms" { 2 } else { 4 };
        let len: usize =
            words.get(len_at).and_then(|word| word.parse().ok()).ok_or(format!("{line:?}: has no length"))?;
        let value_end = end + 1 + len;
        let Some(block) = input.get(end + 1..value_end + 2) else { return Ok(None) };
        if !block.ends_with(b"\r\n") {
            return Err(format!("{line:?}: the value has no end"));
        }
        Ok(Some((value_end + 2, FakeRequest { words, value: block[..len].to_vec() })))
    }

    /// Returns true if the server would not answer the request in all cases.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_meta = matches!(self.name(), "mg" | "ms" | "md" | "ma");
        (is_meta && self.flag('q').is_some()) || self.words.last().is_some_and(|word| word == "noreply")
    }

    pub(crate) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Returns the keys of the request.
    pub(crate) fn keys(&self) -> &[String] {
        match self.name() {
            "get" | "gets" => &self.words[1..],
            "gat" | "gats" => &self.words[2..],
            "version" | "mn" | "flush_all" | "verbosity" | "" => &[],
            _ => &self.words[1..2.min(self.words.len())],
        }
    }

    /// Returns the flags of a meta request.
    pub(crate) fn flags(&self) -> &[String] {
        let at = if self.name() == "ms" { 3 } else { 2 };
        self.words.get(at..).unwrap_or_default()
    }

    /// Returns the token of a meta flag.
    pub(crate) fn flag(&self, name: char) -> Option<&str> {
        self.flags().iter().find_map(|flag| flag.strip_prefix(name))
    }

    pub(crate) fn number(&self, at: usize) -> u64 {
        self.words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}
