#!/usr/bin/env bash
# Runs test programs, JOBS at a time (one unless told), and adds up their closing lines.
# usage: [JOBS=N] tests/run.sh PROGRAM…
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Each leaves its output in $dir/N and its exit code in $dir/N.code.
run_one() {
        case $2 in
        *.py) timeout 900 /usr/bin/python3 "$2" >"$dir/$1" 2>&1 ;;
        *) timeout 300 "$2" >"$dir/$1" 2>&1 ;;
        esac
        echo $? >"$dir/$1.code"
}

n=0
for t in "$@"; do
        n=$((n + 1))
        run_one $n "$t" &
        while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n; done
done
wait

passed=0 failed=0 skipped=0 n=0
for t in "$@"; do
        n=$((n + 1))
        out=$dir/$n code=$(cat "$dir/$n.code")
        last=$(tail -n 1 "$out")
        if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
                echo "== $t: $last" | sed 's/ passed,/ ok,/; s/ failed,/ bad,/; s/ skipped/ left out/'
                passed=$((passed + BASH_REMATCH[1]))
                failed=$((failed + BASH_REMATCH[2]))
                skipped=$((skipped + BASH_REMATCH[3]))
                grep -E '^SKIP' "$out"
                if [ "${BASH_REMATCH[2]}" -ne 0 ] || [ "$code" -ne 0 ]; then
                        sed '$d' "$out"
                        [ "${BASH_REMATCH[2]}" -eq 0 ] && failed=$((failed + 1))
                fi
        else
                cat "$out"
                echo "FAIL $t: left with $code and without a closing line"
                failed=$((failed + 1))
        fi
done
[ $skipped -gt 0 ] && echo "$skipped SKIPPED: see the lines that begin with SKIP"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
