//! Decodes calls of TSV-RPC: the procedure and its parameters.

use super::map::ParameterMap;
use super::number::{integer, real, without_blanks};
use super::{CallFailure, HttpForm};

/// Defines the procedures and their names.
macro_rules! procedures {
    ($($procedure:ident $name:literal $what:literal,)*) => {
        /// The procedures, under all names that the original knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Procedure {
            $(#[doc = $what] $procedure,)*
        }

        impl Procedure {
            /// All procedures.
            pub const ALL: &[Procedure] = &[$(Procedure::$procedure,)*];

            /// Returns the procedure of this name.
            #[inline]
            pub fn from_name(name: &[u8]) -> Option<Procedure> {
                match name {
                    $($name => Some(Procedure::$procedure),)*
                    _ => None,
                }
            }

            /// Returns the name.
            pub fn name(self) -> &'static str {
                let name: &[u8] = match self {
                    $(Procedure::$procedure => $name,)*
                };
                std::str::from_utf8(name).expect("letters")
            }
        }
    };
}

procedures! {
    Get b"get" "Reads a record.",
    Set b"set" "Stores a record.",
    Void b"void" "Does nothing.",
    Echo b"echo" "Returns its parameters.",
    Report b"report" "Reports the state of the server.",
    PlayScript b"play_script" "Calls a procedure of the script.",
    TuneReplication b"tune_replication" "Chooses the master.",
    UlogList b"ulog_list" "Lists the files of the update log.",
    UlogRemove b"ulog_remove" "Removes files of the update log.",
    AnswerStatus b"status" "Reports the state of a database.",
    Clear b"clear" "Removes all records.",
    Synchronize b"synchronize" "Writes changes to disk, and runs a command.",
    Add b"add" "Stores a record if there is none.",
    Replace b"replace" "Stores a record if there is one.",
    Append b"append" "Appends to a value.",
    Increment b"increment" "Adds to an integer.",
    IncrementDouble b"increment_double" "Adds to a real number.",
    Cas b"cas" "Stores or removes a record if its value is as expected.",
    Remove b"remove" "Removes a record.",
    Check b"check" "Reports a record's size and expiry without its value.",
    Seize b"seize" "Reads a record and removes it.",
    SetBulk b"set_bulk" "Stores records.",
    RemoveBulk b"remove_bulk" "Removes records.",
    GetBulk b"get_bulk" "Reads records.",
    Vacuum b"vacuum" "Removes expired records.",
    MatchPrefix b"match_prefix" "Finds keys by prefix.",
    MatchRegex b"match_regex" "Finds keys by a regular expression.",
    MatchSimilar b"match_similar" "Finds keys by their edit distance to a word.",
    CursorJump b"cur_jump" "Moves a cursor to a record.",
    CursorJumpBack b"cur_jump_back" "Moves a cursor to a record, from the end.",
    CursorStep b"cur_step" "Moves a cursor to the next record.",
    CursorStepBack b"cur_step_back" "Moves a cursor to the previous record.",
    CursorSetValue b"cur_set_value" "Stores a value in a cursor's record.",
    CursorRemove b"cur_remove" "Removes a cursor's record.",
    CursorGetKey b"cur_get_key" "Reads the key of a cursor's record.",
    CursorGetValue b"cur_get_value" "Reads the value of a cursor's record.",
    CursorGet b"cur_get" "Reads a cursor's record.",
    CursorSeize b"cur_seize" "Reads and removes a cursor's record.",
    CursorDelete b"cur_delete" "Deletes a cursor.",
}

impl Procedure {
    /// Returns true if the procedure changes neither records nor the server.
    pub fn only_reads(self) -> bool {
        use Procedure::*;
        let reads_records = matches!(self, Get | Check | GetBulk | MatchPrefix | MatchRegex | MatchSimilar);
        let moves_cursor =
            matches!(self, CursorJump | CursorJumpBack | CursorStep | CursorStepBack | CursorDelete);
        let reads_by_cursor = matches!(self, CursorGetKey | CursorGetValue | CursorGet) || moves_cursor;
        reads_records || reads_by_cursor || matches!(self, Void | Echo | Report | AnswerStatus | UlogList)
    }
}

/// A call of a procedure over TSV-RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureCall<'a> {
    /// The procedure; `None` if the name is unknown.
    pub procedure: Option<Procedure>,
    /// The name that was called.
    pub name: &'a [u8],
    /// The parameters.
    pub input: ParameterMap<'a>,
    /// The form of the answer.
    pub form: HttpForm,
}

/// The database that a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseTarget<'a> {
    /// The database with this number.
    Index(u64),
    /// The database with this name: the last component of its path, without the tuning.
    Name(&'a [u8]),
}

impl<'a> DatabaseTarget<'a> {
    /// Parses the name of a database. An empty name means the first database, a name that begins
    /// with a digit is a number, and any other name is a name.
    pub fn of(name: Option<&'a [u8]>) -> DatabaseTarget<'a> {
        match name {
            None | Some([]) => DatabaseTarget::Index(0),
            Some(name @ [b'0'..=b'9', ..]) => DatabaseTarget::Index(integer(name).unsigned_abs()),
            Some(name) => DatabaseTarget::Name(name),
        }
    }
}

/// A signal to wait for before the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalWait<'a> {
    /// The name of the signal.
    pub name: &'a [u8],
    /// The timeout in seconds, which is positive and may be infinite.
    pub seconds: f64,
}

/// A signal to send after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalSend<'a> {
    /// The name of the signal.
    pub name: &'a [u8],
    /// True to wake all waiters instead of one.
    pub is_broadcast: bool,
}

/// The behaviour of an increment if there is no number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IncrementOrigin<N> {
    /// Add to this number.
    From(N),
    /// Fail.
    Try,
    /// Store the amount, even if there is a number.
    Set,
}

/// A timestamp, or the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampParameter {
    /// This timestamp.
    At(u64),
    /// The current time.
    Now,
}

/// Typed access to the parameters. Each method documents the meaning of a missing parameter.
impl<'a> ProcedureCall<'a> {
    /// Returns the database of the parameter `DB`: the first database if `DB` is absent or empty.
    pub fn target(&self) -> DatabaseTarget<'a> {
        DatabaseTarget::of(self.input.get(b"DB"))
    }

    /// Returns `CUR`, the number of a cursor, or `None` if the value does not begin with a digit.
    pub fn cursor(&self) -> Option<u64> {
        let text = self.input.get(b"CUR")?;
        text.first()?.is_ascii_digit().then(|| integer(text).unsigned_abs())
    }

    /// Returns the signal of `WAIT` and the timeout of `WAITTIME`. The timeout is 30 seconds if
    /// `WAITTIME` is absent or not positive.
    pub fn wait(&self) -> Option<SignalWait<'a>> {
        let name = self.input.get(b"WAIT")?;
        let seconds = self.input.get(b"WAITTIME").map_or(0.0, real);
        Some(SignalWait { name, seconds: if seconds > 0.0 { seconds } else { 30.0 } })
    }

    /// Returns the signal of `SIGNAL`, and whether `SIGNALBROAD` asks to wake all waiters.
    pub fn signal(&self) -> Option<SignalSend<'a>> {
        let name = self.input.get(b"SIGNAL")?;
        Some(SignalSend { name, is_broadcast: self.flag(b"SIGNALBROAD") })
    }

    /// Returns true if `WAIT` or `SIGNAL` is present. An ordinary call then needs only this check.
    pub fn has_signals(&self) -> bool {
        self.input.get(b"WAIT").is_some() || self.input.get(b"SIGNAL").is_some()
    }

    /// Returns a mandatory parameter.
    pub fn required(&self, name: &[u8]) -> Result<&'a [u8], CallFailure<'static>> {
        self.input.get(name).ok_or(CallFailure::InvalidParameters)
    }

    /// Returns an optional parameter.
    pub fn optional(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.input.get(name)
    }

    /// Returns a flag: true if the parameter is present, with any value.
    pub fn flag(&self, name: &[u8]) -> bool {
        self.input.get(name).is_some()
    }

    /// Returns an integer.
    pub fn integer(&self, name: &[u8]) -> Option<i64> {
        self.input.get(name).map(integer)
    }

    /// Returns a real number.
    pub fn real(&self, name: &[u8]) -> Option<f64> {
        self.input.get(name).map(real)
    }

    /// Returns the number of `xt` as sent; see [`expiry::resolve`](super::expiry::resolve).
    pub fn xt(&self) -> Option<i64> {
        self.integer(b"xt")
    }

    /// Returns `max`, the maximum number of results; `None` for no limit.
    pub fn max(&self) -> Option<u64> {
        self.integer(b"max").and_then(|max| u64::try_from(max).ok())
    }

    /// Returns `orig` of `increment`.
    pub fn integer_origin(&self) -> IncrementOrigin<i64> {
        self.origin(0, integer)
    }

    /// Returns `orig` of `increment_double`.
    pub fn real_origin(&self) -> IncrementOrigin<f64> {
        self.origin(0.0, real)
    }

    /// Returns a timestamp, or `now`.
    pub fn moment(&self, name: &[u8]) -> Option<TimestampParameter> {
        let text = self.input.get(name)?;
        Some(match text {
            b"now" => TimestampParameter::Now,
            text => TimestampParameter::At(stamp(text)),
        })
    }

    /// Returns the records of a bulk call: the pairs whose name begins with `_`, without the `_`.
    pub fn records(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        self.input.iter().filter_map(|(name, value)| Some((name.strip_prefix(b"_")?, value)))
    }

    fn origin<N>(&self, zero: N, number: impl Fn(&[u8]) -> N) -> IncrementOrigin<N> {
        match self.input.get(b"orig") {
            None => IncrementOrigin::From(zero),
            Some(b"try") => IncrementOrigin::Try,
            Some(b"set") => IncrementOrigin::Set,
            Some(text) => IncrementOrigin::From(number(text)),
        }
    }
}

/// Parses a timestamp like [`integer`], but as 64 bits without a sign. A negative number counts as
/// the largest timestamp.
fn stamp(text: &[u8]) -> u64 {
    let digits = match without_blanks(text) {
        [b'-', ..] => return u64::MAX,
        [b'+', rest @ ..] => rest,
        rest => rest,
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |stamp: u64, &byte| stamp.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_procedure_is_found_by_its_name() {
        for &procedure in Procedure::ALL {
            assert_eq!(Procedure::from_name(procedure.name().as_bytes()), Some(procedure));
        }
        for name in ["", "g", "gett", "GET", "cur_"] {
            assert_eq!(Procedure::from_name(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!(Procedure::ALL.len(), 39);
    }

    #[test]
    fn databases_are_named_or_numbered() {
        for (name, target) in [
            (None, DatabaseTarget::Index(0)),
            (Some(&b""[..]), DatabaseTarget::Index(0)),
            (Some(b"12x"), DatabaseTarget::Index(12)),
            (Some(b"casket.kct"), DatabaseTarget::Name(b"casket.kct")),
            (Some(b"-1"), DatabaseTarget::Name(b"-1")),
        ] {
            assert_eq!(DatabaseTarget::of(name), target);
        }
    }

    #[test]
    fn time_stamps_have_no_sign() {
        for (text, number) in
            [("1793000000000000000", 1_793_000_000_000_000_000), ("", 0), ("-1", u64::MAX), (" +7x", 7)]
        {
            assert_eq!(stamp(text.as_bytes()), number);
        }
        assert_eq!(stamp(b"18446744073709551616"), u64::MAX);
    }
}
