"""Entering an environment: ``envkit run`` and ``envkit shell``, with real Lmod modules."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .site import PATIENCE_S, Site, make_site, needs, until
from .terminal import Terminal

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, toys: Path) -> Iterator[Site]:
    """A site with one environment, for all tests of this file."""
    needs("envkit", "eb", "lmod", "gcc", "g++", "make", "patch")
    made = make_site(tmp_path_factory.mktemp("enter"), toys)
    made.installed("toy-top")
    yield made
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def argv(site: Site, *words: str) -> list[str]:
    envkit = shutil.which("envkit", path=site.env["PATH"])
    assert envkit is not None
    return [envkit, *words]


def inside(
    site: Site, *command: str, given: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the environment, with something on its standard input."""
    return subprocess.run(
        argv(site, "run", "toy-top-1.0", "--prefix", str(site.prefix), "--", *command),
        input=given,
        env={**site.env, **(env or {})},
        cwd=site.home,
        capture_output=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plain", "two words", "  ends  "],
        ["'single'", '"double"', "`ticks`", "$(touch made)", "$HOME", "*", "~", "\\", "!"],
        ["new\nline", "\n", "tab\t", "\x01", "\x7f"],
        ["", "", ""],
        ["größe", "日本", "🙂", os.fsdecode(b"\xff\xfe")],
        ["--", "--help", "--prefix", "-n", "2", "-"],
    ],
    ids=["spaces", "quotes", "control", "empty", "unicode", "options"],
)
def test_arguments_arrive_unchanged(site: Site, words: list[str]) -> None:
    done = inside(site, "printf", "%s\\0", *words)
    assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in words)
    assert done.stderr == b""
    assert done.returncode == 0
    assert not (site.home / "made").exists()


def test_streams_pass_through(site: Site) -> None:
    given = bytes(range(256)) * 4000
    done = inside(site, "sh", "-c", "echo told >&2; cat", given=given)
    assert done.stdout == given
    assert done.stderr == b"told\n"


@pytest.mark.parametrize("status", [0, 1, 7, 92, 255])
def test_status_of_the_command(site: Site, status: int) -> None:
    assert inside(site, "sh", "-c", f"exit {status}").returncode == status


def test_program_of_the_environment(site: Site) -> None:
    done = inside(site, "toy-top", "5")
    assert done.stdout == b"toy 1\n"
    assert done.returncode == 5


def test_program_that_does_not_exist(site: Site) -> None:
    done = inside(site, "no-such-program")
    assert done.returncode == 127
    assert b"no-such-program" in done.stderr


def test_death_by_a_signal(site: Site) -> None:
    assert inside(site, "sh", "-c", "kill -SEGV $$").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_signals_reach_the_command(site: Site, number: signal.Signals) -> None:
    ready = site.home / f"ready-{number.name}"
    script = f"trap 'exit 42' {number.name.removeprefix('SIG')}; touch {ready}; while :; do sleep 0.1; done"
    running = site.start("run", "toy-top-1.0", "--", "sh", "-c", script)
    until(ready.exists, "the command")
    assert running.stop(number) == 42


def test_bash_env_of_the_caller(site: Site) -> None:
    script = site.home / "bash_env.sh"
    script.write_text('echo "seen $LOADEDMODULES"\n')
    env = {"BASH_ENV": str(script)}
    assert inside(site, "toy-top", env=env).stdout == b"toy 0\n"
    told = inside(site, "bash", "-c", "echo $BASH_ENV", env=env).stdout.decode().splitlines()
    assert told == ["seen toy-base/1.0:toy-middle/1.0:toy-top/1.0", str(script)]


def test_nothing_of_envkit_is_left_in_the_environment(site: Site) -> None:
    told = inside(site, "env").stdout.decode()
    assert "ENVKIT_WORDS" not in told
    assert "envkit_" not in told


def terminal_of(site: Site, env: dict[str, str]) -> Terminal:
    """Start a shell of the environment at a terminal."""
    words = argv(site, "shell", "toy-top-1.0", "--prefix", str(site.prefix))
    return Terminal(words, {**site.env, "TERM": "dumb", **env}, site.home)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_shell_at_a_terminal(site: Site) -> None:
    (site.home / ".bashrc").write_text('echo "rc: ${LOADEDMODULES:-none}"\nPS1="mine> "\nmine=kept\n')
    (site.home / ".bash_profile").write_text("echo profile\n")
    (site.home / "bash_env.sh").write_text("echo printed by BASH_ENV\n")
    terminal = terminal_of(site, {"BASH_ENV": str(site.home / "bash_env.sh")})
    before = terminal.until("(envkit toy-top-1.0) mine> ")
    assert "rc: none" in before
    assert "profile" not in before
    assert "printed by BASH_ENV" not in before
    terminal.type("toy-top 3; echo status=$? $mine tty=$(tty)")
    assert "toy 1\r\n" in terminal.until("status=3 kept tty=/dev/")
    terminal.until("mine> ")
    terminal.type("sleep 1000")
    terminal.until("sleep 1000")
    site.process("sleep 1000")
    os.write(terminal.fd, b"\x03")
    terminal.until("mine> ")
    terminal.type("exit 9")
    assert terminal.status() == 9


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_shell_gives_bash_env_back(site: Site) -> None:
    (site.home / ".bashrc").write_text("PS1='mine> '\n")
    terminal = terminal_of(site, {"BASH_ENV": "/site/bash_env.sh"})
    terminal.until("mine> ")
    terminal.type('printf "<%s>\\n" "${BASH_ENV-none}"; exit')
    terminal.until("\n<")
    given_back = terminal.until(">")
    terminal.status()
    assert given_back == "/site/bash_env.sh"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_shell_that_cannot_load_its_module(site: Site) -> None:
    (site.home / ".bashrc").write_text("")
    module = site.tree / "modules" / "all" / "toy-base" / "1.0.lua"
    module.rename(module.with_suffix(".away"))
    try:
        terminal = terminal_of(site, {})
        assert "envkit: the module toy-top/1.0 could not be loaded." in terminal.until("could not be loaded.") + (
            "could not be loaded."
        )
        assert terminal.status() == 92
        done = inside(site, "true")
        assert done.returncode == 92
        assert b"envkit: the module toy-top/1.0 could not be loaded." in done.stderr
    finally:
        module.with_suffix(".away").rename(module)
