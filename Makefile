# The commands of this repository, the same for people and for CI (.ci/run).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := -m pytest -ra --junit-xml
# Three workers for two cores: tests mostly wait. Those of the one cluster go to one worker, as do those under runc
# (tests/conftest.py).
PARALLEL := --numprocesses 3
BED := $(PY) -m tests.cluster.bed
# Where `make images` pushes, and what gateway and webhook stand on.
REGISTRY ?= 127.0.0.1:5000
BASE ?= $(REGISTRY)/sandman-test/python:1

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: setup
setup: $(VENV)/.locked ## a virtual environment with the locked dependencies

$(VENV)/.locked: requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

.PHONY: lock
lock: setup ## resolve the dependencies anew; hashes, and no word of where they came from
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	$(call compile,$(OURS)) --output-file requirements.lock
	$(call compile,$(OURS) --extra local) --group dev --constraint requirements.lock --output-file requirements-dev.lock
	$(call compile,--group fuzz) --output-file requirements-fuzz.lock
	$(call compile,--group browser) --output-file requirements-browser.lock
	$(call compile,--group load) --output-file requirements-load.lock
	$(call compile,$(INSPECT).in) --output-file $(INSPECT).lock
	! grep -nE '://|^ *-(i|f|-index|-extra-index|-find)' requirements*.lock $(INSPECT).lock

OURS := pyproject.toml --extra service
INSPECT := tests/conformance/inspect
compile = $(PY) -m uv pip compile $(1) --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --upgrade

PROGRAMS := gateway webhook daemon sandman scripts benchmarks loadtest

# What ruff does not see: a yield inside a nursery (101, 119), an await that cancellation cuts short in a
# `finally` (102), a swallowed cancellation (103), and, but in test doubles, async generators (900).
ASYNC := ASYNC101,ASYNC102,ASYNC103,ASYNC119

$(VENV)/.fuzz: requirements-fuzz.lock $(VENV)/.locked
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	touch $@

$(VENV)/.browser: requirements-browser.lock $(VENV)/.locked
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	touch $@

# An environment of its own, with Locust and gevent in it and nothing of the services.
LOADVENV ?= .venv-load

$(LOADVENV)/.locked: requirements-load.lock
	$(PYTHON) -m venv $(LOADVENV)
	$(LOADVENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

.PHONY: load
load: $(LOADVENV)/.locked ## the environment of the load tests (docs/loadtest.md)

.PHONY: lint
lint: setup load ## everything that reads the code without running it
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --explicit-package-bases scripts benchmarks
	$(VENV)/bin/mypy --explicit-package-bases tests/typing
	$(VENV)/bin/mypy --python-executable $(LOADVENV)/bin/python --follow-imports silent --package loadtest
	$(VENV)/bin/flake8-async --enable=$(ASYNC),ASYNC900 $$(find sandman gateway webhook -name '*.py')
	$(VENV)/bin/flake8-async --enable=$(ASYNC) $$(grep -rlE --include='*.py' 'async |trio|anyio' tests)
	$(VENV)/bin/bandit --quiet --configfile pyproject.toml --severity-level medium --recursive $(PROGRAMS)
	PYTHONPATH=. $(VENV)/bin/lint-imports
	$(PY) scripts/unasync.py --check
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run; \
	else echo 'shellcheck is not installed: .ci/run was not checked'; fi

# It asks the index for known vulnerabilities, which mirrors of it do not tell: without an answer for each package it
# fails, and says nothing that it does not know.
.PHONY: audit
audit: setup ## known vulnerabilities of what is locked; needs the Python package index itself
	for lock in requirements*.lock tests/adapters/*.lock tests/conformance/*.lock; do \
		$(VENV)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off --requirement $$lock; \
	done

.PHONY: test
test: setup load ## unit and flow tests, with the coverage gate; needs no cluster
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run $(PYTEST)=build/junit/test.xml $(PARALLEL) tests/unit tests/flow
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

.PHONY: test-cluster
test-cluster: setup ## tests on the real cluster; it stays up if it was up
	$(PY) $(PYTEST)=build/junit/test-cluster.xml tests/cluster

.PHONY: test-faults
test-faults: setup ## what becomes of sandboxes in eight faults, with five minutes without network
	SANDMAN_TEST_CUT_S=300 $(PY) $(PYTEST)=build/junit/test-faults.xml tests/cluster/test_faults.py \
		tests/cluster/test_faults_node.py

.PHONY: test-burst
test-burst: setup ## a burst of 200 sandboxes for two tenants, and kills in the middle of one (its short form is in test-cluster)
	SANDMAN_TEST_BURST=200 $(PY) $(PYTEST)=build/junit/test-burst.xml tests/cluster/test_allocation_burst.py

.PHONY: test-conformance
test-conformance: setup ## the daemon in images of all kinds under runc, no cluster (root, Debian)
	$(PY) $(PYTEST)=build/junit/test-conformance.xml tests/conformance tests/runc

.PHONY: page
page: setup ## what the gateway's page has of others (xterm, by npm): for its terminal in local mode; images have it anyway
	$(PY) -m scripts.page

.PHONY: test-browser
test-browser: page $(VENV)/.browser ## the page in a real Chromium (Debian's package `chromium`)
	$(PY) $(PYTEST)=build/junit/test-browser.xml tests/browser

.PHONY: test-adapters
test-adapters: setup ## each framework's own runner on its adapter, against local mode (root, Debian, Python 3.12 beside 3.11)
	$(PY) $(PYTEST)=build/junit/test-adapters.xml tests/adapters

.PHONY: test-all
test-all: setup page load $(VENV)/.browser ## all of them in one session, with the coverage gate: what CI runs
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run $(PYTEST)=build/junit/test-all.xml $(PARALLEL) \
		tests/unit tests/flow tests/adapters tests/browser tests/conformance tests/runc tests/cluster tests/scale
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

.PHONY: test-unified
test-unified: setup ## measures on cgroup v2, in a virtual machine (x86-64, Debian; apt fetches kernel and emulator)
	$(PY) $(PYTEST)=build/junit/test-unified.xml tests/unified

.PHONY: soak-files
soak-files: setup ## 1 GiB up, down and streamed, on both Pythons of the daemon: bytes, memory, holes
	SANDMAN_SOAK_MIB=1024 $(PY) $(PYTEST)=build/junit/soak-files.xml -v -s tests/unit/daemon/test_files_at_size.py

.PHONY: cluster-up
cluster-up: setup ## a real Kubernetes on this machine with Sandman on it
	$(BED) up
	$(PY) -m tests.cluster.install

.PHONY: cluster-down
cluster-down: setup ## take it down, and leave nothing
	$(BED) down

# Placeholders of the scale bed. MOST pods at once (default N: then a burst drains the pool, and nothing refills it).
N ?= 1000
SCALE := $(PY) -m tests.scale

.PHONY: scale-up
scale-up: setup ## N (1000) simulated placeholders on a real control plane with two gateways; build/scale/target.json tells the way
	$(SCALE) up $(N) $(if $(MOST),--most $(MOST))

.PHONY: scale-down
scale-down: setup ## take them down, and leave nothing
	$(SCALE) down

.PHONY: test-scale
test-scale: setup ## a burst of 300 on the scale bed, brought up and taken down (also in test-all)
	$(PY) $(PYTEST)=build/junit/test-scale.xml tests/scale

.PHONY: scale-many
scale-many: setup ## 3,000 sandboxes held by one client process, on a scale bed that is up (make scale-up N=3000 MOST=3000)
	$(PY) -m benchmarks.many --target build/scale/target.json

.PHONY: scale
scale: setup ## 11,858 sandboxes at once, and all else that the scale bed measures: some 40 minutes; build/scale/report.jsonl
	$(PY) -m tests.scale.campaign

DEMO := build/demo

# Of its own: nothing but what serves, a third of what development needs.
$(DEMO)/.ready: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@echo 'installing into $(DEMO) …'; $(PYTHON) -m venv $(DEMO); \
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<; \
	touch $@; echo "installed after $$SECONDS s"

.PHONY: demo
demo: $(DEMO)/.ready ## a real bug of a real package, fixed in one sandbox and evaluated in another; on this machine alone
	$(DEMO)/bin/python -m tests.tasks.demo

.PHONY: demo-cluster
demo-cluster: cluster-up ## the same on a real Kubernetes on this machine (root, Debian, Go)
	$(PY) -m tests.cluster.demo

.PHONY: hello
hello: cluster-up ## one sandbox there and back, from the command line
	source "$$($(PY) -m tests.cluster.install --env-file)"; \
	$(PY) -m sandman.cli pools; \
	$(PY) -m sandman.cli run --image $(BASE) -- python3 -c 'print("hello from a sandbox")'

.PHONY: lock-swerex
lock-swerex: setup ## resolve what SWE-ReX's own tests need anew (tests/conformance)
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	$(PY) -m uv pip compile tests/conformance/swerex.in --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --quiet \
		--output-file tests/conformance/swerex.lock
	! grep -nE '://|^ *-(i|f|-index|-extra-index|-find)' tests/conformance/swerex.lock

ADAPTERS := tests/adapters
frozen = $(PY) -m uv pip compile $(1).in --universal --python-version $(2) --upgrade \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file $(1).lock

.PHONY: lock-adapters
lock-adapters: setup ## resolve what the frameworks of tests/adapters need anew
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	$(call frozen,$(ADAPTERS)/minisweagent,3.11)
	$(call frozen,$(ADAPTERS)/harbor,3.12)
	$(call frozen,$(ADAPTERS)/nemo_gym,3.12)
	$(call frozen,$(ADAPTERS)/nemo_gym_alone,3.12) --no-deps
	cat $(ADAPTERS)/nemo_gym_alone.lock >> $(ADAPTERS)/nemo_gym.lock; rm $(ADAPTERS)/nemo_gym_alone.lock
	! grep -nE '://|^ *-(i|f|-index|-extra-index|-find)' $(ADAPTERS)/*.lock

.PHONY: images
images: setup ## build the images and push them to REGISTRY
	$(PY) -m scripts.images --registry $(REGISTRY) --base $(BASE)

.PHONY: bench
bench: cluster-up ## warm, swap and new pods side by side on the test cluster
	$(PY) -m tests.cluster.bench

.PHONY: bench-daemon
bench-daemon: setup ## the daemon beside one in Go: start, memory, commands, streams
	$(PY) -m benchmarks.daemon

# Minutes for all fuzzers together; CI takes a quarter of one.
FUZZ_MINUTES ?= 30

.PHONY: fuzz
fuzz: setup $(VENV)/.fuzz ## fuzz what reads bytes from elsewhere, FUZZ_MINUTES long
	$(PY) -m tests.fuzz --minutes $(FUZZ_MINUTES)

# Malformed requests in all, a third to each of gateway, webhook and daemon; CI sends 3,000.
FLOOD ?= 100000

.PHONY: fuzz-malformed
fuzz-malformed: setup ## FLOOD (100,000) malformed requests to a real gateway, webhook and daemon, honest callers beside them
	$(PY) -m tests.flood --count $(FLOOD)

.PHONY: fuzz-openapi
fuzz-openapi: setup ## schemathesis against a gateway in local mode, by what it says of itself, FUZZ_MINUTES long
	$(PY) -m tests.openapi --minutes $(FUZZ_MINUTES)

# SANDMAN_SOAK_SEED=N repeats the plan of an earlier run.
SANDMAN_SOAK_MINUTES ?= 30

.PHONY: soak-mixed
soak-mixed: setup ## random load with faults on the cluster, SANDMAN_SOAK_MINUTES (30) long: who holds what in the end
	SANDMAN_SOAK_MINUTES=$(SANDMAN_SOAK_MINUTES) $(PY) $(PYTEST)=build/junit/soak-mixed.xml -s -o faulthandler_timeout=0 \
		tests/cluster/test_zy_mixed_load.py

.PHONY: soak
soak: setup ## 10,000 commands that leave orphans, and 50 long outputs, to one daemon as PID 1
	$(PY) -m tests.soak
	SANDMAN_TEST_COMMANDS=10000 $(PY) $(PYTEST)=build/junit/soak-sessions.xml tests/conformance/test_sessions_long.py
	SANDMAN_TEST_ORPHANS=1000 $(PY) $(PYTEST)=build/junit/soak-orphans.xml tests/unit/daemon/test_trees.py -k test_28
	SANDMAN_TEST_HISTORIES=10000 $(PY) $(PYTEST)=build/junit/soak-fairness.xml -o timeout=3600 \
		tests/unit/gateway/test_fairness.py

.PHONY: clean
clean: ## what was built here; caches below ~/.cache stay
	rm -rf build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
