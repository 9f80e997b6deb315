# Builds, tests, lints and packages pimkv; all it installs goes into .venv at the top of the checkout.
#
#   make run     build a release wheel, install it, run the headline (ARGS="--requests 200" is passed on)
#   make test    cargo tests, then pytest against the installed wheel (PYTEST_ARGS="-k name" is passed on)
#   make lint    rustfmt, clippy, ruff, mypy, and the committed stub against the compiled module
#   make wheel   abi3 manylinux2014 wheel in dist/, audited (WHEEL_TARGET=aarch64-unknown-linux-gnu to cross-build)
#   make sdist   source distribution in dist/
#   make bench   the criterion benches, then each benches/*.py
#   make lock    resolve both Python lock files again (LOCK_ARGS=--upgrade raises every pin)
#   make clean   remove .venv, dist, target and the tool caches

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet install
# In CI a Cargo.lock that no longer fits Cargo.toml is an error; at home cargo brings it up to date.
LOCKED := $(if $(CI),--locked)

TARGET := $(if $(WHEEL_TARGET),--target $(WHEEL_TARGET))

# pyo3's build scripts, maturin and zig all look for Python: give every one of them the same.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# The wheel is what is tested: nothing may put the source tree in front of it.
unexport PYTHONPATH PYTHONHOME

# What ends up in the wheel. Changed files rebuild it by their time, added and removed ones by the list.
SOURCES := $(sort $(shell find rust python -type f ! -path '*/__pycache__/*' ! -path 'rust/*/tests/*' \
             ! -name '*.so' ! -name '.*'))
# Modules that a macro declares are hidden from cargo fmt.
POLICIES := $(wildcard rust/pimkv-core/src/alloc/*.rs)
# A development install (`maturin develop`) runs the source tree: replace it by the wheel.
EDITABLE := $(wildcard $(VENV)/lib/python3*/site-packages/pimkv.pth)

.PHONY: help run build test lint lint-source lint-stub wheel sdist bench lock clean FORCE
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

help:
	@sed -n 's/^#   //p' Makefile

run: build
	@$(BIN)/pimkv compare $(ARGS)

build: $(VENV)/.installed

test: $(VENV)/.installed $(VENV)/.dev-deps
	cargo test --workspace $(LOCKED)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: lint-source lint-stub

lint-source: $(VENV)/.dev-deps
	cargo fmt --all --check
	rustfmt --check --edition 2024 $(POLICIES)
	cargo clippy --workspace --all-targets $(LOCKED) -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-stub: $(VENV)/.installed $(VENV)/.dev-deps
	MYPYPATH=python $(BIN)/stubtest --mypy-config-file pyproject.toml pimkv._pimkv

wheel: $(VENV)/.wheel-deps
	rm -f dist/pimkv-*.whl
	$(BIN)/maturin build --release --locked --zig --compatibility manylinux2014 --out dist $(TARGET)
	@ls dist/pimkv-*-cp311-abi3-*manylinux2014_*.whl
	$(BIN)/abi3audit --strict --summary dist/pimkv-*.whl

sdist: $(VENV)/.build-deps
	rm -f dist/pimkv-*.tar.gz
	$(BIN)/maturin sdist --out dist

bench: $(VENV)/.installed $(VENV)/.dev-deps
	cargo bench -p pimkv-core $(LOCKED)
	@set -e; for script in benches/*.py; do \
	    [ -e "$$script" ] || continue; echo "== $$script"; $(BIN)/python "$$script"; done

clean:
	rm -rf $(VENV) dist target .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks

# --- the environment, in steps: each stamp is newer than what it was made from ---------------------------------

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or later found; name one: make PYTHON=..." >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "make: cargo not found; install Rust 1.88 or later" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-deps: $(VENV)/pyvenv.cfg requirements-dev.lock
	$(PIP) --constraint requirements-dev.lock maturin
	@touch $@

$(VENV)/.dev-deps: $(VENV)/pyvenv.cfg requirements-dev.lock
	$(PIP) --requirement requirements-dev.lock
	@touch $@

$(VENV)/.wheel-deps: $(VENV)/pyvenv.cfg requirements-wheel.lock
	$(PIP) --requirement requirements-wheel.lock
	@touch $@

$(VENV)/.sources: FORCE | $(VENV)/pyvenv.cfg
	@echo $(SOURCES) | cmp -s - $@ || echo $(SOURCES) > $@

$(VENV)/.installed: $(VENV)/.build-deps $(VENV)/.sources $(SOURCES) Cargo.toml Cargo.lock pyproject.toml \
                    $(if $(EDITABLE),FORCE)
	rm -rf target/wheels
	$(BIN)/maturin build --release $(LOCKED) --auditwheel skip --out target/wheels
	$(PIP) --force-reinstall --no-deps target/wheels/pimkv-*.whl
	$(PIP) --constraint requirements-dev.lock target/wheels/pimkv-*.whl
	@touch $@

# One resolution for all platforms and Pythons; the second file takes over the pins of the first.
RESOLVE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header $(LOCK_ARGS)
lock: $(VENV)/pyvenv.cfg
	$(PIP) uv
	$(RESOLVE) --extra test --extra dev --output-file requirements-dev.lock pyproject.toml
	$(RESOLVE) --group wheel --constraint requirements-dev.lock --output-file requirements-wheel.lock
	@for use in "dev:to build, test and lint" "wheel:to build and audit release wheels"; do \
	    file=requirements-$${use%%:*}.lock; \
	    { echo "# What pimkv needs $${use#*:}, pinned; written by \`make lock\`."; cat $$file; } > $$file.new; \
	    mv $$file.new $$file; done
