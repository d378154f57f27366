//! The bill of materials: every crate in the executable, with its licence, as CycloneDX describes;
//! and the texts of all these licences.

use super::built_files::BuiltFiles;
use super::clean_root::failed;
use super::executable::host;
use crate::step::{StepOutcome, cargo};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The licences whose terms allow to distribute the executable under the terms of Todana.
const ACCEPTED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "OLDAP-2.8",
    "Unicode-3.0",
    "Zlib",
];
/// Beginnings of the names of files with the terms of a crate.
const TERMS: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// A crate in the executable.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Material {
    name: String,
    version: String,
    licence: String,
    /// The folder of its sources.
    folder: PathBuf,
    is_ours: bool,
}

/// Writes `todana.cdx.json` and `third-party-licences.txt` into the folder of the files.
///
/// Fails if a crate has other terms than the accepted ones.
pub(super) fn write(files: &BuiltFiles) -> Result<(), StepOutcome> {
    let materials = materials()?;
    let others = materials.iter().filter(|material| !is_accepted(&material.licence));
    let others: Vec<String> = others.map(|other| format!("{} ({})", other.name, other.licence)).collect();
    if !others.is_empty() {
        return Err(StepOutcome::Failed(format!("licences: not accepted: {}", others.join(", "))));
    }
    println!("{} crates, all with an accepted licence", materials.len());
    let list = serde_json::to_vec_pretty(&bill(files, &materials)).map_err(|error| failed(error.into()))?;
    fs::write(files.folder.join("todana.cdx.json"), list).map_err(failed)?;
    fs::write(files.folder.join("third-party-licences.txt"), texts(&materials)?).map_err(failed)
}

/// Returns the crates that are linked, and those that build them and may contain sources in C.
fn materials() -> Result<BTreeSet<Material>, StepOutcome> {
    let (features, host) = (["--package", "todana-cli", "--features", "cassandra"], host()?);
    let tree = ["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let tree = output(&[&tree[..], &["--target", &host], &features].concat())?;
    let listed: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| (name, word(rest)))
        .collect();
    let metadata = output(&["metadata", "--locked", "--format-version", "1", "--filter-platform", &host])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| failed(error.into()))?;
    let packages = metadata["packages"].as_array().into_iter().flatten().filter_map(material);
    let found: BTreeSet<Material> =
        packages.filter(|package| listed.contains(&(&*package.name, &*package.version))).collect();
    match found.len() == listed.len() {
        true => Ok(found),
        false => Err(StepOutcome::Failed("cargo tree and cargo metadata list other crates".into())),
    }
}

fn word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

fn material(package: &Value) -> Option<Material> {
    let text = |field: &str| package[field].as_str().map(String::from);
    Some(Material {
        name: text("name")?,
        version: text("version")?,
        licence: text("license").unwrap_or_default(),
        folder: Path::new(package["manifest_path"].as_str()?).parent()?.into(),
        is_ours: package["source"].is_null(),
    })
}

fn output(words: &[&str]) -> Result<String, StepOutcome> {
    let output = cargo(words).output_with_errors_shown().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(StepOutcome::Failed(format!("cargo {}: {}", words[0], output.status))),
    }
}

/// Returns true if one of the accepted licences fulfils an SPDX expression.
fn is_accepted(licence: &str) -> bool {
    let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX);
    expression.is_ok_and(|expression| {
        expression.evaluate(|required| required.license.id().is_some_and(|id| ACCEPTED.contains(&id.name)))
    })
}

fn bill(files: &BuiltFiles, materials: &BTreeSet<Material>) -> Value {
    let component = |material: &Material| {
        let (name, version) = (&material.name, &material.version);
        let mut component = json!({
            "type": "library",
            "name": name,
            "version": version,
            "licenses": [{"expression": material.licence.replace('/', " OR ")}],
        });
        if !material.is_ours {
            component["purl"] = format!("pkg:cargo/{name}@{version}").into();
        }
        component
    };
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "todana", "version": files.version},
        },
        "components": materials.iter().map(component).collect::<Vec<_>>(),
    })
}

/// Returns each text of a licence once, after the crates to which it applies.
fn texts(materials: &BTreeSet<Material>) -> Result<String, StepOutcome> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for material in materials.iter().filter(|material| !material.is_ours) {
        let entries = fs::read_dir(&material.folder).map_err(failed)?.filter_map(Result::ok);
        let named = entries.filter(|entry| {
            let name = entry.file_name().to_string_lossy().to_uppercase();
            TERMS.iter().any(|terms| name.starts_with(terms)) && entry.path().is_file()
        });
        for file in named {
            let text = String::from_utf8_lossy(&fs::read(file.path()).map_err(failed)?).into_owned();
            texts.entry(text).or_default().push(format!("{} {}", material.name, material.version));
        }
    }
    let mut sections: Vec<String> = texts
        .into_iter()
        .map(|(text, mut crates)| {
            crates.dedup();
            format!("{}\n\n{}\n", crates.join(", "), text.trim())
        })
        .collect();
    sections.sort();
    Ok(sections.join(&format!("\n{}\n\n", "-".repeat(80))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copyleft_licence_is_not_accepted() {
        for accepted in ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "ISC AND Zlib"] {
            assert!(is_accepted(accepted), "{accepted}");
        }
        for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "no licence"] {
            assert!(!is_accepted(refused), "{refused}");
        }
    }
}
