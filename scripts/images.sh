#!/usr/bin/env bash
# Build images and stacks in full and verify them, if what they are made of has changed, and write down what was found in
# containers/verified.toml and easyconfigs/verified.toml. No GPU is needed; 25 GB of disk are, and half an hour on two cores.
#   scripts/images.sh [STACK]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/prepare.sh test
PATH=$PWD/.venv/bin:$PATH exec .venv/bin/python -m tests.built "$@"
