//! Reads and checks the text of procedures.

use crate::context::ScriptOptions;
use crate::error::message;
use crate::sandbox;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The longest program in bytes, far above the length of real programs.
const LEN_MAX: u64 = 16 << 20;

/// The reason why a program cannot be used. The message names the file and the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError(pub(crate) String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

/// The checked text of procedures. Clones share the text.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<[u8]>,
}

impl Program {
    /// Reads a program from a file. Fails if it cannot be read or is not valid Lua.
    pub fn load(path: impl AsRef<Path>) -> Result<Program, LoadError> {
        let path = path.as_ref();
        let unreadable = |error| LoadError(format!("{} cannot be read: {error}", path.display()));
        let len = std::fs::metadata(path).map_err(unreadable)?.len();
        if len > LEN_MAX {
            return Err(LoadError(format!("{} is longer than {LEN_MAX} bytes", path.display())));
        }
        let text = std::fs::read(path).map_err(unreadable)?;
        Program::new(&path.display().to_string(), &text)
    }

    /// Creates a program from its text. `name` identifies the program in messages. Fails if the
    /// text is not valid Lua.
    pub fn new(name: &str, text: &[u8]) -> Result<Program, LoadError> {
        // Compiled chunks are refused. Lua does not check them, and such a chunk could do anything.
        if text.starts_with(b"\x1b") {
            return Err(LoadError(format!("{name} is compiled: only text is taken")));
        }
        // A first line with `#` is for a shell.
        let is_marked = text.starts_with(b"#");
        let body = if is_marked { [b"--", text].concat() } else { text.to_vec() };
        let program = Program { name: name.into(), text: body.into() };
        let lua = sandbox::new_interpreter(&ScriptOptions::default())
            .map_err(|error| LoadError(message(&error)))?;
        program.chunk(&lua).into_function().map_err(|error| LoadError(message(&error)))?;
        Ok(program)
    }

    pub(crate) fn chunk<'p>(&'p self, lua: &mlua::Lua) -> mlua::chunk::Chunk<'p> {
        lua.load(&self.text[..]).set_name(format!("@{}", self.name)).set_mode(mlua::chunk::ChunkMode::Text)
    }
}
