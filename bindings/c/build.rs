//! Names the shared library to the dynamic linker as it is installed: programs ask for the version
//! whose functions they know.
#![forbid(unsafe_code)]

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtodana.so.0");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
