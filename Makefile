# Everything runs from a virtual environment in .venv, which `make` sets up by itself.
# A test that lacks a tool is skipped with a reason; `make tools` installs what Debian has.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= tests
IS_NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'

.PHONY: demo run check test test-all test-slow test-flips test-crowd test-chaos chaos test-pubsub test-kube test-schedulers test-ray test-nfs test-vm stress tools checkov lint format types types-of-tests imports dashboards pictures house simulate bench bench-kube bench-gce bench-slurm bench-shards setup setup-test lock dist image image-base sbom clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo 'make demo   the main job on the embedded cloud, judged step by step (about a minute)'
	@echo 'make demo PLACES=slurm  a real Slurm first, then the embedded cloud (half a minute; needs the packages of Slurm)'
	@echo 'make run    the same cloud and loop, kept running for you to play with'
	@echo 'make check  format, lint, types, import contracts, and the tests that need no process and no socket (a minute and a half)'
	@echo 'make test   the laws, the contract of all backends, conformance, scripts and loop (under four minutes)'
	@echo 'make test-all    everything below and the demonstration, recorded in .ci/complete-run.json (half an hour)'
	@echo 'make stress TEST=tests/FILE.py::test_NAME N=20   one test N times while other processes occupy the processors'
	@echo 'make tools  install the programs that tests need, as far as Debian has them (as root)'
	@echo 'make test-slow   thousands of machines, installations, every fault (minutes)'
	@echo 'make test-flips  Compute Engine with each undocumented behaviour flipped, alone and in pairs (minutes)'
	@echo 'make test-crowd  many processes on one state directory (a minute and a half; without other load)'
	@echo 'make test-chaos  real processes killed, stopped and disturbed at random, the laws judged (two minutes; CHAOS_SEED=N repeats a run)'
	@echo 'make chaos       the same for ten minutes, with other seeds'
	@echo "make test-pubsub the tests on Google's Pub/Sub emulator (half a minute; needs a Cloud SDK that has it, and Java)"
	@echo 'make test-kube   the tests on a real Kubernetes API server: builds it first, once per machine (six minutes; needs Go and openssl)'
	@echo 'make test-schedulers  the tests on a real Slurm, Grid Engine and task-spooler of Debian, run without root (eight minutes; needs its packages, which make tools installs)'
	@echo 'make test-ray    the contract of kinds, and the scripts, on a real Ray: installs it first, once per machine (ten minutes; needs PyPI)'
	@echo 'make test-nfs    the state directory on NFS, through two mounts of one export (TEST_NFS_MOUNTS=ONE:TWO)'
	@echo 'make test-vm     NFS and systemd for real, in an emulated machine (a quarter of an hour, and once four minutes for its disk; needs root, QEMU, debootstrap)'
	@echo 'make checkov     findings of checkov in manifests, Dockerfiles and Terraform that deploy/checkov.yaml does not accept (a minute)'
	@echo 'make lint   ruff, mypy, the direction of imports, and the sizes of rooms and modules'
	@echo 'make dashboards  write the Grafana dashboards from their code'
	@echo 'make pictures    draw the dashboards for docs/images, from a demonstration that a real Prometheus scrapes (four minutes)'
	@echo 'make dist   one bundle for a host without a package index, into build/dist (docs/deploy-host.md)'
	@echo 'make image  the container image, by buildah, podman or docker; make image-base renews the digest of its base'
	@echo 'make sbom   the packages of an installation, as CycloneDX, into build/sbom.cdx.json'
	@echo 'make lock   update the locks from setup.cfg (LOCK_ARGS=--upgrade for the newest versions)'
	@echo 'make house  a table of rooms, floors, whatever is above its limit of size, and the modules that one request enters'
	@echo 'make simulate    the loop in virtual time under every fault, judged and compared, into build/simulation (SEEDS=5; hours for many)'
	@echo 'make bench  speed and memory, as tables'
	@echo 'make bench-kube  the same for the gke backend, on a real Kubernetes API server (ten minutes)'
	@echo 'make bench-gce   calls, CPU and memory of managed instance groups (about four minutes)'
	@echo 'make bench-slurm the same for the slurm backend, on a real slurmrestd of Debian, beside a plain loop (two minutes)'
	@echo 'make bench-shards loops that share the pools, 100,000 machines, on a real Kubernetes API server (half an hour)'

# PLACES names a module of tests.support, without its ending.
demo: setup
	@$(BIN)/$(if $(PLACES),python -m tests.support.$(PLACES)_demo,provisioner demo)

run: setup
	@$(BIN)/provisioner demo --keep

PYTEST := $(BIN)/pytest -n auto --dist worksteal

check: lint
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS) tests/unit

test: setup-test
	$(PYTEST) -m 'not slow and not flips and not crowd and not chaos and not pubsub and not kube and not schedulers and not ray and not vm' $(PYTEST_ARGS) $(TESTS)

test-all: setup-test
	@$(BIN)/python -m tests.gate all

# The tests of a file share a result that takes minutes to build.
test-slow: setup-test
	$(BIN)/pytest -n auto --dist loadfile -m slow $(PYTEST_ARGS) $(TESTS)

test-flips: setup-test
	$(PYTEST) -m flips $(PYTEST_ARGS) $(TESTS)

N ?= 20
stress: setup-test
	@[ -n "$(TEST)" ] || { echo 'TEST=tests/FILE.py::test_NAME has to name a test' >&2; exit 2; }
	@$(BIN)/python -m tests.gate.stress $(N) $(TEST)

tools:
	@tests/gate/tools.sh

# One after the other, because parallel tests would wait too long for processors.
test-crowd: setup-test
	$(BIN)/pytest -m crowd $(PYTEST_ARGS) $(TESTS)

# The seed is printed first; a failure prints the command that repeats it.
test-chaos: setup-test
	$(BIN)/pytest -m chaos $(PYTEST_ARGS) $(TESTS)/chaos

chaos: setup-test
	CHAOS_SECONDS=600 $(BIN)/pytest -m chaos $(PYTEST_ARGS) $(TESTS)/chaos

# On the emulator that PUBSUB_EMULATOR_HOST names, or on one that is started for the whole run.
test-pubsub: setup-test
	$(BIN)/pytest -m pubsub $(PYTEST_ARGS) $(TESTS)

# On the cluster that TEST_KUBECONFIG names, or on two clusters side by side, from KUBEBUILDER_ASSETS or built from source.
# Two are faster, because the tests mostly wait. The tests of a file share the manifests that they apply.
test-kube: setup-test
	@if [ -n "$$TEST_KUBECONFIG" ]; then workers=0; \
	    else KUBEBUILDER_ASSETS=$$($(BIN)/python -m tests.kube.build) || exit 1; export KUBEBUILDER_ASSETS; workers=2; fi; \
	    $(BIN)/pytest -n $$workers --dist loadfile --no-loadscope-reorder -m kube $(PYTEST_ARGS) $(TESTS)

# One after the other, because all use one cluster.
test-schedulers: setup-test
	@$(BIN)/python -m tests.support.htcondor_package >/dev/null || echo 'Each skipped test reports what it needs.' >&2
	$(BIN)/pytest -m schedulers $(PYTEST_ARGS) $(TESTS)

# In an environment of its own, because Ray needs several hundred megabytes. One after the other, because all use one head.
test-ray: setup-test
	@$(BIN)/python -m tests.ray.build >/dev/null || echo 'Each skipped test reports what it needs.' >&2
	$(BIN)/pytest -m ray $(PYTEST_ARGS) $(TESTS)

# On two mounts of one NFS export: make test-nfs TEST_NFS_MOUNTS=/mnt/one:/mnt/two
test-nfs: setup-test
	@[ -n "$$TEST_NFS_MOUNTS" ] || { echo 'TEST_NFS_MOUNTS=ONE:TWO has to name two mounts of one NFS export' >&2; exit 2; }
	$(BIN)/pytest -m 'nfs and not vm' $(PYTEST_ARGS) $(TESTS)

# In an emulated machine whose disk is made first, once per host.
test-vm: setup-test
	@[ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.vm.build >/dev/null || echo 'Each skipped test reports what it needs.' >&2
	$(BIN)/pytest -m vm $(PYTEST_ARGS) $(TESTS)/vm

# In an environment of its own, because checkov needs two hundred megabytes.
checkov: setup-test $(VENV)/checkov/bin/checkov
	$(BIN)/python -m tests.support.checks.checkov $(VENV)/checkov/bin/checkov

$(VENV)/checkov/bin/checkov: | setup-test
	@$(BIN)/python -m venv $(VENV)/checkov
	@$(VENV)/checkov/bin/pip install --quiet --disable-pip-version-check checkov==3.3.30

lint: setup-test
	@$(MAKE) --no-print-directory --output-sync --jobs 4 types types-of-tests format imports house

format: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-test
	$(BIN)/mypy

# In a cache of its own, because the other run has other settings.
types-of-tests: setup-test
	$(BIN)/mypy --config-file tests/mypy.ini --cache-dir .mypy_cache/tests

imports: setup-test
	$(BIN)/lint-imports --no-logo

dashboards: setup-test
	@$(BIN)/python -m deploy.grafana.dashboards

pictures: setup-test
	@$(BIN)/python -m tests.support.pictures

house: setup-test
	@$(BIN)/python -m tests.house

# With more arguments: make simulate SEEDS=100 SIMULATE_ARGS='few step'.
SEEDS ?= 5
simulate: setup
	@$(BIN)/provisioner simulate --seeds $(SEEDS) --out build/simulation $(SIMULATE_ARGS)

# These benches take minutes or need daemons, so each has a target of its own.
OWN_BENCHES := %/bench_kube.py %/bench_gce.py %/bench_slurm.py %/bench_shards.py

bench: setup-test
	@code=0; for bench in $(filter-out $(OWN_BENCHES),$(wildcard tests/bench/bench_*.py)); do $(BIN)/python $$bench || code=1; done; exit $$code

# On a cluster of its own, like test-kube.
bench-kube: setup-test
	$(BIN)/python -m tests.bench.bench_kube $(BENCH_ARGS)

bench-gce: setup-test
	@$(BIN)/python -m tests.bench.bench_gce

# On a cluster of its own, like test-schedulers.
bench-slurm: setup-test
	@$(BIN)/python -m tests.bench.bench_slurm $(BENCH_ARGS)

# Loops that share the pools of one HostFactory, with their state on a real Kubernetes API server.
bench-shards: setup-test
	@$(BIN)/python -m tests.bench.bench_shards $(BENCH_ARGS)

# The build tools have an environment of their own, from their lock.
TOOLS := build/tools

$(TOOLS)/installed: deploy/requirements/build.lock
	@$(IS_NEW_ENOUGH)
	@test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

dist: $(TOOLS)/installed
	@$(TOOLS)/bin/python deploy/bundle/bundle.py $(DIST_ARGS)

lock: $(TOOLS)/installed
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@deploy/requirements/lock.sh $(TOOLS)/bin/uv $(LOCK_ARGS)

image:
	@deploy/docker/image.sh $(IMAGE)

# The digest that the registry (REGISTRY, or Docker's) has now for the tag in the Dockerfile; needs docker's buildx.
image-base:
	@tag=$$(sed -n 's/^ARG BASE=\(.*\)@.*/\1/p' deploy/docker/Dockerfile); image=$${REGISTRY:-docker.io/library}/$$tag; \
	    digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$$image") || exit 1; \
	    echo "$$digest" | grep -qxE 'sha256:[0-9a-f]{64}' || { echo "$$image: '$$digest' is no digest" >&2; exit 1; }; \
	    sed -i "s|^ARG BASE=.*|ARG BASE=$$tag@$$digest|" deploy/docker/Dockerfile; grep '^ARG BASE=' deploy/docker/Dockerfile

sbom:
	@$(IS_NEW_ENOUGH)
	@rm -rf build/sbom && mkdir -p build/sbom
	@PYTHON=$(PYTHON) deploy/docker/environment.sh build/sbom/provisioner build/sbom.cdx.json
	@echo build/sbom.cdx.json

setup: $(VENV)/installed
setup-test: $(VENV)/installed-test

$(VENV)/installed: setup.cfg pyproject.toml
	@$(IS_NEW_ENOUGH)
	@echo 'Setting up $(VENV) (a minute or two, once) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable '.[all]'
	@# Bytecode is made now: the scripts may run where the user may not write it.
	@$(BIN)/python -m compileall -q provisioner hf_scripts
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo 'Setting up the tests ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
