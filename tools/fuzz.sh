#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the fuzz targets of backend_cpp/fuzz with clang and runs each for SECONDS (60), beginning with
# its corpus. An input that breaks a promise is kept in the corpus, where the tests try it; the exit code is then 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
corpus=backend_cpp/fuzz/corpus
clang=$(command -v clang++ || find /usr/bin -name 'clang++-[0-9]*' | sort -V | tail -1)
[ -n "$clang" ] || { echo "make fuzz needs clang++ with its runtime (Debian: clang, libclang-rt-dev)" >&2; exit 1; }
echo "-- building the fuzz targets with $clang (about 3 minutes on 2 cores the first time)"
mkdir -p build-fuzz
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTURBOMIND_FUZZ=ON \
    -DTURBOMIND_PYTHON=OFF -DTURBOMIND_TRITON=OFF -DTURBOMIND_TESTS=OFF > build-fuzz/configure.log 2>&1 \
    || { cat build-fuzz/configure.log; exit 1; }
cmake --build build-fuzz --target fuzz
status=0
for directory in "$corpus"/*/; do
    name=$(basename "$directory")
    echo "-- $name, $seconds s"
    mkdir -p "build-fuzz/found/$name"
    # New coverage goes to build-fuzz/found; only what broke a promise is worth a place among the sources.
    log=build-fuzz/$name.log
    if build-fuzz/fuzz_"$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=4096 \
        -artifact_prefix="$directory" -print_final_stats=1 "build-fuzz/found/$name" "$directory" > "$log" 2>&1; then
        echo "   $(awk '/number_of_executed_units/ { print $2 }' "$log") executions, nothing found"
    else
        status=1
        tail -25 "$log"
    fi
done
exit $status
