"""The files of an installed MPI that are gone or changed, as the machine's package manager tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from envkit.knowledge.known import known
from envkit.system import process
from envkit.verify.outcome import HostFile

ASK_S = 20
VERIFIED = re.compile(r"^(?P<marks>missing|[.?SM5DLUGTPC]{8,9})\s+(?P<kind>[cdglr]\s)?\s*(?P<path>/.*?)(?: \(.*\))?$")


def not_as_installed(places: Iterable[Path]) -> list[HostFile]:
    """The programs and libraries that are gone or changed, of the packages that these files are of.

    And of those that such packages need for MPI. Nothing where no package manager knows the files.
    """
    paths = [str(place) for place in places]
    if not paths:
        return []
    files = list(of_debian(paths)) if process.which("dpkg-query") else list(of_rpm(paths))
    return sorted(files, key=lambda file: file.how != "gone")


def of_debian(paths: Iterable[str]) -> Iterator[HostFile]:
    """Yield what dpkg says."""
    answer = process.capture(["dpkg-query", "--search", *paths], timeout_s=ASK_S).stdout
    packages = {
        name.strip().partition(":")[0] for line in answer.splitlines() for name in line.split(": ")[0].split(",")
    }
    packages = {name for name in packages if name and not name.startswith("diversion ")}
    for _ in range(2):
        packages |= set(needed(packages))
    for package in sorted(packages):
        yield from verified(package, process.capture(["dpkg", "--verify", package], timeout_s=ASK_S).stdout)


def needed(packages: Iterable[str]) -> Iterator[str]:
    """Yield the packages for MPI that others need and that are installed."""
    names = sorted(packages)
    if not names:
        return
    answer = process.capture(["dpkg-query", "--show", "--showformat", "${Depends}, ", *names], timeout_s=ASK_S).stdout
    for word in re.split(r"[,|]", answer):
        match = re.match(r"\s*([a-z0-9][a-z0-9.+-]+)", word)
        if match and re.search(known("settings")["mpi_packages"], match[1]):
            yield match[1]


def of_rpm(paths: Iterable[str]) -> Iterator[HostFile]:
    """Yield what rpm says."""
    answer = process.capture(["rpm", "--query", "--queryformat", "%{NAME}\n", "--file", *paths], timeout_s=ASK_S).stdout
    for package in sorted({line for line in answer.splitlines() if re.fullmatch(r"[\w.+-]+", line)}):
        argv = ["rpm", "--verify", "--nomtime", "--nouser", "--nogroup", "--nomode", "--nodeps", "--noscripts", package]
        yield from verified(package, process.capture(argv, timeout_s=ASK_S).stdout)


def verified(package: str, date: str) -> Iterator[HostFile]:
    """Yield the programs and libraries in what a package manager says of a package; its settings are the site's."""
    for line in date.splitlines():
        match = VERIFIED.match(line.rstrip())
        if match and match["kind"] is None and re.search(r"/(s?bin|lib(32|64|exec)?)/", match["path"]):
            how = "gone" if match["marks"] == "missing" else "changed"
            yield HostFile(path=match["path"], how=how, package=package)
