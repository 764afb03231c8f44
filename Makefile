# FedNoiL. `make help` lists what there is.
VENV := .venv
PY := $(VENV)/bin/python
FEDNOIL := $(VENV)/bin/fednoil
STAMP := $(VENV)/.installed
# Two processes, each with one thread: tests are tiny, and more threads only wait for each other. Many tests start Python,
# which is faster with compiled modules, also where the environment says not to write them.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup run test mutants test-slow test-kernels check format bench bench-federation bench-peers bench-scaling bench-gpu federation results docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install the package with its tools

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

run: setup ## train FedAvg and our default on noisy labels with the embedded data, and compare
	$(FEDNOIL) run demo/fedavg --out runs/demo-fedavg --force
	$(FEDNOIL) run demo --out runs/demo --force
	$(FEDNOIL) compare runs/demo-fedavg runs/demo

federation: setup ## a real federation on this machine: TLS, three nodes with different noise, FedNoiL
	$(PY) tools/federation_demo.py

test: setup ## run all tests but the slow ones
	$(PYTEST)

mutants: setup ## put mistakes into a copy of the package, one at a time, and see that tests notice; writes tools/mutants.csv
	$(PY) tools/mutants.py --jobs 2

test-slow: setup test-kernels ## run the tests that take minutes: real federations with faults, Ray
	$(PY) -m pip install --quiet -c constraints.txt -e ".[dev,ray,simulation]"
	$(PYTEST) -m slow

test-kernels: setup ## run the GPU's kernels in Triton's interpreter, on the CPU
	test -d .triton/triton || $(PY) -m pip install --quiet --no-deps --target .triton triton==3.6.0
	TRITON_INTERPRET=1 PYTHONPATH=.triton $(PYTEST) tests/test_kernels_*.py

check: setup ## formatting, lint, types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright

format: setup ## format and fix what ruff can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup ## time a round against a plain PyTorch loop, learners against their arithmetic, looks against larger ones (ratios)
	$(PY) benchmarks/plain_loop.py
	$(PY) benchmarks/learners.py
	$(PY) benchmarks/looking.py
	$(PY) benchmarks/evidence.py --device cpu

bench-federation: setup ## time and bytes of a round on Flower, against our simulator, Flower's own FedAvg and over real nodes
	$(PY) benchmarks/federation.py
	$(PY) benchmarks/nodes.py

bench-peers: setup ## time a round on a CPU against pfl and Flower, in an environment of their own
	$(PY) benchmarks/peers.py --json benchmarks/results/peers.json
	$(PY) benchmarks/charts.py

bench-scaling: setup ## rounds of few clients among many, and checkpoints, on a CPU; write the tables
	$(PY) benchmarks/many_clients.py --json benchmarks/results/many-clients-cpu.json
	$(PY) benchmarks/checkpoints.py --json benchmarks/results/checkpoints-cpu.json
	$(PY) benchmarks/charts.py

bench-gpu: ## the same on a GPU; PY names the Python to use
	$(PY) benchmarks/scaling.py --device cuda
	$(PY) benchmarks/checkpoints.py --device cuda --json benchmarks/results/checkpoints-cuda.json
	$(PY) benchmarks/charts.py

results: setup ## add the runs in RUNS to experiments/paper and write its tables
	$(PY) experiments/paper/build.py $(RUNS)

docs: setup ## the documentation as a site in .site/html; every link must lead somewhere
	$(PY) tools/make_reference.py
	$(PY) tools/site.py

clean: ## remove the environment and caches; runs/ stays
	rm -rf $(VENV) .triton benchmarks/.peers .pytest_cache .ruff_cache .hypothesis .site
