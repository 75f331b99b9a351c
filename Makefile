# Everything a newcomer types. Needs Python >= 3.11 with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-long test-vllm check bench compiled fuzz simulate-long soak audit clean

demo: $(VENV)/demo
	@$(BIN)/python -m gateway.demo $(ARGS)

test: check
	@$(BIN)/python tests/debian.py
	@$(BIN)/python tests/compiled.py
	@$(BIN)/python tests/real/hermes.py --install
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not long" $(ARGS)

test-long: $(VENV)/test
	@$(BIN)/python tests/debian.py
	@$(BIN)/python tests/compiled.py
	@$(BIN)/python tests/real/hermes.py --install
	@$(BIN)/python -m pytest -q $(ARGS)

test-vllm: $(VENV)/test
	@$(BIN)/python tests/real/vllm.py --install
	@SLOTGATE_TEST_VLLM=1 $(BIN)/python -m pytest -q tests/real/test_vllm.py $(ARGS)

check: $(VENV)/test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_tidy.py

# Compiled, as an operator who cares for speed installs it; -P: not the sources in this folder.
bench: compiled
	@PYTHONPATH=.cache/compiled $(BIN)/python -P -m gateway.bench.overhead $(ARGS)

compiled: $(VENV)/test
	@$(BIN)/python tests/compiled.py

# FUZZ_TIMES: so many times the examples of `make test`
FUZZERS := tests/unit/test_sse.py tests/unit/test_answer.py tests/unit/test_request.py \
  tests/unit/test_upstream_fuzz.py tests/faults/test_edge_fuzz.py
FUZZ_TIMES ?= 100

fuzz: $(VENV)/test
	@FUZZ_TIMES=$(FUZZ_TIMES) $(BIN)/python -m pytest -q $(FUZZERS) $(ARGS)

simulate-long: $(VENV)/test
	@$(BIN)/python -m pytest -q tests/simulation tests/ledger/test_simulation.py $(ARGS)

soak: $(VENV)/test
	@$(BIN)/python -m tests.soak $(ARGS)

audit:
	@$(PYTHON) tests/audit.py

clean:
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis

# The locks pin every package by hash; the project itself is then linked without looking anything up.
$(VENV)/%: requirements-%.lock pyproject.toml
	@test -x $(BIN)/python || { echo "Setting up $(VENV) (downloads about 100 MB of packages, once) ..."; \
	  $(PYTHON) -c 'import sys; sys.exit("slotgate needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None' && \
	  $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
