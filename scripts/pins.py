#!/usr/bin/env python3
"""Print the SHA-256 and the name of every file that NAME==VERSION means on the hosts that the easyconfigs serve.

    scripts/pins.py numpy==2.2.6 horovod==0.28.1

Files are looked up through the index that pip is configured for.
Where a release has no wheel for a host, its sdist is named.
"""

import argparse
import ast
import subprocess
import sys
from collections.abc import Mapping

from unearth import PackageFinder, TargetPython

PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
ARCHS = ("x86_64", "aarch64")
GLIBCS = range(28, 16, -1)  # the minor versions that wheels of Linux may ask for, the newest first


def pip_settings() -> dict[str, str]:
    """pip's own settings by option name, the environment's before the files'."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings: dict[str, str] = {}
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        settings.setdefault(key.rpartition(".")[2], ast.literal_eval(value))
    return settings


def platforms(arch: str) -> list[str]:
    legacy = [f"manylinux2014_{arch}"] + (["manylinux2010_x86_64", "manylinux1_x86_64"] if arch == "x86_64" else [])
    return [f"manylinux_2_{glibc}_{arch}" for glibc in GLIBCS] + legacy


def finder(settings: Mapping[str, str], python: tuple[int, int], arch: str) -> PackageFinder:
    target = TargetPython(py_ver=python, platforms=platforms(arch), impl="cp")
    found = PackageFinder(index_urls=settings.get("index-url", "").split(), target_python=target)
    for url in settings.get("extra-index-url", "").split():
        found.add_index_url(url)
    for place in settings.get("find-links", "").split():
        found.add_find_links(place)
    return found


def pins(requirement: str, settings: Mapping[str, str]) -> dict[str, str]:
    """File name -> SHA-256, over all hosts."""
    found: dict[str, str] = {}
    for python in PYTHONS:
        for arch in ARCHS:
            best = finder(settings, python, arch).find_best_match(requirement).best
            if best is None or best.link.filename in found:
                continue
            hashes = best.link.hash_option or {}
            found[best.link.filename] = hashes.get("sha256", ["no SHA-256 in the index"])[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="+", metavar="NAME==VERSION")
    settings = pip_settings()
    for requirement in parser.parse_args().requirements:
        for filename, sha256 in pins(requirement, settings).items():
            print(sha256, filename)


if __name__ == "__main__":
    main()
