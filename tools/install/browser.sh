#!/bin/sh
# Installs Debian's Chromium and its driver for the browser tests, where that is possible. Never fails: without
# a browser those tests are skipped, and say so.
set -u

if command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "-- no chromium and chromedriver on PATH, and no root apt-get to install them: browser tests will be skipped"
    exit 0
fi
echo "-- installing chromium for the browser tests (about 1 minute)"
export DEBIAN_FRONTEND=noninteractive
packages="chromium chromium-driver"
# shellcheck disable=SC2086  # two package names
{ apt-get install -y -q --no-install-recommends $packages ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends $packages; }; } >/dev/null 2>&1 ||
    echo "-- chromium could not be installed: browser tests will be skipped"
exit 0
