//! The container image, in the layout of the Open Container Initiative: one layer with the
//! executable and its configuration.

use super::built_files::BuiltFiles;
use super::clean_root::{self, failed, passed};
use super::tarball::{ArchiveEntry, gzip, sha256, tar};
use crate::step::{StepOutcome, program};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The number of the user and the group as which the server runs.
const USER: u32 = 65532;
const DATA: &str = "/var/lib/todana";
/// Docker's extension of the configuration; Podman reads it, too.
const HEALTH_INTERVAL_NS: u64 = 10_000_000_000;

/// The blobs of an image, each after its hash.
struct ImageLayout {
    blobs: Vec<(String, Vec<u8>)>,
}

impl ImageLayout {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, blob: Vec<u8>) -> Value {
        let hash = sha256(&blob);
        let descriptor = json!({
            "mediaType": format!("application/vnd.oci.image.{media_type}"),
            "digest": format!("sha256:{hash}"),
            "size": blob.len(),
        });
        self.blobs.push((hash, blob));
        descriptor
    }
}

/// Writes the image as one archive into `folder`, and returns its path.
pub(super) fn build(files: &BuiltFiles, folder: &Path) -> Result<PathBuf, StepOutcome> {
    let mut layout = ImageLayout { blobs: Vec::new() };
    let layer = tar(&layer(files)?, files.epoch).map_err(failed)?;
    let layer_hash = sha256(&layer);
    let layer = layout.add("layer.v1.tar+gzip", gzip(&layer).map_err(failed)?);
    let created = created(files.epoch)?;
    let config = configuration(&files.version, &created, &layer_hash);
    let config = layout.add("config.v1+json", config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
        "annotations": annotations(&files.version, &created),
    });
    let mut manifest = layout.add("manifest.v1+json", manifest.to_string().into_bytes());
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": files.version});
    manifest["platform"] = json!({"os": "linux", "architecture": architecture()});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    let mut entries = vec![
        ArchiveEntry::file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.into()),
        ArchiveEntry::file("index.json", 0o644, index.to_string().into_bytes()),
        ArchiveEntry::folder("blobs/", 0o755, 0),
        ArchiveEntry::folder("blobs/sha256/", 0o755, 0),
    ];
    layout.blobs.sort();
    let blobs = layout.blobs.into_iter();
    entries
        .extend(blobs.map(|(hash, blob)| ArchiveEntry::file(&format!("blobs/sha256/{hash}"), 0o644, blob)));
    let image = folder.join(format!("todana-{}-oci-{}.tar", files.version, architecture()));
    fs::write(&image, tar(&entries, files.epoch).map_err(failed)?).map_err(failed)?;
    Ok(image)
}

/// Returns the files of the image.
fn layer(files: &BuiltFiles) -> Result<Vec<ArchiveEntry>, StepOutcome> {
    let user = format!("todana:x:{USER}:{USER}:Todana:{DATA}:/sbin/nologin\n");
    let group = format!("todana:x:{USER}:\n");
    let configuration = fs::read("packaging/image/todana.toml").map_err(failed)?;
    let folder = |path: &str| ArchiveEntry::folder(path, 0o755, 0);
    let text = |path: &str, content: Vec<u8>| ArchiveEntry::file(path, 0o644, content);
    let documents = "usr/share/doc/todana/";
    Ok(vec![
        folder("etc/"),
        text("etc/group", group.into_bytes()),
        text("etc/passwd", format!("root:x:0:0:root:/:/sbin/nologin\n{user}").into_bytes()),
        // Without this file, the C library could try to load modules for the names of hosts.
        text("etc/nsswitch.conf", b"hosts: files dns\n".to_vec()),
        folder("etc/todana/"),
        text("etc/todana/todana.toml", configuration),
        folder("usr/"),
        folder("usr/bin/"),
        ArchiveEntry::file("usr/bin/todana", 0o755, files.content("todana")?),
        folder("usr/share/"),
        folder("usr/share/doc/"),
        folder(documents),
        text(&format!("{documents}LICENSE-APACHE"), files.content("LICENSE-APACHE")?),
        text(&format!("{documents}LICENSE-MIT"), files.content("LICENSE-MIT")?),
        text(&format!("{documents}third-party-licences.txt"), files.content("third-party-licences.txt")?),
        text(&format!("{documents}todana.cdx.json"), files.content("todana.cdx.json")?),
        folder("var/"),
        folder("var/lib/"),
        ArchiveEntry::folder(&DATA[1..], 0o750, USER),
    ])
}

fn configuration(version: &str, created: &str, layer_hash: &str) -> Value {
    json!({
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": {"11211/tcp": {}},
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/todana"],
            "Cmd": ["serve", "--config", "/etc/todana/todana.toml"],
            "Volumes": {DATA: {}},
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": annotations(version, created),
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/todana", "ping"],
                "Interval": HEALTH_INTERVAL_NS,
                "Timeout": HEALTH_INTERVAL_NS,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_hash}")]},
        "history": [{"created": created, "created_by": "cargo xtask package"}],
    })
}

fn annotations(version: &str, created: &str) -> Value {
    json!({
        "org.opencontainers.image.title": "todana",
        "org.opencontainers.image.description": "A key-value server for memcached's clients",
        "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": created,
    })
}

/// Returns the name of this machine's processor in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn created(epoch: u64) -> Result<String, StepOutcome> {
    let words = ["--utc", "+%Y-%m-%dT%H:%M:%SZ", &format!("--date=@{epoch}")];
    let date = program("date", &words).output().map_err(failed)?;
    Ok(String::from_utf8_lossy(&date.stdout).trim().to_string())
}

/// Unpacks an image as a container engine does, and starts it with its own user, entry point and
/// health check, in a root that cannot be written to.
pub(super) fn test(files: &BuiltFiles, folder: &Path) -> Result<StepOutcome, StepOutcome> {
    clean_root::require_isolation()?;
    let image = build(files, folder)?;
    let (layout, root) = (folder.join("layout"), folder.join("image-root"));
    unpack(&image, &layout)?;
    let manifest = referenced(&layout, &json_file(&layout.join("index.json"))?["manifests"][0])?;
    let config: Value = parsed(&blob(&layout, &manifest["config"])?)?;
    let layer = blob(&layout, &manifest["layers"][0])?;
    println!("the image has a layer of {:.2} MB", layer.len() as f64 / 1e6);
    let layer_file = folder.join("layer.tar.gz");
    fs::write(&layer_file, &layer).map_err(failed)?;
    let unpacked = program("gzip", &["-dc", &layer_file.display().to_string()]).output().map_err(failed)?;
    let expected = &config["rootfs"]["diff_ids"][0];
    if *expected != format!("sha256:{}", sha256(&unpacked.stdout)) {
        return Err(StepOutcome::Failed("the image: its layer differs from diff_ids".into()));
    }
    unpack(&layer_file, &root)?;
    add_libraries(&root)?;
    let config = &config["config"];
    let command = words(&config["Entrypoint"]) + &words(&config["Cmd"]);
    let health = config["Healthcheck"]["Test"].as_array().map_or(&[][..], |test| &test[1..]);
    let script = [
        format!("user={}", config["User"].as_str().unwrap_or_default()),
        format!("command='{command}'"),
        format!("health='{}'", words(&Value::from(health))),
        fs::read_to_string("tests/packages/image.sh").map_err(failed)?,
    ];
    clean_root::run(&root, &script.join("\n"))?;
    Ok(StepOutcome::Passed)
}

/// Adds the libraries of an executable that is not linked statically, as those of tests are.
fn add_libraries(root: &Path) -> Result<(), StepOutcome> {
    let executable = root.join("usr/bin/todana");
    let list = program("ldd", &[&executable.display().to_string()]).output().map_err(failed)?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    for library in list.split_whitespace().filter(|word| word.starts_with("/lib")) {
        println!("with {library}");
        let copy = root.join(&library[1..]);
        fs::create_dir_all(copy.parent().unwrap_or(root))
            .and_then(|()| fs::copy(library, copy))
            .map_err(failed)?;
    }
    Ok(())
}

fn unpack(archive: &Path, folder: &Path) -> Result<(), StepOutcome> {
    fs::create_dir_all(folder).map_err(failed)?;
    let (archive, folder) = (archive.display().to_string(), folder.display().to_string());
    passed(program("tar", &["-x", "--numeric-owner", "-f", &archive, "-C", &folder]).run())
}

/// Returns the words of a list, each with a space after it.
fn words(list: &Value) -> String {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(|word| format!("{word} ")).collect()
}

fn referenced(layout: &Path, descriptor: &Value) -> Result<Value, StepOutcome> {
    parsed(&blob(layout, descriptor)?)
}

/// Returns the blob of a descriptor, and compares its size and hash.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>, StepOutcome> {
    let hash = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    let hash = hash.ok_or(StepOutcome::Failed(format!("the image: no digest in {descriptor}")))?;
    let blob = fs::read(layout.join("blobs/sha256").join(hash)).map_err(failed)?;
    match sha256(&blob) == hash && descriptor["size"] == blob.len() {
        true => Ok(blob),
        false => Err(StepOutcome::Failed(format!("the image: {hash}: has another hash or size"))),
    }
}

fn json_file(path: &Path) -> Result<Value, StepOutcome> {
    parsed(&fs::read(path).map_err(failed)?)
}

fn parsed(text: &[u8]) -> Result<Value, StepOutcome> {
    serde_json::from_slice(text).map_err(|error| StepOutcome::Failed(format!("the image: {error}")))
}
