# The two commands of the README are `make chat` and `make test`; both install first, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install chat test lint format wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install there (does nothing when up to date)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: '$(PYTHON)' was not found. Install Python 3.11 or newer, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) -V 2>&1 | head -n 1)."; \
	  echo "       Name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "error: '$(PYTHON)' lacks the venv module (Debian, Ubuntu: apt install python3-venv)."; exit 1; }; \
	  echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo 'installing into $(VENV) (some minutes the first time)'
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	@touch $@

chat: install ## Start the chat; options: make chat ARGS="--temperature 0.7"
	@$(BIN)/eagle-chat $(ARGS)

test: lint ## Install, check the style and the types, run the tests; ARGS go to pytest
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

lint: install ## Check the style and the types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: install ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: install ## Build dist/*.whl
	$(BIN)/python -m build --wheel

clean: ## Remove what was built, .venv too
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find eagle_chat tests -name __pycache__ -type d -prune -exec rm -rf {} +
