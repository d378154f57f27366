//! The program under the name `moxi`: its command line, its clusters of servers and its behaviours.
//!
//! ```text
//! command line --settings--> MoxiSettings
//! -z           --cluster---> pools, each with a listener
//! -Z           --behavior--> MoxiBehavior --mapping--> the options of those pools
//! ```
//!
//! Streams of Couchbase (XMPP and REST) are refused. Not here: the proxy itself.

mod behavior;
mod cluster;
mod mapping;
mod settings;
mod usage;

use crate::proxy::ReplacementProgram;
use crate::serving::{ServerFailure, ServerPersonality, StartAction};
use std::ffi::{OsStr, OsString};
use std::path::Path;

const NAME: &str = "moxi";

/// The moxi personality.
pub(crate) const PERSONALITY: ServerPersonality = ServerPersonality { name: NAME, is_name, read };

fn is_name(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(NAME))
}

fn read(program: &str, words: Vec<OsString>) -> Result<StartAction, ServerFailure> {
    let variable = |name: &str| std::env::var(name).ok();
    Ok(match settings::MoxiSettings::read(program, words, variable)? {
        settings::MoxiStart::Print(text) => StartAction::Print(text),
        settings::MoxiStart::Serve(settings) => {
            settings.notes.iter().for_each(|note| eprintln!("{program}: {note}"));
            let options = mapping::options(&settings).map_err(|problem| failure(program, &problem))?;
            let process = mapping::process(program, &settings);
            StartAction::Serve(Box::new(ReplacementProgram::new(process, options, None)?))
        }
    })
}

/// Returns the failure for any problem of a start.
fn failure(program: &str, problem: &str) -> ServerFailure {
    ServerFailure::new(1, format!("{program}: {problem}"))
}
