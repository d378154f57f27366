//! Checks the folders in which a server's databases lie.

use crate::CommandFailure;
use std::path::Path;
use todana_server::ServerOptions;

/// Fails if the folder of a new database does not exist. If its volume is not mounted, the server
/// must not start with an empty database.
pub(super) fn expect_folders(options: &ServerOptions) -> Result<(), CommandFailure> {
    let databases = options.databases.all();
    let place = |one: &todana_server::DatabaseSpec| match &one.data {
        Some(data) => Some(data.directory.clone()),
        None => one.name.path.clone().filter(|_| !one.name.kind.is_in_memory()),
    };
    let places: Vec<_> = databases.iter().filter_map(place).collect();
    for place in places.iter().filter(|place| !place.exists()) {
        let above = place.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The other databases may lie in the data directory of the first one, which may itself be
        // new.
        if !above.exists() && !places.iter().any(|other| other == above) {
            let (place, above) = (place.display(), above.display());
            let message =
                format!("{place}: the folder {above} does not exist; create it, or mount its volume");
            return Err(CommandFailure::trouble(message));
        }
    }
    Ok(())
}
