//! Defines the errors of databases as scripts see them.

use crate::arguments::{NumberArgument, TextArgument};
use mlua::{Lua, MetaMethod, Table, UserData, UserDataMethods, Value};
use parking_lot::Mutex;
use std::borrow::Cow;
use todana_core::{Error, ErrorKind};

const NAMES: [(u32, &str, &str); 11] = [
    (0, "SUCCESS", "success"),
    (1, "NOIMPL", "not implemented"),
    (2, "INVALID", "invalid operation"),
    (3, "NOREPOS", "no repository"),
    (4, "NOPERM", "no permission"),
    (5, "BROKEN", "broken file"),
    (6, "DUPREC", "record duplication"),
    (7, "NOREC", "no record"),
    (8, "LOGIC", "logical inconsistency"),
    (9, "SYSTEM", "system error"),
    (15, "MISC", "miscellaneous error"),
];

/// An error of a database: its code and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptError {
    code: u32,
    text: Cow<'static, str>,
}

impl ScriptError {
    pub(crate) const NONE: ScriptError = ScriptError::new(0, "no error");
    pub(crate) const NO_RECORD: ScriptError = ScriptError::new(7, "no record");
    pub(crate) const DUPLICATION: ScriptError = ScriptError::new(6, "record duplication");
    pub(crate) const ILLOGICAL: ScriptError = ScriptError::new(8, "logical inconsistency");
    pub(crate) const CONFLICT: ScriptError = ScriptError::new(8, "status conflict");
    pub(crate) const RESTLESS: ScriptError =
        ScriptError::new(8, "the record has been changed again and again");
    pub(crate) const COMPILATION: ScriptError = ScriptError::new(8, "compilation failed");
    pub(crate) const POSTPROCESSING: ScriptError = ScriptError::new(8, "postprocessing failed");
    pub(crate) const PROCESSING: ScriptError = ScriptError::new(8, "processing failed");
    pub(crate) const CHECKER: ScriptError = ScriptError::new(8, "checker failed");
    pub(crate) const OPEN_FAILED: ScriptError = ScriptError::new(3, "open failed");
    pub(crate) const NOT_HERE: ScriptError = ScriptError::new(1, "not implemented");
    pub(crate) const NOT_OPENED: ScriptError = ScriptError::new(2, "not opened");
    pub(crate) const NO_TRANSACTION: ScriptError = ScriptError::new(2, "not in transaction");
    pub(crate) const IN_TRANSACTION: ScriptError = ScriptError::new(8, "in transaction already");
    pub(crate) const FORBIDDEN: ScriptError = ScriptError::new(4, "permission denied");

    pub(crate) const fn new(code: u32, text: &'static str) -> ScriptError {
        ScriptError { code, text: Cow::Borrowed(text) }
    }

    pub(crate) fn of(error: &Error) -> ScriptError {
        let code = match error.kind() {
            _ if error.is_read_only() => 4,
            ErrorKind::Invalid | ErrorKind::Closed => 2,
            ErrorKind::Corrupt => 5,
            ErrorKind::Full | ErrorKind::Busy | ErrorKind::Unavailable => 9,
        };
        ScriptError { code, text: error.to_string().into() }
    }

    fn name(&self) -> &'static str {
        NAMES.iter().find(|(code, ..)| *code == self.code).map_or("miscellaneous error", |(.., name)| name)
    }
}

/// The result of a call: a value or an error.
pub(crate) type CallResult<T> = Result<T, ScriptError>;

/// Returns the message of a Lua error, without the stack trace.
pub(crate) fn message(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => message(cause),
        mlua::Error::WithContext { cause, .. } => message(cause),
        mlua::Error::RuntimeError(text) => text.split("\nstack traceback:").next().unwrap_or_default().into(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The script object `Error`, which holds the last error of a database object.
pub(crate) struct ErrorObject(Mutex<ScriptError>);

impl From<ScriptError> for ErrorObject {
    fn from(error: ScriptError) -> ErrorObject {
        ErrorObject(Mutex::new(error))
    }
}

impl UserData for ErrorObject {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("code", |_, this, ()| Ok(this.0.lock().code));
        methods.add_method("name", |_, this, ()| Ok(this.0.lock().name()));
        methods.add_method("message", |_, this, ()| Ok(this.0.lock().text.to_string()));
        methods.add_method("set", |_, this, (code, text): (NumberArgument, TextArgument)| {
            *this.0.lock() = made(code, text);
            Ok(Value::Nil)
        });
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| {
            let error = this.0.lock();
            Ok(format!("{}: {}", error.name(), error.text))
        });
    }
}

fn made(code: NumberArgument, text: TextArgument) -> ScriptError {
    let text = text.0.map_or("error".into(), |text| text.to_string_lossy());
    ScriptError { code: code.0.unwrap_or_default() as u32, text: text.into() }
}

/// Creates the class `Error`.
pub(crate) fn class(lua: &Lua) -> mlua::Result<Table> {
    let class = lua.create_table()?;
    for (code, word, _) in NAMES {
        class.set(word, code)?;
    }
    let new = |_: &Lua, (_, code, text): (Value, NumberArgument, TextArgument)| {
        Ok(ErrorObject::from(made(code, text)))
    };
    class.set("new", lua.create_function(new)?)?;
    Ok(class)
}
