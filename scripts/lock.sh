#!/usr/bin/env bash
# Write anew what scripts/prepare.sh installs: requirements/build.txt, what envkit and what comes as source is built with;
# run.txt, and test.txt with what the tests need besides. Every package in one version, every file of it by SHA-256, for
# each Python from 3.11 on. They are looked up through the index that pip is configured for.
#   scripts/lock.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
settings=$("$work/venv/bin/python" -m pip config list)
setting() { # the value of a setting of pip; the environment's counts more
    { grep "^:env:\.$1=" <<<"$settings" || grep "\.$1=" <<<"$settings" || true; } | head -n 1 | cut -d "'" -f 2
}
index=$(setting index-url)
[ -z "$index" ] || export UV_DEFAULT_INDEX=$index
certificates=$(setting cert)
[ -z "$certificates" ] || export SSL_CERT_FILE=$certificates
locked() { # the lock of what the words name
    echo "# Written by scripts/lock.sh."
    "$work/venv/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url "$@"
}
printf '%s\n' 'hatchling>=1.27' editables poetry-core setuptools wheel >"$work/build.in"
locked "$work/build.in" >"$work/build.txt"
locked pyproject.toml -c "$work/build.txt" >"$work/run.txt"
locked pyproject.toml --extra test -c "$work/build.txt" >"$work/test.txt"
mkdir -p requirements
mv "$work"/{build,run,test}.txt requirements/
