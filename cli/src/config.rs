//! `todana config`: prints the effective options of `todana serve`, or checks the configuration
//! file of a server or a proxy.

use crate::{CommandFailure, proxy, serve};
use clap::Subcommand;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective options as a TOML file, with the source of each
    Show {
        /// Options as for `todana serve`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        serve: Vec<OsString>,
    },
    /// Check a configuration file
    Check {
        /// The file
        file: PathBuf,
    },
}

pub(crate) fn run(command: &ConfigCommand) -> Result<(), CommandFailure> {
    let line = |more: Vec<OsString>| ["todana".into(), "serve".into()].into_iter().chain(more);
    match command {
        ConfigCommand::Show { serve } => {
            let effective = serve::effective(line(serve.clone()))?;
            let mut out = std::io::stdout().lock();
            for (name, value, origin) in &effective.origins {
                let plain = value.parse::<i64>().is_ok() || value == "true" || value == "false";
                let written = if plain { value.clone() } else { format!("{value:?}") };
                // The option `config` names the file itself, so it cannot stand in a file.
                let comment = if value.is_empty() || name == "config" { "# " } else { "" };
                writeln!(out, "{:<40} # {origin}", format!("{comment}{name} = {written}"))?;
            }
            Ok(())
        }
        ConfigCommand::Check { file } => {
            if !proxy::check(file)? {
                serve::effective(line(vec!["--config".into(), file.clone().into()]))?;
            }
            writeln!(std::io::stdout(), "{}: ok", file.display())?;
            Ok(())
        }
    }
}
