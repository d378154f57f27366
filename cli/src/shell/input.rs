//! The syntax of a shell's input: commands of words.
//!
//! ```text
//! LF              ends a command, except in quotes and JSON
//! space, tab      separate words
//! '...'           literal text
//! "..."           text with escapes
//! \n \t \r \\     escapes, as `list` prints them; before another character, \ makes that literal
//! \xHH            any byte
//! {...} [...]     JSON at the beginning of a word: literal up to the matching bracket
//! # ...           a comment, if it begins a command
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A word of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InputWord {
    /// The index of its first byte in the input.
    pub(super) start: usize,
    /// Its bytes without quotes and escapes.
    pub(super) bytes: Vec<u8>,
}

/// Input of one or more lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellInput {
    /// The commands, of which only the last may have no words.
    pub(super) commands: Vec<Vec<InputWord>>,
    /// False if the last word has an open quote or bracket, or the input ends in a backslash.
    pub(super) is_complete: bool,
    /// True if the input ends within or directly after a word.
    pub(super) ends_in_word: bool,
}

impl ShellInput {
    /// Parses input. The error is a text that states the problem.
    pub(super) fn parse(text: &[u8]) -> Result<ShellInput, String> {
        let mut parser = InputParser { text, at: 0, command: Vec::new(), word: None, commands: Vec::new() };
        let is_complete = parser.parse()?;
        let ends_in_word = parser.word.is_some();
        parser.end_command(is_complete && !ends_in_word);
        Ok(ShellInput { commands: parser.commands, is_complete, ends_in_word })
    }

    /// Returns the commands that have words.
    pub(super) fn into_commands(self) -> impl Iterator<Item = Vec<OsString>> {
        let words = |command: Vec<InputWord>| {
            command.into_iter().map(|word| OsString::from_vec(word.bytes)).collect::<Vec<_>>()
        };
        self.commands.into_iter().filter(|command| !command.is_empty()).map(words)
    }
}

/// Returns a word in the form in which it must be typed.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let is_plain =
        |letter: char| !letter.is_control() && !letter.is_whitespace() && !"\\\"'".contains(letter);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with(['{', '[', '#']) => {
            text.to_string()
        }
        _ => {
            let mut quoted = String::from("\"");
            for chunk in bytes.utf8_chunks() {
                for letter in chunk.valid().chars() {
                    match letter {
                        '"' | '\\' => quoted.extend(['\\', letter]),
                        letter if letter.is_control() => {
                            letter.to_string().bytes().for_each(|byte| quoted.push_str(&escape(byte)));
                        }
                        letter => quoted.push(letter),
                    }
                }
                chunk.invalid().iter().for_each(|&byte| quoted.push_str(&escape(byte)));
            }
            quoted + "\""
        }
    }
}

fn escape(byte: u8) -> String {
    format!("\\x{byte:02x}")
}

struct InputParser<'t> {
    text: &'t [u8],
    at: usize,
    commands: Vec<Vec<InputWord>>,
    command: Vec<InputWord>,
    word: Option<InputWord>,
}

impl InputParser<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    fn push(&mut self, byte: u8) {
        let start = self.at.saturating_sub(1);
        self.word.get_or_insert_with(|| InputWord { start, bytes: Vec::new() }).bytes.push(byte);
    }

    fn end_word(&mut self) {
        self.command.extend(self.word.take());
    }

    /// Ends the command. An empty one is kept only at the end of the input.
    fn end_command(&mut self, keeps_empty: bool) {
        self.end_word();
        let command = std::mem::take(&mut self.command);
        if keeps_empty || !command.is_empty() {
            self.commands.push(command);
        }
    }

    /// Returns false if the input is not complete.
    fn parse(&mut self) -> Result<bool, String> {
        while let Some(byte) = self.next() {
            let is_complete = match byte {
                b'\n' => {
                    self.end_command(false);
                    true
                }
                b' ' | b'\t' | b'\r' => {
                    self.end_word();
                    true
                }
                b'#' if self.command.is_empty() && self.word.is_none() => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                    true
                }
                b'\'' => self.parse_literal(),
                b'"' => self.parse_quoted()?,
                b'\\' => self.parse_escape()?,
                b'{' | b'[' if self.word.is_none() => self.parse_json(byte),
                byte => {
                    self.push(byte);
                    true
                }
            };
            if !is_complete {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins a word that may stay empty.
    fn begin_word(&mut self) {
        let start = self.at.saturating_sub(1);
        self.word.get_or_insert_with(|| InputWord { start, bytes: Vec::new() });
    }

    fn parse_literal(&mut self) -> bool {
        self.begin_word();
        while let Some(byte) = self.next() {
            if byte == b'\'' {
                return true;
            }
            self.push(byte);
        }
        false
    }

    fn parse_quoted(&mut self) -> Result<bool, String> {
        self.begin_word();
        while let Some(byte) = self.next() {
            match byte {
                b'"' => return Ok(true),
                b'\\' => {
                    if !self.parse_escape()? {
                        return Ok(false);
                    }
                }
                byte => self.push(byte),
            }
        }
        Ok(false)
    }

    fn parse_escape(&mut self) -> Result<bool, String> {
        let Some(byte) = self.next() else { return Ok(false) };
        match byte {
            // The command continues on the next line.
            b'\n' => return Ok(self.at < self.text.len()),
            b'n' => self.push(b'\n'),
            b't' => self.push(b'\t'),
            b'r' => self.push(b'\r'),
            b'x' => {
                let digit = |at: usize| char::from(*self.text.get(at)?).to_digit(16);
                let digits =
                    digit(self.at).zip(digit(self.at + 1)).map(|(high, low)| (high * 16 + low) as u8);
                let value = digits.ok_or("\\x: needs two hexadecimal digits")?;
                self.push(value);
                self.at += 2;
            }
            byte => self.push(byte),
        }
        Ok(true)
    }

    /// Takes JSON up to the bracket that matches the first one.
    fn parse_json(&mut self, first: u8) -> bool {
        self.push(first);
        let (mut depth, mut in_string) = (1, false);
        while let Some(byte) = self.next() {
            self.push(byte);
            match byte {
                b'\\' if in_string => match self.next() {
                    Some(escaped) => self.push(escaped),
                    None => return false,
                },
                b'"' => in_string = !in_string,
                b'{' | b'[' if !in_string => depth += 1,
                b'}' | b']' if !in_string => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let input = ShellInput::parse(text.as_bytes()).unwrap();
        assert!(input.is_complete, "{text}");
        let text = |word: OsString| String::from_utf8_lossy(word.as_encoded_bytes()).into_owned();
        input.into_commands().map(|command| command.into_iter().map(text).collect()).collect()
    }

    #[test]
    fn words_are_separated_and_unquoted() {
        for (text, expected) in [
            ("get  a\tb\r", vec![vec!["get", "a", "b"]]),
            ("set 'a b' \"c\\\"\\n\\x41\" ''", vec![vec!["set", "a b", "c\"\nA", ""]]),
            ("get a\\ b\\\\c\\x2e", vec![vec!["get", "a b\\c."]]),
            ("set a 1\n\n# get a\nget a#1", vec![vec!["set", "a", "1"], vec!["get", "a#1"]]),
            ("get a\\\n b", vec![vec!["get", "a", "b"]]),
            ("set 'a\nb' c", vec![vec!["set", "a\nb", "c"]]),
            (
                "set k {\"a b\": [1,\n 2], \"}\\\"\": {}} --ttl 5",
                vec![vec!["set", "k", "{\"a b\": [1,\n 2], \"}\\\"\": {}}", "--ttl", "5"]],
            ),
            ("get {user}:1 a{b", vec![vec!["get", "{user}:1", "a{b"]]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn incomplete_input_is_recognised() {
        for text in ["set k {\"a\": [1,\n", "get 'a", "get \"a\n", "get \"\\", "set k \\\n", "set k [\"]\""] {
            assert!(!ShellInput::parse(text.as_bytes()).unwrap().is_complete, "{text}");
        }
        for text in ["get \\xg1", "get \"\\x4\"", "\\x+1"] {
            assert!(ShellInput::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn quoted_words_are_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&b"plain:1"[..], b"", b"two words", b"{a", b"#a", "é\u{9b}\"'\\".as_bytes(), &all] {
            let input = ShellInput::parse(quoted(bytes).as_bytes()).unwrap();
            assert_eq!(input.commands, [[InputWord { start: 0, bytes: bytes.to_vec() }]]);
            assert!(!quoted(bytes).chars().any(char::is_control));
        }
        assert_eq!(quoted(b"plain:1"), "plain:1");
    }
}
