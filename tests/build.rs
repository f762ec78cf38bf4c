//! Builds the slow clock of real servers, a library that they load before the C library.

#![allow(clippy::expect_used)]

use std::path::PathBuf;

fn main() {
    let source = "harness/src/slow_clock.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed=harness/src/clock.h");
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("slow_clock.so");
    let mut compiler = cc::Build::new().get_compiler().to_command();
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let done = compiler.status().expect("there is a C compiler, which builds ring");
    assert!(done.success(), "the slow clock cannot be built");
    println!("cargo:rustc-env=LOCK_SLOW_CLOCK_LIBRARY={}", library.display());
}
