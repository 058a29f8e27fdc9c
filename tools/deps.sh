#!/usr/bin/env bash
# Installs what is missing of the named groups: build test bench. Debian and its like.
set -eu
build="gcc make pkg-config libc6-dev libuv1-dev libhttp-parser-dev libjansson-dev libsqlite3-dev libseccomp-dev libarchive-dev libisal-dev"
test="python3-minimal python3 curl util-linux procps"
bench="bubblewrap crun runc isal"
missing=""
for group in "$@"; do
        for p in ${!group}; do
                dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
        done
done
[ -z "$missing" ] && exit 0
echo "installing:$missing"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$sudo apt-get install -y -qq $missing >/dev/null 2>&1 ||
        { $sudo apt-get update -qq && $sudo apt-get install -y -qq $missing >/dev/null; }
