# make test   set everything up and pass the tests
# make demo   set everything up and run the text-to-SQL agent under load, directly and scheduled
# The tests run twice: beside openai 3 and httpx2, and beside openai 2 and httpx, since some clients need the one
# and some the other.
PYTHON ?= python3
VENV ?= .venv
VENV2 ?= .venv-openai2
BIN := $(VENV)/bin

.PHONY: test lint demo bench clean

$(VENV)/ready: GENERATION = openai3
$(VENV2)/ready: GENERATION = openai2
$(VENV)/ready $(VENV2)/ready: pyproject.toml constraints/openai3.txt constraints/openai2.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	@echo 'setting up $(@D): about a minute, once'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --constraint constraints/$(GENERATION).txt --editable '.[langgraph]' --group dev --group $(GENERATION)
	touch $@

test: lint $(VENV2)/ready
	$(BIN)/pytest
	$(VENV2)/bin/pytest

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

demo: $(VENV)/ready
	$(BIN)/python -m examples.text2sql.demo

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.micro.engine
	$(BIN)/python -m benchmarks.micro.import_time
	$(BIN)/python -m benchmarks.micro.overhead

clean:
	rm -rf $(VENV) $(VENV2) .ruff_cache .hypothesis build dist
