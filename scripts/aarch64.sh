#!/usr/bin/env bash
# Build a stack for aarch64 and verify it on two ranks, in a Debian for arm64 in a folder that qemu runs on this machine.
#   scripts/aarch64.sh DIR [STACK]     tensorflow-2.21-cpu, or tensorflow-2.21-cpu-image; run again, it goes on where it was
# Needs root, Debian on x86_64, Linux 6.7 or newer, 8 GB of disk (9 with CUDA) and about an hour. Compilers are not emulated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# = 0 ]; then
    sed -n 's/^# //p; /^set/q' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
scripts/prepare.sh test
if [ "$(id -u)" = 0 ] && ! { command -v qemu-aarch64-static && command -v aarch64-linux-gnu-g++; } >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends qemu-user-static g++-aarch64-linux-gnu debootstrap
fi
exec .venv/bin/python -m tests.aarch64 "$@"
