# `make demo` and `make test` are all that a newcomer needs: both first build what is missing.
# Works with GNU make 3.81, the one that macOS has.

PIP := .venv/bin/python -m pip --disable-pip-version-check
SOURCES := $(shell find txnlog segments spark cli ui -name __pycache__ -prune -o \
    \( -name '*.py' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name '*.svg' -o -name py.typed -o -type d \) \
    -print) pyspark_txnlog.py README.md LICENSE
ARGS ?=
# The minor versions of Spark that pyproject.toml allows, each tested by `make test-matrix`.
SPARK_VERSIONS := 4.1 4.2 4.3

# Unless told otherwise Spark's workers run the python3 on PATH, and Spark looks up the host's name.
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1
# What the tests are compiled to is kept, for each worker and for `make test-more`.
unexport PYTHONDONTWRITEBYTECODE
# Stores of tests are synced thousands of times: in memory, where a filesystem there has 4 GB free.
export PYTEST_DEBUG_TEMPROOT := $(shell df -Pk /dev/shm 2>/dev/null | \
    awk 'NR == 2 && $$4 > 4000000 && $$6 == "/dev/shm" { print $$6 }')

# One more than cores: in a third of the time that they take, tests wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-tables test test-more test-stores test-ui test-matrix test-cluster lint format bench soak soak-replicas measure docs venv wheel dist
.PHONY: java clean constraints
.PHONY: $(SPARK_VERSIONS:%=test-spark-%) $(SPARK_VERSIONS:%=test-cluster-%)

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java venv  ## Run the flights ETL: exactly-once Spark jobs on a store in a folder
	@PYTHONSAFEPATH=1 .venv/bin/python examples/flights_etl.py $(ARGS)

demo-tables: java venv  ## Run the flights as typed topics, and their tables in Delta and DuckDB
	@PYTHONSAFEPATH=1 .venv/bin/python examples/flights_tables.py $(ARGS)

test: java venv .venv/spark-classes.jsa  ## Run the tests; ARGS="tests/segments -k index" narrows them, MORE=1 runs both tiers
	.venv/bin/pytest -n $(WORKERS) --dist loadgroup -m "$(if $(MORE),,not more and )not slow and not cluster and not stores and not browser" $(ARGS)

test-more: java venv .venv/spark-classes.jsa  ## Run what seldom fails alone: Spark jobs of their own, many seeds and orders
	.venv/bin/pytest -n $(WORKERS) --dist loadgroup -m "more and not slow and not cluster and not stores and not browser" $(ARGS)

test-stores: export PYTEST_DEBUG_TEMPROOT :=  # a real disk beneath the servers
test-stores: java venv .venv/spark-classes.jsa  ## Run the tests on real servers, MinIO and the like; ARGS="-k minio" narrows them
	.venv/bin/pytest -v -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations 30 -m stores tests/stores $(ARGS)

test-ui: venv .venv/.playwright  ## Run the tests of `txnlog ui` in Chromium, which must be installed; pictures in build/screenshots
	.venv/bin/pytest -n 0 -m browser tests/ui $(ARGS)

test-matrix: $(SPARK_VERSIONS:%=test-spark-%)  ## Run the Spark tests on each supported version of Spark

$(SPARK_VERSIONS:%=test-spark-%): test-spark-%: java .venv-%/.installed
	PYSPARK_PYTHON=$(CURDIR)/.venv-$*/bin/python \
	    PYSPARK_DRIVER_PYTHON=$(CURDIR)/.venv-$*/bin/python \
	    .venv-$*/bin/pytest -n auto --dist loadgroup \
	    -m "spark and (not slow or set_up) and not cluster and not stores and not browser" $(ARGS)

test-cluster: $(SPARK_VERSIONS:%=test-cluster-%)  ## Lose executors of a standalone Spark cluster in each way to write, on each version

$(SPARK_VERSIONS:%=test-cluster-%): test-cluster-%: java .venv-%/.installed
	PYSPARK_PYTHON=$(CURDIR)/.venv-$*/bin/python \
	    PYSPARK_DRIVER_PYTHON=$(CURDIR)/.venv-$*/bin/python \
	    .venv-$*/bin/pytest -n 0 -m cluster tests/spark $(ARGS)

lint: .venv/.dependencies  ## Check style, format and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/.dependencies  ## Rewrite the sources in the project's format
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

bench: java venv  ## Run the benchmarks
	.venv/bin/python benchmarks/run.py $(ARGS)

soak: export TXNLOG_ALL_EXAMPLES := 1  # of Hypothesis, see tests/support/examples.py
soak: java venv .venv/spark-classes.jsa  ## Run the tests that take minutes: 100,000 transactions, 32 processes
	.venv/bin/pytest -n auto --dist loadgroup -m "(slow or hypothesis) and not cluster and not stores and not browser" $(ARGS)

soak-replicas: venv  ## Run random runs of replicas and standbys; ARGS="--runs 20000 --only stormy"
	nice -n 19 .venv/bin/python scripts/soak_replicas.py $(ARGS)

measure: venv  ## Count files, the modules that a commit, a poll and opening go through, and who knows whom
	.venv/bin/python scripts/measure_house.py $(ARGS)

docs: .venv/.dependencies  ## Build the documents as a site into build/site
	@rm -rf build/site build/site-src && mkdir -p build/site-src/benchmarks
	@cp -R README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs build/site-src
	@cp benchmarks/*.md benchmarks/*.svg build/site-src/benchmarks
	.venv/bin/zensical build --strict --clean
	.venv/bin/python scripts/check_site.py build/site

venv: .venv/.installed  ## Build .venv with all dependencies and the wheel

constraints:  ## Renew constraints.txt: the newest versions of all dependencies; run the tests, then commit it
	PYTHON="$(PYTHON)" sh scripts/renew_constraints.sh

wheel: dist/.built  ## Build the wheel into dist/; needs no Java, and nothing of Spark
	@ls dist/*.whl

dist: wheel  ## Build the release files into dist/: the wheel, and an sdist that builds the same one
	@rm -rf build/sdist dist/*.tar.gz && mkdir -p build/sdist
	.venv/bin/python -m build --sdist --no-isolation --outdir dist . >build/sdist/log 2>&1 || { cat build/sdist/log; exit 1; }
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir build/sdist dist/*.tar.gz
	.venv/bin/python scripts/compare_wheels.py dist/*.whl build/sdist/*.whl
	.venv/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@rm -rf build/sdist txnlog.egg-info

clean:  ## Remove everything that make created
	rm -rf .venv .venv-* build dist txnlog.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log demo-store

java:
	@sh scripts/check-java.sh

# Each stamp is written last: what was interrupted is done again.

# Python comes with a pip that takes three times as long to find out what is to be installed.
.venv/.created:
	@python=$$(PYTHON="$(PYTHON)" sh scripts/find-python.sh) && set -x && \
	    "$$python" -m venv --clear .venv
	$(PIP) install --quiet --constraint constraints.txt --upgrade pip
	@touch $@

# All that builds the wheel: a megabyte.
.venv/.builder: constraints.txt .venv/.created
	$(PIP) install --quiet --constraint constraints.txt setuptools
	@touch $@

# Modules are compiled when they are first imported: of 14,000 a fifth is, pip would compile all.
.venv/.dependencies: pyproject.toml constraints.txt .venv/.builder
	@echo "Installing dependencies from PyPI: about 600 MB the first time, most of it Spark."
	$(PIP) install --quiet --no-compile --constraint constraints.txt '.[dev]'
	@rm -rf build txnlog.egg-info
	@touch $@

# The wheel is installed, not linked: Spark does not find data sources through an editable install,
# and what is tested is what is shipped. Old build folders would leak deleted modules into it.
dist/.built: pyproject.toml .venv/.builder $(SOURCES)
	@rm -rf build dist txnlog.egg-info
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build txnlog.egg-info
	@touch $@

# For more than the wheel the dependencies come first: pip builds in the same folder for both.
ifneq ($(MAKECMDGOALS),wheel)
dist/.built: .venv/.dependencies
endif

.venv/.installed: dist/.built .venv/.dependencies
	$(PIP) install --quiet --no-deps --force-reinstall dist/*.whl
	@touch $@

.venv/.playwright: .venv/.dependencies
	$(PIP) install --quiet --constraint constraints.txt 'playwright>=1.50'
	@touch $@

# A JVM that finds Spark's classes here starts in a third of the time; tests/conftest.py says where.
.venv/spark-classes.jsa: scripts/archive_spark_classes.py \
        $(wildcard .venv/lib/python*/site-packages/pyspark/version.py) | java .venv/.dependencies
	@echo "Archiving the classes that Spark loads, once: its JVMs start faster in the tests."
	@.venv/bin/python -W ignore scripts/archive_spark_classes.py $@ 2>.venv/spark-classes.log || \
	    echo "That has failed, see .venv/spark-classes.log: the tests take longer, and are the same."

# What .venv is, with one version of Spark, and of py4j, which goes with it.
$(SPARK_VERSIONS:%=.venv-%/.installed): .venv-%/.installed: dist/.built constraints.txt
	@python=$$(PYTHON="$(PYTHON)" sh scripts/find-python.sh) && set -x && \
	    "$$python" -m venv .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet \
	    --constraint constraints.txt --upgrade pip
	grep -vE '^(pyspark|py4j)==' constraints.txt >.venv-$*/constraints.txt
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet \
	    --constraint .venv-$*/constraints.txt "$$(ls dist/*.whl)[dev]" 'pyspark==$*.*'
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet \
	    --no-deps --force-reinstall dist/*.whl
	@touch $@
