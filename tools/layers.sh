#!/usr/bin/env bash
# Checks that no layer includes one it must not know. One row a layer: who it may include.
cd "$(dirname "$0")/.." || exit 1
declare -A may=(
        [base]="base"
        [os]="base os"
        [wire]="base wire"
        [agent]="base os wire agent"
        [keeper]="base os wire agent keeper"
        [image]="base os image"
        [config]="base config"
        [engine]="base wire keeper engine"
        [box]="base os wire engine box"
        [http]="base http"
        [api]="base wire engine box http config api"
        [cli]="base os image keeper engine box http api config cli"
)
bad=0 checked=0
for f in $(git ls-files 'src/*.c' 'src/*.h'; git ls-files -o --exclude-standard 'src/*.c' 'src/*.h'); do
        layer=${f#src/}
        layer=${layer%%/*}
        checked=$((checked + 1))
        [ -n "${may[$layer]:-}" ] || { echo "$f: no row for layer $layer in tools/layers.sh"; bad=$((bad + 1)); continue; }
        while read -r to; do
                case " ${may[$layer]} " in
                *" $to "*) ;;
                *) echo "$f: $layer must not include $to"; bad=$((bad + 1)) ;;
                esac
        done < <(sed -nE 's/^#include "([a-z]+)\/.*/\1/p' "$f" | sort -u)
done
echo "layers: $checked files"
if [ $bad -eq 0 ]; then echo "1 passed, 0 failed, 0 skipped"; else echo "0 passed, 1 failed, 0 skipped"; exit 1; fi
