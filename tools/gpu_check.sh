#!/usr/bin/env bash
# Tests and measures on the GPU of this machine; see --help. PYTHON names the Python to use (default python3).
cd "$(dirname "$0")/.." || exit 2
python=$(command -v "${PYTHON:-python3}") || { echo "there is no ${PYTHON:-python3}: name a Python with PYTHON="; exit 2; }
exec "$python" -m tools.gpu_check "$@"
