# Each target does its own set-up on a fresh machine; nothing has to be run before it.
PYTHON ?= python3
BACKEND ?= pytorch
FILE ?=
# How many processes the tests are spread over: more than cores, since many tests wait.
JOBS ?= $(shell expr $$(nproc) + 4)
STUDY ?=
ARGS ?=
# The first import stores byte code; without it every command would compile its packages anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# uv, with what is configured for pip and by no file of its own; it works in /, so paths are absolute. Only uv itself
# comes by pip.
UV := $(BIN)/python -I coordinator/wattdock/launch/uv.py
UV_VERSION = $(shell sed -n 's/^  "\(uv>=[^"]*\)".*/\1/p' pyproject.toml)
# Its wheel is kept, so that a later clone needs no network.
UV_WHEELS := "$${XDG_CACHE_HOME:-$$HOME/.cache}/wattdock/uv"
PIP := $(BIN)/python -I -m pip -qq --disable-pip-version-check
SETUP := $(VENV)/.wattdock-setup
SETUP_DEV := $(VENV)/.wattdock-setup-dev
SETUP_DOCS := $(VENV)/.wattdock-setup-docs
PROTO := wattdock_proto/v1/runner.proto wattdock_proto/v1/node.proto
# Folders of the generator with what it needs, and of what it writes.
PROTOC := build/protoc
PROTO_OUT ?= proto

# Backends whose packages are locked for CPUs, and for this variant, too.
BACKENDS = $(foreach file,$(wildcard runners/*/requirements-cpu.lock),$(if $(wildcard $(dir $(file))requirements-$(VARIANT).lock),$(notdir $(patsubst %/,%,$(dir $(file))))))

# Images. Without BASE, a Dockerfile's own (NVIDIA's), or for VARIANT=cpu Debian's Python.
VARIANT ?= cuda
BASE ?=

.PHONY: help setup install run study reference environments test coverage test-system test-all test-quick lint format proto docs images wheels locks compose-run compose-up compose-down bench fuzz soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables: BACKEND=pytorch FILE=experiment.yaml STUDY=study.yaml ARGS='--batch-size 8 …'"

setup: $(SETUP) ## Make .venv with the wattdock command

RECENT := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "wattdock needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); set PYTHON=…" >&2; exit 3; }

# One at a time: a second make waits for the first, and an environment that was left half made is made anew.
define UNDER_LOCK
import pathlib, subprocess, sys
sys.path.insert(0, "coordinator")
from wattdock.files import locked
try:
    with locked(pathlib.Path(".venv.lock"), wait_s=3600, say=lambda line: print(line, file=sys.stderr)):
        sys.exit(subprocess.call(sys.argv[1:]))
except (OSError, KeyboardInterrupt) as error:
    print("cannot use .venv.lock:", getattr(error, "strerror", "interrupted"), file=sys.stderr)
    sys.exit(3)
endef
export UNDER_LOCK
LOCKED := $(RECENT); $(PYTHON) -c "$$UNDER_LOCK" $(MAKE) --no-print-directory

# Whether the driver's library loads and answers, which is how the meter finds GPUs; on WSL and in containers too.
GPU_VISIBLE := $(PYTHON) -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())' 2>/dev/null

$(SETUP): pyproject.toml
	@if $(GPU_VISIBLE); then what='.[report,serve,zeus]' megabytes=215; else what='.[report,serve]' megabytes=155; fi; \
	  $(LOCKED) install WHAT="$$what" MEGABYTES=$$megabytes STAMPS='$@'

$(SETUP_DEV): pyproject.toml
	@$(LOCKED) install WHAT='.[dev]' MEGABYTES=255 STAMPS='$(SETUP) $@'

$(SETUP_DOCS): pyproject.toml
	@$(LOCKED) install WHAT='.[report,serve,docs]' MEGABYTES=130 STAMPS='$(SETUP) $@'

# Zeus leaves its own development folders where they could shadow anyone's.
STRAYS := $(foreach name,tests docs examples,$(VENV)/lib/python*/site-packages/$(name))

install: # Only under the lock; WHAT, MEGABYTES and STAMPS are given.
	@$(BIN)/python -I -m pip --version >/dev/null 2>&1 || $(PYTHON) -I -m venv --clear $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make $(VENV); on Debian: apt-get install python3-venv" >&2; exit 3; }
	@test $(lastword $(STAMPS)) -nt pyproject.toml || \
	  { echo "setting up $(VENV) (about $(MEGABYTES) MB to download)" && \
	    { $(PIP) install --no-index --find-links $(UV_WHEELS) '$(UV_VERSION)' 2>/dev/null || \
	      { $(PIP) install '$(UV_VERSION)' && \
	        { $(PIP) download --no-deps --dest $(UV_WHEELS) '$(UV_VERSION)' 2>/dev/null || true; }; } || \
	      { echo 'cannot fetch uv; check the network, and the package index in `pip config list`' >&2; exit 3; }; } && \
	    $(UV) pip install --quiet --python '$(CURDIR)/$(BIN)/python' --editable '$(CURDIR)/$(WHAT)' && rm -rf $(STRAYS) && touch $(STAMPS); }

# A file says which backend it is for, unless BACKEND was given by hand.
BACKEND_FLAG = $(if $(or $(if $(FILE),,default),$(filter command,$(origin BACKEND))),--backend '$(BACKEND)')

run: $(SETUP) ## Measure: make run BACKEND=pytorch ARGS='--batch-size 8'
	@$(BIN)/wattdock run $(if $(FILE),'$(FILE)') $(BACKEND_FLAG) $(ARGS)

study: $(SETUP) ## Plan and measure a study: make study STUDY=examples/batch-sizes.yaml ARGS=--resume
	@test -n '$(STUDY)' || { echo "name a study: make study STUDY=examples/batch-sizes.yaml" >&2; exit 2; }
	@$(BIN)/wattdock plan '$(STUDY)'
	@$(BIN)/wattdock run '$(STUDY)' $(ARGS)

reference: $(SETUP) ## Write docs/reference and docs/study.schema.json again from settings, commands, columns and the wire
	@$(BIN)/python docs/site_reference.py

environments: $(SETUP_DEV) ## Make the runners' own environments, as their first use would
	@$(BIN)/python -m wattdock.launch $(patsubst runners/%/requirements-cpu.lock,%,$(wildcard runners/*/requirements-cpu.lock))

test: environments ## Run what a change needs, every backend's engine too
	@$(BIN)/python -m compileall -q coordinator proto runners/common runners/*/*.py
	@$(BIN)/python -m pytest --numprocesses $(JOBS) -m 'not system' $(ARGS)

# Not in `test`: counting makes what runs in the tests' own processes two thirds slower.
coverage: environments ## Run the same, and say how much of each room ran
	@$(MAKE) --no-print-directory test ARGS='--cov --cov-report=json:build/coverage.json $(ARGS)'

test-system: environments ## Run the other tests: containers, Slurm, browser, docs' commands, whole studies, fuzz
	@$(BIN)/python -m pytest --numprocesses $(JOBS) -m system $(ARGS)

test-all: environments ## Run all tests at once, so that some compute while others wait
	@$(BIN)/python -m compileall -q coordinator proto runners/common runners/*/*.py
	@$(BIN)/python -m pytest --numprocesses $(JOBS) $(ARGS)

test-quick: $(SETUP_DEV) ## Run the tests that start no engine, container or browser: minutes on two cores
	@$(BIN)/python -m pytest --numprocesses $(JOBS) -m 'not slow' $(ARGS)

lint: $(SETUP_DEV) ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPYPATH=$$(echo runners/* | tr ' ' :) $(BIN)/mypy coordinator runners/common/wattdock_runner runners/*/*.py spans/*.py examples/train/*.py docker/*.py docs/*.py tests benchmarks

format: $(SETUP_DEV) ## Apply the style
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

proto: $(SETUP) ## Generate the wire's code again from proto/
	@$(UV) pip install --quiet --python '$(CURDIR)/$(BIN)/python' --target '$(CURDIR)/$(PROTOC)' \
	  -r '$(CURDIR)/proto/requirements.txt'
	@PYTHONPATH=$(PROTOC) $(BIN)/python -m grpc_tools.protoc -I proto \
	  $(foreach kind,python pyi grpc_python,--$(kind)_out='$(PROTO_OUT)') $(PROTO)

docs: $(SETUP_DOCS) ## Build the site of docs/ into build/site; a link that leads nowhere is an error
	@$(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

images: $(foreach name,$(BACKENDS),$(if $(wildcard docker/$(name).Dockerfile),image-$(name))) image-coordinator ## Build all images; VARIANT=cpu for machines without a GPU

image-%: $(SETUP) ## Build one image: make image-vllm [BASE=…] [VARIANT=cpu]
	@$(BIN)/wattdock images build $* --variant $(VARIANT) $(if $(BASE),--base '$(BASE)') \
	  $(if $(BUILD_ARGS),--build-options '$(BUILD_ARGS)')

compose-run: ## Measure on a shared server, in containers only: make compose-run ARGS='--backend vllm'
	@docker/compose.sh run $(ARGS)

compose-up: ## Keep removing runners that a killed coordinator left behind
	@docker/compose.sh up

compose-down: ## End that, and whatever else compose runs for you
	@docker/compose.sh down

PYTORCH_CPU := https://download.pytorch.org/whl/cpu

wheels: $(BACKENDS:%=wheels-%) wheels-coordinator ## Fetch the wheels of all images' packages, so that they build without a network

wheels-%: $(SETUP)
	@fetch() { $(PIP) download --require-hashes --no-deps --only-binary :all: --dest build/wheels/$* \
	  -r $(if $(filter coordinator,$*),docker/coordinator.lock,runners/$*/requirements-$(VARIANT).lock) "$$@"; }; \
	  fetch $(if $(filter cpu,$(VARIANT)),|| { echo "asking PyTorch's own index too"; fetch --extra-index-url $(PYTORCH_CPU); })

LOCKS := $(subst /requirements,,$(patsubst runners/%.lock,%,$(wildcard runners/*/requirements-*.lock)))

locks: $(SETUP) $(LOCKS:%=lock-%) ## Choose versions of the runners' and the coordinator image's packages, and write their hashes down
	@$(COMPILE) '$(CURDIR)/pyproject.toml' --extra report --extra serve --output-file '$(CURDIR)/docker/coordinator.lock'

# Versions and hashes of all wheels, for every Python and machine; those of an earlier lock stay unless ARGS=--upgrade.
# Where the configured places lack the CPU build of torch: ARGS='--index $(PYTORCH_CPU)'. For CUDA, folders of wheels
# do not count, which may hold builds for CPUs.
COMPILE = UV_NO_BUILD=1 $(UV) pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes \
  --universal --python-version 3.11 $(ARGS)

lock-%: $(SETUP)
	@backend=$(firstword $(subst -, ,$*)) variant=$(lastword $(subst -, ,$*)); \
	  file='$(CURDIR)'/runners/$$backend/requirements-$$variant; work=$$(mktemp -d); trap 'rm -r "$$work"' EXIT; \
	  sed -n 's/^# wattdock: without //p' "$$file.txt" | tr ' ' '\n' >"$$work/without.txt"; \
	  if [ $$variant = cpu ]; then sed -n 's/^torch==[^+]*$$/&+cpu/p' "$$file.txt" >"$$work/cpu.txt"; \
	  else : >"$$work/cpu.txt"; export PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS=; fi; \
	  $(COMPILE) "$$file.txt" --excludes "$$work/without.txt" --constraints "$$work/cpu.txt" --output-file "$$file.lock"

bench: environments ## Measure what wattdock itself costs, containers too; make bench ARGS='--only pytorch' for a part
	@$(BIN)/python benchmarks/bench.py $(ARGS); code=$$?; \
	$(if $(ARGS),,$(BIN)/python benchmarks/container_costs.py || code=$$?;) exit $$code

fuzz: environments ## Read spoiled files and messages: make fuzz ARGS='--target result --batches 20 --seed 1'
	@$(BIN)/python tests/fuzz/run.py $(ARGS)

soak: $(SETUP_DEV) ## Disturb four coordinators and look for what is lost or left: make soak ARGS='--minutes 60'
	@$(BIN)/python benchmarks/soak.py $(ARGS)

clean: ## Remove environments and caches, not results
	rm -rf $(VENV) .venv.lock build runners/*/.venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
