//! `todana password`: hashes a password for the users file of a server with logins.

use crate::{CommandFailure, sasldb};
use clap::Args;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) const AFTER_HELP: &str = "\
The command prompts for the password, or reads it from standard input if that is
not a terminal (without the final line end). It hashes the password with Argon2id
and a random salt. A running server reads its file again on SIGHUP.

Examples:
  todana password alice --file users   add alice, or change her password
  todana password alice                print the line
  db_dump -p /etc/sasldb2 | todana password --from-sasldb > users
                                       the users of Cyrus SASL, as memcached uses them
  todana serve -S --password-file users";

/// The longest password, in bytes.
const PASSWORD_LEN_MAX: u64 = 4096;

/// The longest dump, in bytes. A longer dump is read up to here and then refused as incomplete.
const DUMP_LEN_MAX: u64 = 16 << 20;

/// The arguments of `todana password`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PasswordArguments {
    /// The name of the user
    #[arg(required_unless_present = "from_sasldb")]
    user: Option<String>,
    /// Read the output of `db_dump -p` on a database of Cyrus SASL, and print a line for each user
    #[arg(long, conflicts_with_all = ["user", "file"])]
    from_sasldb: bool,
    /// Write the line to this file instead of printing it; replaces the old line of the user
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Hashes one password, or all passwords of a dump.
pub(crate) fn run(arguments: &PasswordArguments) -> Result<(), CommandFailure> {
    let line_of = |user: &str, password: &[u8]| {
        todana_server::password_line(user, password).map_err(|error| CommandFailure::usage(error.to_string()))
    };
    let Some(user) = &arguments.user else { return print_users_of_sasldb(line_of) };
    let password = read_password(user)?;
    let line = line_of(user, &password)?;
    match &arguments.file {
        None => writeln!(io::stdout(), "{line}")?,
        Some(path) => put(path, user, &line).map_err(|error| {
            CommandFailure::trouble(format!("{}: cannot change it: {error}", path.display()))
        })?,
    }
    Ok(())
}

/// Prints a line for each user of the dump on standard input. If one of them is invalid, prints no
/// lines.
fn print_users_of_sasldb(
    line_of: impl Fn(&str, &[u8]) -> Result<String, CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut dump = Vec::new();
    io::stdin().take(DUMP_LEN_MAX).read_to_end(&mut dump)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let users = sasldb::users(&dump, &host).map_err(CommandFailure::usage)?;
    let lines = users.iter().map(|(user, password)| line_of(user, password));
    for line in lines.collect::<Result<Vec<_>, _>>()? {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

fn read_password(user: &str) -> Result<Vec<u8>, CommandFailure> {
    let password = if io::stdin().is_terminal() {
        let ask = |prompt: String| rpassword::prompt_password(prompt).map_err(CommandFailure::from);
        let password = ask(format!("password for {user}: "))?;
        if ask("again: ".into())? != password {
            return Err(CommandFailure::usage("the two passwords differ"));
        }
        password.into_bytes()
    } else {
        let mut password = Vec::new();
        io::stdin().take(PASSWORD_LEN_MAX + 2).read_to_end(&mut password)?;
        if password.ends_with(b"\n") {
            password.pop();
            password.pop_if(|byte| *byte == b'\r');
        }
        password
    };
    if password.is_empty() {
        return Err(CommandFailure::usage("the password is empty"));
    }
    if password.len() as u64 > PASSWORD_LEN_MAX {
        return Err(CommandFailure::usage(format!("the password is longer than {PASSWORD_LEN_MAX} bytes")));
    }
    // SASL PLAIN ends a password at a NUL. A line end is probably a mistake of pasting.
    if password.iter().any(|byte| b"\0\r\n".contains(byte)) {
        return Err(CommandFailure::usage("the password must be one line of text"));
    }
    Ok(password)
}

/// Writes a user's line into a file atomically. If the file is new, only its owner can read it.
fn put(path: &Path, user: &str, line: &str) -> io::Result<()> {
    let old = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        outcome => outcome?,
    };
    let mode = fs::metadata(path).ok().map(|metadata| metadata.permissions());
    // A rename cannot cross file systems, so the temporary file is created in the same directory.
    // If the path is a symbolic link, its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mut unfinished = path.clone().into_os_string();
    unfinished.push(".new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    if let Some(permissions) = mode {
        file.set_permissions(permissions)?;
    }
    file.write_all(&with_line(&old, user, line))?;
    file.sync_all()?;
    fs::rename(&unfinished, &path)
}

/// Returns the lines of a file in which the user's line is replaced, or appended if the user is
/// new.
fn with_line(old: &[u8], user: &str, line: &str) -> Vec<u8> {
    let start = format!("{user}:");
    let mut new = Vec::new();
    let mut is_there = false;
    for before in old.split_inclusive(|&byte| byte == b'\n') {
        let is_theirs = before.starts_with(start.as_bytes());
        if !(is_theirs && is_there) {
            new.extend_from_slice(if is_theirs { line.as_bytes() } else { before });
            if is_theirs || !before.ends_with(b"\n") {
                new.push(b'\n');
            }
        }
        is_there |= is_theirs;
    }
    if !is_there {
        new.extend_from_slice(line.as_bytes());
        new.push(b'\n');
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_line_replaces_the_old_one() {
        for (old, new) in [
            ("", "al:new\n"),
            ("# users\nbob:x\n", "# users\nbob:x\nal:new\n"),
            ("bob:x", "bob:x\nal:new\n"),
            ("al:old\nbob:x\n", "al:new\nbob:x\n"),
            ("bob:x\nal:old", "bob:x\nal:new\n"),
            ("alice:x\nal:old\n\nal:older\n", "alice:x\nal:new\n\n"),
        ] {
            assert_eq!(String::from_utf8(with_line(old.as_bytes(), "al", "al:new")).unwrap(), new, "{old:?}");
        }
    }
}
