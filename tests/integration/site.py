"""A site in a temporary folder: its own home, recipes of toys that build in seconds, real envkit processes."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envkit.machine.host import Platform
from envkit.machine.modules_tool import find_modules_tool

TOYS = Path(__file__).with_name("toys")
PATIENCE_S = 240.0
TOOLS = (
    "lmod", "mount", "gcc", "g++", "make", "patch", "cmake", "mpirun", "mpicxx", "ccache", "apptainer", "debootstrap",
    "fuse-overlayfs", "setpriv", "unshare", "useradd", "usermod", "tclsh", "chromium", "docker-registry", "openssl",
    "ip", "ps", "srun", "slurmctld", "slurmd", "munged", "sshd", "ssh", "aarch64-linux-gnu-gcc",
)  # fmt: skip
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# what stands before a command of root's that is to become another user, who may mount by FUSE: /dev/fuse may be root's
OPEN_FUSE = """
mount -t tmpfs none /mnt
mknod -m 666 /mnt/fuse c 10 229
mount --bind /mnt/fuse /dev/fuse
umount -l /mnt
exec "$@"
"""
FUSE_FOR_ALL = ("unshare", "--mount", "sh", "-ec", OPEN_FUSE, "sh")


def missing_tool(tool: str) -> str | None:
    """Say why a tool cannot be used here, None if it can."""
    if tool == "lmod":
        found = find_modules_tool()
        return None if found and found.kind == "Lmod" else "Lmod is not installed"
    if tool == "mount":
        probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
        return None if probe.returncode == 0 else "file systems cannot be mounted (not root, or a plain container)"
    return None if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") else f"{tool} is not installed"


def needs(*tools: str) -> None:
    """Skip the test where a tool is missing; in CI, where every tool is installed, fail."""
    for reason in filter(None, map(missing_tool, tools)):
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI every tool has to be there: {reason}")
        pytest.skip(reason)


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true, and return it."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for: {what}"
        time.sleep(0.1)
    return found


@dataclass(frozen=True, kw_only=True)
class Running:
    """An envkit process, with what it says going to files."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path

    @property
    def out(self) -> str:
        return self.stdout.read_text()

    @property
    def err(self) -> str:
        return self.stderr.read_text()

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Return the exit status; negative after a signal."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"envkit did not end\n{self.out}\n{self.err}") from None

    def expect(self, status: int) -> "Running":
        """Wait for the end, and check the exit status."""
        assert self.wait() == status, f"{self.process.args!r}\n{self.out}\n{self.err}"
        return self

    def stop(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.wait()


@dataclass(frozen=True, kw_only=True)
class Site:
    """A person's view of a machine. Every process of it is known by its HOME."""

    folder: Path
    toys: Path
    recipes: Path
    env: Mapping[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def prefix(self) -> Path:
        return self.folder / "prefix"

    @property
    def tree(self) -> Path:
        return self.prefix / str(Platform.own())

    def start(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        prefix: Path | None = None,
        before: Sequence[str] = (),
    ) -> Running:
        """Start envkit with some words; ``before`` is a program that becomes it."""
        number = len(list(self.folder.glob("*.out")))
        stdout, stderr = self.folder / f"{number}.out", self.folder / f"{number}.err"
        envkit = shutil.which("envkit", path=self.env["PATH"])
        assert envkit is not None
        argv = [*before, envkit, *map(str, words)]
        if "--prefix" not in argv:
            argv[len(before) + 2 : len(before) + 2] = ["--prefix", str(prefix or self.prefix)]
        with stdout.open("xb") as out, stderr.open("xb") as err:
            process = subprocess.Popen(
                argv, env={**self.env, **(env or {})}, cwd=self.home, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        return Running(process=process, stdout=stdout, stderr=stderr)

    def run(self, *words: str | Path, status: int = 0, **how: Any) -> Running:
        """Run envkit to its end, which has to be ``status``."""
        return self.start(*words, **how).expect(status)

    def install(self, toy: str, *words: str, **how: Any) -> Running:
        """Start installing a toy."""
        return self.start("install", self.recipe(toy), "--jobs", "1", *words, **how)

    def installed(self, toy: str, *words: str, **how: Any) -> Running:
        """Install a toy, which has to succeed."""
        return self.install(toy, *words, **how).expect(0)

    def recipe(self, toy: str) -> Path:
        return self.recipes / f"{toy}-1.0.eb"

    def own_recipes(self, source: str = "") -> "Site":
        """Return this site with a copy of the recipes that can be edited, and their source elsewhere.

        ``source`` is a URL, or "tampered" for a file that is not what the recipes pin.
        """
        own = self.folder / "recipes"
        shutil.copytree(self.toys, own)
        if source == "tampered":
            (own / "toy.c").write_text("int main(void) { return 0; }\n")
            source = f"file://{own}"
        for recipe in own.glob("*.eb") if source else ():
            recipe.write_text(recipe.read_text().replace(f"file://{self.toys}", source))
        return replace(self, recipes=own)

    def hold(self, *toys: str) -> None:
        """Let the build of these toys wait until it is let go."""
        for toy in toys:
            (self.home / f"hold-{toy}").touch()

    def let_go(self) -> None:
        for path in self.home.glob("hold-*"):
            path.unlink()

    def wait_for(self, running: Running, toy: str) -> None:
        """Wait until the build of a toy is under way."""
        began = self.home / f"at-{toy}"
        until(lambda: began.exists() or running.process.poll() is not None, f"the build of {toy}")
        assert began.exists(), f"{running.out}\n{running.err}"

    def begun(self, prefix: Path | None = None) -> list[str]:
        """Return the modules whose building has begun, in every installation so far."""
        return [event["module"] for event in self.events(prefix) if event["event"] == "begin"]

    def events(self, prefix: Path | None = None) -> list[dict[str, Any]]:
        """Return what eb's hooks have told in every installation so far, in order."""
        files = (prefix or self.prefix).glob("logs/*/events.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted(map(json.loads, lines), key=lambda event: float(event["time"]))

    def states(self) -> dict[str, str]:
        """Return the state of every environment, by ``envkit list``."""
        listed = json.loads(self.run("list", "--json").out)
        return {entry["name"]: entry["state"] for entry in listed["environments"]}

    def is_offered(self, toy: str) -> bool:
        """Say whether an environment is visible in any way."""
        listed = self.states().get(f"{toy}-1.0", "").startswith("installed")
        receipt = (self.tree / "environments" / f"{toy}-1.0.json").exists()
        assert listed == receipt
        return receipt

    def built(self) -> set[str]:
        """Return the modules that are there."""
        return {path.parent.name for path in (self.tree / "modules" / "all").glob("*/1.0*")}

    def processes(self) -> dict[int, str]:
        """Return every process with this home, with its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"HOME={self.home}".encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def process(self, text: str) -> int:
        """Return the one process whose command line has a text in it, waiting for it."""

        def look() -> list[int]:
            return [pid for pid, command in self.processes().items() if text in command]

        found: list[int] = until(look, f"a process {text!r}")
        return min(found)

    def is_quiet(self) -> bool:
        """Say whether no process of this site is left, after the time that the dying have."""
        deadline = time.monotonic() + 15
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes() == {}
        return True


def make_site(folder: Path, toys: Path) -> Site:
    """Make a site in a folder."""
    home = folder / "home"
    home.mkdir(parents=True)
    shutil.copy(TOYS / "step.sh", home)
    (home / "more-sources").touch()
    envkit = shutil.which("envkit")
    assert envkit is not None
    env = {
        "HOME": str(home),
        "PATH": f"{Path(envkit).parent}:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(toys.parent / "cache"),
        "TMPDIR": str(folder),
    }
    return Site(folder=folder, toys=toys, recipes=toys, env=env)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
