#!/usr/bin/env bash
# Builds and runs the libFuzzer targets with clang: fuzz.sh SECONDS FILE…
set -eu
cd "$(dirname "$0")/.."
seconds=$1
shift
command -v clang >/dev/null || { tools/deps.sh build; apt-get install -y -qq clang libclang-rt-14-dev >/dev/null; }
out=build-fuzz
mkdir -p $out
flags="-std=gnu11 -g -O1 -Isrc -D_GNU_SOURCE -DCLOCHE_SANITIZE -DCLOCHE_VERSION=\"0\" -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -w"
objs=""
for f in src/*/*.c src/*/*/*.c; do
        [ "$f" = src/cli/main.c ] && continue
        o=$out/$(echo "$f" | tr / _).o
        # shellcheck disable=SC2086
        [ "$o" -nt "$f" ] || clang $flags -c -o "$o" "$f"
        objs="$objs $o"
done
rm -f $out/lib.a
# shellcheck disable=SC2086
ar rcs $out/lib.a $objs
for f in "$@"; do
        name=$(basename "$f" .c)
        # shellcheck disable=SC2086
        clang $flags -fsanitize=fuzzer,address,undefined -Itests/unit -o "$out/$name" "$f" $out/lib.a -Wl,-Bstatic \
                -luv_a -lhttp_parser -ljansson -lsqlite3 -lseccomp -larchive -Wl,-Bdynamic -lisal -lm -lpthread -ldl
        corpus=tests/fuzz/corpus/${name#fuzz_}
        mkdir -p "$out/corpus-$name" "$corpus"
        echo "== $name, $seconds s"
        "$out/$name" -max_total_time="$seconds" -rss_limit_mb=2048 -print_final_stats=0 "$out/corpus-$name" "$corpus"
done
