#!/usr/bin/env bash
# Install Horovod by EasyBuild and verify it on two ranks; no GPU is needed.
#   scripts/quickstart.sh [pytorch|tensorflow] [OPTION of 'envkit install']...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() {
    echo "Usage: scripts/quickstart.sh [pytorch|tensorflow] [OPTION of 'envkit install']..."
    echo "Install Horovod for PyTorch or TensorFlow by EasyBuild and verify it on two ranks; no GPU is needed."
    echo "It first runs scripts/prepare.sh, which as root installs what this machine lacks."
}

framework=pytorch
case ${1-} in
-h | --help)
    usage
    exit
    ;;
pytorch | tensorflow)
    framework=$1
    shift
    ;;
'' | -*) ;;
*)
    usage >&2
    echo "This is not known: $1" >&2
    exit 2
    ;;
esac
scripts/prepare.sh
exec .venv/bin/envkit install --method easybuild --framework "$framework" "$@"
