# Two commands do everything: `make demo` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test system lock latest release everything audit coverage wheel chaos matrix recipes slurm boundscheck lint types setup docs figures lowest \
    reproduce reproduce-quick first-minutes clean

demo: $(VENV)/.run
	$(BIN)/logcal demo --output demo-output

test: $(VENV)/.dev
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types
	$(BIN)/python -m pytest

# Tests that start many commands, build wheels and sites, or serve; and more examples of what hypothesis draws.
system: export LOGCAL_TEST_EXAMPLES ?= 100
system: $(VENV)/.system
	$(BIN)/python -m pytest -m '(system or hypothesis) and not slow'

# A wheel with precompiled code for any processor of this one's kind, so that nothing is compiled where versions suit:
# dist/. Some minutes. The code is found where Python, numpy, numba and llvmlite are of the same versions.
WHEEL := build/wheel
wheel: $(VENV)/.run
	rm -rf $(WHEEL)
	mkdir -p $(WHEEL)
	cp -R calibrators logcal pipeline jobs pyproject.toml README.md LICENSE $(WHEEL)
	find $(WHEEL) -name __pycache__ -prune -exec rm -r {} +
	NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= LOGCAL_CACHE=$(CURDIR)/$(WHEEL)/calibrators/core/precompiled $(BIN)/logcal warm
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist \
	    --config-settings=--build-option=--build-number=1_$$($(BIN)/python -c 'import platform, sys; print(sys.implementation.cache_tag.replace("-", ""), platform.machine(), sep="_")') ./$(WHEEL)

# Every job killed, failed, filled up, interrupted and doubled at its writes, and a table of it: docs/reliability.md.
# `make chaos CHAOS="--trials 100"` is the whole campaign, some hours; by itself it runs for ten minutes.
CHAOS ?= --seconds 600
chaos: $(VENV)/.system
	$(BIN)/python tests/chaos $(CHAOS)

# Every combination of windows, segments, weights, grids, kept tables, quarantine, executors and methods: an hour.
matrix: $(VENV)/.dev
	$(BIN)/python -m pytest tests/test_matrix.py -m slow --override-ini timeout=14400

# Every access of compiled loops is checked: their code is compiled anew, into a folder of its own. Left out are tests of
# `make system` and of what is around these loops (commands, stores, pages): they run none that the others do not, which is
# checked.
UNCOMPILED := bad_input classifier cli conf_files config day docstrings faults features folds follow generate \
    graph jobs kernels logcal logs matrix output publishing records refit reproduction \
    scratch security tables_command
boundscheck: export NUMBA_BOUNDSCHECK = 1
boundscheck: export LOGCAL_CACHE = $(CURDIR)/$(VENV)/boundscheck
boundscheck: $(VENV)/.dev
	LOGCAL_TEST_PATIENCE=1200 $(BIN)/python -m pytest --override-ini timeout=1200 $(UNCOMPILED:%=--ignore=tests/test_%.py)
	$(BIN)/python tests/unchecked.py

# Tables applied by what `make test` has not: Spark and PMML's evaluator (need Java), MLflow, and PostgreSQL, where it is
# installed or LOGCAL_TEST_POSTGRES holds a connection string. What is not there is skipped, and said.
recipes: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,system,recipes]'
	$(BIN)/python -m pytest -n 0 -rs -m system tests/test_sql.py tests/test_readme.py tests/test_map_export.py

# Fits on a real Slurm of this machine, with daemons of its own; as root it installs Debian's packages where Slurm is missing.
slurm: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,slurm]'
	tests/slurm/run_slurm.sh $(BIN)/python

# What somebody new waits for: a fresh clone and environment, nothing compiled. Its numbers stand in README and docs/start.md.
first-minutes: $(VENV)/.dev
	$(BIN)/python benchmarks/first_minutes.py

# The experiments of the methods' papers, and their tables beside ours, into reproduction/: docs/reproduction.md. What is
# there is not computed again. The quick form takes some minutes, the whole some hours.
reproduce: $(VENV)/.run
	$(BIN)/python -m benchmarks.reproduction reproduction

reproduce-quick: $(VENV)/.run
	$(BIN)/python -m benchmarks.reproduction reproduction-quick --quick

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@if command -v actionlint; then actionlint; else echo "left out: actionlint is not installed"; fi

types: $(VENV)/.dev
	$(BIN)/mypy

setup: $(VENV)/.dev

# Strictly: a link or a reference that leads nowhere is an error. Needs no network once it is set up.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean

figures: $(VENV)/.docs
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/rooms.py

# The newest versions that pyproject.toml allows, in an environment of their own, and the tests on them.
latest:
	$(PYTHON) -m venv --clear .venv-latest
	.venv-latest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.venv-latest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	.venv-latest/bin/python -m pytest

# The lowest versions that pyproject.toml allows, in an environment of their own, and the tests on them.
lowest:
	$(PYTHON) tests/lowest.py .venv-lowest
	.venv-lowest/bin/python -m pytest -m 'not slow'

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "logcal needs Python >= 3.11; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# The versions in requirements/, and this project beside them; editable, so that the command runs this tree. Hashes are
# checked. What builds it is among them: nothing else is downloaded.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
$(VENV)/.%: requirements/%.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) --require-hashes --requirement $<
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.system: | $(VENV)/.dev

# requirements/ from pyproject.toml, for Python 3.11 to 3.14 on Linux, x86-64 and aarch64; `make lock UPGRADE=--upgrade`
# takes the newest versions that it allows.
UPGRADE :=
lock: $(VENV)/bin/python
	$(PIP) uv
	for extras in run dev dev,system docs; do \
	    $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	        --no-emit-index-url --no-emit-find-links $(UPGRADE) \
	        $$(echo $$extras | tr , '\n' | sed '/run/d;s/^/--extra /') \
	        --output-file requirements/$${extras##*,}.txt pyproject.toml requirements/build.in || exit 1; \
	done

# Runs the checks, builds the source distribution and the wheel into dist/, and tries the wheel where this tree is not.
# `make release CHECKED=1` leaves out the checks, some hours, where they have just passed.
release:
	$(PYTHON) tests/release.py build/release

# Every check once; what is missing here is left out, and said. Some hours.
everything:
	$(PYTHON) tests/everything.py

# Known vulnerabilities of the locked packages, by OSV; needs the network. A package that cannot be looked up is a failure.
audit: $(VENV)/bin/python
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --vulnerability-service osv --disable-pip --require-hashes --requirement requirements/run.txt

# Branch coverage of `make test`, with its commands and workers.
coverage: $(VENV)/.dev
	$(PIP) 'coverage>=7.10'
	rm -rf build/coverage
	$(BIN)/coverage run -m pytest; status=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --format=total && exit $$status

clean:
	rm -rf $(VENV) .venv-lowest .venv-latest site demo-output reproduction-quick build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
