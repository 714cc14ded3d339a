# The commands of the README. Python 3.11 or newer is all they need.

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin/python
ARGS ?=

# uv installs in seconds what takes pip half a minute; it is told of pip's index, and pip takes over where it fails.
INSTALL = index=$${PIP_INDEX_URL:-$$($(BIN) -m pip config get global.index-url 2>/dev/null || true)}; \
	install() { \
		$(BIN) -m uv pip install --quiet --python $(BIN) --compile-bytecode $${index:+--default-index "$$index"} "$$@" \
		|| { echo "uv could not install it, for the reason above; pip does."; false; } || $(BIN) -m pip install --quiet --disable-pip-version-check "$$@"; \
	}; install

.PHONY: run test demo bench lint lock clean
.DEFAULT_GOAL := run

run: .venv/.run
	@exec $(BIN) manage.py up $(ARGS)

test: .venv/.dev
	@exec $(BIN) -m pytest $(ARGS)

demo: .venv/.run
	@exec $(BIN) manage.py demo $(ARGS)

bench: .venv/.dev
	@exec $(BIN) -m tests.bench $(ARGS)

lint: .venv/.dev
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy --no-incremental  # the Django plugin forgets managers between two runs
	.venv/bin/lint-imports

lock: .venv/.dev
	for name in requirements requirements-embedded requirements-dev; do \
		$(BIN) -m uv pip compile --quiet --universal --python-version 3.11 --custom-compile-command "make lock" \
			$$name.in --output-file $$name.txt || exit 1; \
	done

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found: install it, or say make PYTHON=/path/to/python."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python."; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python cannot make virtual environments: install its venv package (on Debian and Ubuntu: apt-get install python3-venv)."; exit 1; }
	@echo "Making .venv"
	@"$(PYTHON)" -m venv .venv
	@$(BIN) -m pip install --quiet --disable-pip-version-check --constraint requirements-dev.txt uv || echo "uv is not to be had; pip installs instead."
	@touch $@

.venv/.run: requirements.txt requirements-embedded.txt .venv/.made
	@echo "Installing what the system needs"
	@$(INSTALL) -r requirements.txt -r requirements-embedded.txt
	@touch $@

.venv/.dev: requirements-dev.txt .venv/.run
	@echo "Installing what its tests need"
	@$(INSTALL) -r requirements.txt -r requirements-embedded.txt -r requirements-dev.txt
	@touch $@
