#!/usr/bin/env bash
# usage: lab_test.sh: `lab setup` where the packages are there and apt knows no kernel, with programs that play theirs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/tmp"
printf '#!/bin/sh\necho ii\n' >"$folder/bin/dpkg-query"
printf '#!/bin/sh\necho x86_64\n' >"$folder/bin/uname"
printf '#!/bin/sh\necho "E: No packages found" >&2\nexit 100\n' >"$folder/bin/apt-cache"
chmod +x "$folder"/bin/*

status=0
said=$(env -u HOME -u XDG_CACHE_HOME -u LAB_HOME PATH="$folder/bin:$PATH" TMPDIR="$folder/tmp" "$here/lab" setup 2>&1) || status=$?
echo "exit $status: $said"
[[ $status == 77 ]]
[[ $said == 'lab: not available: no package linux-image-amd64 is known here (run apt-get update?)' ]]
[[ -z $(ls "$folder/tmp") ]] || { echo "left: $(ls "$folder/tmp")"; exit 1; }
