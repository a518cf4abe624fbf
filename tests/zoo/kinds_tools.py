"""The programs that start it all: the modules tool, the launcher, the shell's own words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World

LMOD = Path("/usr/share/lmod/lmod/libexec")


def lmod(body: str) -> Do:
    """Have another program stand for Lmod; REAL is the true one."""

    def do(world: World) -> None:
        command = Path(world.receipt["modules_command"])
        world.overlay(command.parent)
        real = world.folder / "real-lmod"
        shutil.copy(command, command.parent / "real-lmod")
        command.unlink()
        if body:
            world.write(
                command, "#!/bin/bash\n" + body.replace("REAL", str(command.parent / "real-lmod")) + "\n", 0o755
            )
        _ = real

    return do


def launcher(body: str) -> Do:
    """Have a script be first on PATH under the launcher's name."""

    def do(world: World) -> None:
        for name in ("mpirun", "mpiexec", "orterun"):
            world.program(name, body)

    return do


def no_launcher(world: World) -> None:
    """Have the host's launcher gone."""
    world.overlay(Path("/usr/bin"))
    for name in ("mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi", "prun", "orted"):
        path = Path("/usr/bin", name)
        if path.exists() or path.is_symlink():
            path.unlink()


def not_executable(world: World) -> None:
    """Have the host's launcher without its x."""
    world.overlay(Path("/usr/bin"))
    Path("/usr/bin/orterun").chmod(0o644)


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Broken programs."""
    for name, body, did in (
        ("exits-1", "exit 1", "Lmod ends with 1 and says nothing"),
        ("killed", "kill -9 $$", "Lmod is killed"),
        ("killed-on-load", 'case "$*" in *load*) kill -9 $$;; esac\nexec REAL "$@"', "Lmod is killed at its load"),
        ("says-nothing", "exit 0", "Lmod ends with 0 and says nothing"),
        ("absent", "", "Lmod is gone"),
        ("garbage", "echo '<html>502 Bad Gateway</html>'", "Lmod prints HTML"),
        (
            "lua-error",
            "echo 'lua: cannot open file posix.so' >&2; echo false; exit 1",
            "Lmod says that its Lua lacks posix",
        ),
    ):
        yield Kind(
            name=f"tools/lmod/{name}",
            group="Lmod",
            did=did,
            do=lmod(body),
            true=r"lmod|modules tool",
            mended="words",
            words=r"lmod|modules tool|module",
            never=r"--rebuild",
        )
    for name, body, did in (
        ("ends-0", "exit 0", "mpirun does nothing and ends with 0"),
        (
            "ends-1",
            "echo 'mpirun: this site uses srun only' >&2; exit 1",
            "mpirun is a script of the site that refuses",
        ),
        ("not-found", 'exec /opt/openmpi/bin/mpirun "$@"', "mpirun calls one that is not there"),
        ("eats-np", 'shift 2; exec /usr/bin/mpirun -np 1 "$@"', "mpirun starts one rank whatever it is told"),
        ("killed", "kill -9 $$", "mpirun is killed as it starts"),
        ("segfault", "kill -SEGV $$", "mpirun crashes as it starts"),
        (
            "no-env",
            'exec /usr/bin/env -i PATH=/usr/bin:/bin HOME=$HOME /usr/bin/mpirun --allow-run-as-root "$@"',
            "mpirun starts with an empty environment",
        ),
        ("sleeps", "exec sleep 1000", "mpirun does nothing for ever"),
    ):
        yield Kind(
            name=f"tools/mpirun/{name}",
            group="the launcher itself",
            did=f"first on PATH: {did}",
            do=launcher(body),
            true=r"first\b[^\n]*mpirun|this site uses srun only|/opt/openmpi/bin/mpirun"
            if name != "no-env"
            else r"first\b[^\n]*mpirun|environment",
            mended="words",
            words=r"PATH|mpirun|launcher|srun",
            options=("-n", "2", "--timeout", "15") if name in ("sleeps", "ends-0") else (),
        )
    for name, do, did in (
        ("gone", no_launcher, "the host's mpirun is gone"),
        ("not-executable", not_executable, "the host's orterun has no x"),
    ):
        yield Kind(
            name=f"tools/mpirun/{name}",
            group="the launcher itself",
            did=did,
            do=do,
            true=r"mpirun|orterun|launcher",
            mended="words",
            words=r"mpirun|launcher|Open MPI|MPI|install",
            never=r"--rebuild|repair",
        )

    def functions(world: World) -> None:
        world.env |= {"BASH_FUNC_ml%%": "() { echo broken; }", "BASH_FUNC_module%%": "() { echo broken; return 1; }"}

    yield Kind(
        name="harmless/exported-functions",
        group="harmless",
        did="module and ml are exported functions that fail",
        do=functions,
    )

    def bashrc(world: World) -> None:
        for name in (".bashrc", ".bash_profile", ".profile"):
            world.write(f"home/{name}", "echo greetings from bashrc; exit 1\n")

    yield Kind(name="harmless/bashrc-exits", group="harmless", did="~/.bashrc prints and exits", do=bashrc)

    def pager(world: World) -> None:
        world.program("ssh", "exit 1")
        world.program("hostname", "echo elsewhere")
        world.program("python3", "echo another python3; exit 1")

    yield Kind(
        name="harmless/other-programs-first",
        group="harmless",
        did="ssh, hostname and python3 on PATH are broken scripts",
        do=pager,
    )

    def faketime(world: World) -> None:
        library = next((world.extras / "usr/lib/x86_64-linux-gnu/faketime").glob("libfaketimeMT.so.1"))
        world.env |= {"LD_PRELOAD": str(library), "FAKETIME": "-400d"}

    yield Kind(
        name="harmless/clock-in-the-past",
        needs="usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        group="harmless",
        did="the clock of all is 400 days slow (faketime)",
        do=faketime,
    )
