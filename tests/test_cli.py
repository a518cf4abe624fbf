import errno
import os
import pty
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from envkit import errors
from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import COMMANDS, envkit, explain, run
from envkit.commands.options import FiniteRange
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import NETWORK, STORAGE, EnvkitError, Interrupted, NotWritable
from envkit.knowledge import foreign
from envkit.report.paper import has_colours

HEAVY = {"rich", "msgspec", "unearth", "httpx2", "easybuild", "filelock", "elftools", "archspec", "subprocess"}
CLASSES = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, EnvkitError) and one != Interrupted
]
Output = pytest.CaptureFixture[str]


ODD = "b\x1b]0;EVIL\x07\x1b[2J\x9b31m\u202elog"


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "a.log", ODD],
        ["diagnose", f"--{ODD}"],
        [ODD],
        ["job", ODD],
        ["job", "slurm", "x", "--nodes", ODD],
        ["example", ODD],
        ["completion", ODD],
        ["help", ODD],
        ["install", "a", ODD],
        ["report", "-o"],
    ],
)
def test_a_terminal_is_not_obeyed_by_what_is_typed(words: list[str], capsys: Output) -> None:
    """A shell makes words of the names of files, which others may have given."""
    assert run(words) == 2
    said = capsys.readouterr()
    assert said.err and not said.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said.err)


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
    assert "There is no command 'instal'. Did you mean 'envkit install'?" in capsys.readouterr().err
    assert run(["xyzzy"]) == 2
    said = capsys.readouterr().err
    assert "There is no command 'xyzzy'." in said and "Did you mean" not in said


@pytest.mark.parametrize("word", foreign.words().command)
def test_a_word_of_another_tool_leads_to_what_is_there(word: str, capsys: Output) -> None:
    assert word not in COMMANDS
    assert run([word]) == 2
    said = capsys.readouterr().err
    assert f"There is no command {word!r}. {foreign.command(word)}" in " ".join(said.split())
    for name in re.findall(r"'envkit ([a-z-]+)", said):
        assert name in {*COMMANDS, "--version", "--help"}


@pytest.mark.parametrize(
    ("word", "said"),
    [("tf", "That is 'tensorflow'."), ("Torch", "That is 'pytorch'."), ("jax", "Horovod has no JAX"),
     ("keras", "It comes with 'tensorflow'."), ("pytorch-2.9", "Nearest: pytorch-2.9-foss-2024a-cuda.")],
)  # fmt: skip
def test_other_names_of_frameworks(word: str, said: str, prefix: Prefix, capsys: Output) -> None:
    assert run(["install", word, "--prefix", str(prefix.root)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", ["list", "job slurm", ""])
def test_help_is_a_command_too(words: str, capsys: Output) -> None:
    assert run(["help", *words.split()]) == 0
    said = capsys.readouterr()
    assert run([*words.split(), "--help"]) == 0
    assert capsys.readouterr() == said
    assert run(["help", "nothing"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("doctor", "Ends with 0 if at least one method works, wholly or in part, otherwise with 3."),
        ("list", "the first that is set of $ENVKIT_PREFIX, $EBU_USER_PREFIX, your configuration; else ~/.local/"),
        ("job pbs", "--queue Q The queue. "),
        ("job slurm", "--partition P The partition. "),
        ("verify", "if it has Horovod; else the default of your configuration; else the only one installed."),
    ],
)
def test_help_says_what_the_pages_say(words: str, said: str, capsys: Output) -> None:
    assert run([*words.split(), "--help"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


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


def test_ctrl_c_while_the_program_begins() -> None:
    text = """
import runpy, sys
class Stop:
    def find_spec(self, name, *_):
        if name == "envkit.cli": raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.argv = ["envkit", "--version"]
runpy.run_module("envkit", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "envkit: stopped by Ctrl-C.\n")


@pytest.mark.integration
@pytest.mark.parametrize("words", ["list", "list --json", "--help"])
def test_a_closed_pipe_ends_quietly(words: str) -> None:
    command = f"{sys.executable} -m envkit {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.integration
@pytest.mark.parametrize("words", ["list", "list --json", "--help"])
def test_output_on_a_full_disk_is_an_error(words: str) -> None:
    command = f"{sys.executable} -m envkit {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("envkit: envkit could not write its output to the end.\n\n  No space left on device")
    assert done.returncode == NotWritable.exit_code


@pytest.mark.integration
@pytest.mark.parametrize("most", [8, 10, 12])
def test_too_few_files_may_be_open(most: int, tmp_path: Path) -> None:
    """A folder that holds a cache is not said to be at fault."""
    (tmp_path / "cache").mkdir()
    words = f"install pytorch-2.13-cpu --prefix {tmp_path / 'prefix'} --unsigned-cache"
    env = {**os.environ, "ENVKIT_CACHE_FROM": str(tmp_path / "cache")}
    command = f"ulimit -n {most}; exec {sys.executable} -m envkit {words}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert f"Too many files are open (ulimit -n is {most})." in done.stderr
    assert "cannot be used" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 3


@pytest.mark.integration
@pytest.mark.parametrize("words", ["--help", "list", "list --json", "compat torch=2", "run --print eessi -- true"])
def test_streams_that_were_closed_from_the_start(words: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m envkit {words}"
    env = {**os.environ, "ENVKIT_PREFIX": str(tmp_path)}
    whole, *cut = (
        subprocess.run(["bash", "-c", f"{command} {closed}"], env=env, capture_output=True, text=True, check=False)
        for closed in ("", ">&-", "<&-", "<&- >&-")
    )
    assert [(done.returncode, done.stderr) for done in cut] == [(whole.returncode, whole.stderr)] * 3
    assert [done.stdout for done in cut] == ["", whole.stdout, ""]


def test_what_is_run_gets_no_file_by_the_number_of_a_closed_stream() -> None:
    """A descriptor of envkit's own would otherwise be the standard output of every program that it starts."""
    child = "import os, sys; print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 1)), file=sys.stderr)"
    code = f"import subprocess, sys; from envkit.cli import open_streams; open_streams(); kept = open({__file__!r})\n"
    code += f"subprocess.run([sys.executable, '-c', {child!r}])"
    argv = ["bash", "-c", '"$0" -c "$1" <&- >&-', sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stderr == "/dev/null /dev/null\n"


@pytest.mark.parametrize("number", sorted({*STORAGE, errno.EACCES, errno.EINVAL, errno.ENOENT}))
@pytest.mark.parametrize("name", ["/data/file", None])
def test_an_error_of_storage_is_told_as_what_it_is(
    number: int, name: str | None, failing: Callable[[BaseException], None], capsys: Output
) -> None:
    """Only where there is no room is room what is advised."""
    failing(OSError(number, os.strerror(number), name))
    of_path = number in (errno.EACCES, errno.EINVAL) and name is not None
    if not of_path and (number not in STORAGE or (number in NETWORK and name is None)):
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
    said = capsys.readouterr().err
    assert "there is no build flag 'ncci'" in said
    assert "rocm, cuda, nccl, mpi, gloo, ddl, ccl" in said


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "1e999", "NaN"])
@pytest.mark.parametrize("option", ["--timeout", "--tolerance"])
def test_a_number_that_is_not_finite_is_refused(option: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--baseline", "base.json", f"{option}={given}"]) == 2
    assert option in capsys.readouterr().err


def test_every_number_of_an_option_is_finite() -> None:
    """What click itself takes as a float may be nan."""
    commands = [found(name) for name in COMMANDS]
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            commands += command.commands.values()
        for parameter in command.params:
            assert isinstance(parameter.type, FiniteRange) or not isinstance(
                parameter.type, (type(click.FLOAT), click.FloatRange)
            )


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


def test_a_plan_with_what_is_no_bundle(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "b.tar").touch()
    words = ["install", "pytorch", "--bundle", str(tmp_path / "b.tar"), "--dry-run", "--prefix", str(tmp_path / "p")]
    assert run(words) == 4
    assert "cannot be used as a bundle" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def found(command: str) -> click.Command:
    """A command by its words."""
    command_line: click.Command = envkit
    for word in command.split():
        assert isinstance(command_line, click.Group)
        below = command_line.get_command(click.Context(command_line), word)
        assert below
        command_line = below
    return command_line


def help_of(command: str) -> str:
    return found(command).get_help(click.Context(found(command), terminal_width=200, max_content_width=200))


def of_the_job(command: str) -> dict[str, str]:
    """The options of the job as help shows them, with their texts; --submit and --nodes say what each command does."""
    text = help_of(command)
    title = re.search(r"^Options of the job.*:$", text, re.MULTILINE)
    assert title
    rows = re.findall(r"^  (--[\w-]+)(?: \S+)?  +(\S.*)$", text[title.end() :], re.MULTILINE)
    return {name: words for name, words in rows if name not in ("--submit", "--nodes")}


def test_options_of_a_job_read_the_same_in_every_command() -> None:
    whole = of_the_job("job slurm")
    assert [*whole][:5] == ["--follow", "--ranks-per-node", "--gpus-per-node", "--cpus-per-rank", "--time"]
    for command in ("install", "verify", "doctor"):
        shown = {name: words for name, words in of_the_job(command).items() if name != "--job-per-module"}
        assert {"--gpus-per-node", "--time", "--account", "--partition"} <= {*shown}
        assert [*shown.items()] == [(name, words) for name, words in whole.items() if name in shown]


@pytest.mark.parametrize("command", ["install", "verify", "doctor", "run", "shell", "job slurm", "job mpijob"])
def test_help_shows_every_option_once(command: str) -> None:
    text = help_of(command)
    for option in found(command).params:
        if isinstance(option, click.Option) and not option.hidden:
            [name, *_] = [name for name in option.opts if name.startswith("--")]
            assert len(re.findall(rf"^  (?:-\w, )?{name}(?![\w-])", text, re.MULTILINE)) == 1


def test_a_plan_tells_of_what_another_prefix_has(
    tmp_path: Path, prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: pytest.CaptureFixture[str]
) -> None:
    install("pytorch-2.13-cpu", verified="2026-01-02", horovod="/h")
    (tmp_path / "own").mkdir(mode=0o755)
    places = f"{tmp_path / 'own'}:{prefix.root}"
    assert run(["install", "pytorch-2.13-cpu", "--dry-run", "--prefix", places]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"pytorch-2.13-cpu is installed already in {prefix.root} and passed on 2026-01-02. Nothing to do." in said
    assert not list((tmp_path / "own").iterdir())


def test_a_plan_says_first_that_it_is_installed_already(
    prefix: Prefix, install_image: Callable[..., ImageReceipt], capsys: pytest.CaptureFixture[str]
) -> None:
    install_image("pytorch-2.13-cpu-image", debian="d", image="a")
    run(["install", "pytorch-2.13-cpu-image", "--dry-run", "--offline", "--prefix", str(prefix.root)])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("pytorch-2.13-cpu-image is installed already and ")
    assert "Nothing to do. The plan, as if it were not there: Stack: pytorch-2.13-cpu-image" in said


def test_what_others_can_change_is_neither_installed_nor_damaged(
    prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is not entered either."""
    made = install("pytorch-2.13-cpu", verified="2026-01-02", horovod="/h")
    tree = Tree(root=Path(made.tree))
    prefix.root.chmod(0o755)
    receipt.path_of(tree, "pytorch-2.13-cpu").chmod(0o666)
    for words in ([], ["--dry-run"]):
        assert run(["install", "pytorch-2.13-cpu", *words, "--prefix", f"{prefix.root}:/opt"]) == 3
        assert "others can change it" in capsys.readouterr().err
    receipt.path_of(tree, "pytorch-2.13-cpu").chmod(0o644)
    (tree.modulepath / "Toy/1.0.lua").chmod(0o666)
    assert run(["list", "--installed", "--prefix", str(prefix.root)]) == 0
    said = capsys.readouterr().out
    assert "Installed and not used" in said and "repair" not in said


@pytest.mark.integration
def test_an_extra_that_one_stack_lacks_is_no_refusal_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several prefixes stacks of other methods are looked for, too; what is said is the same."""
    said = []
    for places in (f"{tmp_path}/1", f"{tmp_path}/1:{tmp_path}/2"):
        run(["install", "pytorch", "--with", "lightning", "--dry-run", "--offline", "--prefix", places])
        said.append(capsys.readouterr().err)
        run(["install", "tensorflow", "--with", "tutorials", "--dry-run", "--offline", "--prefix", places])
        said.append(capsys.readouterr().err)
    assert said[:2] == said[2:]


class TestGeneral:
    """Options that every command takes, before and after its name."""

    @pytest.mark.integration
    @pytest.mark.parametrize("words", ["--color always list", "list --color always", "list", "list --color never"])
    def test_colours(self, words: str, prefix: Prefix, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        assert run([*words.split(), "--prefix", str(prefix.root)]) == 0
        assert ("\x1b[1m" in capsys.readouterr().out) == ("always" in words)
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert run([*words.split(), "--prefix", str(prefix.root)]) == 0
        assert ("\x1b[1m" in capsys.readouterr().out) == ("never" not in words)
        monkeypatch.setenv("NO_COLOR", "1")
        assert run([*words.split(), "--prefix", str(prefix.root)]) == 0
        assert ("\x1b[1m" in capsys.readouterr().out) == ("always" in words)
        monkeypatch.setenv("NO_COLOR", "")  # as if it were not set
        assert run([*words.split(), "--prefix", str(prefix.root)]) == 0
        assert ("\x1b[1m" in capsys.readouterr().out) == ("never" not in words)

    def test_a_rank_of_open_mpi_prints_no_colours_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its launcher gives it a terminal, and then writes the log of a job."""
        for name in ("NO_COLOR", "FORCE_COLOR", "OMPI_COMM_WORLD_RANK", "TERM"):
            monkeypatch.delenv(name, raising=False)
        _, terminal = pty.openpty()
        with os.fdopen(terminal, "w") as stream:
            assert has_colours(stream)
            monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
            assert not has_colours(stream)
            monkeypatch.setenv("FORCE_COLOR", "1")
            assert has_colours(stream)

    def test_every_command_takes_them(self) -> None:
        for name in ("list", "run", "job slurm", "eessi clean", "config", "verify"):
            assert {"verbose", "quiet", "color"} <= {str(one.name) for one in found(name).params}

    @pytest.mark.integration
    def test_quiet_tells_results_alone(self, prefix: Prefix, capsys: Output, tmp_path: Path) -> None:
        words = ["install", "pytorch", "--dry-run", "--prefix", str(prefix.root)]
        run(words)
        loud = capsys.readouterr()
        run([*words, "-q"])
        said = capsys.readouterr()
        assert "envkit: method" in loud.err
        plans = [out.partition("No answer:")[0] for out in (said.out, loud.out)]  # an index may be slow at any time
        assert not said.err and plans[0] == plans[1]
        assert run(["-q", "show", "nothing", "--prefix", str(prefix.root)]) == 6
        assert "There is no environment 'nothing'." in capsys.readouterr().err

    def test_verbose_tells_which_programs_are_started_and_no_password(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        that_starts(
            monkeypatch,
            ["true", "https://user:secret@example.org/simple", "a b"],
            ["true", "user:secret@example.org:3128", "--token", "Pq7-Zz99Pq7", "-DX=Tok3n-of-mine"],
        )
        monkeypatch.setenv("SITE_TOKEN", "Tok3n-of-mine")
        for words in (["-v", "fail"], ["fail", "--verbose"], ["-v", "fail", "-v"]):
            assert run(words) == 0
            first, second = capsys.readouterr().err.splitlines()
            assert first == "+ true https://***@example.org/simple 'a b'"
            assert second == "+ true ***@example.org:3128 --token <secret> -DX=<secret>"
        assert run(["fail"]) == 0
        assert not capsys.readouterr().err

    def test_verbose_shows_nothing_that_a_terminal_or_a_runner_obeys(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        that_starts(monkeypatch, ["true", "a\x1b]0;title\x07b\x9b2J\x7f", "\n::error::c", "d\te"])
        assert run(["-v", "fail"]) == 0
        told = capsys.readouterr().err
        assert told == "+ true 'a\\x1b]0;title\\x07b\\x9b2J\\x7f' '\n: :error::c' 'd\te'\n"


def that_starts(monkeypatch: pytest.MonkeyPatch, *started: list[str]) -> None:
    """Add a command "fail" that starts programs."""
    from envkit.system import process

    @click.command()
    def fail() -> None:
        for argv in started:
            process.capture(argv)

    module = types.ModuleType("envkit.commands.failing")
    vars(module)["fail"] = fail
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "fail", ("failing", "Fail."))


def test_an_error_is_broken_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is indented, such as a command, stays in one piece, to be copied."""
    error = EnvkitError(what="word " * 30, why="reason " * 20, fix="Try:\n  " + "command " * 20)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    explain(error)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= 80 for line in lines if "command" not in line)
    assert [line.split()[0] for line in lines if line.startswith("  ")] == ["reason", "reason", "command"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    explain(error)
    assert len(capsys.readouterr().err.splitlines()) == 6
