# Trace: `make demo` and `make test` need Python 3.11+ (with venv), make and a package index; nothing else.
# Paths are relative on purpose: the clone may live below a directory with spaces in its name.

SHELL := /bin/sh
VENV  := .venv
PY    := $(VENV)/bin/python
# Wheels only, but for pyspark, of which there is none: it is built with the tools that requirements/build.txt pins.
PIP   := $(PY) -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps --only-binary :all: \
	--no-binary pyspark --no-build-isolation

# Hundreds of processes start in a test run; without bytecode each of them would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo dist test test-system lint lint-types lint-style bytecode soak lock docs pictures clean record-chain bench-lifecycle bench-growth bench-routing bench-pressure bench-tenants bench-shares bench-floods bench-tracing bench-choices bench-libraries bench-chain bench-providers bench-ingest bench-sink bench-compact bench-follow setup-peers bench-operators bench-smoke bench-durability bench-isolation bench-pipeline bench-sandbox bench-udf bench-start bench-query bench-credentials bench-columns bench-models bench-checks bench-logs

help: ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/made:
	@sh tools/find-python.sh > /dev/null
	@echo "Making a virtual environment in $(VENV) ..."
	@"$$(sh tools/find-python.sh)" -m venv $(VENV)
	@touch $@

$(VENV)/runtime: $(VENV)/made requirements/runtime.txt requirements/build.txt pyproject.toml
	@echo "Installing pinned dependencies (minutes on a first run) ..."
	@$(PIP) -r requirements/build.txt
	@$(PIP) -r requirements/runtime.txt
	@$(PY) -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

# Java starts in half of the time with it, and without it where it cannot be made.
$(VENV)/classes: $(VENV)/runtime
	@$(PY) -m tracelake.spark.class_archive
	@touch $@

$(VENV)/dev: $(VENV)/runtime requirements/dev.txt
	@echo "Installing test tools ..."
	@$(PIP) -r requirements/dev.txt
	@touch $@

# For functions in JavaScript, where the machine has no Node. Without it, the demo leaves its function in JavaScript out.
$(VENV)/node: $(VENV)/runtime requirements/node.txt
	@$(PY) -c "import sys; from tracelake.runner.languages import find_node; sys.exit(find_node() is None)" \
		|| $(PIP) -r requirements/node.txt || echo "Node could not be installed."
	@touch $@

setup: $(VENV)/classes ## Install what running needs
setup-dev: $(VENV)/classes $(VENV)/dev ## Install what testing needs

demo: setup $(VENV)/node ## From a chain to flows of tokens on a stack of its own, while parts of it are killed
	@$(PY) -m tracelake demo

lint: setup-dev ## Style, types and import rules
	@$(MAKE) --no-print-directory --jobs 2 lint-types lint-style

lint-types:
	@$(PY) -m mypy

lint-style:
	@$(PY) -m ruff check src tests benchmarks tools
	@$(PY) -m ruff format --check --quiet src tests benchmarks tools
	@PYTHONPATH=src $(VENV)/bin/python -c "from importlinter.cli import lint_imports_command as m; m()" --no-cache

# Bytecode of the tests. Made once, beside the check of types, which needs one core alone: each process of a run would
# otherwise compile all of it for itself. What is wrong with a test, the run says.
bytecode: setup-dev
	@$(PY) -m pytest --collect-only -qq > /dev/null 2>&1 || true

# More processes than cores, because tests wait as well. `worksteal` keeps them busy to the end, and goes on with the next
# test after one that killed its process, where `loadfile` would run the same one again.
PYTEST := $(PY) -m pytest --numprocesses 4 --dist worksteal

test: setup-dev ## Style, types, import rules, and the tests of units and components (minutes)
	@$(MAKE) --no-print-directory --jobs 3 lint-types lint-style bytecode
	@$(PYTEST) -m "not soak and not system"

# Groups of system tests share a JVM or a stack, and each group stays in one process: see tests/support/scheduling.py.
SYSTEM_PYTEST := $(PY) -m pytest --numprocesses 4 --dist loadscope --no-loadscope-reorder

test-system: setup-dev ## Whole stacks, Spark, crash points, costs, the demo, runbooks, and every benchmark in its smoke mode
	@$(SYSTEM_PYTEST) -m "not soak and system"
	@$(MAKE) --no-print-directory bench-smoke

soak: setup-dev ## The same properties with volume (long)
	@$(PY) -m pytest -m soak

# The tools alone: whoever installs the wheel elsewhere needs nothing of .venv.
.venv-build/made: requirements/build.txt
	@sh tools/find-python.sh > /dev/null
	@echo "Making a virtual environment for the build in .venv-build ..."
	@"$$(sh tools/find-python.sh)" -m venv .venv-build
	@.venv-build/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
		--only-binary :all: -r requirements/build.txt
	@touch $@

dist: .venv-build/made ## Build the wheel and the sdist into dist/, with the pinned tools
	@rm -rf dist
	@.venv-build/bin/python -m hatchling build --directory dist

docs: setup-dev ## Rewrite the generated reference pages
	@$(PY) -m tools.docs

pictures: setup-dev ## Draw the pictures of the prompt, of charts and of graphs in docs/images again, from real sessions
	@TRACE_WRITE_PICTURES=1 $(PY) -m pytest tests/query/test_guide.py tests/query/test_pictures.py tests/windows/test_docs_of_a_dag.py

bench-lifecycle: setup ## Task cycles per second against bare asyncpg; last line is JSON
	@$(PY) -m benchmarks.lifecycle $(ARGS)

bench-growth: setup ## The same with a million finished tasks stored; last line is JSON
	@$(PY) -m benchmarks.growth $(ARGS)

bench-routing: setup ## Events to tasks: latency, a chain of jobs, a fan-out, a full registry; last line is JSON
	@$(PY) -m benchmarks.routing $(ARGS)

bench-pressure: setup ## A full queue: what unrelated work notices, events kept per second, a drain; last line is JSON
	@$(PY) -m benchmarks.pressure $(ARGS)

bench-tracing: setup ## What traces cost: a stack with, a stack without; last line is JSON
	@$(PY) -m benchmarks.tracing $(ARGS)

bench-sink: setup ## Buffered datasets: rows per second against bare ADBC, how long a batch takes; last line is JSON
	@$(PY) -m benchmarks.sink $(ARGS)

bench-compact: setup-dev ## Final rows of tables to Parquet files against plain PySpark; last line is JSON
	@$(PY) -m benchmarks.compact $(ARGS)

bench-follow: setup-dev ## The head of a chain: catching up, latency, a reorganisation, final rows to files; last line is JSON
	@$(PY) -m benchmarks.follow $(ARGS)

bench-durability: setup ## What it costs that files are on the disk, in a closed store, before a commit; last line is JSON
	@$(PY) -m benchmarks.durability $(ARGS)

bench-shares: setup ## Several orgs in one queue: what waits behind a backlog of 10,000 tasks; last line is JSON
	@$(PY) -m benchmarks.shares $(ARGS)

bench-tenants: setup ## What one org's heartbeats and claims notice of another at full speed; last line is JSON
	@$(PY) -m benchmarks.tenants $(ARGS)

bench-isolation: setup ## What a Spark process per org costs: a warm task, an idle org's memory; last line is JSON
	@$(PY) -m benchmarks.isolation $(ARGS)

bench-start: setup ## `trace up` to ready and to the first Spark task against its parts started by hand; last line is JSON
	@$(PY) -m benchmarks.start $(ARGS)

bench-floods: setup ## What the other listeners notice of a flood at the public one; last line is JSON
	@$(PY) -m benchmarks.floods $(ARGS)

bench-chain: setup ## How fast one process reads a chain: parsing, checks, tables, over HTTP; last line is JSON
	@$(PY) -m benchmarks.chain $(ARGS)

bench-providers: setup ## How close reading comes to the pace that limits of RPC providers allow; last line is JSON
	@$(PY) -m benchmarks.providers $(ARGS)

bench-operators: setup ## Spark operators as tasks against the same PySpark scripts alone; last line is JSON
	@$(PY) -m benchmarks.operators $(ARGS)

# The peers of the comparison lie beside .venv, so that it holds what Trace needs and no more.
.bench-peers/made: $(VENV)/runtime requirements/bench.txt
	@echo "Installing the peers of the comparison into .bench-peers ..."
	@rm -rf .bench-peers
	@$(PIP) --target .bench-peers -r requirements/bench.txt
	@touch $@

bench-choices: .bench-peers/made ## HTTP stack, driver and embedded Postgres against their peers; last line is JSON
	@PYTHONPATH=.bench-peers $(PY) -m benchmarks.choices $(ARGS)

bench-libraries: .bench-peers/made ## Our tokens, cron and ABI decoder against PyJWT, cronsim, croniter and eth-abi; last line is JSON
	@PYTHONPATH=.bench-peers $(PY) -m benchmarks.libraries $(ARGS)

bench-udf: $(VENV)/dev ## Invocations of users' functions through a runner, against bare interpreters; last line is JSON
	@$(PY) -m benchmarks.udf $(ARGS)

bench-sandbox: .bench-peers/made ## A query and a program in a sandbox against bare DuckDB and bubblewrap; last line is JSON
	@PYTHONPATH=.bench-peers $(PY) -m benchmarks.sandbox $(ARGS)

bench-credentials: setup-dev ## Credentials of tasks from the embedded store, with our own client and boto3; last line is JSON
	@$(PY) -m benchmarks.credentials $(ARGS)

bench-query: setup ## Queries through the Query Service against bare DuckDB on the same files; last line is JSON
	@$(PY) -m benchmarks.query $(ARGS)

bench-columns: setup-dev ## Columns inferred at deploy against sqlglot's optimizer and Spark's analysis; last line is JSON
	@$(PY) -m benchmarks.columns $(ARGS)

bench-models: setup-dev ## Models by day and the recipes: an update against all days, a long history, DuckDB's full refresh; last line is JSON
	@$(PY) -m benchmarks.models $(ARGS)

bench-checks: setup-dev ## What checks cost an attempt: in one pass, one by one, beside writing the rows; last line is JSON
	@$(PY) -m benchmarks.checks $(ARGS)

bench-logs: setup-dev ## What the log of an attempt costs: its lines, its row, an object instead; last line is JSON
	@$(PY) -m benchmarks.logs $(ARGS)

bench-smoke: .bench-peers/made .venv-peers/made ## Show that every benchmark still runs (minutes; the figures mean nothing)
	@$(PY) -m benchmarks.smoke

# cryo, which evm_ingest is compared with, has an environment of its own too.
.venv-peers/made: requirements/peers.txt
	@echo "Making a virtual environment for cryo in .venv-peers ..."
	@"$$(sh tools/find-python.sh)" -m venv .venv-peers
	@.venv-peers/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
		--only-binary :all: -r requirements/peers.txt
	@touch $@

setup-peers: .venv-peers/made ## Install cryo and DuckDB, for bench-ingest, bench-pipeline and the test against cryo

bench-ingest: setup setup-peers ## evm_ingest against cryo, and what the platform adds to a task; last line is JSON
	@$(PY) -m benchmarks.ingest $(ARGS)

bench-pipeline: setup setup-peers ## The demo's DAG on a warm stack against a script with cryo and DuckDB; last line is JSON
	@$(PY) -m benchmarks.pipeline $(ARGS)

record-chain: setup ## Make the recorded chain of examples/token_flows anew (needs Node.js with npm)
	@$(PY) -m tools.recorder

lock: setup-dev ## Re-resolve the pinned dependencies (needs uv)
	@sh tools/lock.sh

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .bench-peers .venv-build .venv-peers .mypy_cache .ruff_cache .hypothesis
