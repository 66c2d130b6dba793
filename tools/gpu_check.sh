#!/usr/bin/env bash
# Builds for the GPU of this machine, tests on it and measures it; leaves gpu_check.json and gpu_check.log in a folder.
#
#   tools/gpu_check.sh [OUTPUT_DIRECTORY]     (default: bench-results)
#
# Says at the start what is missing: it needs the CUDA toolkit, cuBLAS, cmake, ninja and a Python with the modules below,
# not necessarily of the versions in requirements/; no network and no model. PYTHON names that Python (default python3).
# Everything fits into nine minutes: each stage has a limit of its own, and what a stage cannot finish is said in the log
# and in gpu_check.json, which is whole after every stage, and does not stop the others.
set -uo pipefail

cd "$(dirname "$0")/.." || exit 2
out=$(mkdir -p "${1:-bench-results}" && cd "${1:-bench-results}" && pwd) || exit 2
python=$(command -v "${PYTHON:-python3}") || { echo "there is no ${PYTHON:-python3}: name a Python with PYTHON="; exit 2; }
log="$out/gpu_check.log"
targets="$out/gpu_targets.json"
build="build-cuda"
modules="torch transformers tokenizers safetensors numpy jinja2 pybind11 pytest"
: > "$log"
rm -f "$targets"

PATH="$(dirname "$python"):$PATH:/usr/local/cuda/bin"
LMDEPLOY_CACHE=${LMDEPLOY_CACHE:-$(mktemp -d)}
export PATH LMDEPLOY_CACHE PYTHONPATH="$PWD" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1

status=0
stages=()

# finish_stage NAME OUTCOME SECONDS
finish_stage() {
  printf -- '-- %s: %s, %s s\n' "$1" "$2" "$3" | tee -a "$log"
  stages+=("{\"stage\": \"$1\", \"outcome\": \"$2\", \"seconds\": $3}")
  {
    printf '{"stages": [\n%s],\n"targets": ' "$(printf '%s,\n' "${stages[@]}" | sed '$ s/,$//')"
    if [ -s "$targets" ]; then cat "$targets"; else echo null; fi
    echo '}'
  } > "$out/gpu_check.json"
}

# stage NAME SECONDS COMMAND...
stage() {
  local name=$1 limit=$2 begin=$SECONDS code=0 outcome=ok
  shift 2
  printf '\n== %s\n' "$name" | tee -a "$log"
  timeout --kill-after=5 "$limit" "$@" >> "$log" 2>&1 || code=$?
  case $code in
    0) ;;
    124 | 137) outcome="FAILED: not done after its $limit s" ;;
    *) outcome="FAILED: exit status $code" ;;
  esac
  [ "$code" -eq 0 ] || { status=1; tail -n 20 "$log"; }
  finish_stage "$name" "$outcome" $((SECONDS - begin))
  return "$code"
}

# Names everything that a later stage would miss.
look_for_needs() {
  # shellcheck disable=SC2086  # a list
  "$python" - $modules << 'EOF'
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

missing = [f"the Python module {name}" for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
missing += [f"the program {name}" for name in ("cmake", "ninja", "nvcc", "c++") if shutil.which(name) is None]
if not Path(sysconfig.get_path("include"), "Python.h").exists():
    missing.append("Python.h (of the package python3-dev)")
for name in missing:
    print(f"missing: {name}")
sys.exit(bool(missing))
EOF
}

compile() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTURBOMIND_CUDA=ON -DTURBOMIND_TRITON=OFF \
      -DTURBOMIND_GRAMMAR=OFF -DCMAKE_CUDA_ARCHITECTURES=native -DPython_EXECUTABLE="$python" \
    && cmake --build "$build" --parallel "$(nproc)" --target _turbomind _cuda_device
}

# The tests' models take tokenizer and chat template from the default model; without a network, a random one stands in.
stand_in() {
  local model
  model=$("$python" -c 'from lmdeploy.paths import default_model_dir; print(default_model_dir())') || return
  [ -e "$model/tokenizer.json" ] || "$python" -m tools.bench.random_model tiny "$model"
}

# The project's pytest settings name plugins that need not be here.
pytest=("$python" -m pytest -q --all-cases -c /dev/null --rootdir=. --import-mode=importlib -p no:cacheprovider)
side_by_side=()
"$python" -c 'import xdist' 2> /dev/null && side_by_side=(-n 4)

nvidia-smi 2>&1 | tee -a "$log" | sed -n 1,15p
export -f look_for_needs compile stand_in
export python build modules
if ! stage "needs" 20 bash -c look_for_needs; then exit 2; fi
# The limits add up to under nine minutes.
stage "stand-in model" 30 bash -c stand_in
if stage "build" 180 bash -c compile; then
  stage "operators" 90 "${pytest[@]}" "${side_by_side[@]}" -k "gpu" tests/kernels
  stage "engine" 60 "${pytest[@]}" "${side_by_side[@]}" -k "gpu" tests/engine/test_cuda_engine.py
  if command -v compute-sanitizer > /dev/null; then
    stage "memcheck" 40 compute-sanitizer --tool memcheck --error-exitcode 1 \
        "${pytest[@]}" -x -k "gpu and (decode_together or split_over)" tests/kernels/test_attention.py
  else
    finish_stage "memcheck" "left out: there is no compute-sanitizer" 0
  fi
  stage "targets" 110 "$python" -m tools.bench.device_targets --json "$targets"
  sed -n '/^workload/,$p' "$log" | tail -20
else
  for left_out in operators engine memcheck targets; do
    finish_stage "$left_out" "left out: the build failed" 0
  done
fi
exit $status
