//! Shell completions and manual pages, generated from clap's description of the command line.

use crate::{CommandFailure, ProgramArguments};
use clap::CommandFactory;
use std::path::Path;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut ProgramArguments::command(), "todana", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(())
}

pub(crate) fn man(directory: &Path) -> Result<(), CommandFailure> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(ProgramArguments::command(), directory))
        .map_err(|error| {
            CommandFailure::trouble(format!(
                "cannot write manual pages into {}: {error}",
                directory.display()
            ))
        })
}
