#!/usr/bin/env bash
# Snakemake runs this in the new environment: the library itself is not on a package index.
set -euo pipefail
pip install --no-deps --no-build-isolation -e .
