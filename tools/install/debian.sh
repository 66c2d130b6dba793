#!/bin/sh
# Installs Debian packages that tests need, where that is possible: debian.sh PURPOSE "PROGRAMS" "PACKAGES". Never
# fails: what needs the programs says that they are missing.
set -u
purpose=$1 programs=$2 packages=$3

missing=""
for program in $programs; do
    # A name with a version will do: clang++-14
    command -v "$program" >/dev/null 2>&1 || ls "/usr/bin/$program"-[0-9]* >/dev/null 2>&1 || missing="$missing $program"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "-- no$missing on PATH, and no root apt-get to install $packages: $purpose will be skipped"
    exit 0
fi
echo "-- installing $packages for $purpose (about 1 minute)"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # names of packages
{ apt-get install -y -q --no-install-recommends $packages ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends $packages; }; } >/dev/null 2>&1 ||
    echo "-- $packages could not be installed: $purpose will be skipped"
exit 0
