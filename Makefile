# `make serve` and `make test` do all set-up themselves: virtual environment, pinned requirements, build, default
# model. Each step leaves a stamp named after what it was made from, so a second run starts in seconds.

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= build

MODEL       ?=           # a Hugging Face directory or a converted workspace; empty: the default model
PORT        ?= 23333     # OpenAI API
WEBUI_PORT  ?= 6006
HTTP_PORT   ?= 8000      # Triton
GRPC_PORT   ?= 8001
METRICS_PORT ?= 8002
SERVE_ARGS  ?=          # further flags of `lmdeploy serve api_server`
TESTS       ?= tests
COVERAGE    ?=          # options of pytest-cov; with it tests that are Python take three times as long, so make test-all has it
PYTEST_ARGS ?=
WORKERS     ?= 3  # tests at a time; those of a file are one after the other
BENCH_ARGS  ?=
ABUSE_ARGS  ?=
FUZZ_SECONDS ?= 60
LOAD_HOST    ?= http://localhost:23333
LOAD_USERS   ?= 16
LOAD_RAMP    ?= 2
LOAD_SECONDS ?= 60
CUDA        ?=            # 1: build for NVIDIA GPUs too; needs the CUDA toolkit
CUDA_LIBRARIES ?= 1       # 0: with CUDA, leave out kernels of libraries, whose headers are a download of 60 MB

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --no-input
CMAKE  := $(VENV)/bin/cmake
CTEST  := $(VENV)/bin/ctest
say    := @printf -- '-- %s\n'

# A change in any of these files, or in the interpreter, makes a new stamp name and so a new install.
digest  = $(shell cat $(1) /dev/null | sha256sum | cut -c1-12)
STAMPS  := $(VENV)/.stamps
RUNTIME := $(STAMPS)/runtime-$(call digest,requirements/torch.txt requirements/runtime.txt requirements/no-deps.txt)
DEV     := $(STAMPS)/dev-$(call digest,requirements/torch.txt requirements/runtime.txt requirements/dev.txt)
WITH_LIBRARIES := $(and $(strip $(CUDA)),$(filter-out 0,$(strip $(CUDA_LIBRARIES))))
LIBRARIES := $(STAMPS)/cuda-libraries-$(call digest,requirements/cuda-libraries.txt)
LINKED  := $(STAMPS)/linked-$(call digest,tools/link_checkout.py)
CONFIGURED := $(BUILD)/.configured-$(call digest,requirements/torch.txt requirements/runtime.txt)$(if $(strip $(CUDA)),-cuda)$(if $(WITH_LIBRARIES),-libraries)

CLIENT_PINS := $(addprefix requirements/,clients.txt clients-node.txt aider.txt torch.txt guidellm.txt)

CXX_SOURCES = $(shell git ls-files 'backend_cpp/*.h' 'backend_cpp/*.cc' 'backend_cpp/*.cpp' 'backend_cpp/*.cu' 'backend_cpp/*.cuh')
# Of make check: what needs no checkpoint but the default model's tokenizer. Unit tests that write checkpoints,
# convert them or load the default model's weights take three times as long as all others together; make test has them.
CHECKPOINT_TESTS := auto_awq checkpoint_faults convert default_model engine_dir families meta_llama \
    pickled_weights plain_text quantized_weights resolved_tokenizer multi_model smooth_quant
QUICK_TESTS := tests/repository $(filter-out $(CHECKPOINT_TESTS:%=tests/unit/test_%.py),$(sort $(wildcard tests/unit/test_*.py)))
PY_SOURCES  := lmdeploy openai_gateway python_backend webui tools tests

.PHONY: help serve test test-all build build-tests load bench bench-embeddings peers bench-peers docs lint format fields typecheck sanitize arm fuzz abuse check without-quick-tests screenshot lock model setup dev browser clients install-clients clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: MODEL, PORT, WEBUI_PORT, HTTP_PORT, GRPC_PORT, METRICS_PORT, SERVE_ARGS, TESTS, WORKERS, PYTEST_ARGS, BENCH_ARGS, ABUSE_ARGS, LOAD_HOST, LOAD_USERS, LOAD_RAMP, LOAD_SECONDS, CUDA, CUDA_LIBRARIES, PYTHON"

# ---- set-up -------------------------------------------------------------------------------------------------------

$(PY):
	$(say) 'creating the virtual environment $(VENV) (5 s)'
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, found " + sys.version.split()[0] + "; name another one with PYTHON=")'
	@$(PYTHON) -m venv $(VENV)

$(RUNTIME): | $(PY)
	$(say) 'installing PyTorch (about 1 minute the first time)'
	@$(PIP) install -qq -r requirements/torch.txt -c requirements/runtime.txt
	$(say) 'installing the runtime requirements (some minutes the first time)'
	@$(PIP) install -qq -r requirements/torch.txt -r requirements/runtime.txt
	@$(PIP) install -qq --no-deps -r requirements/no-deps.txt
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/runtime-* && touch $@

$(DEV): $(RUNTIME)
	$(say) 'installing the test requirements (about 15 s the first time)'
	@$(PIP) install -qq -r requirements/torch.txt -r requirements/runtime.txt -r requirements/dev.txt
	@rm -f $(STAMPS)/dev-* && touch $@

$(LINKED): $(RUNTIME)
	@$(PY) tools/link_checkout.py
	@rm -f $(STAMPS)/linked-* && touch $@

setup: $(RUNTIME) $(LINKED)
dev: setup $(DEV)

$(LIBRARIES): $(RUNTIME)
	$(say) 'installing headers of CUDA libraries (10 s)'
	@$(PIP) install -qq --no-deps -r requirements/cuda-libraries.txt
	@rm -f $(STAMPS)/cuda-libraries-* && touch $@

$(CONFIGURED): $(RUNTIME) $(if $(WITH_LIBRARIES),$(LIBRARIES))
	$(say) 'configuring the C++ build (10 s)'
	@mkdir -p $(BUILD)
	@$(CMAKE) -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(PY)) \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) -DTURBOMIND_CUDA=$(if $(strip $(CUDA)),ON,OFF) \
	    -DTURBOMIND_CUDA_LIBRARIES=$(if $(WITH_LIBRARIES),ON,OFF) \
	    > $(BUILD)/configure.log 2>&1 \
	    || { cat $(BUILD)/configure.log; exit 1; }
	@rm -f $(BUILD)/.configured-* && touch $@

build: setup $(CONFIGURED) ## Compile the engine, its Python module and the Triton backend
	$(say) 'compiling what changed (about 1 minute on 2 cores the first time)'
	@$(CMAKE) --build $(BUILD) --target product

build-tests: build
	$(say) 'compiling the C++ tests and the emulation of CUDA (about 2 minutes on 2 cores the first time)'
	@$(CMAKE) --build $(BUILD)

model: setup ## Make the default model, once, offline
	$(say) 'looking for the default model (about 15 s the first time)'
	@$(PY) tools/default_model.py

# ---- run ----------------------------------------------------------------------------------------------------------

serve: build model ## Set everything up, then serve Triton, the OpenAI API and the chat page
	$(say) 'starting Triton, the OpenAI API and the chat page (about 3 s, the page follows); Ctrl-C stops all of them'
	@exec $(VENV)/bin/lmdeploy serve api_server $(strip $(MODEL)) --server-port $(strip $(PORT)) \
	    --webui --webui-port $(strip $(WEBUI_PORT)) --triton-http-port $(strip $(HTTP_PORT)) \
	    --triton-grpc-port $(strip $(GRPC_PORT)) --triton-metrics-port $(strip $(METRICS_PORT)) $(strip $(SERVE_ARGS))

browser:
	@tools/install/debian.sh 'browser tests' 'chromium chromedriver' 'chromium chromium-driver'

# Servers that tests start would compile every module again.
check test: export PYTHONDONTWRITEBYTECODE :=
test: build-tests dev model browser ## Set everything up, then run every test; of cases that are much alike, a sample
	$(say) 'running the tests (about 18 minutes on 2 quiet cores)'
	@$(CTEST) --test-dir $(BUILD) --output-on-failure $(strip $(CTEST_ARGS))
	@$(PY) -m pytest --numprocesses $(strip $(WORKERS)) --dist loadfile --no-loadscope-reorder --durations=30 $(strip $(TESTS)) $(strip $(COVERAGE)) $(strip $(PYTEST_ARGS))

test-all: ## `make test` with all cases of tests whose cases are much alike, which it runs samples of, with other clients, and with the floor of coverage
	@$(MAKE) install-clients || echo "-- no further clients can be installed here: tests of those that are not installed are skipped"
	@$(MAKE) test COVERAGE="$(if $(filter tests,$(strip $(TESTS))),--cov --cov-report=)" PYTEST_ARGS="--all-cases $(strip $(PYTEST_ARGS))"

clients: build dev model install-clients ## Install the real clients of docs/guides/clients.md in their own environment, run each of them against our servers, and print which did
	$(say) 'running the clients (about 5 minutes on 2 cores)'
	@$(PY) -m pytest --every-client tests/clients $(strip $(PYTEST_ARGS))

install-clients:
	@root="$${LMDEPLOY_CACHE:-$$HOME/.cache/lmdeploy}/clients"; stamp="$$root/.installed-$(call digest,$(CLIENT_PINS))"; \
	if [ -e "$$stamp" ]; then exit 0; fi; \
	echo '-- installing other clients into the cache (some minutes the first time)'; \
	pip() { $(PYTHON) -m venv "$$1" && "$$1/bin/python" -m pip --disable-pip-version-check --no-input install -qq -r "requirements/$$2.txt"; }; \
	pip "$$root" clients; pip "$$root/aider" aider; pip "$$root/guidellm" torch; pip "$$root/guidellm" guidellm; \
	command -v npm > /dev/null || { echo '-- npm is not here: install Node.js 20 or later for the clients of npm'; exit 1; }; \
	grep -v '^#' requirements/clients-node.txt | xargs npm install --silent --no-audit --no-fund --prefix "$$root/node"; \
	rm -f "$$root"/.installed-*; touch "$$stamp"

sanitize: build-tests ## The engine's C++ tests under AddressSanitizer and ThreadSanitizer
	@for sanitizer in address thread; do \
	    echo "-- building and testing with the $$sanitizer sanitizer (about 15 minutes on 2 slow cores)"; \
	    $(CMAKE) -S . -B build-$$sanitizer -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTURBOMIND_SANITIZER=$$sanitizer \
	        -DTURBOMIND_PYTHON=OFF -DTURBOMIND_TRITON=OFF \
	        -DPython_EXECUTABLE=$(abspath $(PY)) -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) > /dev/null; \
	    $(CMAKE) --build build-$$sanitizer; \
	    $(CTEST) --test-dir build-$$sanitizer --output-on-failure; \
	done

arm: setup ## The engine's C++ tests for 64-bit ARM, with each of its kernel tables: cross-compiled, and run under qemu-user
	@tools/install/debian.sh 'tests for ARM' 'aarch64-linux-gnu-g++ qemu-aarch64' 'g++-aarch64-linux-gnu qemu-user'
	$(say) 'compiling the engine for ARM (about 5 minutes on 2 cores the first time)'
	@$(CMAKE) -S . -B build-arm -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
	    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	    -DTURBOMIND_PYTHON=OFF -DTURBOMIND_TRITON=OFF \
	    -DPython_EXECUTABLE=$(abspath $(PY)) -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) > /dev/null
	@$(CMAKE) --build build-arm
	@for cpu in cortex-a72 neoverse-n1 max; do \
	    echo "-- kernels on $$cpu"; qemu-aarch64 -cpu $$cpu -L /usr/aarch64-linux-gnu build-arm/engine_tests every_table || exit 1; \
	done
	@qemu-aarch64 -L /usr/aarch64-linux-gnu build-arm/engine_tests

fuzz: setup ## libFuzzer under sanitizers, FUZZ_SECONDS (60) a target; what it finds stays in backend_cpp/fuzz/corpus
	@tools/install/debian.sh 'fuzz targets' clang++ 'clang libclang-rt-14-dev'
	@PATH="$(abspath $(VENV)/bin):$$PATH" tools/fuzz.sh $(strip $(FUZZ_SECONDS))

abuse: build dev ## Attack the gateway, the chat page, the proxy and Ray as users start them; ABUSE_ARGS="--seconds 600": for 10 minutes
	$(say) 'attacking (some minutes)'
	@$(PY) -m tests.abuse $(strip $(ABUSE_ARGS))

load: dev ## Many users of a running server, with locust: LOAD_HOST, LOAD_USERS (16), LOAD_RAMP users a second (2), LOAD_SECONDS (60)
	@mkdir -p $(BUILD)
	@OPENAI_API_KEY="$${OPENAI_API_KEY:-none}" $(VENV)/bin/locust -f tools/locustfile.py --headless --only-summary \
	    --host $(strip $(LOAD_HOST)) -u $(strip $(LOAD_USERS)) -r $(strip $(LOAD_RAMP)) -t $(strip $(LOAD_SECONDS))s --html $(BUILD)/load.html
	@echo "-- report: $(BUILD)/load.html"

bench: build model ## A short standard benchmark, alongside transformers and against the targets
	$(say) 'measuring on an otherwise idle machine (about 5 minutes)'
	@$(PY) -m tools.bench engine $(strip $(BENCH_ARGS))

peers: setup ## Install other engines into the cache, to measure alongside them: llama.cpp, ik_llama.cpp, OpenVINO GenAI, vLLM
	@$(PY) -m tools.bench.peers.install

bench-embeddings: build ## Texts a second of all-MiniLM-L6-v2, alongside the peers that are installed
	@$(PY) -m tools.bench embeddings $(strip $(BENCH_ARGS))

bench-peers: build dev model peers ## The engine alongside those that `make peers` installs, against the targets
	$(say) 'measuring on an otherwise idle machine (about 10 minutes)'
	@$(PY) -m tools.bench peers $(strip $(BENCH_ARGS))

screenshot: build dev model browser ## Rewrite docs/images/chat*.png
	@CHAT_SCREENSHOTS=docs/images $(PY) -m pytest -q tests/e2e/test_chat_page.py -k real_model

# ---- checks -------------------------------------------------------------------------------------------------------

check: dev model ## What comes before the other tests: lint, types, imports, documents, quick unit tests (2 minutes)
	@$(MAKE) lint
	@$(MAKE) build-tests
	@$(PY) -m pytest -q --numprocesses $(strip $(WORKERS)) --dist loadfile $(QUICK_TESTS)

# Arguments of pytest that leave out what `make check` runs.
without-quick-tests:
	@echo $(QUICK_TESTS:%=--ignore=%)

lint: dev ## ruff, mypy --strict, clang-format
	$(VENV)/bin/ruff check $(PY_SOURCES)
	$(VENV)/bin/ruff format --check $(PY_SOURCES)
	$(VENV)/bin/mypy --strict
	$(VENV)/bin/mypy --strict --python-version 3.10 lmdeploy openai_gateway python_backend webui
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES) && echo "clang-format: nothing to change"

format: dev ## Rewrite the sources in the project's layout
	$(VENV)/bin/ruff check --fix-only --quiet $(PY_SOURCES)
	$(VENV)/bin/ruff format $(PY_SOURCES)
	$(VENV)/bin/clang-format -i $(CXX_SOURCES)

fields: dev ## Write what is made from tables and parsers: config.pbtxt, and pages of docs/reference
	@$(PY) -m tools.fields

docs: dev ## Build the documentation as a site, build/site/index.html
	@$(VENV)/bin/mkdocs build

lock: dev ## Pin the requirements to what is installed in the virtual environment
	$(PY) tools/lock_requirements.py

clean: ## Remove what was built (keeps the virtual environment and the model cache)
	rm -rf $(BUILD) build-* lmdeploy/backends lmdeploy/_turbomind*.so tests/kernels/_cuda_*.so tests/e2e/backends .mypy_cache .pytest_cache .ruff_cache .hypothesis bench-results test-results
	find $(PY_SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
