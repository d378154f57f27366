//! Reads the records that `importtsv` stores: a key, a tab and a value on each line.

use super::ToolFailure;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};

/// Passes the records of a file, or of the standard input, to `put`, and prints their number. Lines
/// without a tab are skipped.
pub(super) fn import(
    path: Option<&String>,
    is_lowered: bool,
    out: &mut impl Write,
    mut put: impl FnMut(&[u8], &mut [u8]) -> Result<(), ToolFailure>,
) -> Result<(), ToolFailure> {
    let input: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path).map_err(|error| ToolFailure(format!(": {path}: {error}")))?),
        None => Box::new(std::io::stdin()),
    };
    let mut count = 0;
    for line in BufReader::new(input).split(b'\n') {
        let mut line = line?;
        let Some(tab) = line.iter().position(|&byte| byte == b'\t') else { continue };
        let (key, value) = line.split_at_mut(tab);
        if is_lowered {
            key.make_ascii_lowercase();
        }
        put(key, &mut value[1..])?;
        count += 1;
    }
    writeln!(out, " ({count:08})")?;
    Ok(())
}
