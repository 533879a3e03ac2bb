# Everything a contributor runs. `make help` lists it.

BIN := .venv/bin
# Added to what pytest is called with: make test PYTEST="-k servers -x"
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: help setup hooks java demo test durations check lint types unit bench-pipeline bench-files bench-ingest bench-freshness bench-serve bench-commits bench-workers bench-tpch bench-questions bench-attack bench-growth soak soak-properties soak-models soak-histories soak-postgres soak-interrupts torture lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.complete  ## .venv with the pinned dependencies and Thermocline itself

# The stamp lies inside: whoever deletes .venv gets it made again.
.venv/.complete: requirements.lock pyproject.toml tools/setup.sh
	@tools/setup.sh
	@touch $@

java: setup  ## find Java 17 or newer, or install it where that is allowed
	@tools/java.sh

hooks: setup  ## run what `make check` runs on changed files before each commit
	@git config core.hooksPath tools/hooks

demo: java  ## the shop, from raw files to published gold, in demo/
	@$(BIN)/thermo demo demo

# Two processes: each has a Spark session and servers of its own, and takes whole files of tests,
# in the order that tests/durations.py gives them. What takes long is told at the end.
TWO := -n 2 --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=20
test: java  ## all tests
	@$(BIN)/python -m pytest $(TWO) $(PYTEST) tests

durations: java  ## all tests, and keep how long each file took: what balances the two processes
	@$(MAKE) --no-print-directory test PYTEST="--refresh-durations $(PYTEST)"

check: setup  ## style, types, import directions and unit tests, in under a minute
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target types unit lint

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: setup
	@$(BIN)/mypy --strict src

unit: java
	@$(BIN)/python -m pytest -q $(TWO) tests/unit

bench-pipeline: java  ## 5 million orders: incremental, full, and plain PySpark side by side
	@$(BIN)/python -m benchmarks.pipeline

bench-files: java  ## landing files into bronze, with Spark and without, source by source
	@$(BIN)/python -m benchmarks.files

bench-ingest: java  ## 5 million JSON events from Kafka, beside Structured Streaming and Iceberg's sink
	@$(BIN)/python -m benchmarks.ingest

bench-freshness: java  ## event to queryable from Kafka and Postgres, ten minutes each
	@$(BIN)/python -m benchmarks.freshness

# SERVE="--rows 1000000 --minutes 1" makes it a short one.
SERVE ?=
bench-serve: java  ## dashboards on 10 million rows while nodes die, beside Spark, Trino, DataFusion
	@$(BIN)/python -m benchmarks.serving $(SERVE)

# COMMITS="--writers 10 --kills 4 --budget 10" makes it a short one.
COMMITS ?=
bench-commits: setup  ## 50 writer processes on one table: group commit beside PyIceberg's appends
	@$(BIN)/python -m benchmarks.commits $(COMMITS)

# WORKERS="--orders 1000000 --days 30" makes it a short one.
WORKERS ?=
bench-workers: java  ## 20 million orders by day: DuckDB workers, warm Spark, plain Spark SQL
	@$(BIN)/python -m benchmarks.workers $(WORKERS)

# TPCH="--scale 0.1" makes it a short one.
TPCH ?=
bench-tpch: java  ## TPC-H's 22 queries as models, on DuckDB and on Spark, row by row alike
	@$(BIN)/python -m benchmarks.tpch $(TPCH)

# ATTACK="--seconds 20" makes it a short one.
ATTACK ?=
bench-attack: java  ## three callers send the worst queries for a minute; how two others fare
	@$(BIN)/python -m benchmarks.attack $(ATTACK)

# GROWTH="--only commits files" measures only those; "--minutes 5" makes the stream a short one.
GROWTH ?=
bench-growth: java  ## what an operation costs at N, 4N and 16N of history, files, tables
	@$(BIN)/python -m benchmarks.growth $(GROWTH)

# QUESTIONS="--queries 500 --trino 20" makes it a short one.
QUESTIONS ?=
bench-questions: java  ## 10,000 random queries: the same rows hot, direct, on Spark, 300 on Trino
	@$(BIN)/python -m benchmarks.questions $(QUESTIONS)

# The long random forms of what `make test` has a seeded part of, one after the other.
soak: soak-properties soak-models soak-histories soak-postgres soak-interrupts  ## all random tests, in long forms

# SEED=7 looks at other examples; without one it is the date.
SEED ?= $(shell date +%y%m%d)
soak-properties: java  ## 2,000 new examples of each property that the unit tests have
	@SOAK=1 $(BIN)/python -m pytest -q $(TWO) -m hypothesis --hypothesis-seed=$(SEED) tests/unit

# MODELS="--models 300 --spark 0 --seed 7" plays others; without a seed it takes the date.
MODELS ?= --mutants
soak-models: java  ## 3,000 random models: incremental equals full, on DuckDB and on Spark
	@$(BIN)/python -m benchmarks.models $(MODELS)

# HISTORIES="--count 100 --seed 7" plays others.
HISTORIES ?=
soak-histories: setup  ## 2,000 random histories of tables with companions, beside plain Python
	@$(BIN)/python -m benchmarks.histories $(HISTORIES)

# SEEDS=10 runs so many of each kind.
SEEDS ?= 3
soak-postgres: java  ## random Postgres tables over all types, captured both ways, against silver
	@SOAK=$(SEEDS) $(BIN)/python -m pytest -q tests/integration/test_postgres_tables.py

# INTERRUPTS="--moments 3 --only ingest run" makes it a short one.
INTERRUPTS ?=
soak-interrupts: java  ## Ctrl-C at 20 random moments of every long command, both ways
	@$(BIN)/python -m benchmarks.interrupts $(INTERRUPTS)

# TORTURE="--kills 20 --events 100000" makes it a short one.
TORTURE ?=
torture: java  ## kill pipeline and servers 200 times over 2 million events a lane, and count them
	@$(BIN)/python -m benchmarks.torture $(TORTURE)

lock:  ## pin the newest allowed dependencies anew (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv."; echo "  Install it: python3 -m pip install uv"; exit 1; }
	uv pip compile pyproject.toml --output-file requirements.lock --quiet --upgrade --all-extras \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-strip-extras

clean:  ## remove all that make has made: .venv, demo/ and caches
	rm -rf .venv demo dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
