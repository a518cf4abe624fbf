import errno
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from envkit import errors
from envkit.cli import COMMANDS, run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix
from envkit.errors import NETWORK, STORAGE, EnvkitError, Interrupted, NotWritable

HEAVY = {"rich", "msgspec", "unearth", "httpx2", "easybuild", "filelock", "elftools", "archspec", "subprocess"}
CLASSES = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, EnvkitError) and one != Interrupted
]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Add a command 'fail' that ends with an error."""

    def add(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        module = types.ModuleType("envkit.commands.failing")
        vars(module)["fail"] = fail
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, "fail", ("failing", "Fail."))

    return add


def test_help_names_every_command_with_its_text(capsys: Output) -> None:
    assert run(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, (_, text) in COMMANDS.items():
        assert f"{name} {text}" in said


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(name: str, option: str, capsys: Output) -> None:
    assert run([name, option]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"Usage: envkit {name} [OPTIONS]")
    assert not said.err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lines_are_whole_sentences_without_markup(name: str, capsys: Output) -> None:
    run([name, "--help"])
    said = capsys.readouterr().out
    assert "``" not in said and "\b" not in said


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    for name, (module, _) in COMMANDS.items():
        assert Path(__file__).parents[1].joinpath("envkit", "commands", f"{module}.py").is_file(), name


@pytest.mark.parametrize("arguments", [["--help"], ["install", "--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys, envkit.cli\nenvkit.cli.run({arguments})\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not HEAVY & {name.partition(".")[0] for name in done.stderr.split()}


def test_version(capsys: Output) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("envkit, version ")


def test_no_arguments_show_the_help(capsys: Output) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_unknown_command_with_and_without_a_near_one(capsys: Output) -> None:
    assert run(["instal"]) == 2
    assert "There is no command 'instal'. Did you mean 'install'?" in capsys.readouterr().err
    assert run(["xyzzy"]) == 2
    said = capsys.readouterr().err
    assert "There is no command 'xyzzy'." in said and "Did you mean" not in said


def test_unknown_method(capsys: Output) -> None:
    assert run(["install", "--method", "spack"]) == 2
    assert "'spack' is not one of 'auto', 'easybuild'" in capsys.readouterr().err


def test_unknown_option(capsys: Output) -> None:
    assert run(["list", "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_become_what_why_fix_and_an_exit_code(
    kind: type[EnvkitError], failing: Callable[[BaseException], None], capsys: Output
) -> None:
    failing(kind(what="It broke.", why="Line one.\nLine two.", fix="Mend it."))
    assert run(["fail"]) == kind.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "envkit: It broke.\n\n  Line one.\n  Line two.\n\nWhat to do: Mend it.\n"


def test_an_error_of_one_sentence_is_one_line(failing: Callable[[BaseException], None], capsys: Output) -> None:
    failing(EnvkitError(what="It broke."))
    assert run(["fail"]) == 3
    assert capsys.readouterr().err == "envkit: It broke.\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Interrupted(signal_number=15, what="Stopped by SIGTERM."), 143, "envkit: Stopped by SIGTERM.\n"),
        (Interrupted(signal_number=2, what="Stopped by Ctrl-C."), 130, "envkit: Stopped by Ctrl-C.\n"),
        (KeyboardInterrupt(), 130, "envkit: stopped by Ctrl-C.\n"),
        (click.Abort(), 130, "envkit: stopped by Ctrl-C.\n"),
    ],
)
def test_interruptions(
    error: BaseException, status: int, said: str, failing: Callable[[BaseException], None], capsys: Output
) -> None:
    failing(error)
    assert run(["fail"]) == status
    assert capsys.readouterr().err.strip() == said.strip()


def test_anything_else_is_a_traceback(failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["fail"])


@pytest.mark.parametrize("words", ["list", "list --json", "--help"])
def test_a_closed_pipe_ends_quietly(words: str) -> None:
    command = f"{sys.executable} -m envkit {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("words", ["list", "list --json", "--help"])
def test_output_on_a_full_disk_is_an_error(words: str) -> None:
    command = f"{sys.executable} -m envkit {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("envkit: envkit could not write its output to the end.\n\n  No space left on device")
    assert done.returncode == NotWritable.exit_code


@pytest.mark.parametrize("words", ["--help", "list", "list --json", "compat torch=2", "run --print eessi -- true"])
@pytest.mark.parametrize("closed", [">&-", "<&-", "<&- >&-"])
def test_streams_that_were_closed_from_the_start(words: str, closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m envkit {words}"
    env = {**os.environ, "ENVKIT_PREFIX": str(tmp_path)}
    whole = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    done = subprocess.run(["bash", "-c", f"{command} {closed}"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (whole.returncode, whole.stderr)
    assert done.stdout == ("" if ">" in closed else whole.stdout)


def test_what_is_run_gets_no_file_by_the_number_of_a_closed_stream() -> None:
    """A descriptor of envkit's own would otherwise be the standard output of every program that it starts."""
    child = "import os, sys; print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 1)), file=sys.stderr)"
    code = f"import subprocess, sys; from envkit.cli import open_streams; open_streams(); kept = open({__file__!r})\n"
    code += f"subprocess.run([sys.executable, '-c', {child!r}])"
    argv = ["bash", "-c", '"$0" -c "$1" <&- >&-', sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stderr == "/dev/null /dev/null\n"


@pytest.mark.parametrize("number", sorted({*STORAGE, errno.EACCES, errno.EINVAL}))
@pytest.mark.parametrize("name", ["/data/file", None])
def test_an_error_of_storage_is_told_as_what_it_is(
    number: int, name: str | None, failing: Callable[[BaseException], None], capsys: Output
) -> None:
    """Only where there is no room is room what is advised."""
    failing(OSError(number, os.strerror(number), name))
    if number not in STORAGE or (number in NETWORK and name is None):
        with pytest.raises(OSError, match=os.strerror(number)):
            run(["fail"])
        return
    assert run(["fail"]) == 7
    said = capsys.readouterr().err
    assert os.strerror(number) in said and (name or "its output") in said and "What to do: " in said
    assert ("Free some room" in said) == (number == errno.ENOSPC)
    assert ("quota" in said.partition("What to do: ")[2]) == (number == errno.EDQUOT)
    assert ("server" in said) == (number in (errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT))


def test_run_needs_dashes(capsys: Output) -> None:
    assert run(["run", "toy", "python", "train.py"]) == 2
    assert "Put -- before the command: envkit run NAME -- python train.py" in capsys.readouterr().err
    assert run(["run", "toy", "--"]) == 2
    assert "There is no command after --." in capsys.readouterr().err


def test_run_hands_over_what_follows_the_dashes(capsys: Output, tmp_path: Path) -> None:
    assert run(["run", "--prefix", str(tmp_path), "toy", "--", "x", "--help", "--", "-n"]) == 6
    assert "There is no environment 'toy'." in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "-1", "two"])
def test_the_number_of_ranks_is_one_or_more(ranks: str, capsys: Output) -> None:
    assert run(["run", "toy", f"--ranks={ranks}", "--", "true"]) == 2
    assert run(["verify", "toy", f"--ranks={ranks}"]) == 2


def test_require_rejects_unknown_flags(capsys: Output) -> None:
    assert run(["verify", "--require", "mpi,nccI"]) == 2
    assert "there is no build flag 'ncci'. There are: rocm, cuda, nccl, mpi, gloo, ddl, ccl." in capsys.readouterr().err


def test_require_takes_flags_in_any_case(capsys: Output, prefix: Prefix) -> None:
    assert run(["verify", "--require", "MPI, gloo,", "--prefix", str(prefix.root)]) == 6


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["install", "pytorch-9"], 2, "There is no stack named 'pytorch-9'."),
        (["install", "Nothing-1.0.eb"], 2, "There is no recipe Nothing-1.0.eb."),
        (["show", "nothing"], 6, "There is no environment 'nothing'."),
        (["show"], 6, "No environment is installed."),
        (["remove", "nothing"], 6, "There is no environment 'nothing'."),
        (["check-build"], 6, "No environment is installed."),
        (["verify", "nothing"], 6, "There is no environment 'nothing'."),
        (["shell", "nothing"], 6, "There is no environment 'nothing'."),
    ],
)
def test_what_can_be_mended_by_the_user(
    arguments: list[str], status: int, said: str, prefix: Prefix, capsys: Output
) -> None:
    assert run([*arguments, "--prefix", str(prefix.root)]) == status
    shown = capsys.readouterr().err
    assert shown.startswith(f"envkit: {said}\n")
    assert "What to do: " in shown


def test_a_prefix_that_cannot_be_carried(capsys: Output) -> None:
    assert run(["list", "--prefix", "/tmp/a b"]) == 3
    assert "it has ' ' in it" in capsys.readouterr().err


def test_a_bundle_that_is_none(prefix: Prefix, tmp_path: Path, capsys: Output) -> None:
    bundle = tmp_path / "bundle.tar"
    bundle.write_text("not a tar file")
    assert run(["install", "--bundle", str(bundle), "--prefix", str(prefix.root)]) == 4
    assert run(["install", "--bundle", str(tmp_path / "none.tar"), "--prefix", str(prefix.root)]) == 2


def test_list_and_show_of_an_installed_environment(
    prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: Output
) -> None:
    install("toy-cpu")
    assert run(["list", "--prefix", str(prefix.root)]) == 0
    assert "toy-cpu" in capsys.readouterr().out
    assert run(["show", "--prefix", str(prefix.root)]) == 0
    assert capsys.readouterr().out.startswith("Name:       toy-cpu\n")
    for command in ("check-build", "verify"):
        assert run([command, "--prefix", str(prefix.root)]) == 2
        assert "toy-cpu has no Horovod, so there is nothing to verify." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("envkit ins", 1, ["install"]),
        ("envkit install --off", 2, ["--offline"]),
        ("envkit install --framework ten", 3, ["tensorflow"]),
        ("envkit run --ra", 2, ["--ranks"]),
        ("envkit nothing --hel", 2, ["--help"]),
    ],
)
def test_shell_completion(words: str, place: int, expected: list[str]) -> None:
    env = {**os.environ, "_ENVKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run([sys.executable, "-m", "envkit"], env=env, capture_output=True, text=True, check=False)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == expected, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_a_script_for_the_shell(shell: str) -> None:
    env = {**os.environ, "_ENVKIT_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-m", "envkit"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"_ENVKIT_COMPLETE={shell}_complete" in done.stdout


def test_a_dry_run_does_not_look_into_a_bundle(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "b.tar").touch()
    assert run(["install", "pytorch", "--bundle", str(tmp_path / "b.tar"), "--dry-run"]) == 2
    assert "leave one of the two out" in capsys.readouterr().err
