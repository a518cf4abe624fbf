"""The container runtime of this machine, and whether it can build and run here: found out beforehand."""

import getpass
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envkit.errors import HostProblem, Problem
from envkit.machine import subids
from envkit.system import process

SYS_RESOURCE = 24
PROGRAMS = ("apptainer", "singularity")
INSTALL = (
    "Ask the site's support for Apptainer, or load its module. On a machine of your own: RHEL and Fedora: dnf install "
    "apptainer (EPEL); Ubuntu: add-apt-repository ppa:apptainer/ppa, apt install apptainer; without root: Apptainer's "
    "install-unprivileged.sh. envkit's scripts/prepare.sh test puts one into .venv on Debian."
)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Apptainer, or SingularityCE: the program, and its version such as "1.4.5"."""

    path: Path
    family: str
    version: str


@cache
def find(path: str | None = None) -> Runtime | None:
    """Return the first runtime on PATH, or on the search path given; Apptainer before Singularity."""
    for program in PROGRAMS:
        executable = process.which(program, path=path)
        done = process.capture([executable, "--version"], timeout_s=20) if executable else None
        if executable and done and (match := re.search(r"^([\w-]+) version (\S+)", done.stdout)):
            family = "Apptainer" if match[1] == "apptainer" else "SingularityCE"
            return Runtime(path=Path(executable), family=family, version=match[2])
    return None


def require() -> Runtime:
    """Return the runtime. Raises HostProblem without one."""
    runtime = find()
    if runtime is None:
        raise HostProblem(what="There is neither apptainer nor singularity on PATH.", fix=INSTALL)
    return runtime


def build_words() -> list[str]:
    """Return what a build by this user has to be told."""
    return ["--fakeroot"] if os.geteuid() or lacks_capability(SYS_RESOURCE) else []


def build_problems(env: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yield what keeps this user from building an image."""
    if not build_words():
        return
    if os.geteuid() and (reason := no_user_namespace(env)):
        yield Problem(
            what=f"This user cannot build images: no user namespace can be made ({reason}).",
            fix="Ask an administrator to allow them (sysctl kernel.unprivileged_userns_clone=1, "
            "user.max_user_namespaces above 0; on Ubuntu 24.04 and later Apptainer's own AppArmor profile), build on "
            "another machine and take the file over (--from FILE.sif), or use --method easybuild.",
        )
    user = user_name()
    if files := subids.lacking(user):
        yield Problem(
            what=f"{user} has no range of subordinate ids in {subids.names(files)}, "
            "which a build with --fakeroot takes.",
            fix=subids.advice(user, files),
        )
    if os.geteuid() and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        yield Problem(
            what="/dev/fuse may not be used by this user, so that images cannot be mounted.",
            fix="Ask an administrator: chmod 666 /dev/fuse (modprobe fuse if it is missing).",
        )


def user_name() -> str:
    """Name this user; by number where the machine has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def no_user_namespace(env: Mapping[str, str]) -> str:
    """Say why this user can make no user namespace; nothing if one can be made. Tries it."""
    done = process.capture(["unshare", "--user", "--map-root-user", "true"], env=env, timeout_s=20)
    return "" if done.status == 0 else done.stderr.strip() or f"unshare ended with {done.status}"


def lacks_capability(number: int) -> bool:
    """Say whether this process lacks a capability of Linux (capabilities(7)), as root may in a virtual machine."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and not int(effective[1], 16) >> number & 1
