# Everything a newcomer types. Needs Python >= 3.11 with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-long test-vllm check bench clean

demo: $(VENV)/demo
	@$(BIN)/python -m gateway.demo $(ARGS)

test: check
	@$(BIN)/python tests/debian.py
	@$(BIN)/python tests/real/hermes.py --install
	@$(BIN)/python -m pytest -q -m "not long" $(ARGS)

test-long: $(VENV)/test
	@$(BIN)/python tests/debian.py
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

bench: $(VENV)/demo
	@$(BIN)/python -m gateway.bench.overhead $(ARGS)

clean:
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The locks pin every package by hash; the project itself is then linked without looking anything up.
$(VENV)/%: requirements-%.lock pyproject.toml
	@test -x $(BIN)/python || { echo "Setting up $(VENV) (downloads about 100 MB of packages, once) ..."; \
	  $(PYTHON) -c 'import sys; sys.exit("slotgate needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None' && \
	  $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
