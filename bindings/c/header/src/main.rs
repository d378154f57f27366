//! Prints the header of the C library, generated from its sources: `cargo xtask header`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

/// The sources, in the order of the header.
const SOURCES: [&str; 16] = [
    "answer",
    "raw",
    "attributes",
    "database",
    "records",
    "visitors",
    "transactions",
    "iterators",
    "cursors",
    "matches",
    "key_orders",
    "snapshots",
    "map_reduce",
    "values",
    "tables",
    "queries",
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("it lies in a folder")?;
    let mut builder =
        cbindgen::Builder::new().with_config(cbindgen::Config::from_file(folder.join("cbindgen.toml"))?);
    for source in SOURCES.iter().chain(&["open_database"]) {
        builder = builder.with_src(folder.join("src").join(source).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate()?.write(&mut header);
    // cbindgen prints this type with a blank after the star.
    print!("{}", String::from_utf8(header)?.replace("const char * ", "const char *"));
    Ok(())
}
