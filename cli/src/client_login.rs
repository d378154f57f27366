//! Options of the commands that are clients of a server that wants a login.

use crate::CommandFailure;
use std::path::{Path, PathBuf};
use todana_client::{Destination, Login};

const HEADING: &str = "Login";

const USER: &str = "TODANA_USER";
const PASSWORD: &str = "TODANA_PASSWORD";

/// A password file is not longer than this.
const FILE_LEN_MAX: u64 = 64 << 10;

/// Whom to log in as. For name and password alike counts first what the flag says, then the server's URL, then the
/// environment.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClientLogin {
    /// Log in as this user, where the server wants a login; else as that of todana://USER:PASSWORD@HOST:PORT, else as
    /// TODANA_USER of the environment
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    user: Option<String>,
    /// The password is the first line of this file; else it is that of the URL (which others see in the list of
    /// processes), else TODANA_PASSWORD of the environment
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    password_file: Option<PathBuf>,
}

impl ClientLogin {
    /// Who one is at this server; `None` where nobody was named.
    pub(crate) fn at(&self, destination: &Destination) -> Result<Option<Login>, CommandFailure> {
        self.found(destination, |name| std::env::var(name).ok())
    }

    fn found(
        &self,
        destination: &Destination,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Login>, CommandFailure> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let user = self.user.clone().or_else(|| destination.user.clone()).or_else(|| variable(USER));
        let Some(user) = user else {
            return match &self.password_file {
                Some(_) => Err(CommandFailure::usage("--password-file wants a user: --user NAME")),
                None => Ok(None),
            };
        };
        let password = match &self.password_file {
            Some(path) => Some(first_line(path)?),
            None => destination.password.clone().or_else(|| variable(PASSWORD)),
        };
        let password = password.ok_or_else(|| {
            CommandFailure::usage(format!("{user} has no password: --password-file FILE, or {PASSWORD}"))
        })?;
        Login::new(&user, &password).map(Some).map_err(|error| CommandFailure::usage(error.to_string()))
    }
}

fn first_line(path: &Path) -> Result<String, CommandFailure> {
    let wrong = |what: &dyn std::fmt::Display| {
        CommandFailure::usage(format!("cannot read the password in {}: {what}", path.display()))
    };
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_LEN_MAX), &mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: std::io::Error| wrong(&error))?;
    text.lines().next().map(String::from).ok_or_else(|| wrong(&"it is empty"))
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
    fn flags_count_before_the_url_and_that_before_the_environment() {
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
