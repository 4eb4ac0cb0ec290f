# `make demo` and `make test` set up everything they need. A second run is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
# Neural models are tested with this torch; builds for graphics cards do as well.
NEURAL := $(VENV)/.neural
TORCH ?= 2.13.0

# Compiled modules are kept even where the environment says otherwise: they halve the start of each of
# the many processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-unit check wheel types layers dependencies docs bench load results lock notables clean

demo: $(DEMO)
	@$(BIN)/fairqr demo

# Three tests at a time, on two processors: much of the time is spent in waiting for servers.
test: $(NEURAL)
	@tests/needs.sh
	$(BIN)/pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder

# Tests that need no server and no model, without those that simulate, draw, do whole audits, or start
# other programs.
THOROUGH := agents/attribution/test_nli.py agents/ranking/test_causal.py agents/ranking/test_pointwise.py \
  agents/test_cache.py agents/test_seq2seq.py agents/tuning base/test_neural.py base/test_weights.py \
  checks cli/test_audit.py cli/test_platforms.py cli/test_seen_searches.py cli/test_service_audits.py \
  evaluation/audit evaluation/probes evaluation/rag evaluation/reports \
  graph/service/test_access.py retrieval/sampling retrieval/test_objective.py retrieval/test_pools.py \
  retrieval/test_vector_engine.py test_auditing.py test_packaging.py
test-unit: $(NEURAL)
	$(BIN)/pytest --numprocesses 2 $(addprefix --ignore=tests/unit/,$(THOROUGH)) tests/unit

# Functions are measured against the bounds in pyproject.toml. Types and layers are checked on the
# installed wheel, which is what users get. The audit needs all that the lock names, and torch beside
# it; it compares with known vulnerabilities where a service of advisories can be reached, and says so
# where not.
check: $(NEURAL)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.checks.complexity
	$(MAKE) --no-print-directory --jobs 2 types layers docs dependencies

wheel:
	rm -rf build/check build/lib build/bdist.*
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --upgrade --target build/check .

types: wheel
	cd build && MYPYPATH=check:../tools ../$(BIN)/mypy --num-workers 2 --config-file ../pyproject.toml \
	  -p fairqr -p docs_site -p notables -p minilm

layers: wheel
	PYTHONPATH=build/check $(BIN)/lint-imports

dependencies:
	$(BIN)/python -m tests.checks.audit

# The site of the documentation in build/site, with a reference generated from the code. Broken links,
# anchors and pictures end it.
docs: $(READY)
	PYTHONPATH=tools $(BIN)/python -m docs_site
	! grep -rnE '[®©™]|&(reg|copy|trade);' --include='*.html' build/site  # made of letters, such as d(r)

bench: $(READY)
	$(BIN)/python -m benchmarks.bench

# The service under load and under faults, with real servers on loopback; about 25 minutes, or two with
# LOAD=--quick.
load: $(READY)
	$(BIN)/python -m benchmarks.load --json load.json $(LOAD)

# What docs/results/results.yaml lists, in its small form, compared with what it expects; whole tables
# with RESULTS=--full, one alone by its name. They go on where they stopped, in build/results.
results: $(NEURAL)
	$(BIN)/fairqr models pull
	$(BIN)/python -m benchmarks.results $(RESULTS)

# The lock names versions and hashes, and no place to get them from. torch is not in it: which of its
# builds fits depends on the machine. What the lock names is whole otherwise, so pip looks for nothing
# more, which would be torch for peft. Two parts of it are locks of their own: what the demo needs, and
# in deploy/ what the image of the service needs.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
lock: $(READY)
	echo "torch ; python_version < '0'" > $(VENV)/without.txt
	$(COMPILE) --override $(VENV)/without.txt --all-extras pyproject.toml --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --extra local pyproject.toml deploy/build.in \
	  --output-file requirements-demo.lock
	$(COMPILE) --constraint requirements.lock --extra service --extra otel --extra mcp \
	  pyproject.toml deploy/build.in --output-file deploy/requirements.lock

# Makes the corpus from Pantheon's table; see retrieval/corpora/notables/README.md.
notables: $(READY)
	@test -n "$(PANTHEON)" || { echo "name the table: make notables PANTHEON=pantheon.tsv"; exit 2; }
	PYTHONPATH=tools $(BIN)/python -m notables.build $(PANTHEON) retrieval/corpora/notables

# uv installs four times as fast as pip, which brings it. pip does it alone if uv cannot, as where only
# pip knows the index or the proxy.
PIP := $(BIN)/pip --quiet --disable-pip-version-check
OPTIONS := install --quiet --no-deps
define install
$(BIN)/uv pip $(OPTIONS) --python $(BIN)/python $(1) || $(PIP) $(OPTIONS) $(1)
endef

$(DEMO): requirements-demo.lock pyproject.toml
	@echo "Setting up $(VENV): this takes about half a minute, once."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\]$$/p' requirements.lock > $(VENV)/uv.txt
	@test -x $(BIN)/uv || $(PIP) $(OPTIONS) --require-hashes -r $(VENV)/uv.txt || true
	@$(call install,--require-hashes -r requirements-demo.lock)
	@$(call install,--no-build-isolation --editable .)
	@touch $@

$(READY): $(DEMO) requirements.lock
	$(call install,--require-hashes -r requirements.lock)
	touch $@

$(NEURAL): $(READY)
	$(PIP) install torch==$(TORCH)
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
