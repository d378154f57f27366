//! The variables of `todana serve` for a server under the name `memcached`.
//!
//! Only the variables for settings without an option of memcached have an effect. All others are
//! ignored, so that a variable for another server cannot change a port or the memory limit. `-v`
//! lists the ignored variables.

/// The variables that have an effect under this name, and those of the client commands.
const KNOWN: [&str; 5] =
    ["TODANA_ADMIN_PORT", "TODANA_ADMIN_LISTEN", "TODANA_DATA_DIR", "TODANA_SYNC", "TODANA_SERVER"];

/// Returns a note for each variable without effect. `names` are the names of all variables of the
/// environment.
pub(super) fn without_effect(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("TODANA_") && !KNOWN.contains(&&**name)).collect();
    names.sort_unstable();
    names
        .iter()
        .map(|name| format!("{name} has no effect; under this name only the command line counts"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_variables_are_named() {
        let names = ["PATH", "TODANA_PORT", "TODANA_DATA_DIR", "TODANA_SERVER", "TODANA_MEMORY_LIMIT"];
        let told = without_effect(names.into_iter().map(String::from));
        let named: Vec<_> = told.iter().map(|note| note.split(' ').next().unwrap()).collect();
        assert_eq!(named, ["TODANA_MEMORY_LIMIT", "TODANA_PORT"]);
    }
}
