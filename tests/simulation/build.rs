//! Builds the clock of the real servers, a library that they load before the C library.

use std::path::PathBuf;

fn main() {
    let source = "src/bin/differential/clock.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed=../harness/src/clock.h");
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("clock.so");
    let compiler = cc::Build::new().get_compiler();
    let mut command = compiler.to_command();
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let done = command.status().expect("there is a C compiler, which builds Lua");
    assert!(done.success(), "the clock cannot be built");
    println!("cargo:rustc-env=LOCK_CLOCK_LIBRARY={}", library.display());
}
