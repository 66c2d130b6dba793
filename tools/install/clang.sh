#!/bin/sh
# Installs Debian's clang and its runtime for `make fuzz`, where there is none and that is possible.
set -u

if command -v clang++ >/dev/null 2>&1 || ls /usr/bin/clang++-[0-9]* >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    exit 0 # tools/fuzz.sh says what is missing
fi
echo "-- installing clang for the fuzz targets (about 1 minute)"
export DEBIAN_FRONTEND=noninteractive
{ apt-get install -y -q --no-install-recommends clang libclang-rt-14-dev ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends clang libclang-rt-14-dev; }; } >/dev/null 2>&1
exit 0
