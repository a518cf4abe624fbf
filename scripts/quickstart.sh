#!/usr/bin/env bash
# Install Horovod by EasyBuild and verify it on two ranks; no GPU is needed.
#   scripts/quickstart.sh [pytorch|tensorflow] [OPTION of 'envkit install']...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/prepare.sh
exec .venv/bin/envkit install --method easybuild --framework "${1-pytorch}" "${@:2}"
