"""A modules tool that fails, in every way, is told, and nothing runs outside of the environment."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.environment import ModuleEnvironment
from envkit.errors import ModuleNotLoaded
from envkit.launch import launcher
from envkit.machine.modules_tool import ModulesTool, clean

from .integration.terminal import Terminal

pytestmark = pytest.mark.integration
Fake = Callable[..., Path]
Install = Callable[..., ModuleReceipt]
Envkit = Callable[..., subprocess.CompletedProcess[str]]

# How a tool fails on a load: a body of a script, in which REAL is the real one; and what is said of it.
LOADS = {
    "refuses": ("exit 1", "ended with status 1; what it said is above"),
    "killed": ("kill -KILL $$", "was killed by SIGKILL"),
    "out of time": ("kill -XCPU $$", "was killed by SIGXCPU"),
    "dies while it prints": ("echo 'export LOADEDMODULES=toy/1.0'; kill -SEGV $$", "was killed by SIGSEGV"),
    "prints nothing": ("exit 0", "printed nothing"),
    "complains, and ends with 0": ("echo 'lua: out of memory' >&2", "printed nothing"),
    "a page of a proxy": ("echo '<html>502</html>'", "failed in what it had this shell do"),
    "loads nothing": ("echo 'export OTHER=1;'", "has not loaded it; loaded: nothing"),
    "loads another": ('echo "export LOADEDMODULES=toy/2.0;"', "has not loaded it; loaded: toy/2.0"),
    "answers for another shell": ('shift; exec REAL csh "$@"', ""),
    "cut short": ('REAL "$@" | head -c 12', ""),
    "a lost interpreter": (None, "ended with status 12"),
    "not executable": (None, "cannot be run: it is not executable"),
    "a folder": (None, "is not there"),
    "absent": (None, "is not there"),
}


@pytest.fixture(params=["lmod", "environment_modules"])
def real(request: pytest.FixtureRequest) -> ModulesTool:
    """Each of the two tools, as it is."""
    if request.param == "lmod":
        tool: ModulesTool = request.getfixturevalue("lmod")
        return tool
    return ModulesTool(kind="EnvironmentModules", command=request.getfixturevalue("environment_modules"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The modules toy/1.0 and toy/2.0 in own/, and those of a site in site/, for both tools."""
    files = {
        "own/toy/1.0": "setenv TOY here",
        "own/toy/2.0": "setenv TOY two",
        "site/base/1.0": "setenv BASE 1.0",
        "site/base/2.0": "setenv BASE 2.0",
        "site/needs/1.0": "module load base/1.0",
        "site/swaps/1.0": "module switch base base/1.0",
        "site/gone/1.0": "setenv GONE 1",
        "site/stuck/1.0": "setenv STUCK 1",
        "site/.modulerc": "module-version base/1.0 stable\nmodule-alias nick/9 base/1.0\n"
        "if {[llength [info commands module-tag]]} {module-tag sticky stuck/1.0}",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#%Module\n{text}\n")
    (tmp_path / "site/stuck/1.0.lua").write_text('add_property("lmod", "sticky")\n')  # for Lmod alone
    return tmp_path


def failing(way: str, real: ModulesTool, tree: Path) -> ModulesTool:
    """A tool that fails in one of the ways."""
    body, _ = LOADS[way]
    path = tree / "failing"
    if way == "a folder":
        path.mkdir()
    elif way != "absent":
        path.write_text("#!/no/such/lua\n" if way == "a lost interpreter" else f"#!/bin/bash\n{body}\n")
        path.write_text(path.read_text().replace("REAL", str(real.command)))
        path.chmod(0o644 if way == "not executable" else 0o755)
    return ModulesTool(kind=real.kind, command=path)


def toy(tool: ModulesTool, tree: Path, *load: str) -> ModuleEnvironment:
    return ModuleEnvironment(name="toy", tool=tool, modulepath=tree / "own", modules=("toy/1.0",), load=load)


def settings(tree: Path, **more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tree), "MODULEPATH": str(tree / "site"), **more}


def run(argv: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=100)


def entered(made: ModuleEnvironment, env: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return run(made.command(argv or ("echo", "reached")), made.variables(env))


@pytest.mark.parametrize("way", LOADS)
def test_nothing_runs_outside(way: str, real: ModulesTool, tree: Path) -> None:
    made = toy(failing(way, real, tree), tree)
    done = entered(made, settings(tree))
    assert (done.returncode, done.stdout) == (92, "")
    what, why, fix = done.stderr.rpartition("envkit: ")[2].split("\n\n")
    assert what == "the module toy/1.0 could not be loaded."
    assert why.startswith(f"  The modules tool {made.tool.command} ") and LOADS[way][1] in why
    assert fix.startswith("What to do: ") and fix.count("\n") == 1


@pytest.mark.parametrize(
    "body", ["REAL \"$@\" | sed '/^export LOADEDMODULES/q'", "echo 'export LOADEDMODULES=toy/1.0;'"]
)
def test_what_a_tool_prints_is_cut_before_the_search_paths(body: str, lmod: ModulesTool, tree: Path) -> None:
    """Behind a filter the status of Lmod is lost, and it prints in the order of names: LOADEDMODULES before PATH."""
    path = tree / "filtered"
    path.write_text(f"#!/bin/bash\n{body}\n".replace("REAL", str(lmod.command)))
    path.chmod(0o755)
    done = entered(toy(ModulesTool(kind="Lmod", command=path), tree), settings(tree))
    assert (done.returncode, done.stdout) == (92, "")
    assert "what it printed for this shell is not whole" in done.stderr


@pytest.mark.parametrize("way", ["killed", "loads nothing", "absent"])
def test_a_tool_that_fails_is_told_from_a_module_that_is_not_there(way: str, real: ModulesTool, tree: Path) -> None:
    told = entered(toy(failing(way, real, tree), tree), settings(tree)).stderr
    assert "whatever the module" in told
    module = entered(toy(real, tree, "base/9"), settings(tree)).stderr
    assert "envkit: the module base/9 could not be loaded.\n" in module
    assert "See what there is with 'module avail'" in module and "whatever the module" not in module


@pytest.mark.parametrize(
    ("load", "loaded"),
    [
        (("base/1.0",), "base/1.0"),
        (("base",), "base/1.0 or base/2.0"),
        (("base/stable",), "base/1.0"),
        (("nick/9",), "base/1.0"),
        (("needs",), "base/1.0:needs/1.0"),
        (("needs/1.0", "base/1.0"), "base/1.0:needs/1.0"),
        (("base/2.0", "swaps"), "base/1.0:swaps/1.0"),
        (("stuck",), "stuck/1.0"),
    ],
    ids=str,
)
def test_a_site_module_by_every_name(load: tuple[str, ...], loaded: str, real: ModulesTool, tree: Path) -> None:
    script = "echo $LOADEDMODULES; env | grep -c envkit_"
    done = entered(toy(real, tree, *load), settings(tree), "sh", "-c", script)
    told, left = done.stdout.split()
    assert set(told.split(":")) in [{*one.split(":"), "toy/1.0"} for one in loaded.split(" or ")], done.stderr
    assert left == "0"


@pytest.mark.parametrize("load", ["stuck/1.0", "gone/1.0"])
def test_a_module_of_the_caller_that_stays(load: str, real: ModulesTool, tree: Path) -> None:
    """Sticky, or without its file: the tool says that it stays, and has not failed."""
    inner = toy(real, tree)
    script = f'rm -f {tree}/site/gone/1.0; exec "$@"'
    argv = ["bash", "-c", script, "bash", *inner.command(["sh", "-c", "echo reached $TOY"])]
    done = entered(toy(real, tree, load), settings(tree), *argv)
    assert (done.returncode, done.stdout) == (0, "reached here\n"), done.stderr


@pytest.mark.parametrize("body", ["exit 1", "kill -KILL $$", "exit 0"])
def test_modules_that_cannot_be_unloaded(body: str, real: ModulesTool, tree: Path) -> None:
    path = tree / "failing"
    path.write_text(f'#!/bin/bash\n[ "$2" != purge ] || {{ echo "no purge" >&2; {body}; }}\nexec {real.command} "$@"\n')
    path.chmod(0o755)
    done = entered(toy(ModulesTool(kind=real.kind, command=path), tree), settings(tree, LOADEDMODULES="base/1.0"))
    assert (done.returncode, done.stdout) == (92, "")
    assert done.stderr.startswith("no purge\nenvkit: the modules that are loaded could not be unloaded.\n")


@pytest.mark.parametrize("way", ["refuses", "killed", "prints nothing", "absent"])
def test_an_interactive_shell_ends(way: str, real: ModulesTool, tree: Path) -> None:
    (tree / ".bashrc").write_text("set -u\nPS1='mine> '\n")
    made = toy(failing(way, real, tree), tree)
    terminal = Terminal(["/bin/bash", *made.shell()[1:]], made.variables(settings(tree, TERM="dumb")), tree)
    assert "envkit: the module toy/1.0 could not be loaded." in terminal.until("What to do: ")
    assert terminal.status() == 92


@pytest.mark.parametrize("way", sorted(LOADS.keys() - {"loads another"}))  # which an alias does
def test_settings_for_a_build(way: str, real: ModulesTool, tree: Path) -> None:
    with pytest.raises(ModuleNotLoaded, match=r"^The modules base/1\.0 could not be loaded\.$") as problem:
        clean(settings(tree), failing(way, real, tree), ("base/1.0",))
    assert LOADS[way][1] in problem.value.why and problem.value.fix


@pytest.mark.parametrize(("load", "verb", "named"), [(("base/1.0",), "load", "base/1.0"), ((), "unload", "toy/1.0")])
def test_a_tool_that_hangs_is_stopped_and_its_modules_are_named(
    load: Sequence[str], verb: str, named: str, real: ModulesTool, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.machine.modules_tool.PATIENCE_S", 1)
    tool = tree / "hangs"
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    with pytest.raises(ModuleNotLoaded) as problem:
        clean(settings(tree, LOADEDMODULES="toy/1.0"), ModulesTool(kind=real.kind, command=tool), load)
    assert problem.value.what == f"The modules {named} could not be {verb}ed."
    assert problem.value.why == "The modules tool had not ended after 1 s."
    assert f"module {verb} {named}" in problem.value.fix and problem.value.exit_code == 92


def test_what_is_asked_inside_says_why_it_was_not_reached(real: ModulesTool, tree: Path) -> None:
    made = toy(failing("killed", real, tree), tree)
    with pytest.raises(ModuleNotLoaded, match=r"^the module toy/1\.0 could not be loaded\.$") as problem:
        launcher.mpi_of(made, settings(tree))
    assert problem.value.why == f"The modules tool {made.tool.command} was killed by SIGKILL."
    assert problem.value.fix.startswith("Run it again.")


@pytest.fixture
def envkit(install: Install, tree: Path, lmod: ModulesTool) -> Envkit:
    """Run envkit on an environment whose modules tool fails in one way, or is the real one ("")."""

    def made(way: str, *words: str, before: Sequence[str] = (), body: str = "") -> subprocess.CompletedProcess[str]:
        tool = failing(way, lmod, tree) if way else lmod
        if body:
            tool = ModulesTool(kind="Lmod", command=tree / "bin of lmod" / "lmod")
            tool.command.parent.mkdir()
            tool.command.write_text(f'#!/bin/bash\n{body}\nexec {lmod.command} "$@"\n')
            tool.command.chmod(0o755)
        found = install(modules_command=str(tool.command), horovod="/nowhere/horovod")
        keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        env = launcher.variables({**keep, "ENVKIT_PREFIX": str(Path(found.tree).parent), "TMPDIR": str(tree)})
        return run([*before, sys.executable, "-m", "envkit", *words], env)

    return made


@pytest.mark.parametrize("way", ["refuses", "killed", "prints nothing", "a page of a proxy", "absent"])
def test_run(way: str, envkit: Envkit) -> None:
    done = envkit(way, "run", "toy-cpu", "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (92, "")
    assert "envkit: the module Toy/1.0 could not be loaded.\n" in done.stderr


@pytest.mark.parametrize("way", ["refuses", "killed", "prints nothing", "absent"])
def test_verify_says_that_the_tool_failed(way: str, envkit: Envkit) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    done = envkit(way, "verify", "toy-cpu", "-n", "2", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "fail")
    result = report["cause"]
    assert (result["id"], result["case"]) == ("rank-missing", "no-module")
    assert result["message"].endswith("could not be entered: the module Toy/1.0 could not be loaded.")
    assert LOADS[way][1] in result["cause"] and result["remedy"]


@pytest.mark.parametrize("is_read", [True, False])
def test_verify_says_that_the_tool_does_not_come_back(is_read: bool, envkit: Envkit, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    slow = tmp_path / "slow"
    (slow / "Toy").mkdir(parents=True)
    body = f"exec 7<{slow}/Toy; sleep 60" if is_read else "sleep 60"
    start = ["env", f"MODULEPATH=/nowhere:{slow}"]
    words = ["verify", "toy-cpu", "-n", "2", "--timeout", "3", "--quick", "--json"]
    done = envkit("", *words, before=start, body=body)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "fail"), done.stderr
    result = report["cause"]
    assert (result["id"], result["case"]) == ("rank-missing", "modules-tool")
    assert result["message"].endswith(f"had not come back from {slow if is_read else 'MODULEPATH'}")


def test_a_rank_of_mpirun_that_cannot_enter(envkit: Envkit) -> None:
    """The others do; one report names what the modules tool said to that one."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    body = '[ "$OMPI_COMM_WORLD_RANK" != 1 ] || { echo "lua: cannot allocate" >&2; kill -KILL $$; }'
    start = ["mpirun", "--oversubscribe", "-n", "2"]
    done = envkit("", "verify", "toy-cpu", "--json", before=start, body=body)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "fail"), done.stderr
    first = report["results"][0]
    assert first["id"] == "rank-missing"
    assert first["message"].startswith("only 1 of 2 ranks left a record: the environment could not be entered: the mod")
    assert "was killed by SIGKILL" in first["cause"] and "lua: cannot allocate" in first["cause"]
    assert "lua: cannot allocate" in done.stderr


def test_no_rank_of_mpirun_can_enter(envkit: Envkit) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    done = envkit("killed", "verify", "toy-cpu", "--json", before=["mpirun", "--oversubscribe", "-n", "2"])
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "fail"), done.stderr
    assert report["cause"]["id"] == "rank-missing" and "was killed by SIGKILL" in report["cause"]["cause"]


@pytest.mark.parametrize(("before", "inside"), [(None, "/pages:"), ("", "/pages:"), ("/own", "/pages:/own")])
def test_man_finds_what_it_found_before(before: str | None, inside: str, real: ModulesTool, tree: Path) -> None:
    """Without an empty entry it would leave out the pages of the system."""
    (tree / "own/toy/1.0").write_text("#%Module\nprepend-path MANPATH /pages\n")
    env = settings(tree) | ({} if before is None else {"MANPATH": before})
    assert entered(toy(real, tree), env, "printenv", "MANPATH").stdout == f"{inside}\n"
