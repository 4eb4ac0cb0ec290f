# `make demo` and `make test` set up everything they need. A second run is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Neural models are tested with this torch; builds for graphics cards do as well.
NEURAL := $(VENV)/.neural
TORCH ?= 2.13.0

.PHONY: demo test check parameters quality bench load experiments lock notables clean

demo: $(READY)
	$(BIN)/fairqr models pull
	$(BIN)/fairqr search "mathematician" --corpus notables --attribute gender

# Three tests at a time, on two processors: much of the time is spent in waiting for servers.
test: $(NEURAL)
	$(BIN)/pytest --numprocesses 3 --dist loadgroup

# Types and layers are checked on the installed wheel, which is what users get. The audit compares
# with known vulnerabilities where a service of advisories can be reached, and says so where not.
check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	rm -rf build
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/check .
	cd build && MYPYPATH=check ../$(BIN)/mypy --config-file ../pyproject.toml -p fairqr
	MYPYPATH=tools $(BIN)/mypy --config-file pyproject.toml -p notables -p minilm
	PYTHONPATH=build/check $(BIN)/lint-imports
	rm -rf build
	$(BIN)/python -m tests.checks.audit

# docs/parameters.md, from the descriptions of the parameters.
parameters: $(READY)
	$(BIN)/python -m tests.checks.parameters_page

# What retrieval, the fair step and the model each bring, on notables and on the subset of TREC Fair 2022
# in TREC; encodes both collections first, which takes some minutes.
TREC := ../shared/data/trec2022
quality: $(READY)
	$(BIN)/fairqr models pull
	$(BIN)/python benchmarks/quality.py --trec $(TREC)

bench: $(READY)
	$(BIN)/python benchmarks/bench.py --json bench.json

# The service under load and under faults, with real servers on loopback; about 25 minutes, or two with
# LOAD=--quick.
load: $(READY)
	$(BIN)/python -m benchmarks.load --json load.json $(LOAD)

# The experiments on notables, or on COLLECTION, each with its report in OUT; that of Fair RAG on
# RAG_COLLECTION, such as a folder of LaMP; those on rankers always on notables. They go on where they
# stopped.
EXPERIMENTS := fair_qr_table rerank_ablation iterations prompts retrievers
ON_RANKERS := llm_listwise_small window_size_small llm_pairwise_small lora_small
OUT ?= experiments
experiments: $(NEURAL)
	$(BIN)/fairqr models pull smollm2-135m
	for name in $(EXPERIMENTS); do \
	  $(BIN)/fairqr experiment run $$name -o $(OUT)/$$name --report \
	    $(if $(COLLECTION),--collection $(COLLECTION)) || exit $$?; \
	done
	for name in $(ON_RANKERS); do \
	  $(BIN)/fairqr experiment run $$name -o $(OUT)/$$name --report || exit $$?; \
	done
	$(BIN)/fairqr experiment run fair_rag_small -o $(OUT)/fair_rag_small --report \
	  $(if $(RAG_COLLECTION),--collection $(RAG_COLLECTION))

# The lock names versions and hashes, and no place to get them from. torch is not in it: which of its
# builds fits depends on the machine. What the lock names is whole otherwise, so pip looks for nothing
# more, which would be torch for peft. deploy/ has the part of it that the image of the service needs.
lock: $(READY)
	echo "torch ; python_version < '0'" > $(VENV)/without.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --override $(VENV)/without.txt --all-extras pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --constraint requirements.lock --extra service --extra otel pyproject.toml deploy/build.in \
	  --output-file deploy/requirements.lock

# Makes the corpus from Pantheon's table; see retrieval/corpora/notables/README.md.
notables: $(READY)
	@test -n "$(PANTHEON)" || { echo "name the table: make notables PANTHEON=pantheon.tsv"; exit 2; }
	PYTHONPATH=tools $(BIN)/python -m notables.build $(PANTHEON) retrieval/corpora/notables

$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(NEURAL): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==$(TORCH)
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
