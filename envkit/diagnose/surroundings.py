"""Looking at the machine where a log was written: what is installed, what is on PATH, what has room."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from envkit.diagnose.rule import Conditions
from envkit.system import process
from envkit.system.resources import data

FULL = 20_000_000  # bytes free on a disk that counts as full
HEADERS = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
HOMES = ("HOROVOD_NCCL_HOME", "NCCL_HOME", "CUDA_HOME", "HOROVOD_CUDA_HOME", "CONDA_PREFIX")
Answer = tuple[bool | None, str]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A machine and an environment, by their variables. Each question has the answer yes, no or unknown (None)."""

    env: Mapping[str, str]

    def holds(self, wanted: Conditions) -> tuple[bool | None, list[str]]:
        """Say whether all that is wanted is so, and what was found. One that is not so refutes all."""
        answers = [self.package(name, version) for name, version in wanted.package.items()]
        answers += [self.package(name, None) for name in wanted.no_package]
        answers += [self.program(name, version) for name, version in wanted.program.items()]
        answers += [self.program(name, None) for name in wanted.no_program]
        answers += [self.no_header(wanted.no_header)] if wanted.no_header else []
        answers += [self.extension(wanted.extension)] if wanted.extension else []
        answers += [self.full(Path(wanted.full))] if wanted.full else []
        facts = [fact for _, fact in answers]
        if any(answer is False for answer, _ in answers):
            return False, facts
        return (True if all(answer for answer, _ in answers) else None), facts

    @cached_property
    def python(self) -> Mapping[str, Any] | None:
        """The facts that the first Python on PATH tells of itself; None if there is none."""
        for name in ("python", "python3"):
            done = process.capture([name, str(data("inside/packages.py"))], env=self.env)
            if done.status == 0:
                facts: Mapping[str, Any] = json.loads(done.stdout)
                return facts
        return None

    def package(self, name: str, wanted: str | None) -> Answer:
        """Say whether a Python package is there in a version that is wanted; without one, whether it is not there."""
        if self.python is None:
            return None, f"no Python was found that could tell of {name}"
        version = self.python["versions"].get(name)
        if version is None:
            return (True if wanted is None else None), f"{self.python['executable']} has no {name}"
        return wanted is not None and fits(version, wanted), f"{self.python['executable']} has {name} {version}"

    def program(self, name: str, wanted: str | None) -> Answer:
        """Say whether a program is on PATH in a version that is wanted; without one, whether it is not there."""
        if process.which(name, path=self.env.get("PATH", "")) is None:
            return (True if wanted is None else None), f"there is no {name} on PATH"
        if wanted is None:
            return False, f"{name} is on PATH"
        done = process.capture([name, "--version"], env=self.env, timeout_s=10)
        version = re.search(r"\d+(\.\d+)+", done.stdout)
        return (fits(version[0], wanted), f"{name} on PATH is {version[0]}") if version else (None, f"{name} is there")

    def no_header(self, name: str) -> Answer:
        """Say whether a header is in none of the usual folders; where it is, nothing is known."""
        folders = [folder for key in HEADERS for folder in self.env.get(key, "").split(":") if folder]
        folders += [f"{self.env[key]}/include" for key in HOMES if self.env.get(key)]
        for folder in (*folders, "/usr/include", "/usr/local/include", "/usr/local/cuda/include"):
            if Path(folder, name).is_file():
                return None, f"{Path(folder, name)} is there"
        return True, f"{name} is in none of the usual folders"

    def extension(self, state: str) -> Answer:
        """Say whether Horovod's extension is absent, or cut; unknown where there is no Horovod."""
        if self.python is None or not self.python["horovod"]:
            return None, "no Horovod was found"
        extensions = self.python["extensions"]
        if state == "absent":
            return not extensions, f"{self.python['horovod']} has " + (
                f"{extensions[0]['path']}" if extensions else "no extension"
            )
        for file in extensions:
            if file["size"] < file["wanted"]:
                return True, f"{file['path']} has {file['size']} bytes instead of {file['wanted']}"
        return (None, "no extension was found") if not extensions else (False, f"{extensions[0]['path']} is whole")

    def full(self, folder: Path) -> Answer:
        """Say whether a folder has no room; a disk that has some now may have been full then."""
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            return None, f"{folder} is not there"
        return (True if free < FULL else None), f"{folder} has {free // 1_000_000} MB free"


def fits(version: str, wanted: str) -> bool:
    """Say whether a version is one of those wanted (">=2.1,<3")."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidVersion:
        return False
