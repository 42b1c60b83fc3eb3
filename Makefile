# make test   set everything up and pass the tests
# make demo   set everything up and run the text-to-SQL agent under load, directly and scheduled
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: test demo lint bench clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	@echo 'setting up $(VENV): about a minute, once'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[langgraph]' --group dev
	touch $@

test: $(VENV)/ready lint
	$(BIN)/pytest

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
	rm -rf $(VENV) .ruff_cache .hypothesis build dist
