#!/usr/bin/env bash
# Builds for the GPU of this machine, tests on it and measures it; leaves gpu_check.json and gpu_check.log in a folder.
#
#   tools/gpu_check.sh [OUTPUT_DIRECTORY]     (default: bench-results)
#
# Needs the CUDA toolkit, cuBLAS, and a Python with torch, transformers, safetensors, pybind11, pytest and ninja, not
# necessarily of the versions in requirements/. PYTHON names it (default python3). Everything fits into nine minutes:
# each stage has a limit of its own, and what a stage cannot finish is said in the log and does not stop the others.
set -uo pipefail

cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-bench-results}" && cd "${1:-bench-results}" && pwd)
python=${PYTHON:-python3}
log="$out/gpu_check.log"
build=build-cuda
: > "$log"

export LMDEPLOY_CACHE=${LMDEPLOY_CACHE:-$(mktemp -d)} PYTHONPATH="$PWD" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
status=0

# stage NAME SECONDS COMMAND...
stage() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  printf '\n== %s\n' "$name" | tee -a "$log"
  if timeout --kill-after=5 "$limit" "$@" >> "$log" 2>&1; then
    printf -- '-- %s: ok, %s s\n' "$name" $((SECONDS - begin)) | tee -a "$log"
  else
    local code=$?
    status=1
    printf -- '-- %s: FAILED (exit status %s), %s s\n' "$name" "$code" $((SECONDS - begin)) | tee -a "$log"
  fi
}

compile() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTURBOMIND_CUDA=ON -DTURBOMIND_TRITON=OFF \
      -DTURBOMIND_GRAMMAR=OFF -DCMAKE_CUDA_ARCHITECTURES=native -DPython_EXECUTABLE="$(command -v "$python")" \
    && cmake --build "$build" --target _turbomind _cuda_device engine_tests
}

nvidia-smi 2>&1 | tee -a "$log" | sed -n 1,15p
stage "build" 200 bash -c "$(declare -f compile); python='$python' build='$build' compile"
stage "operators" 90 "$python" -m pytest -q -p no:cacheprovider -k "gpu" tests/kernels
stage "engine" 60 "$python" -m pytest -q -p no:cacheprovider -k "gpu" tests/engine/test_cuda_engine.py
if command -v compute-sanitizer > /dev/null; then
  stage "memcheck" 60 compute-sanitizer --tool memcheck --error-exitcode 1 \
      "$python" -m pytest -q -p no:cacheprovider -x -k "gpu and attention" tests/kernels/test_cuda_attention.py
fi
stage "targets" 120 "$python" -m tools.bench.device_targets --json "$out/gpu_check.json"
sed -n '/^workload/,$p' "$log" | tail -20
exit $status
