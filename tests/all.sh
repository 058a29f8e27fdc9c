#!/usr/bin/env bash
# What `make test` runs: unit, end-to-end, compatibility and abuse tests, plain and then
# under the sanitizers. Closes with one line that counts everything.
set -u
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp)
status=0
run() {
        echo "=== $1"
        shift
        "$@" 2>&1 | tee -a "$log"
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}
py="tests/e2e/test_*.py tests/compat/test_*.py tests/abuse/test_*.py"
# shellcheck disable=SC2086
run "unit" env JOBS=2 tests/run.sh tools/layers.sh build/unit/test_*
# shellcheck disable=SC2086
run "end to end" env JOBS=2 CLOCHE_BIN="$PWD/build/cloche" tests/run.sh $py
run "unit, sanitized" env JOBS=2 tests/run.sh build-asan/unit/test_*
# shellcheck disable=SC2086
run "end to end, sanitized" env JOBS=2 CLOCHE_BIN="$PWD/build-asan/cloche" tests/run.sh $py
sum() { grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | awk -v f="$1" '{ gsub(",", ""); n += $f } END { print n + 0 }'; }
passed=$(sum 1) failed=$(sum 3) skipped=$(sum 5)
grep -E '^SKIP' "$log" | sort | uniq -c
rm -f "$log"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
