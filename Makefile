# Everything a contributor runs. `make help` lists it.

BIN := .venv/bin
# Additional arguments of pytest: make test PYTEST="-k servers -x"
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: help setup hooks java demo test durations check lint types unit bench-pipeline bench-files bench-ingest bench-freshness bench-serve bench-commits bench-workers bench-tpch bench-questions bench-attack bench-compaction bench-upserts bench-growth bench-layout soak soak-properties soak-kills soak-maintenance soak-races soak-models soak-histories soak-postgres soak-interrupts torture lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.complete  ## .venv with the pinned dependencies and Thermocline itself

# The stamp is inside .venv, so deleting .venv triggers a new setup.
.venv/.complete: requirements.lock pyproject.toml tools/setup.sh
	@tools/setup.sh
	@touch $@

java: setup  ## find or install Java 17 or newer, and prepare Spark for a fast start
	@tools/java.sh
	@$(BIN)/python -m thermocline.engine.class_archive || true

hooks: setup  ## run what `make check` runs on changed files before each commit
	@git config core.hooksPath tools/hooks

demo: java  ## build the example shop in demo/, from raw files to published gold
	@$(BIN)/thermo demo demo

# Two processes: each has its own Spark session and servers, and runs whole test files in the order
# of tests/durations.py. Slow tests are listed at the end.
TWO := -n 2 --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=20
test: java  ## all tests
	@$(BIN)/python -m pytest $(TWO) $(PYTEST) tests

durations: java  ## run all tests and store their durations, which balance the two processes
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

bench-pipeline: java  ## 5 million orders: incremental, full, and pure PySpark compared
	@$(BIN)/python -m benchmarks.pipeline

bench-files: java  ## ingest files into bronze, with and without Spark, per source
	@$(BIN)/python -m benchmarks.files

bench-ingest: java  ## 5 million JSON events from Kafka, compared with Structured Streaming and Iceberg's sink
	@$(BIN)/python -m benchmarks.ingest

bench-freshness: java  ## event to queryable from Kafka and Postgres, ten minutes each
	@$(BIN)/python -m benchmarks.freshness

# SERVE="--rows 1000000 --minutes 1" shortens it.
SERVE ?=
bench-serve: java  ## dashboards on 10 million rows while nodes die, compared with Spark, Trino, DataFusion
	@$(BIN)/python -m benchmarks.serving $(SERVE)

# COMMITS="--writers 10 --kills 4 --budget 10" shortens it.
COMMITS ?=
bench-commits: setup  ## 50 writer processes on one table: group commit compared with PyIceberg's appends
	@$(BIN)/python -m benchmarks.commits $(COMMITS)

# WORKERS="--orders 1000000 --days 30" shortens it.
WORKERS ?=
bench-workers: java  ## 20 million orders by day: DuckDB workers, warm Spark, pure Spark SQL
	@$(BIN)/python -m benchmarks.workers $(WORKERS)

# TPCH="--scale 0.1" shortens it.
TPCH ?=
bench-tpch: java  ## TPC-H's 22 queries as models, equal row by row on DuckDB and Spark
	@$(BIN)/python -m benchmarks.tpch $(TPCH)

# ATTACK="--seconds 20" shortens it.
ATTACK ?=
bench-attack: java  ## three callers send expensive queries for a minute; latency of two others
	@$(BIN)/python -m benchmarks.attack $(ATTACK)

# GROWTH="--only commits files" measures only those; "--minutes 5" shortens the stream.
GROWTH ?=
bench-growth: java  ## cost of an operation at N, 4N and 16N of history, files, tables
	@$(BIN)/python -m benchmarks.growth $(GROWTH)

# UPSERTS="--minutes 3" shortens it.
UPSERTS ?=
bench-upserts: java  ## 20 minutes of upserts merged on read, with the maintenance service and without
	@$(BIN)/python -m benchmarks.upserts $(UPSERTS)

# COMPACTION="--files 400" shortens it.
COMPACTION ?=
bench-compaction: java  ## join 400 and 5,000 small files with and without deletes, compared with Spark
	@$(BIN)/python -m benchmarks.compaction $(COMPACTION)

# LAYOUT="--mb 200 --memory 64MB --order zorder" measures another table.
LAYOUT ?=
bench-layout: setup  ## sort 1 GB of files with 256 MB of memory, and lookups before and after
	@$(BIN)/python -m benchmarks.layout $(LAYOUT)

# QUESTIONS="--queries 500 --trino 20" shortens it.
QUESTIONS ?=
bench-questions: java  ## 10,000 random queries: equal rows hot, direct, on Spark; 300 on Trino
	@$(BIN)/python -m benchmarks.questions $(QUESTIONS)

# Long random variants of the tests of which `make test` runs a seeded part. Each target alone runs as
# many as its help says; `make soak` runs a share of each, in about an hour.
soak:  ## run a share of all random tests below for an hour, with the date as seed
	@date -u '+soak of %Y-%m-%d, seed $(SEED)'
	@$(MAKE) --no-print-directory soak-properties EXAMPLES=300
	@$(MAKE) --no-print-directory soak-models MODELS="--models 300 --spark 30 --queries 1000"
	@$(MAKE) --no-print-directory soak-histories HISTORIES="--count 150 --seed $(SEED)"
	@$(MAKE) --no-print-directory soak-maintenance MAINTENANCE="--count 60 --seed $(SEED)"
	@$(MAKE) --no-print-directory soak-races RACES="--expiry 300 --compaction 200 --seed $(SEED)"
	@$(MAKE) --no-print-directory soak-kills
	@$(MAKE) --no-print-directory soak-postgres SEEDS=1
	@$(MAKE) --no-print-directory soak-interrupts INTERRUPTS="--moments 2 --seed $(SEED)"

# SEED=7 selects other examples; the default is the date.
SEED ?= $(shell date +%y%m%d)
EXAMPLES ?= 2000
soak-properties: java  ## 2,000 new examples of each property test
	@SOAK=$(EXAMPLES) $(BIN)/python -m pytest -q $(TWO) -m hypothesis --hypothesis-seed=$(SEED) tests/unit

# MAINTENANCE="--count 100 --seed 7" runs others.
MAINTENANCE ?=
soak-maintenance: setup  ## 10,000 random histories of a table with maintenance, checked against a Python model
	@$(BIN)/python -m benchmarks.maintenance_histories $(MAINTENANCE)

# RACES="--expiry 100 --compaction 50 --seed 7" runs others.
RACES ?=
soak-races: setup  ## 1,000 races of expiry against refs, 500 of compaction against deletes
	@$(BIN)/python -m benchmarks.maintenance_races $(RACES)

# MODELS="--models 300 --spark 0 --seed 7" runs others; the default seed is the date.
MODELS ?= --mutants
soak-models: java  ## 3,000 random models: incremental equals full, on DuckDB and on Spark
	@$(BIN)/python -m benchmarks.models $(MODELS)

# HISTORIES="--count 100 --seed 7" runs others.
HISTORIES ?=
soak-histories: setup  ## 2,000 random histories of tables with companions, checked against a Python model
	@$(BIN)/python -m benchmarks.histories $(HISTORIES)

soak-kills: java  ## 100 kills of backfill workers, coordinators and leaseholders
	@SOAK=1 $(BIN)/python -m pytest -q tests/integration/test_worker_kills.py -k random_kills

# SEEDS=10 runs ten of each kind.
SEEDS ?= 3
soak-postgres: java  ## random Postgres tables of all types, captured both ways, compared with silver
	@SOAK=$(SEEDS) $(BIN)/python -m pytest -q tests/integration/test_postgres_tables.py

# INTERRUPTS="--moments 3 --only ingest run" shortens it.
INTERRUPTS ?=
soak-interrupts: java  ## Ctrl-C at 20 random times of every long command, both ways
	@$(BIN)/python -m benchmarks.interrupts $(INTERRUPTS)

# TORTURE="--kills 20 --events 100000" shortens it.
TORTURE ?=
torture: java  ## kill pipeline and servers 200 times during 2 million events per lane, and count them
	@$(BIN)/python -m benchmarks.torture $(TORTURE)

lock:  ## pin the newest allowed dependencies (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv."; echo "  Install it: python3 -m pip install uv"; exit 1; }
	uv pip compile pyproject.toml --output-file requirements.lock --quiet --upgrade --all-extras \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-strip-extras

clean:  ## remove everything that make created: .venv, demo/ and caches
	rm -rf .venv demo dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
