"""A world: a private view of the machine in which an environment is broken, and nothing real is changed.

The prefix is an overlay, /tmp, /dev/shm and the home are the world's own, and so are its processes. It is made by
``unshare`` in namespaces of its own (case.py), so that it ends with the process that made it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_RDONLY, MS_REMOUNT, MS_NOEXEC, MS_REC = 4096, 1, 32, 8, 16384
NEW_NETWORK = 0x40000000
GRACE_S = 8.0
RENAMES = ",redirect_dir=on,metacopy=off"  # folders of the layer below can be renamed
REPORT = 9  # the descriptor that the report goes to


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, as mount(2). Raises OSError."""
    words = (os.fsencode(str(word)) for word in (source, target, kind))
    if LIBC.mount(*words, flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")


@dataclass(kw_only=True)
class World:
    """What a kind may change, and what it may look at."""

    stack: str
    prefix: Path
    envkit: Path
    folder: Path
    extras: Path
    seed: int = 0
    lower: tuple[Path, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path("/")
    prelude: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=lambda: ["-n", "2"])
    before: list[str] = field(default_factory=list)
    shell: list[str] = field(default_factory=list)
    prefixed: str = ""
    renames: bool = True
    undo: list[Callable[[], None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.folder / "home"

    @property
    def out(self) -> Path:
        """Where the case keeps what it finds."""
        return self.folder / "out"

    def make(self) -> None:
        """Mount it all; to be called in namespaces of one's own."""
        for name in ("home", "out", "tmp", "upper", "work", "bin", "cwd"):
            (self.folder / name).mkdir()
        (self.folder / "tmp").chmod(0o1777)
        self.overlay(self.prefix, self.folder, self.lower)
        for place in (Path(__file__).parents[2], self.envkit.resolve().parents[1], self.prefix):
            if place.is_relative_to("/tmp"):  # is seen in the world's own, too
                seen = self.folder / "tmp" / place.relative_to("/tmp")
                seen.mkdir(parents=True, exist_ok=True)
                mount(str(place), seen, flags=MS_BIND | MS_REC)
        mount(str(self.folder / "tmp"), "/tmp", flags=MS_BIND | MS_REC)
        mount("zoo", "/dev/shm", "tmpfs", 0, "mode=1777")
        (self.folder / "bin" / "envkit").symlink_to(self.envkit)
        self.cwd = self.folder / "cwd"
        self.env = {
            "PATH": f"{self.folder / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "USER": "zoo",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "ENVKIT_PREFIX": str(self.prefix),
        }

    def overlay(self, place: Path, own: Path | None = None, lower: tuple[Path, ...] = ()) -> None:
        """Have what is changed in a folder lie elsewhere, from now on."""
        if own is None:
            own = self.folder / f"over{len(list(self.folder.glob('over*')))}"
            for name in ("upper", "work"):
                (own / name).mkdir(parents=True)
        below = ":".join(map(str, (*lower, place)))
        words = f"lowerdir={below},upperdir={own / 'upper'},workdir={own / 'work'}"
        try:
            mount("overlay", place, "overlay", 0, f"{words}{RENAMES if self.renames else ''}")
        except OSError:  # of a plain user: folders of the prefix cannot be renamed then
            mount("overlay", place, "overlay", 0, words)

    # What there is

    @cached_property
    def receipt(self) -> dict[str, Any]:
        """The environment's receipt."""
        return dict(json.loads(next(self.prefix.glob(f"*/environments/{self.stack}.json")).read_text()))

    @property
    def tree(self) -> Path:
        """The tree of the prefix that the environment is in."""
        return Path(self.receipt["tree"])

    def module(self, software: str) -> str:
        """The full name of the environment's module of a software."""
        return next(str(one["name"]) for one in self.receipt["modules"] if one["name"].startswith(f"{software}/"))

    def software(self, software: str) -> Path:
        """The folder of a software of the environment."""
        return self.tree / "software" / self.module(software)

    def site(self, software: str) -> Path:
        """The site-packages of a software of the environment."""
        return next(self.software(software).glob("lib/python3*/site-packages"))

    @property
    def horovod(self) -> Path:
        """Horovod's package."""
        return Path(self.receipt["horovod"])

    @property
    def framework(self) -> str:
        """What is imported."""
        return "torch" if self.receipt["framework"] == "pytorch" else "tensorflow"

    @property
    def extension(self) -> Path:
        """Horovod's compiled extension."""
        return next((self.horovod / self.framework).glob("mpi_lib*.so"))

    @property
    def base(self) -> Path:
        """The standard library of the Python below the environment's."""
        told = (self.software("Python") / "pyvenv.cfg").read_text()
        home = next(line.partition("=")[2].strip() for line in told.splitlines() if line.startswith("home"))
        return next(Path(home).parent.glob("lib/python3.*"))

    @property
    def mark(self) -> Path:
        """A file that says that a deed was done."""
        return self.folder / "home" / ".done"

    # What can be done

    def write(self, path: Path | str, text: str, mode: int = 0o644) -> Path:
        """Write a file, of the world's own folder if the path is relative."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)
        return place

    def program(self, name: str, body: str) -> Path:
        """Put a program first on PATH."""
        path = self.write(f"first/{name}", f"#!/bin/bash\n{body}\n", 0o755)
        self.first(path.parent)
        return path

    def first(self, folder: Path) -> None:
        """Put a folder first on PATH."""
        if not self.env["PATH"].startswith(f"{folder}:"):
            self.env["PATH"] = f"{folder}:{self.env['PATH']}"

    def python_path(self, *folders: Path) -> None:
        """Put folders on PYTHONPATH."""
        self.env["PYTHONPATH"] = ":".join(map(str, folders))

    def in_ranks(self, code: str) -> None:
        """Have Python code run in each rank as its interpreter starts, out of sight: the code sees RANK."""
        self.overlay(self.base)
        path = self.base / "sitecustomize.py"
        path.unlink(missing_ok=True)  # Debian's leads to /etc, which is the host's
        path.write_text(
            "import os, sys\n"
            "RANK = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ.get('HOROVOD_RANK')\n"
            "if RANK and any('inside/probe' in word for word in sys.orig_argv):\n"
            + "".join(f"    {line}\n" for line in code.splitlines())
        )

    def library(self, name: str, source: str, *options: str) -> Path:
        """Compile a shared object."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = self.write("source.c", source)
        argv = ["gcc", "-shared", "-fPIC", "-w", "-o", str(path), str(file), *options]
        subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PATH": "/usr/bin:/bin"})
        return path

    # How it runs

    def script(self, *commands: str) -> str:
        """The shell script of a user who does this and then verifies."""
        lines = [*self.prelude, f"cd {self.cwd}", *self.before, *commands]
        argv = " ".join([*self.prefixed.split(), "envkit", "verify", self.stack, *self.options, "--json"])
        return "\n".join([*lines, f"{argv} >&{REPORT} {REPORT}>&-", "status=$?", "exit $status"]) + "\n"

    def call(
        self,
        script: str,
        name: str,
        limit_s: float,
        during: Callable[[World, subprocess.Popen[bytes]], None] | None = None,
    ) -> dict[str, Any]:
        """Run a script of bash as the user; what came of it."""
        reader, writer = os.pipe()
        told: list[bytes] = []
        reading = threading.Thread(target=lambda: told.extend(iter(lambda: os.read(reader, 65536), b"")), daemon=True)
        reading.start()
        file = self.out / f"{name}.sh"
        file.write_text(script)
        there = self.places()
        began = time.monotonic()
        with (self.out / f"{name}.out").open("wb") as out, (self.out / f"{name}.err").open("wb") as err:
            running = subprocess.Popen(
                [*self.shell, "/bin/bash", "--noprofile", "--norc", str(file)],
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: os.dup2(writer, REPORT) and None,
                close_fds=False,
            )
            os.close(writer)
            hung = False
            try:
                if during:
                    during(self, running)
                status: int | None = running.wait(max(limit_s - (time.monotonic() - began), 1))
            except subprocess.TimeoutExpired:
                hung, status = True, None
            seconds = time.monotonic() - began
            left = [] if hung else self.left_processes()
            self.end_all()
            running.wait()
        found = sorted(map(str, self.places() - there))
        reading.join(5)
        os.close(reader)
        return {
            "script": script,
            "env": self.env,
            "status": status,
            "hung": hung,
            "seconds": round(seconds, 1),
            "processes_left": left,
            "folders_left": [path for path in found if Path(path).exists()],
            "stdout": (self.out / f"{name}.out").read_text(errors="replace")[-20000:],
            "stderr": (self.out / f"{name}.err").read_text(errors="replace")[-20000:],
            "report": b"".join(told).decode(errors="replace"),
        }

    def places(self) -> set[Path]:
        """What lies in the folders for temporary files."""
        folders = {Path("/tmp"), Path("/dev/shm"), Path(self.env.get("TMPDIR") or "/tmp")}
        found = set()
        for folder in folders:
            try:
                found |= set(folder.iterdir())
            except OSError:
                continue
        return found

    def left_processes(self) -> list[str]:
        """What still runs some seconds after the end."""
        deadline = time.monotonic() + GRACE_S
        while (left := list(processes())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"{pid} {command(pid)}" for pid in left]

    def end_all(self) -> None:
        """End every process of the world but this one and the first."""
        while left := list(processes()):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    # What kinds look at while it runs

    def records(self) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
        """Rank, watchdog's pid and entries of each record that lies there."""
        roots = {Path("/tmp"), Path("/dev/shm"), Path(self.env.get("TMPDIR") or "/tmp")}
        for root in roots:
            for path in root.glob("envkit-*/*.jsonl"):
                words = path.stem.split("-")
                try:
                    lines = path.read_text().splitlines()
                    yield int(words[-2]), int(words[-1]), [json.loads(line) for line in lines]
                except (OSError, ValueError):
                    continue

    def at(self, running: subprocess.Popen[bytes], rank: int, phase: str, limit_s: float = 90) -> int:
        """Wait until a rank is at a step; its watchdog's pid, 0 if it never came there."""
        deadline = time.monotonic() + limit_s
        while running.poll() is None and time.monotonic() < deadline:
            for number, pid, entries in self.records():
                if number == rank and any(entry.get("phase") == phase for entry in entries):
                    return pid
            time.sleep(0.004)
        return 0


def processes() -> Iterator[int]:
    """The processes of this world but for this one and the first."""
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit() and int(entry) not in (1, os.getpid()):
            try:
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                yield int(entry)


def command(pid: int) -> str:
    """What a process is called with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def named(*names: str) -> list[int]:
    """The processes of the world whose program is called so."""
    found = []
    for pid in processes():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                found.append(pid)
        except OSError:
            continue
    return found


def remove(folder: Path) -> None:
    """Remove the folder of a world that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def interpreter(envkit: Path) -> str:
    """The Python of an envkit."""
    beside = envkit.resolve().with_name("python3")
    return str(beside) if beside.exists() else sys.executable
