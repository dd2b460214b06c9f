# Everything a contributor or CI runs. `make` alone prints this help.

VENV ?= .venv
LIGHT ?= .venv-light
PYTHON ?= python3
BIN := $(VENV)/bin
PLUGINS := -e plugins/rlreg-iql -e plugins/rlreg-impala
PIP := -m pip install -q --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo test test-alone test-all lint format type schemas manifests docs docs-check builder test-browser test-ray test-gpu light wheels bench bench-scaling bench-guard bench-peers evidence-quick ci clean

help:  ## show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and pinned: a range would let pip choose a build of several gigabytes.
$(VENV)/.installed: $(BIN)/python constraints.txt pyproject.toml plugins/rlreg-iql/pyproject.toml plugins/rlreg-impala/pyproject.toml
	$(BIN)/python $(PIP) $(TORCH)
	$(BIN)/python $(PIP) -c constraints.txt -e '.[train,report]' $(PLUGINS)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]' $(PLUGINS)
	@touch $@

install: $(VENV)/.installed  ## make .venv with rlreg and its plugins

install-dev: $(VENV)/.installed-dev  ## the same, with what the tests need

demo: $(VENV)/.installed  ## train IQL on generated data and compare it (about 2 minutes)
	$(BIN)/rlreg train iql --preset pendulum --dataset rlreg/pendulum/mixed-v0 --steps 6000 --seed 0

# Two workers, a file at a time: many tests wait for processes of their own.
test: $(VENV)/.installed-dev  ## the default test suite (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# They kill, stop and count processes and descriptors, so they run one at a time.
test-alone: $(VENV)/.installed-dev  ## tests that watch the whole machine: faults and leaks
	$(BIN)/python -m pytest -q -m "alone and not slow and not gpu and not ray and not browser"

test-all: $(VENV)/.installed-dev  ## everything that runs on this machine, slow tests included
	$(BIN)/python -m pytest -q -m "not gpu and not ray and not browser"

lint: $(VENV)/.installed-dev  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev  ## rewrite files in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(VENV)/.installed-dev  ## mypy --strict, from the root
	$(BIN)/mypy

schemas: $(VENV)/.installed  ## write schemas/ from the code
	$(BIN)/rlreg schema export schemas

GUIDES := README.md docs $(wildcard plugins/*/README.md)
docs: $(VENV)/.installed  ## build the site: config reference, builder, guides
	$(BIN)/rlreg docs build site $(GUIDES:%=--guide %)

# npm's own lock holds names and hashes; `npm ci` installs exactly those.
builder/node_modules/.installed: builder/package.json builder/package-lock.json
	cd builder && npm ci --no-audit --no-fund
	@touch $@

BUILDER := rlreg/reference/builder_dist/builder.js
$(BUILDER): builder/node_modules/.installed builder/build.mjs $(wildcard builder/src/*)
	cd builder && npm run --silent build

builder: $(BUILDER)  ## bundle the config builder (needs Node.js 20 or later)

test-browser: $(VENV)/.installed-dev $(BUILDER)  ## site, builder and editor in a real browser
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && (apt-get update -q && apt-get install -y -q chromium chromium-driver) >/dev/null; } || \
		{ echo "test-browser needs chromium and chromedriver; Debian: apt-get install chromium chromium-driver"; exit 1; }
	$(BIN)/python $(PIP) -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -q -m browser tests/browser

manifests: $(VENV)/.installed  ## write the manifests of our own plugins, and what completion reads
	$(BIN)/rlreg plugins manifest rlreg-iql
	$(BIN)/rlreg plugins manifest rlreg-impala
	$(BIN)/python -c "from rlreg.cli.candidates import write_core; write_core()"

test-ray: $(VENV)/.installed-dev  ## IMPALA on a real local Ray cluster (about 5 minutes)
	$(BIN)/python $(PIP) -c constraints.txt -e 'plugins/rlreg-impala[ray]'
	$(BIN)/python -m pytest -q -m ray plugins/rlreg-impala/tests

# The pinned torch may be one for processors alone: install one for your GPU into .venv before.
test-gpu: $(VENV)/.installed-dev  ## what needs a GPU; fails without one
	$(BIN)/python -m pytest -q -m gpu

docs-check: $(VENV)/.installed  ## fail if schemas/ differ from the code
	$(BIN)/rlreg schema export --check schemas

$(LIGHT)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(LIGHT)
	$(LIGHT)/bin/python $(PIP) -c constraints.txt -e . pytest hypothesis jsonschema-rs html5lib setuptools wheel
	@touch $@

light: $(LIGHT)/.installed  ## the light half of the tests, in a venv without torch
	@! $(LIGHT)/bin/python -c "import torch" 2>/dev/null || (echo "torch is in $(LIGHT)"; exit 1)
	$(LIGHT)/bin/python -m pytest -q -m light -p no:cacheprovider tests/test_*.py

wheels: $(VENV)/.installed-dev $(BUILDER)  ## build the wheels and try them in a clean venv
	scripts/check_wheels.sh $(BIN)/python

bench-peers:  ## build the environments of the programs that bench compares with
	PYTHON=$(PYTHON) scripts/make_peers.sh

bench: $(VENV)/.installed-dev  ## compare speeds on this machine, and write benchmarks/RESULTS.md
	$(BIN)/python benchmarks/iql.py
	$(BIN)/python benchmarks/vtrace.py
	$(BIN)/python benchmarks/impala.py --rounds 3 --seconds 10
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/seeds.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/report.py

bench-scaling: $(VENV)/.installed-dev  ## how costs grow with the work, and IMPALA on Ray simulated (about 25 minutes)
	$(BIN)/python $(PIP) -c constraints.txt -e 'plugins/rlreg-impala[ray]'
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/ray_simulation.py
	$(BIN)/python benchmarks/report.py

bench-guard: $(VENV)/.installed-dev  ## fail if a ratio of speeds fell below its floor (half a minute)
	$(BIN)/python benchmarks/guard.py

evidence-quick: $(VENV)/.installed-dev  ## redo a small slice of docs/results.md and check it
	$(BIN)/python benchmarks/evidence/quick.py

ci: lint type docs-check test test-alone light wheels test-browser bench-guard evidence-quick  ## what CI runs

clean:  ## remove environments and build products
	rm -rf $(VENV) $(LIGHT) build dist site *.egg-info plugins/*/src/*.egg-info
