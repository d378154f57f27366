//! Replaces Lua's `string.find`, `match`, `gmatch` and `gsub` by functions with a bounded pattern
//! matcher (`pattern`).

use crate::context::ScriptContext;
use crate::pattern::{MatchError, PatternCapture, PatternMatcher, until_nul};
use memchr::memmem;
use mlua::{Function, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};
use std::sync::Arc;

/// The characters that distinguish a pattern from plain text.
const SPECIALS: &[u8] = b"^$*+?.([%-";

/// Creates a matcher that checks the deadline.
macro_rules! matcher {
    ($text:expr, $pattern:expr, $context:expr) => {
        PatternMatcher::new($text, $pattern, || $context.deadline.check())
    };
}

/// Returns an error in the form of Lua's own errors, with the line of the caller.
fn wrong(lua: &Lua, text: impl std::fmt::Display) -> mlua::Error {
    let place = lua.inspect_stack(1, |frame| {
        let source = frame.source().short_src.unwrap_or_default().into_owned();
        frame.current_line().map(|line| format!("{source}:{line}: ")).unwrap_or_default()
    });
    mlua::Error::runtime(format!("{}{text}", place.unwrap_or_default()))
}

fn stopped(lua: &Lua, stop: MatchError<mlua::Error>) -> mlua::Error {
    match stop {
        MatchError::Wrong(text) => wrong(lua, text),
        MatchError::Ended(error) => error,
    }
}

/// The arguments of one of these functions.
struct CallArguments<'a> {
    name: &'static str,
    values: &'a MultiValue,
}

impl CallArguments<'_> {
    fn get(&self, at: usize) -> Value {
        self.values.get(at).cloned().unwrap_or(Value::Nil)
    }

    fn expected(&self, lua: &Lua, at: usize, what: &str) -> mlua::Error {
        let got = self.values.get(at).map_or("no value", |value| kind(value));
        wrong(lua, format_args!("bad argument #{} to '{}' ({what} expected, got {got})", at + 1, self.name))
    }

    fn text(&self, lua: &Lua, at: usize) -> mlua::Result<LuaString> {
        let value = self.get(at);
        match value {
            Value::String(_) | Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
            _ => None,
        }
        .ok_or_else(|| self.expected(lua, at, "string"))
    }

    fn integer(&self, lua: &Lua, at: usize) -> mlua::Result<Option<i64>> {
        match self.get(at) {
            Value::Nil => Ok(None),
            value => match lua.coerce_number(value)? {
                Some(number) => Ok(Some(number as i64)),
                None => Err(self.expected(lua, at, "number")),
            },
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        value => value.type_name(),
    }
}

fn value_of(lua: &Lua, text: &[u8], capture: PatternCapture) -> mlua::Result<Value> {
    match capture {
        PatternCapture::Position(at) | PatternCapture::Open(at) => Ok(Value::Number((at + 1) as f64)),
        PatternCapture::Piece(from, len) => lua.create_string(&text[from..from + len]).map(Value::String),
    }
}

/// Appends all captures of a match. If the pattern has no captures and `of_whole` is true, appends
/// the entire match.
fn captures<F: FnMut() -> mlua::Result<()>>(
    lua: &Lua,
    text: &[u8],
    matcher: &PatternMatcher<'_, F>,
    (start, end): (usize, usize),
    of_whole: bool,
    into: &mut MultiValue,
) -> mlua::Result<()> {
    let count = if matcher.len() == 0 && of_whole { 1 } else { matcher.len() };
    for index in 0..count {
        let capture = matcher.capture(index, start, end).map_err(|text| wrong(lua, text))?;
        into.push_back(value_of(lua, text, capture)?);
    }
    Ok(())
}

fn without_anchor(pattern: &[u8]) -> (&[u8], bool) {
    pattern.strip_prefix(b"^").map_or((pattern, false), |rest| (rest, true))
}

fn find_or_match(
    lua: &Lua,
    context: &ScriptContext,
    values: &MultiValue,
    finds: bool,
) -> mlua::Result<MultiValue> {
    let arguments = CallArguments { name: if finds { "find" } else { "match" }, values };
    let (text, pattern) = (arguments.text(lua, 0)?, arguments.text(lua, 1)?);
    let (text, pattern) = (&*text.as_bytes(), &*pattern.as_bytes());
    let init = match arguments.integer(lua, 2)?.unwrap_or(1) {
        back @ ..0 => (text.len() as i64).saturating_add(back).max(0),
        place => (place - 1).max(0),
    };
    let init = usize::try_from(init).unwrap_or(usize::MAX).min(text.len());
    let mut found = MultiValue::new();
    let is_plain = !matches!(arguments.get(3), Value::Nil | Value::Boolean(false));
    if finds && (is_plain || !until_nul(pattern).iter().any(|byte| SPECIALS.contains(byte))) {
        return match memmem::find(&text[init..], pattern) {
            Some(at) => ((init + at + 1) as f64, (init + at + pattern.len()) as f64).into_lua_multi(lua),
            None => Value::Nil.into_lua_multi(lua),
        };
    }
    let (pattern, is_anchored) = without_anchor(pattern);
    let mut matcher = matcher!(text, pattern, context);
    for start in init..=text.len() {
        if let Some(end) = matcher.at(start).map_err(|stop| stopped(lua, stop))? {
            if finds {
                found.push_back(Value::Number((start + 1) as f64));
                found.push_back(Value::Number(end as f64));
            }
            captures(lua, text, &matcher, (start, end), !finds, &mut found)?;
            return Ok(found);
        }
        if is_anchored {
            break;
        }
    }
    Value::Nil.into_lua_multi(lua)
}

fn gmatch(lua: &Lua, context: &Arc<ScriptContext>, values: &MultiValue) -> mlua::Result<Function> {
    let arguments = CallArguments { name: "gmatch", values };
    let (text, pattern) = (arguments.text(lua, 0)?, arguments.text(lua, 1)?);
    let (context, mut next) = (Arc::clone(context), 0);
    lua.create_function_mut(move |lua, _: MultiValue| {
        let (text, pattern) = (&*text.as_bytes(), &*pattern.as_bytes());
        let mut matcher = matcher!(text, pattern, context);
        let from = next;
        for start in from..=text.len() {
            if let Some(end) = matcher.at(start).map_err(|stop| stopped(lua, stop))? {
                next = if end == start { end + 1 } else { end };
                let mut found = MultiValue::new();
                captures(lua, text, &matcher, (start, end), true, &mut found)?;
                return Ok(found);
            }
        }
        next = text.len() + 1;
        Ok(MultiValue::new())
    })
}

/// The replacement of a match in `gsub`.
enum MatchReplacement {
    Text(LuaString),
    Table(Table),
    Function(Function),
}

/// The result of `gsub`. It is stored outside of the interpreter, but counts toward the memory
/// limit of the interpreter, together with the results of enclosing calls.
struct ReplacementBuffer<'w> {
    lua: &'w Lua,
    context: &'w ScriptContext,
    bytes: Vec<u8>,
    /// The number of bytes that have been counted for this result.
    taken: usize,
}

impl Drop for ReplacementBuffer<'_> {
    fn drop(&mut self) {
        self.context.give_back(self.taken);
    }
}

impl ReplacementBuffer<'_> {
    fn push(&mut self, bytes: &[u8]) -> mlua::Result<()> {
        let len = self.bytes.len() + bytes.len();
        if len > self.bytes.capacity() {
            self.grow(len + len / 4)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn grow(&mut self, capacity: usize) -> mlua::Result<()> {
        self.context.take_outside(self.lua, capacity - self.taken)?;
        self.taken = capacity;
        let len = self.bytes.len();
        self.bytes.reserve_exact(capacity - len);
        Ok(())
    }

    /// Appends a number or a text as Lua writes it. Returns false for any other value.
    fn push_value(&mut self, lua: &Lua, value: Value) -> mlua::Result<bool> {
        if !matches!(value, Value::String(_) | Value::Integer(_) | Value::Number(_)) {
            return Ok(false);
        }
        if let Some(text) = lua.coerce_string(value)? {
            self.push(&text.as_bytes())?;
        }
        Ok(true)
    }

    /// Appends the replacement text with its `%` references expanded.
    fn push_text<F: FnMut() -> mlua::Result<()>>(
        &mut self,
        lua: &Lua,
        other: &[u8],
        text: &[u8],
        matcher: &PatternMatcher<'_, F>,
        (start, end): (usize, usize),
    ) -> mlua::Result<()> {
        let mut at = 0;
        while at < other.len() {
            let plain = other[at..].iter().take_while(|&&byte| byte != b'%').count();
            self.push(&other[at..at + plain])?;
            at += plain;
            if at == other.len() {
                break;
            }
            // After the end of the text, NUL stands for the next byte.
            match other.get(at + 1).copied().unwrap_or(0) {
                b'0' => self.push(&text[start..end])?,
                digit @ b'1'..=b'9' => {
                    let capture = matcher.capture(usize::from(digit - b'1'), start, end);
                    let value = value_of(lua, text, capture.map_err(|text| wrong(lua, text))?)?;
                    self.push_value(lua, value)?;
                }
                byte => self.push(&[byte])?,
            }
            at += 2;
        }
        Ok(())
    }
}

fn gsub(lua: &Lua, context: &ScriptContext, values: &MultiValue) -> mlua::Result<(LuaString, f64)> {
    let arguments = CallArguments { name: "gsub", values };
    let (text, pattern) = (arguments.text(lua, 0)?, arguments.text(lua, 1)?);
    let instead = match arguments.get(2) {
        Value::Table(table) => MatchReplacement::Table(table),
        Value::Function(function) => MatchReplacement::Function(function),
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            MatchReplacement::Text(arguments.text(lua, 2)?)
        }
        _ => return Err(wrong(lua, "bad argument #3 to 'gsub' (string/function/table expected)")),
    };
    let (text, pattern) = (&*text.as_bytes(), &*pattern.as_bytes());
    let count_max = arguments.integer(lua, 3)?.unwrap_or(i64::MAX);
    let (pattern, is_anchored) = without_anchor(pattern);
    let mut matcher = matcher!(text, pattern, context);
    let mut made = ReplacementBuffer { lua, context, bytes: Vec::new(), taken: 0 };
    let (mut at, mut count) = (0, 0);
    while count < count_max {
        let found = matcher.at(at).map_err(|stop| stopped(lua, stop))?;
        if let Some(end) = found {
            count += 1;
            put(lua, &mut made, &instead, text, &matcher, (at, end))?;
        }
        match found {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                made.push(&text[at..=at])?;
                at += 1;
            }
            _ => break,
        }
        if is_anchored {
            break;
        }
    }
    made.push(&text[at..])?;
    Ok((lua.create_string(&made.bytes)?, count as f64))
}

fn put<F: FnMut() -> mlua::Result<()>>(
    lua: &Lua,
    made: &mut ReplacementBuffer<'_>,
    instead: &MatchReplacement,
    text: &[u8],
    matcher: &PatternMatcher<'_, F>,
    (start, end): (usize, usize),
) -> mlua::Result<()> {
    let value = match instead {
        MatchReplacement::Text(other) => {
            return made.push_text(lua, &other.as_bytes(), text, matcher, (start, end));
        }
        MatchReplacement::Table(table) => {
            let capture = matcher.capture(0, start, end).map_err(|text| wrong(lua, text))?;
            table.get::<Value>(value_of(lua, text, capture)?)?
        }
        MatchReplacement::Function(function) => {
            let mut all = MultiValue::new();
            captures(lua, text, matcher, (start, end), true, &mut all)?;
            function.call::<Value>(all)?
        }
    };
    if matches!(value, Value::Nil | Value::Boolean(false)) {
        return made.push(&text[start..end]);
    }
    let name = kind(&value);
    if made.push_value(lua, value)? {
        return Ok(());
    }
    Err(wrong(lua, format_args!("invalid replacement value (a {name})")))
}

/// Replaces Lua's own functions.
pub(crate) fn replace(lua: &Lua, context: &Arc<ScriptContext>) -> mlua::Result<()> {
    let string: Table = lua.globals().get("string")?;
    for (name, finds) in [("find", true), ("match", false)] {
        let context = Arc::clone(context);
        let search = move |lua: &Lua, values: MultiValue| find_or_match(lua, &context, &values, finds);
        string.set(name, lua.create_function(search)?)?;
    }
    let of = Arc::clone(context);
    let all = lua.create_function(move |lua, values: MultiValue| gmatch(lua, &of, &values))?;
    string.set("gmatch", &all)?;
    // `gfind` is the older name of `gmatch`.
    if string.contains_key("gfind")? {
        string.set("gfind", all)?;
    }
    let of = Arc::clone(context);
    string.set("gsub", lua.create_function(move |lua, values: MultiValue| gsub(lua, &of, &values))?)
}
