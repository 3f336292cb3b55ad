# Needs git, make and Python 3.11 to 3.13; everything else is installed into .venv, on Debian also the system packages.
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?=
# They wait as much as they compute.
WORKERS ?= $(shell expr 2 \* $$(nproc))
ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))
CODE := $(wildcard packages benchmarks examples tests)

.PHONY: help demo test check bench images claude-code lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  Options: PYTHON=python3.12 (for a new environment), ARGS='-k word' (for demo, test and bench), WORKERS=2 (for test; default: two for each processor)"

demo: $(READY) ## Break a real service and watch it being repaired, proved and audited
	@$(BIN)/operator demo $(ARGS)

test: $(READY) ## Run the tests (installs bubblewrap and PostgreSQL where it may)
	@scripts/system-packages
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(READY) ## Lint, formatting and types
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy

bench: $(READY) ## Measure what a turn and a sandbox cost, and 200 tasks at once
	@$(BIN)/python benchmarks/turn_overhead.py $(ARGS)
	@$(BIN)/python benchmarks/sandbox_cost.py
	@$(BIN)/python benchmarks/task_sessions.py

images: ## Build the container images (where it may, starts docker and makes their base image)
	@scripts/base-image
	docker build -f docker/agent/Dockerfile -t operator-agent:test docker/agent
	docker build -f docker/operator/Dockerfile -t operator:test .

claude-code: $(READY) ## Install the Claude Code program, for tasks with that engine
	@scripts/claude-code .venv

lock: ## Renew the lock files in requirements (needs uv)
	@scripts/lock $(PACKAGES)

clean: ## Remove the environment and everything that tools left behind
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find packages tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements/dev.txt scripts/environment $(wildcard packages/*/pyproject.toml)
	@PYTHON="$(PYTHON)" scripts/environment .venv requirements/dev.txt $(PACKAGES)
	@touch $@
