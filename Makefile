# The commands of this repository. Each of them installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The newest Python that ansible-core's newest release supports; 3.11 runs the oldest supported core instead.
PYTHON ?= $(shell for p in python3.13 python3.12 $$HOME/.pyenv/versions/3.13*/bin/python3.13 $$HOME/.pyenv/versions/3.12*/bin/python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
LAB := lab/labctl
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Without compiled files each worker of pytest and each play compiles the collection again: a tenth of the time of `make unit`.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(STAMP) ## Create the virtual environment that deploying needs, with everything pinned by its hash
$(STAMP): requirements.lock
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv found: install python3 and python3-venv, or set PYTHON=…"; exit 1; }
	@echo "==> Python environment from $(PYTHON) (about a minute)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

# Test tools come on top of it, for the targets that need them.
$(DEV): $(STAMP) requirements-dev.lock
	@echo "==> test tools (about a minute)"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock -r requirements-dev.lock
	@touch $@

.PHONY: lint
lint: $(DEV) ## Check style, types, roles, plugins, examples, generated pages and changelog
	tests/steps.py lint

.PHONY: unit
unit: $(DEV) ## Unit and property tests (no root, no lab)
	$(BIN)/pytest -n auto --dist worksteal tests/unit

.PHONY: test
test: $(DEV) deps ## Tests on both ends of the supported ansible-core range, roles on simulated hosts, the demo with its faults (lint is separate)
	tests/steps.py test

.PHONY: test-lab
test-lab: $(DEV) deps ## Every lab test and every molecule scenario, the long ones too
	CORE_TESTS=tests/unit PLAYS='lab/* molecule/*' tests/steps.py test

.PHONY: play
play: $(DEV) deps ## Run one play and record the result: NAME=lab/transport, NAME='molecule/*'; without a name, print the state of all plays
	tests/plays/plays.py $(if $(NAME),run '$(NAME)',list)

.PHONY: deep-check
deep-check: $(DEV) ## Compare catalogues, rules and patches with real SGLang releases (fetches torch and every release that has a catalogue)
	$(BIN)/pytest tests/sglang

.PHONY: sglang-newer
sglang-newer: $(DEV) ## Add the newest release of SGLang, and print what presets and recorded launches become on it
	@scripts/sglang_newer.py $(NAME)

.PHONY: test-sglang-cpu
test-sglang-cpu: $(DEV) deps ## Real SGLang as two ranks on the CPUs of two simulated hosts (root)
	tests/plays/plays.py run lab/sglang_cpu

.PHONY: test-vm
test-vm: $(DEV) ## The fabric with real SR-IOV and soft-RoCE, and memory that runs out, on virtual machines (root)
	tests/plays/plays.py run 'vm/*'

.PHONY: test-report
test-report: $(DEV) ## The report and the documentation site in a real browser, narrow and wide (needs Chromium)
	tests/plays/plays.py run 'browser/*'

.PHONY: mutants
mutants: $(DEV) ## Put 50 small faults into a package and list those that no test notices: NAME=_nccl, SEED=2 for others
	$(BIN)/python tests/mutants/mutants.py $(NAME) --count 50 --seed $(or $(SEED),1) --least $(or $(LEAST),85)

.PHONY: docs
docs: $(DEV) ## Build the documentation site into .build/site/html; a broken link is an error
	docs/site/build

.PHONY: test-monitoring
test-monitoring: $(DEV) ## Alerts and queries of the dashboards with a real Prometheus (needs prometheus, prometheus-node-exporter, prometheus-alertmanager)
	tests/plays/plays.py run 'monitoring/*'

.PHONY: test-artifact
test-artifact: $(DEV) ## What ships: ansible-test sanity on Python 3.11 and 3.12, and galaxy-importer
	tests/plays/plays.py run artifact

.PHONY: first-changelog
first-changelog: ## Remove the fragments of the time before the first release, which 0.1.0.yml describes
	find changelogs/fragments -name '*.yml' ! -name 0.1.0.yml -delete

.PHONY: deps
deps: ## Install the Debian packages of the lab (asks apt, needs root)
	$(LAB) deps

.PHONY: lab-up lab-down
lab-up: $(STAMP) deps ## Start the simulated cluster: four DGX Sparks and a control host
	$(LAB) up
lab-down: ## Remove the simulated cluster; its cache and the Debian packages stay
	$(LAB) down

.PHONY: demo
demo: $(STAMP) deps ## Deploy four simulated nodes and verify the transport; FAULT=name breaks something first, KEEP=1 leaves the cluster running
	lab/demo $(if $(FAULT),--fault $(FAULT))

.PHONY: clean
clean: ## Remove what the commands above created in this checkout (the lab's cache stays)
	-test ! -x $(LAB) || $(LAB) down
	rm -rf $(VENV) .venv-2.* .build .lab results tests/output .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible
