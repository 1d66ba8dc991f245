# Every target sets up what it needs. `make setup` does only that.
PYTHON ?= python3
BIN := .venv/bin
# The tests share two cores with the servers they start: one test process per core.
JOBS ?= auto

JAVA := openjdk-17-jre-headless

.PHONY: setup java demo test chaos docs reference check format clean

setup: .venv/installed java

.venv/installed: pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Nearcast needs Python 3.11 or later; set PYTHON=...")'
	@echo "Set-up: Python packages into .venv, once. It takes some minutes; later runs start in seconds."
	test -x $(BIN)/uv || { $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv; }
	@# Compiled once here, every process starts faster and takes some ten megabytes less, even where it may not write.
	$(BIN)/uv sync --locked --all-extras --all-groups --compile-bytecode
	touch $@

# For the data cluster. All the rest runs without it, so a Java that cannot be installed here is only named.
java:
	@if [ -n "$$JAVA_HOME" ] || command -v java >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Set-up: Java for the data cluster, by apt-get install $(JAVA)."; \
		{ apt-get -qq update && { apt-get -qq --yes --no-install-recommends install $(JAVA) \
			|| apt-get -qq --yes --no-install-recommends install default-jre-headless; }; } \
		|| echo "Java was not installed; the data cluster needs it, all the rest runs without."; \
	else \
		echo "There is no Java; the data cluster needs it, all the rest runs without. Debian: sudo apt-get install $(JAVA)"; \
	fi

demo: setup
	$(BIN)/nearcast demo

test: setup
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

# As root: three faults, judged message by message.
chaos: setup
	$(BIN)/nearcast lab chaos --quick

# The documentation as a site in .site: open .site/index.html. Links are checked.
docs: setup
	$(BIN)/mkdocs build --quiet --strict

# Writes docs/reference anew: settings, subjects, REST and command line, from the code.
reference: setup
	$(BIN)/python -m documentation

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .site .mypy_cache .ruff_cache .pytest_cache .hypothesis
