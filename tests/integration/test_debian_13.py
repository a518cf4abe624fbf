"""README's first command on a fresh Debian 13: its compiler, its Python and its MPI are newer than those of Debian 12.

A minimal system is made by debootstrap in a folder of the test. All that runs in it has mounts and processes of its
own, which end with the command: nothing is left mounted or running, however the test ends.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from envkit.apptainer.image_plan import mirror
from envkit.system.files import discard

from ..checkout import checkout, clone
from ..stacks import BUILD_S
from .site import SYSTEM_PATH, needs

pytestmark = [pytest.mark.integration, pytest.mark.all]

STACK = "tensorflow-2.21-cpu"  # PyTorch's wheels for CPUs are on a server of its own, which not every machine reaches
SUITE = "trixie"
CLONE = "/root/envkit"
PREFIX = "root/.local/share/envkit"
APART = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
# $1 is the new root, the words up to "--" are folders that it is to show. The shell stays, as the first process there.
ENTER = """
root=$1; shift
for folder in dev sys; do mount --rbind /$folder "$root/$folder"; done
mount -t proc none "$root/proc"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
mount -t tmpfs -o mode=755 none "$root/run"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"; mount --bind -o ro "$1" "$root$1"; shift
done
shift
status=0
chroot "$root" "$@" || status=$?
exit "$status"
"""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
NETWORK = re.compile(r"(https?|ftp|all|no)_proxy", re.IGNORECASE)
OF_APT = re.compile(r"Acquire::(https?|Check|Force|Languages|Retries)\b")
PLACES = ("find-links", "index-url", "extra-index-url")
FILES = ("cert", "client-cert")
OF_PIP = (*PLACES, *FILES, "no-index", "trusted-host", "proxy", "timeout", "default-timeout", "retries")


def output(*argv: str) -> str:
    """Return what a program of this machine prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def told_to_apt() -> str:
    """How this machine's apt gets packages, but for where they are."""
    lines = output("apt-config", "dump").splitlines(keepends=True)
    return "".join(line for line in lines if OF_APT.match(line) and "Detect" not in line)


def told_to_pip() -> dict[str, str]:
    """What this machine's pip is told of where packages are, by files and, which counts more, by variables."""
    listed = output(sys.executable, "-m", "pip", "config", "list").splitlines()
    pairs = [line.partition("=") for line in sorted(listed, key=lambda line: line.startswith(":env:"))]
    told = {key.rpartition(".")[2]: " ".join(ast.literal_eval(value).split()) for key, _, value in pairs}
    return {key: value for key, value in told.items() if key in OF_PIP}


def local(address: str) -> Path | None:
    """Where on this machine something is that pip is told of; None if it is elsewhere."""
    parts = urlsplit(address)
    return Path(unquote(parts.path)) if parts.scheme == "file" or address.startswith("/") else None


def folders(addresses: Iterable[str]) -> list[Path]:
    """The folders of this machine among places that pip asks, and those that their pages lead to."""
    found = {path for path in map(local, addresses) if path and path.is_dir()}
    pages = [page for folder in found for pattern in ("*.html", "*/*.html") for page in folder.glob(pattern)]
    for page in pages:
        links = re.findall(r'href="([^"]+)"', page.read_text())
        there = (local(urljoin(page.as_uri(), link)) for link in links)
        found |= {path.parent for path in there if path and path.parent.is_dir()}
    return sorted(found)


class Machine:
    """A minimal Debian in a folder, with this machine's ways to packages."""

    def __init__(self, root: Path, mirror: str, suite: str = SUITE) -> None:
        self.root = root
        self.suite = suite
        self.pip = told_to_pip()
        self.shown = folders(address for key in PLACES for address in self.pip.get(key, "").split())
        self.env = {"HOME": "/root", "PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
        self.env |= {key: os.environ[key] for key in os.environ if NETWORK.fullmatch(key) or key == "SSL_CERT_FILE"}
        self.bootstrap(mirror)
        self.put("/etc/apt/apt.conf.d/00host", told_to_apt())
        self.put("/etc/pip.conf", "[global]\n" + "".join(f"{key} = {value}\n" for key, value in self.pip.items()))
        named = [self.pip.get(key) for key in FILES] + [self.env.get("SSL_CERT_FILE"), CERTIFICATES]
        for file in ("/etc/resolv.conf", "/etc/hosts", *filter(None, named)):
            if Path(file).is_file():
                self.put(file, Path(file).read_text())

    def bootstrap(self, mirror: str) -> None:
        """Make the root."""
        made = ["debootstrap", "--variant=minbase", "--include=ca-certificates", self.suite, str(self.root), mirror]
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:{SYSTEM_PATH}"}
        done = subprocess.run(
            [*APART, *made], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def put(self, file: str, text: str) -> None:
        """Write a file of the root, and never through a link, which would lead out of it."""
        path = self.root / file.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the root, as root, in the clone."""
        env = [f"{key}={value}" for key, value in self.env.items()]
        inside = ["/usr/bin/env", "--ignore-environment", f"--chdir={CLONE}", *env, *argv]
        enter = ["sh", "-ec", ENTER, "sh", str(self.root), *map(str, self.shown), "--", *inside]
        return subprocess.run(
            [*APART, *enter], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S
        )

    def said(self, *argv: str) -> str:
        """Return what a program in the root prints, which has to succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@contextmanager
def bare(tmp_path: Path, suite: str = SUITE) -> Iterator[Machine]:
    """A minimal Debian with a clone in it; of one that failed, only the logs of the installation are left."""
    needs("mount", "debootstrap", "setpriv", "unshare", "apt-config")
    where = mirror()
    if where is None:
        pytest.skip("this machine's apt names no mirror of Debian")
    root = tmp_path / "root"
    try:
        machine = Machine(root, where, suite)
        clone(root / CLONE.removeprefix("/"))
        yield machine
    finally:
        mounted = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {root}" in line]
        assert mounted == []  # or what is mounted there would be removed
        if (logs := root / PREFIX / "logs").is_dir():
            shutil.copytree(logs, tmp_path / "logs", symlinks=True)
        discard(root)


@pytest.fixture
def debian_13(tmp_path: Path) -> Iterator[Machine]:
    """A minimal Debian 13."""
    with bare(tmp_path) as machine:
        yield machine


@checkout
@pytest.mark.builds
def test_the_first_command_of_readme(debian_13: Machine) -> None:
    done = debian_13.run("scripts/quickstart.sh", "tensorflow")
    print(done.stdout, done.stderr)  # pytest shows it where the test fails
    assert done.returncode == 0
    assert f"PASS  {STACK}: 2 ranks" in done.stdout
    assert f"Installed {STACK}." in done.stdout
    listed = json.loads(debian_13.said(".venv/bin/envkit", "list", "--json"))
    states = {one["name"]: one["state"] for one in listed["environments"]}
    assert [name for name, state in states.items() if state.startswith("installed")] == [STACK], states
    receipt = json.loads(debian_13.said(".venv/bin/envkit", "show", STACK, "--json"))
    assert receipt["python"].startswith("3.13.")
    assert receipt["mpi"]["family"] == "Open MPI" and receipt["mpi"]["version"].startswith("5.0.")
    assert debian_13.said("gcc", "-dumpversion") == "14"
