# Runs tests as cargo would run them, by the programs that it has built. To be sourced.

# Reads what `cargo test --no-run --message-format=json` prints. Prints for each program the kind of its target, the target's name, the program,
# and the folder of its package: the program is to be run there, with CARGO_MANIFEST_DIR set to it.
test_programs() {
    sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml","target":{"kind":\["\([^"]*\)"\][^}]*"name":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\2 \3 \4 \1/p' |
        sort -u
}

# Sets what cargo sets for every program.
set_cargo_variables() { # target-folder
    export CARGO=${CARGO:-$(command -v cargo)}
    LD_LIBRARY_PATH=$1/debug/deps:$(rustc --print target-libdir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
}
