# Penstock: everything a developer does, one word each. "make help" lists it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVER_STAMP := $(VENV)/.installed-server
PIP    := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
NEEDS_PYTHON := $(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
RUN_ARGS ?=
CLUSTER_ARGS ?=
BENCH_ARGS ?=
BASE ?= HEAD
KILLS ?= 10

# Tests wait for their servers half of the time.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr 2 \* $$(nproc 2>/dev/null || echo 1))

# Tests start a thousand servers, each of which would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup bench-compare bench-scale bench-spark chaos chaos-spark run cluster audit check test test-fast fuzz bench docs sdk lock format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## install everything that developing needs into .venv, from the lock file with hashes

$(STAMP): requirements/dev.lock pyproject.toml
	@$(NEEDS_PYTHON)
	@echo "Installing the server and everything that its tests need into $(VENV): about 1.7 GB, one or two minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/dev.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@ $(SERVER_STAMP)

# The server alone. A complete installation has it too.
$(SERVER_STAMP): requirements/runtime.lock requirements/build.lock pyproject.toml
	@$(NEEDS_PYTHON)
	@echo "1/3 Making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2/3 Installing $$(grep -cE '^[a-z0-9._-]+==' requirements/runtime.lock) packages that the server needs, from requirements/runtime.lock"
	@$(PIP) --require-hashes -r requirements/runtime.lock -r requirements/build.lock
	@echo "3/3 Installing Penstock from this directory"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

run: $(SERVER_STAMP) ## install what the server needs, and start it on ./data; RUN_ARGS="--durability interval" and the like
	@$(BIN)/penstock serve $(RUN_ARGS)

cluster: setup ## two servers on two PostgreSQL shards and Redis, here, without Docker, with a tour
	@$(BIN)/python deploy/cluster.py $(CLUSTER_ARGS)

check: setup ## lint, types, layers, and what is in deploy/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/yamllint --strict .
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml

test: setup ## all tests, and those of the doors once more on PostgreSQL, on two shards, and on these with Redis
	$(BIN)/pytest -n auto --ignore tests/spark
	$(BIN)/pytest -n 2 tests/spark
	PENSTOCK_TEST_STORE=postgres $(BIN)/pytest -n auto --dist worksteal tests/doors
	PENSTOCK_TEST_STORE=shards $(BIN)/pytest -n auto --dist worksteal tests/doors
	PENSTOCK_TEST_STORE=redis $(BIN)/pytest -n auto --dist worksteal tests/doors

test-fast: setup ## the tests that take no time
	$(BIN)/pytest -n auto -m "not slow"

fuzz: setup ## a million broken inputs each for the parser of the Redis protocol and the decoder of streams
	$(BIN)/python -m tests.fuzz.resp --inputs 1000000
	$(BIN)/python -m tests.fuzz.stream --inputs 1000000

chaos: setup ## kill the server two hundred times under load, where make test does it sixteen times
	PENSTOCK_TEST_KILLS=200 $(BIN)/pytest -q -s tests/faults/test_kill.py

chaos-spark: setup ## kill Spark's driver again and again under every kind of stream; KILLS=10 each
	PENSTOCK_CHAOS_KILLS=$(KILLS) $(BIN)/pytest -q -s tests/spark/test_chaos.py
	PENSTOCK_TEST_LIFE_JOBS=100000 PENSTOCK_TEST_ROUNDS=$(KILLS) $(BIN)/pytest -q -s tests/spark/test_lake.py

bench: setup ## measure pushes, bulk pushes, pull and ack, topics, memory, against the goals; BENCH_ARGS=topics for a part
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-compare: setup ## the rows of make bench here and at an older revision, in turns; BASE=main~10
	$(BIN)/python -m bench.compare $(BASE) $(BENCH_ARGS)

bench-scale: setup ## the same on PostgreSQL: against a client that does it by hand, a long queue, two servers
	$(BIN)/python -m bench.scale

bench-spark: setup ## rows a second between Spark and a server, beside loops over the REST API; BENCH_ARGS="lake --scale 0.05"
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

audit: $(VENV)/audit/.installed ## known vulnerabilities of the dependencies, and a bill of materials in dist/penstock.cdx.json
	@$(VENV)/audit/bin/python deploy/audit.py --tools $(VENV)/audit/bin

$(VENV)/audit/.installed: requirements/audit.lock
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.lock
	@touch $@

docs: setup ## make the generated parts of the docs anew
	$(BIN)/python -m tests.docs.generate

sdk: setup ## make the synchronous client of the SDK from the asynchronous one
	$(BIN)/python -m tests.client.generate

lock: ## pin the dependencies anew, with hashes
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet pip-tools
	$(VENV)/lock/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --output-file requirements/runtime.lock pyproject.toml
	$(VENV)/lock/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --allow-unsafe --output-file requirements/dev.lock pyproject.toml requirements/dev.in
	$(VENV)/lock/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --allow-unsafe --output-file requirements/audit.lock requirements/audit.in
	$(VENV)/lock/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --allow-unsafe --all-build-deps --only-build-deps --output-file requirements/build.lock pyproject.toml

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
