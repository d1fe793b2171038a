# Every target sets up what it needs by itself; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-emit-package headgate --no-emit-package headgate-server
SOURCES := headgate server services shared migrations shards audit tests examples benchmarks

# Else each process that is started would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo run test coverage docs pictures worlds soak nightly check bench fmt fmt-check lint types imports tidy test-fast test-contract \
	test-integration examples migrate openapi runbooks schema lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything in requirements.lock, and this project in it
	@echo "ready: .venv, from requirements.lock"

demo: $(READY) ## run two real graphs on a private stack and show what happened
	@$(BIN)/python -m examples.demo

run: $(READY) ## run Postgres, Valkey and both services on this machine until Ctrl-C
	@$(BIN)/python -m services.local

test: $(READY) ## run the tests, of slow ones a fifth; T=path runs one file or one test
	@$(BIN)/pytest $(T)

coverage: $(READY) ## run the tests and print which files they reach least, by lines and branches of all processes; T=path as for test
	@$(BIN)/coverage erase
	-@HEADGATE_TEST_ALL=1 $(BIN)/coverage run -m pytest $(T)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --sort=cover --skip-empty | sed -n '1,12p;/^TOTAL/p'

worlds: $(READY) ## random worlds: T=minutes of them, from SEED=n on, or N=how many
	@$(BIN)/python -m tests.worlds $(if $(T),--minutes $(T)) $(if $(SEED),--seed $(SEED)) $(if $(N),--number $(N)) $(if $(EDITION),--edition $(EDITION))

nightly: $(READY) ## what chance finds, in many more examples and worlds than a commit takes, and graphs at their limits
	@HEADGATE_TEST_ALL=1 HEADGATE_TEST_EXAMPLES=300 HEADGATE_TEST_WORLDS_S=900 HEADGATE_TEST_SOAK_S=120 HEADGATE_TEST_LARGE=1 \
		$(BIN)/pytest tests/property tests/worlds tests/integration/bounds tests/unit/headgate/importing tests/unit/headgate/workflow

soak: $(READY) ## real processes under RATE operations a second and faults for M=minutes (60), and a judgement on all of it
	@$(BIN)/python -m tests.worlds.soak $(if $(M),--minutes $(M)) $(if $(SEED),--seed $(SEED)) $(if $(RATE),--rate $(RATE))

check: export HEADGATE_TEST_ALL = 1
check: fmt-check lint types imports test ## everything that must be true of a commit, with all slow tests; T=path for the tests of one room

bench: $(READY) ## measure the services against their floors
	@$(BIN)/python -m benchmarks

fmt: $(READY) ## format the code and mend what can be mended
	@$(BIN)/ruff format --quiet
	@$(BIN)/ruff check --quiet --fix

fmt-check: $(READY)
	@$(BIN)/ruff format --check

lint: $(READY) ## ruff
	@$(BIN)/ruff check --quiet

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

imports: $(READY) ## which module may import which
	@$(BIN)/lint-imports

tidy: $(READY) ## sizes, names and other habits that a test can see
	@$(BIN)/pytest tests/unit/test_tidy.py

test-fast: $(READY) ## tests without a database: in about a minute, what most changes touch
	@$(BIN)/pytest tests/unit

test-contract: $(READY) ## both APIs against their contract, on real servers
	@$(BIN)/pytest tests/contract

test-integration: $(READY) ## races, crashes and recovery, on real servers and processes
	@$(BIN)/pytest tests/integration

examples: $(READY) ## run everything in examples/
	@$(BIN)/pytest tests/integration/test_examples.py

migrate: $(READY) ## bring all shards named by the environment to the newest schema
	@$(BIN)/python -m migrations up

openapi: $(READY) ## write the OpenAPI documents of both services to docs/openapi/
	@$(BIN)/python -m tests.support.openapi docs/openapi

runbooks: $(READY) ## write what docs/operations.md says of alerts to where the pages find it
	@$(BIN)/python -m tests.support.runbooks

schema: $(READY) ## write the schema of a migrated shard of each service to migrations/*/schema.sql
	@$(BIN)/python -m tests.support.schema

docs: $(READY) ## build the site of the documentation in build/site, SHOW=PORT: and show it there
	@$(BIN)/python -m tests.support.docs_site build/docs
	@$(BIN)/zensical build --strict
	@$(if $(SHOW),$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(SHOW))

pictures: $(READY) ## take the pictures of docs/pictures.md anew, in a Chromium that is here
	@HEADGATE_PICTURES=docs/pictures $(BIN)/pytest -n 0 tests/browser/pictures.py

lock: $(READY) ## resolve the dependencies again: requirements.lock, and deploy/requirements.lock for the image
	@$(LOCK) --all-extras --output-file requirements.lock pyproject.toml
	@$(LOCK) --constraint requirements.lock --output-file deploy/requirements.lock server/pyproject.toml

clean: ## remove caches and build products; .venv and the data directory stay
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml server/pyproject.toml | $(BIN)/python
	@echo "installing into .venv (once; about a minute, or what the network takes)"
	@$(PIP) --require-hashes --requirement requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable . --editable ./server
	@touch $@

# Debian splits the venv module from python3 and says so only when it is used.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; }
	@$(PYTHON) -m venv .venv > /dev/null 2>&1 || { rm -rf .venv; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
			echo "installing python3-venv"; \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes python3-venv > /dev/null \
				&& $(PYTHON) -m venv .venv; \
		else \
			echo "$(PYTHON) cannot make a virtual environment: sudo apt-get install python3-venv" >&2; exit 1; \
		fi; }
