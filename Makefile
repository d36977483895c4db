# make demo | test | fast | test-fast | test-kernels | test-calibrate | test-clusters | lint | fuzz | hostile | mutants | engine-check | bench | dashboard | ui-test | ui-times | screenshots: each sets up the virtual environment .venv on first use.
# The reference traces and measurements that some tests need are found through KVCAST_DATA.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OPS    ?= 50000
PORT   ?= 8501

# Kernel tests live in a venv of their own, with torch and a triton: the pinned one, or TRITON=3.6.0 (oldest) and TRITON=3.9.0 (newest tested).
TORCH   := $(shell sed -n 's/^torch==//p' constraints.txt)
TRITON  ?= $(shell sed -n 's/^triton==//p' constraints.txt)
PICK    ?= all
KERNELS := .venv-kernels-$(TRITON)

.PHONY: help demo test fast test-fast test-kernels test-calibrate test-clusters lint fuzz hostile mutants engine-check bench dashboard ui-test ui-times screenshots clean

help:
	@echo "make demo       simulate the bundled mix: what the prefix cache is worth on an H200"
	@echo "make dashboard  the same in a browser; PORT=8600 elsewhere than at 8501"
	@echo "make test       run the tests         make lint  ruff and mypy"
	@echo "make fast       compile the simulation loop (a C compiler, a minute): the same results in 0.6 of the time    make test-fast  hold it against pure Python"
	@echo "make test-kernels  the Triton kernels, interpreted and compiled, no GPU needed; PICK=pairwise takes minutes, all of it an hour"
	@echo "make test-calibrate  calibration with torch on the CPU"
	@echo "make test-clusters  a sweep, a comparison and a plan on a real Dask and a real Ray cluster, a worker of each killed"
	@echo "make ui-test    a planner's way to a verdict, in a browser    make ui-times  what a reader waits for there"
	@echo "make screenshots  pictures of every page (all three need chromium)"
	@echo "make fuzz OPS=50000  random tests against a per-block reference    make bench  speed"
	@echo "make hostile    some 4,100 bad inputs to every command and 168 kills: one line each, nothing lost (minutes)"
	@echo "make engine-check ENGINE_PYTHON=...  record what the vLLM installed there does, on the CPU, and replay it (a minute)"
	@echo "make mutants    plant about a hundred faults in a copy, one after the other: the tests must notice each (minutes)"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("kvcast needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/kvcast demo --out runs/demo

dashboard: $(VENV)/.installed
	$(BIN)/kvcast dashboard --port $(PORT)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile

# The loop compiled by mypyc and Cython; pure Python goes on where its sources have changed since.
$(VENV)/.installed-fast: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast]'
	@touch $@

fast: $(VENV)/.installed-fast
	$(BIN)/python -m tools.fast

test-fast: $(VENV)/.installed-test fast
	$(BIN)/python -m tests.fast
	$(BIN)/python -m pytest -n auto --dist loadfile

# Triton before 3.7 interprets only with numpy before 2.4.
$(KERNELS)/.installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) triton==$(TRITON) $(if $(filter 3.6.%,$(TRITON)),'numpy<2.4',numpy) -e '.[test]'
	@touch $@

test-kernels: $(KERNELS)/.installed
	KVCAST_KERNELS=$(PICK) $(KERNELS)/bin/python -m pytest tests/kernels

# What needs torch of calibration: the measuring half, the real serving loop and the GPU session's rehearsal, on the CPU.
test-calibrate: $(KERNELS)/.installed
	$(KERNELS)/bin/python -m pytest tests/test_measure.py tests/test_engine_loop.py tests/test_composition.py tests/test_gpu_session.py tests/test_attention_packages.py

# make test has Dask; Ray is too large for it (70 MB) and starts in ten seconds.
$(VENV)/.installed-clusters: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dask,ray]'
	@touch $@

test-clusters: $(VENV)/.installed-clusters
	KVCAST_CLUSTERS=1 $(BIN)/python -m pytest tests/test_clusters.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --follow-imports=silent tests/typed_surface.py

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --ops $(OPS)
	$(BIN)/python -m tests.fuzz --ops $(OPS) --engine sglang
	$(BIN)/python -m tests.fuzz --ops $(OPS) --engine hybrid
	$(BIN)/python -m tests.fuzz_policies --ops $(OPS)

# Faults in the kernels are planted too where `make test-kernels` has made its virtual environment.
# What an installed vLLM does with requests of bundled scenarios, recorded on the CPU and replayed; ENGINE_PYTHON has it.
ENGINE_PYTHON ?= python3
ASK := $(BIN)/python -m tools.record_engine_cases requests --out runs/engine-check/asked
engine-check: $(VENV)/.installed
	rm -rf runs/engine-check
	$(ASK) examples/demo.toml --name tight --set engine.kv_blocks=700 --set engine.max_num_seqs=8 --set engine.max_model_len=8000
	$(ASK) examples/demo.toml --name async --set engine.kv_blocks=600 --set engine.max_model_len=8000 --step-ms 40 --set engine.async_scheduling=true
	$(ASK) examples/demo.toml --name priority --set engine.kv_blocks=500 --set engine.max_model_len=6000 --set engine.scheduler_policy=priority
	$(ASK) workloads/presets/tool-agent-api.toml --name tools --set engine.kv_blocks=900 --set engine.max_model_len=12000 --step-ms 200
	$(ENGINE_PYTHON) tools/record_engine_cases.py record runs/engine-check/asked --out runs/engine-check/recorded
	$(BIN)/kvcast validate engine-cases --cases runs/engine-check/recorded

# Bad input to every command and kills at random moments; each must end in one line, and lose nothing.
hostile: $(VENV)/.installed-test
	$(BIN)/python -m tests.hostile
	$(BIN)/python -m tests.hostile_kills

mutants: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutants

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_speed.py
	$(BIN)/python benchmarks/bench_coding_agent.py --requests 20000
	$(BIN)/python benchmarks/bench_plan.py

ui-test: $(VENV)/.installed-test
	$(BIN)/python -m tools.ui_flow

ui-times: $(VENV)/.installed-test
	$(BIN)/python -m tools.ui_times

screenshots: $(VENV)/.installed-test
	$(BIN)/python -m tools.screenshots --out runs/screenshots

clean:
	rm -rf $(VENV) .venv-kernels-* build *.egg-info
