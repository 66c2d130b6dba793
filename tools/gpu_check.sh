#!/usr/bin/env bash
# Builds for the GPU of this machine, tests on it and measures it; leaves gpu_check.json, .jsonl, .log and .txt in a folder.
#
#   tools/gpu_check.sh [FOLDER] [--help]     (default: bench-results)
#
# For a GPU machine without network, for ten minutes: it says at the start what is missing, ends by itself in nine
# minutes, and continues where it was when it is called again. PYTHON names the Python to use (default python3).
cd "$(dirname "$0")/.." || exit 2
python=$(command -v "${PYTHON:-python3}") || { echo "there is no ${PYTHON:-python3}: name a Python with PYTHON="; exit 2; }
exec "$python" -m tools.gpu_check "$@"
