//! The options by which client commands log in.

use crate::CommandFailure;
use std::path::{Path, PathBuf};
use todana_client::{Login, LoginDestination};

const USER: &str = "TODANA_USER";
const PASSWORD: &str = "TODANA_PASSWORD";

/// The longest password file, in bytes.
const FILE_LEN_MAX: u64 = 64 << 10;

/// The login of a client command. Name and password each come from the option, else from the
/// server's URL, else from the environment.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ClientLogin {
    /// Log in as this user [default: that of the URL, or TODANA_USER]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File with the password [default: that of the URL, or TODANA_PASSWORD]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl ClientLogin {
    /// Returns the login for this server, or `None` if no user is given.
    pub(crate) fn at(&self, destination: &LoginDestination) -> Result<Option<Login>, CommandFailure> {
        self.found(destination, |name| std::env::var(name).ok())
    }

    fn found(
        &self,
        destination: &LoginDestination,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Login>, CommandFailure> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let user = self.user.clone().or_else(|| destination.user.clone()).or_else(|| variable(USER));
        let Some(user) = user else {
            return match &self.password_file {
                Some(_) => Err(CommandFailure::usage("--password-file: needs a user; add --user NAME")),
                None => Ok(None),
            };
        };
        let password = match &self.password_file {
            Some(path) => Some(first_line(path)?),
            None => destination.password.clone().or_else(|| variable(PASSWORD)),
        };
        let password = password.ok_or_else(|| {
            CommandFailure::usage(format!(
                "{user}: no password given; use --password-file FILE or {PASSWORD}"
            ))
        })?;
        Login::new(&user, &password).map(Some).map_err(|error| CommandFailure::usage(error.to_string()))
    }
}

fn first_line(path: &Path) -> Result<String, CommandFailure> {
    let wrong = |what: &dyn std::fmt::Display| {
        CommandFailure::usage(format!("{}: cannot read the password: {what}", path.display()))
    };
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_LEN_MAX), &mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: std::io::Error| wrong(&error))?;
    text.lines().next().map(String::from).ok_or_else(|| wrong(&"the file is empty"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        user: Option<&str>,
        file: Option<&Path>,
        url: &str,
        variables: &[(&str, &str)],
    ) -> Option<Option<Login>> {
        let login = ClientLogin { user: user.map(String::from), password_file: file.map(PathBuf::from) };
        let variable = |name: &str| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| value.to_string())
        };
        login.found(&url.parse().unwrap(), variable).ok()
    }

    #[test]
    fn login_precedence_is_flag_url_environment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "filed\nsecond line\n").unwrap();
        let is = |user, password| Some(Some(Login::new(user, password).unwrap()));
        let variables = [(USER, "env"), (PASSWORD, "envpass")];
        let (url, bare) = ("todana://url:urlpass@h", "h");
        assert_eq!(found(Some("flag"), Some(file.path()), url, &variables), is("flag", "filed"));
        assert_eq!(found(Some("flag"), None, url, &variables), is("flag", "urlpass"));
        assert_eq!(found(None, Some(file.path()), url, &variables), is("url", "filed"));
        assert_eq!(found(None, None, url, &variables), is("url", "urlpass"));
        assert_eq!(found(None, None, "todana://url@h", &variables), is("url", "envpass"));
        assert_eq!(found(None, None, bare, &variables), is("env", "envpass"));
        assert_eq!(found(None, None, bare, &[(PASSWORD, "p")]), Some(None));
        assert_eq!(found(None, None, bare, &[(USER, ""), (PASSWORD, "p")]), Some(None));
    }

    #[test]
    fn half_a_login_is_wrong_usage() {
        assert_eq!(found(Some("flag"), None, "h", &[]), None);
        assert_eq!(found(None, Some(Path::new("/nowhere")), "todana://a@h", &[]), None);
        assert_eq!(found(None, Some(Path::new("/dev/null")), "todana://a@h", &[]), None);
        assert_eq!(found(None, Some(Path::new("/dev/null")), "h", &[]), None);
        assert_eq!(found(Some("two words"), None, "h", &[(PASSWORD, "p")]), None);
    }
}
