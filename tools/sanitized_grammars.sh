#!/usr/bin/env bash
# Tests of structured output with a grammar library that was built under AddressSanitizer, in the product's place.
set -euo pipefail
sanitized=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
product=lmdeploy/turbomind_grammar.so
reports=$(mktemp -d)
cp "$product" "$reports/product"
trap 'cp --remove-destination "$reports/product" "$product"; rm -rf "$reports"' EXIT
cp --remove-destination "$sanitized" "$product"
# Each process writes its report to a file; leaks are not reported: the processes are ended by a signal.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$reports/report:detect_leaks=0:abort_on_error=1"
echo "-- running the tests of structured output (about 3 minutes on 2 cores)"
compiler=${CXX:-c++}
# The runtime, and what it intercepts, come before Python.
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)" \
    .venv/bin/python -m pytest -q tests/engine/test_grammar_masks.py tests/engine/test_grammar_processes.py \
    tests/engine/test_structured_output.py "${@:2}"
if compgen -G "$reports/report.*" > /dev/null; then
    cat "$reports"/report.*
    exit 1
fi
