# What ./tests/all and ./tests/explore have in common: steps that run cargo, add up what the tests say, and end in a summary.
# To be sourced from the top folder, after `set -euo pipefail`.

# The same packages and features in every call, or cargo would build the dependencies anew. The benches depend on all the libraries that
# they measure, and are built by ./tests/explore.
workspace=(--workspace --exclude lock-benches --all-features)
[ -z "${CI:-}" ] || workspace+=(--locked)

. tests/programs.sh

# Seconds after which a queued command counts as hung.
limit=1500

logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
rm -f "$logs"/*.told

# Most tests wait for something most of the time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-6}

began=$SECONDS
summary=()
failed=0
total_passed=0
total_failed=0
total_ignored=0

say() { printf '\n=== %s (%d s)\n' "$*" $((SECONDS - began)); }

# Writes what failed to a file that `finish` prints at the end.
tell() { # title log
    {
        printf '\n--- %s\n' "$1"
        # What each failed test printed, at most so many lines of each; else the errors of the build.
        awk '/^---- .* ----$/ { left = 25 } /^failures:$/ { left = 0 } left-- > 0' "$2" | cut -c 1-400 | head -n 150 | grep . ||
            grep -E -A 8 '^error' "$2" | head -n 60 || tail -n 30 "$2"
    } >"${2%.log}.told"
}

# Adds a step to the summary: the "test result:" lines of its log are counted.
count() { # title log status seconds
    local passed=0 failures=0 ignored=0 line verdict=ok
    while read -r line; do
        [[ $line =~ ([0-9]+)\ passed\;\ ([0-9]+)\ failed\;\ ([0-9]+)\ ignored ]] || continue
        passed=$((passed + BASH_REMATCH[1]))
        failures=$((failures + BASH_REMATCH[2]))
        ignored=$((ignored + BASH_REMATCH[3]))
    done < <(grep -E '^test result: ' "$2" || true)
    if [ "$3" != 0 ]; then
        verdict=FAILED
        failed=1
        # A build that broke or a crash leaves no line of its own.
        [ "$failures" -gt 0 ] || failures=1
        tell "$1" "$2"
    elif [ "$passed" = 0 ] && [ "${need_tests:-yes}" = yes ]; then
        verdict='FAILED: no test ran'
        failed=1
        failures=1
    fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failures))
    total_ignored=$((total_ignored + ignored))
    summary+=("$(printf '%-34s %4d passed %4d failed %5d s   %s' "$1" "$passed" "$failures" "$4" "$verdict")")
}

log_of() { echo "$logs/${1//[^a-zA-Z0-9.]/-}.log"; }

# Runs a command, shows its output, and counts it.
run() { # title command…
    local title=$1 log start=$SECONDS status=0
    shift
    log=$(log_of "$title")
    say "$title"
    "$@" 2>&1 | tee "$log" || status=1
    count "$title" "$log" "$status" $((SECONDS - start))
}

titles=()
commands=()

# Leaves a command to `run_queued`.
queue() { # title command…
    titles+=("$1")
    commands+=("$(printf '%q ' "${@:2}")")
}

# Builds all tests, and notes their programs. `cargo test --test NAME` would build each of them again, since it goes by the features of that
# package alone.
build() {
    need_tests=no run "build" cargo test "${workspace[@]}" --no-run
    [ "$failed" = 0 ] || finish
    cargo test "${workspace[@]}" --no-run --message-format=json 2>/dev/null | test_programs >"$logs/programs"
    set_cargo_variables "$(cd "${CARGO_TARGET_DIR:-target}" && pwd)"
}

# Leaves the program of a test target to `run_queued`.
queue_program() { # title target libtest-arguments…
    local program folder
    read -r program folder < <(awk -v name="$2" '$1 == "test" && $2 == name { print $3, $4 }' "$logs/programs")
    queue "$1" env -C "$folder" CARGO_MANIFEST_DIR="$folder" "$program" "${@:3}"
}

# The same on a version of the server.
queue_tests() { # version target libtest-arguments…
    queue_program "$2 on $1" "${@:2}"
    commands[-1]="env LOCK_TEST_SERVER=$1 ${commands[-1]}"
}

# Leaves the unit tests of all packages to `run_queued`.
queue_unit_tests() {
    local programs
    mapfile -t programs < <(awk '$1 != "test" { print $4, $3 }' "$logs/programs")
    # shellcheck disable=SC2016
    queue "unit tests" bash -c 'status=0
        for one in "$@"; do
            cd "${one% *}" && CARGO_MANIFEST_DIR=${one% *} "${one#* }" || status=1
        done
        exit $status' unit-tests "${programs[@]}"
}

# Runs what is queued, several commands side by side: most of them wait most of the time. Shows the outputs of those that fail.
run_queued() { # jobs
    local index log running=0 status took
    for index in "${!titles[@]}"; do
        if [ "$running" -ge "$1" ]; then
            wait -n || true
            running=$((running - 1))
        fi
        running=$((running + 1))
        log=$(log_of "${titles[$index]}")
        rm -f "$log.status"
        (
            start=$SECONDS status=0 word=ended
            eval "timeout --kill-after=10 $limit ${commands[$index]}" >"$log" 2>&1 </dev/null || status=$? word=FAILED
            [ "$status" != 124 ] || printf 'stopped after %d s\n' "$limit" >>"$log"
            echo "$status $((SECONDS - start))" >"$log.status"
            printf '%-34s %s after %d s\n' "${titles[$index]}" "$word" $((SECONDS - start))
        ) &
    done
    wait
    for index in "${!titles[@]}"; do
        log=$(log_of "${titles[$index]}")
        status=1 took=0
        [ ! -e "$log.status" ] || read -r status took <"$log.status"
        if [ "$status" != 0 ]; then
            say "${titles[$index]}"
            cat "$log"
        fi
        count "${titles[$index]}" "$log" "$status" "$took"
    done
    titles=()
    commands=()
}

# The names of the test targets in tests/Cargo.toml of one kind: opened by `[[test]] # needs no server`, by `[[test]] # explored`, or by neither.
test_targets() { # server | once | explored
    awk -v want="$1" '
        /^\[/        { in_test = /^\[\[test\]\]/; kind = /needs no server/ ? "once" : /explored/ ? "explored" : "server" }
        in_test && /^name *=/ { gsub(/^name *= *"|".*$/, ""); if (kind == want) print }
    ' tests/Cargo.toml
}

# Test targets of the other packages but the benches, which cargo finds in their tests/ folders by itself. Those that use the harness need
# a server.
other_targets() { # server | once
    local file kind
    for file in lock-*/tests/*.rs examples/tests/*.rs tests/ui/compile.rs; do
        [ -e "$file" ] || continue
        kind=once
        ! grep -rq lock_tests "${file%.rs}" "$file" 2>/dev/null || kind=server
        [ "$kind" != "$1" ] || basename "$file" .rs
    done
}

server_versions() { # -> the names under tests/.servers
    local server
    for server in tests/.servers/*/server; do basename "$(dirname "$server")"; done
}

# Prints what failed and the summary, and exits.
finish() {
    local told
    for told in "$logs"/*.told; do
        [ -e "$told" ] || continue
        say "failures"
        cat "$logs"/*.told
        break
    done
    say "summary"
    printf '%s\n' "${summary[@]}"
    printf '%d minutes %d seconds in all\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60))
    printf '%d passed, %d failed, %d skipped\n' "$total_passed" "$total_failed" "$total_ignored"
    exit "$failed"
}
