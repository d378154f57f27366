//! Variables of `todana serve` in the environment. Under memcached's name its command line says what it says alone, so that
//! a variable meant for another server cannot move a port or shrink a memory; only what it has no words for is asked for by
//! variables. The rest has no effect, and is named under `-v`.

/// The variables that count under this name, and those that are not a server's.
const KNOWN: [&str; 5] =
    ["TODANA_ADMIN_PORT", "TODANA_ADMIN_LISTEN", "TODANA_DATA_DIR", "TODANA_SYNC", "TODANA_SERVER"];

/// What is said of the variables that are there and count for nothing. `names` are those of all variables.
pub(super) fn without_effect(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("TODANA_") && !KNOWN.contains(&&**name)).collect();
    names.sort_unstable();
    names
        .iter()
        .map(|name| format!("{name} has no effect: under this name the command line counts"))
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
