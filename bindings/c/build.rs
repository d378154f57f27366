//! Sets the name by which the dynamic linker finds the installed shared library. The name contains
//! the version whose functions a program knows.
#![forbid(unsafe_code)]

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtodana.so.0");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
