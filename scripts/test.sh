#!/usr/bin/env bash
# Pass the tests: style, types, shell scripts, unit tests, and the integration tests with the real tools.
#   scripts/test.sh [ARGUMENT of pytest]...     for example: scripts/test.sh -m 'not integration'
#   scripts/test.sh --all                       build and verify everything from nothing, also what has not changed
#   scripts/test.sh --record                    write down what has passed of what had changed: commit tests/passed.toml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/prepare.sh test
PATH=$PWD/.venv/bin:$PATH
ruff check
ruff format --check
mypy
unset PYTHONDONTWRITEBYTECODE # or each of thousands of processes compiles everything anew
exec pytest --numprocesses "$(($(nproc) + 1))" "$@" # many tests wait; more at a time run into their time limits
