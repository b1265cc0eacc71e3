# `make help` lists what there is. Options: make reproduce SCALE=smoke CORES=4
SCALE ?= mini
STUDY ?= masc
TIER ?= core
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
PYTHON ?= python3.11
VENV ?= .venv
TORCH_INDEX ?=
CORPUS_DIR ?=

export PATH := $(abspath $(VENV))/bin:$(PATH)
CONFIG = scale=$(SCALE) study=$(STUDY) tier=$(TIER) $(if $(CORPUS_DIR),corpus_dir=$(CORPUS_DIR))
COMPUTED = results/$(SCALE)/summary/manifest.json

.PHONY: help setup reproduce figures test lint bench accept tune clean

help:                   ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "%-10s %s\n", $$1, $$2}' Makefile
	@echo "SCALE=$(SCALE) STUDY=$(STUDY) TIER=$(TIER) CORES=$(CORES) PYTHON=$(PYTHON) VENV=$(VENV)"
	@echo "TORCH_INDEX=$(TORCH_INDEX) (a package index for torch, e.g. its CPU builds)  CORPUS_DIR=$(CORPUS_DIR) (for mini-tofu)"

setup: $(VENV)/compute.stamp    ## make the environment in .venv from pinned requirements

reproduce: $(VENV)/compute.stamp    ## everything of STUDY at SCALE: data, models, runs, scores, tables, figures
	snakemake --cores $(CORES) --config $(CONFIG)
	@echo "lethe: see paper_tables/$(SCALE)/$(STUDY) and figures/$(SCALE)/$(STUDY)"
	@if [ -d expected/$(SCALE)/paper_tables ]; then lethe compare paper_tables/$(SCALE) expected/$(SCALE)/paper_tables; fi

figures: $(VENV)/paper.stamp    ## tables and figures only: from your results where there are some, else from the shipped ones
	@if [ -f $(COMPUTED) ]; \
	then snakemake --cores $(CORES) --config $(CONFIG) source=summary; \
	else snakemake --cores $(CORES) --profile profiles/figures --config $(CONFIG) source=shipped; fi

test: lint              ## linters, then all tests: the fast ones first
	pytest -q -n $(CORES) --dist loadfile -m "not slow"
	pytest -q -m slow

lint: $(VENV)/dev.stamp ## linters only
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check -l 120 Snakefile workflow/rules
	for scale in smoke paper; do snakemake --lint --config scale=$$scale || exit 1; done

accept: $(VENV)/paper.stamp     ## copy SCALE's summary, tables and figures to expected/, to be looked at and committed
	lethe accept --scale $(SCALE)

bench: $(VENV)/compute.stamp    ## what the speed of the stages comes from, measured on SCALE's main model
	lethe bench --scale $(SCALE) --out results/$(SCALE)/bench.csv

tune: $(VENV)/compute.stamp     ## the trials that mini's settings were chosen by, in a world of their own (config/tuning.yaml)
	snakemake --cores $(CORES) --config scale=tuning study=tuning
	for benchmark in tofu-forget10 muse-news muse-books; do lethe tune --benchmark $$benchmark || exit 1; done

clean:                  ## delete what was made at SCALE
	rm -rf $(foreach folder,results figures paper_tables work,$(folder)/$(SCALE) $(folder)/$(SCALE)-shipped)

$(VENV)/paper.stamp: envs/requirements-paper.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -r envs/requirements-paper.txt
	$(VENV)/bin/pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/compute.stamp: envs/requirements.txt $(VENV)/paper.stamp
	$(if $(TORCH_INDEX),$(VENV)/bin/pip install -q --index-url $(TORCH_INDEX) $$(grep ^torch== envs/requirements.txt))
	$(VENV)/bin/pip install -q -r envs/requirements.txt
	touch $@

$(VENV)/dev.stamp: envs/requirements-dev.txt $(VENV)/compute.stamp
	$(VENV)/bin/pip install -q -r envs/requirements-dev.txt
	touch $@
