#!/usr/bin/env bash
# Prepare a Debian or Ubuntu machine and a virtual environment with envkit in .venv.
#   scripts/prepare.sh [EXTRA]     EXTRA: test, for what the tests need
# As root, missing packages are installed. Otherwise the script says which are missing and goes on where it can:
# Open MPI and CMake then come from wheels, and the rest is demanded by 'envkit install' itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1-}

declare -A package_of=(
    [gcc]=gcc [g++]=g++ [make]=make [patch]=patch [mpicxx]=libopenmpi-dev [mpirun]=openmpi-bin [cmake]=cmake
    [ccache]=ccache
)

[ "$extra" != test ] || package_of+=(
    [tclsh]=tcl [ip]=iproute2 [srun]=slurm-client [slurmctld]=slurmctld [slurmd]=slurmd [munged]=munge
    [sshd]=openssh-server [ssh]=openssh-client [ps]=procps [chromium]=chromium
    [docker-registry]=docker-registry [openssl]=openssl
    [aarch64-linux-gnu-gcc]="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
)
PATH=$PATH:/usr/sbin:/sbin

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
            command -v "$candidate"
            return
        fi
    done
}

python=$(find_python)
missing=()
for program in "${!package_of[@]}"; do
    read -ra packages <<<"${package_of[$program]}"
    command -v "$program" >/dev/null || missing+=("${packages[@]}")
done
[ -x /usr/share/lmod/lmod/libexec/lmod ] || [ -n "${LMOD_CMD-}${MODULES_CMD-}" ] || missing+=(lmod)
if [ -z "$python" ]; then
    missing+=(python3 python3-dev python3-venv)
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        missing+=(python3-dev)
fi

if [ "${#missing[@]}" -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        there=()
        for package in "${missing[@]}"; do # Ubuntu has no package chromium: the test that wants a browser is skipped
            if apt-cache show "$package" >/dev/null 2>&1; then there+=("$package"); else echo "Not to be had here: $package"; fi
        done
        echo "Installing: ${there[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${there[@]}" >/dev/null
    else
        echo "Missing: ${missing[*]}"
        echo "An administrator installs them with: apt-get install ${missing[*]}"
    fi
fi

python=$(find_python)
if [ -z "$python" ]; then
    echo "Python 3.11, 3.12 or 3.13 is needed, and none is on PATH. Install one, then run this again." >&2
    exit 3
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install -qq --editable ".${extra:+[$extra]}"
if [ "$extra" = test ] && ! command -v apptainer >/dev/null && [ ! -x .venv/bin/apptainer ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        scripts/apptainer.sh "$PWD/.venv/apptainer" "$PWD/.venv/bin"
    else
        echo "Missing: apptainer. As root, scripts/apptainer.sh puts one into .venv."
    fi
fi
