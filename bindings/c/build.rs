//! Gives the shared library its name for the dynamic linker. The number grows with each change that breaks programs built before.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsluice.so.0");
}
