import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envkit.environments.environment import ContainerEnvironment, ModuleEnvironment, MpiModel
from envkit.errors import HostProblem, ModuleNotLoaded
from envkit.machine import modules_tool
from envkit.machine.modules_tool import ModulesTool, clean, find_modules_tool

Fake = Callable[..., Path]
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
AWKWARD = ["a b", "", "line one\nline two", 'quote\'d "twice"', "$HOME `id` *", "--", "-n", "\\", "é"]
DROPPED = {
    "BASH_ENV": "/evil.sh",
    "BASH_FUNC_ml%%": "() { :; }",
    "CFLAGS": "-march=native",
    "CPATH": "/opt/include",
    "EASYBUILD_PREFIX": "/opt/eb",
    "HOROVOD_WITH_MPI": "1",
    "LD_LIBRARY_PATH": "/opt/lib",
    "LD_PRELOAD": "/opt/lib/x.so",
    "OMPI_MCA_btl": "tcp",
    "PIP_USER": "1",
    "PYTHONHOME": "/opt",
    "PYTHONPATH": "/opt/python",
    "SLURM_JOB_ID": "1",
    "VIRTUAL_ENV": "/home/u/venv",
}
KEPT = {
    "CURL_CA_BUNDLE": "/etc/ca.pem",
    "HOME": "/home/u",
    "HTTPS_PROXY": "http://proxy:1",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "REQUESTS_CA_BUNDLE": "/etc/ca.pem",
    "SSL_CERT_DIR": "/etc/certs",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "TERM": "xterm",
    "TMPDIR": "/scratch",
    "USER": "u",
    "http_proxy": "http://proxy:1",
    "no_proxy": "localhost",
}
SYSTEM = {"/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Modules for Lmod: toy/1.0, broken/1.0 that needs what is not there, and in a second folder site/2."""
    files = {
        "own/toy/1.0.lua": 'setenv("TOY", "here")\nprepend_path("PATH", "/toy/bin")\n',
        "own/broken/1.0.lua": 'load("nowhere/1.0")\n',
        "site/site/2.lua": 'setenv("SITE", "loaded")\nprepend_path("LD_LIBRARY_PATH", "/site/lib")\n',
        "site/old/1.lua": 'setenv("OLD", "loaded")\nprepend_path("PATH", "/old/bin")\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def env_of(tree: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tree), "MODULEPATH": str(tree / "site")}


def entered(made: ModuleEnvironment, argv: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(made.command(argv), env=made.variables(env), capture_output=True, text=True, check=False)


def toy(tool: ModulesTool, tree: Path, module: str = "toy/1.0", load: tuple[str, ...] = ()) -> ModuleEnvironment:
    return ModuleEnvironment(name="toy-cpu", tool=tool, modulepath=tree / "own", modules=(module,), load=load)


@pytest.mark.parametrize("name", DROPPED)
def test_what_would_change_a_build_is_dropped(name: str) -> None:
    assert name not in clean({"PATH": "/usr/bin", **DROPPED}, None, ())


def test_what_a_build_needs_is_kept() -> None:
    cleaned = clean({"PATH": "/usr/bin", **DROPPED, **KEPT}, None, ())
    assert cleaned == {**KEPT, "PATH": cleaned["PATH"]}


def test_path_has_no_private_folders(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    own = fake("envkit")
    monkeypatch.setenv("PATH", str(own.parent))
    private = {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/conda", "PYENV_ROOT": "/pyenv"}
    path = ["/v/bin", "/v2/bin", "/conda/bin", "/pyenv/shims", str(own.parent), "", ".", "rel", "/usr/bin", "/opt/bin"]
    env = {**private, "PATH": os.pathsep.join(path)}
    kept = clean(env, None, ())["PATH"].split(os.pathsep)
    assert kept[:3] == ["/v2/bin", "/usr/bin", "/opt/bin"]
    assert set(kept[3:]) <= SYSTEM


def test_path_that_is_not_set() -> None:
    assert {"/usr/bin", "/bin"} <= set(clean({}, None, ())["PATH"].split(os.pathsep)) <= SYSTEM


def test_modules_to_load_need_a_modules_tool() -> None:
    with pytest.raises(ModuleNotLoaded, match=r"The modules a, b/1 cannot be loaded\."):
        clean({"PATH": "/usr/bin"}, None, ("a", "b/1"))


def test_clean_loads_site_modules_and_drops_those_of_the_caller(lmod: ModulesTool, tree: Path) -> None:
    caller = toy(lmod, tree, "toy/1.0", ("old/1",))
    env = json.loads(entered(caller, [sys.executable, "-c", SHOW], env_of(tree)).stdout)[1]
    assert env["LOADEDMODULES"] == "old/1:toy/1.0"
    cleaned = clean(env, lmod, ("site/2",))
    assert cleaned["SITE"] == "loaded" and cleaned["LD_LIBRARY_PATH"] == "/site/lib"
    assert not {"OLD", "TOY"} & set(cleaned)
    assert not {"/old/bin", "/toy/bin"} & set(cleaned["PATH"].split(":"))
    assert not [name for name in cleaned if "MODULE" in name.upper() and not name.startswith("LMOD_")]


def test_clean_without_modules_to_load_unloads_those_of_the_caller(lmod: ModulesTool, tree: Path) -> None:
    caller = toy(lmod, tree)
    env = json.loads(entered(caller, [sys.executable, "-c", SHOW], env_of(tree)).stdout)[1]
    assert "/toy/bin" not in clean(env, lmod, ())["PATH"].split(":")


def test_clean_says_which_module_cannot_be_loaded(lmod: ModulesTool, tree: Path) -> None:
    with pytest.raises(ModuleNotLoaded, match=r"The modules site/3 could not be loaded\.") as problem:
        clean(env_of(tree), lmod, ("site/3",))
    assert "site/3" in problem.value.why


@pytest.mark.parametrize("command", ["true", "unset ${!_ModuleTable@}"])
def test_a_damaged_table_of_modules_is_named_and_the_remedy_helps(lmod: ModulesTool, tree: Path, command: str) -> None:
    made = toy(lmod, tree)
    words = ["bash", "-c", f'{command}; exec "$0" "$@"', *made.command(["true"])]
    env = {**env_of(tree), "_ModuleTable001_": "bm9uc2Vuc2U="}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if command == "true":
        assert done.returncode == 92
        assert "; _ModuleTable001_, in which it keeps what this shell has loaded, is damaged.\n" in done.stderr
        assert "What to do: 'unset ${!_ModuleTable@}', or start" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


def test_every_argument_arrives_unchanged(lmod: ModulesTool, tree: Path) -> None:
    done = entered(toy(lmod, tree), [sys.executable, "-c", SHOW, *AWKWARD], env_of(tree))
    assert done.returncode == 0, done.stderr
    argv, env = json.loads(done.stdout)
    assert argv == AWKWARD
    assert env["TOY"] == "here" and env["PATH"].startswith("/toy/bin:")
    assert env["LOADEDMODULES"] == "toy/1.0"
    assert not [name for name in env if name.startswith("envkit") or name == "ENVKIT_BASH_ENV"]


def test_the_status_is_the_command_s_own(lmod: ModulesTool, tree: Path) -> None:
    made = toy(lmod, tree)
    assert entered(made, ["sh", "-c", "exit 7"], env_of(tree)).returncode == 7
    assert entered(made, ["sh", "-c", "kill -TERM $$"], env_of(tree)).returncode == -15
    assert entered(made, ["no-such-program"], env_of(tree)).returncode == 127


def test_the_launcher_starts_the_command_inside(lmod: ModulesTool, tree: Path) -> None:
    argv = toy(lmod, tree).command(["python", "x"], ["mpirun", "-np", "2"])
    assert argv[-5:] == ["mpirun", "-np", "2", "python", "x"] and argv[-6] == "--"


def test_site_modules_are_loaded_first(lmod: ModulesTool, tree: Path) -> None:
    done = entered(toy(lmod, tree, load=("site/2",)), [sys.executable, "-c", SHOW], env_of(tree))
    assert json.loads(done.stdout)[1]["LOADEDMODULES"] == "site/2:toy/1.0"


@pytest.mark.parametrize("module", ["nothing/1.0", "broken/1.0"])
def test_a_module_that_cannot_be_loaded(module: str, lmod: ModulesTool, tree: Path) -> None:
    done = entered(toy(lmod, tree, module), ["echo", "never"], env_of(tree))
    assert done.returncode == 92
    assert f"envkit: the module {module} could not be loaded.\n" in done.stderr
    assert done.stdout == ""


def test_bash_env_is_not_read_on_the_way_in_but_inside(lmod: ModulesTool, tree: Path) -> None:
    (tree / "env.sh").write_text("echo read\n")
    env = {**env_of(tree), "BASH_ENV": str(tree / "env.sh"), "ENV": "/x"}
    done = entered(toy(lmod, tree), ["bash", "-c", "echo $BASH_ENV"], env)
    assert done.stdout == f"read\n{tree}/env.sh\n"


def test_shell_reads_bashrc_and_then_enters(lmod: ModulesTool, tree: Path) -> None:
    (tree / ".bashrc").write_text("export TOY=mine RC=read PS1='> '\n")
    made = toy(lmod, tree)
    done = subprocess.run(
        made.shell(),
        env=made.variables(env_of(tree)),
        input='echo "<$TOY $RC $PS1 ${ENVKIT_WORDS-none}>"; exit 4\n',
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert "<here read (envkit toy-cpu) >  none>" in done.stdout
    assert done.returncode == 4


def test_environment_modules_are_told_the_same(fake: Fake, tree: Path) -> None:
    command = fake(
        "modulecmd.tcl",
        f'echo "$* [$MODULEPATH]" >> {tree}/told; echo "export TOY=faked LOADEDMODULES=$3 _LMFILES_=/m/$3;"',
    )
    made = toy(ModulesTool(kind="EnvironmentModules", command=command), tree, load=("site/2",))
    there = {"LOADEDMODULES": "old/1", "MODULEPATH": f"{tree}/site"}
    done = entered(made, ["sh", "-c", "echo $TOY"], {**env_of(tree), **there})
    assert done.stdout == "faked\n", done.stderr
    assert (tree / "told").read_text().splitlines() == [
        f"bash purge [{tree}/site]",
        f"bash load site/2 [{tree}/site]",
        f"bash load toy/1.0 [{tree}/own:{tree}/site]",
    ]


def test_modules_tool_by_its_variable(fake: Fake) -> None:
    lmod, tcl = fake("lmod"), fake("modulecmd.tcl")
    both = {"LMOD_CMD": str(lmod), "MODULES_CMD": str(tcl)}
    assert find_modules_tool(both) == ModulesTool(kind="Lmod", command=lmod)


def test_modules_tool_that_cannot_be_run_is_passed_over(fake: Fake, tmp_path: Path) -> None:
    tcl = fake("modulecmd.tcl")
    plain = tmp_path / "lmod"
    plain.touch()
    found = find_modules_tool({"LMOD_CMD": str(plain), "MODULES_CMD": str(tcl)})
    usual = [Path(place) for place in modules_tool.LMOD_PLACES if Path(place).is_file()]
    assert found is not None
    assert found.command == (usual[0] if usual else tcl)


def test_modules_tool_in_its_usual_place() -> None:
    usual = [*modules_tool.LMOD_PLACES, *modules_tool.ENVIRONMENT_MODULES_PLACES]
    if not any(map(Path.is_file, map(Path, usual))) or shutil.which("bash") is None:
        pytest.skip("no modules tool in a usual place")
    found = find_modules_tool({})
    assert found is not None and str(found.command) in usual


def image(**changes: Any) -> ContainerEnvironment:
    given: dict[str, Any] = {"name": "toy", "runtime": Path("/bin/apptainer"), "image": Path("/toy.sif")}
    return ContainerEnvironment(**{**given, **changes})


def test_the_way_into_an_image(tmp_path: Path) -> None:
    assert image().command(["a b", "--", "c"]) == ["/bin/apptainer", "--silent", "exec", "/toy.sif", "a b", "--", "c"]
    assert image().shell() == ["/bin/apptainer", "--silent", "shell", "/toy.sif"]
    seen = image().command(["x"], visible=[tmp_path, tmp_path])
    assert seen[3:-2] == ["--bind", f"{tmp_path}:{tmp_path}"]
    assert image(settings=(("A", "b c"),)).command(["x"])[3:-2] == ["--env", "A=b c"]


@pytest.mark.parametrize(("accelerator", "word"), [("cuda", "--nv"), ("rocm", "--rocm")])
def test_the_gpus_of_the_host_in_an_image(accelerator: str, word: str) -> None:
    assert image(accelerator=accelerator).command(["x"])[3] == word
    assert ("MIOPEN_USER_DB_PATH" in image(accelerator=accelerator).variables({})) == (accelerator == "rocm")
    kept = image(accelerator=accelerator).variables({"MIOPEN_USER_DB_PATH": "/own"})
    assert kept["MIOPEN_USER_DB_PATH"] == "/own"


def test_nobody_can_have_made_the_folder_of_kernels_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(user: str, job: str) -> str:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        return image(accelerator="rocm").variables({"SLURM_JOB_ID": job})["MIOPEN_USER_DB_PATH"]

    found = [folder(user, job) for user in ("me", "other") for job in ("1", "2", "1")]
    assert len(set(found)) == 4 and found[0] == found[2]
    assert all(re.fullmatch(rf"/tmp/miopen-{os.getuid()}-[0-9a-f]{{16}}", one) for one in found)


@pytest.mark.parametrize("model", list(MpiModel))
def test_the_launcher_of_an_image(model: MpiModel) -> None:
    words = image(model=model).command(["python"], ["mpirun", "-n", "2"])
    enter = ["/bin/apptainer", "--silent", "exec", "/toy.sif"]
    launch = ["mpirun", "-n", "2"]
    assert words == [*([*enter, *launch] if model is MpiModel.INSIDE else [*launch, *enter]), "python"]


def test_what_would_change_the_python_of_an_image_stays_outside() -> None:
    env = {"PYTHONPATH": "/x", "PYTHONHOME": "/y", "BASH_ENV": "/z", "PATH": "/bin", "LD_LIBRARY_PATH": "/lib"}
    changed = image().variables(env)
    assert changed.keys() & {"PYTHONPATH", "PYTHONHOME", "BASH_ENV"} == set()
    assert (changed["PATH"], changed["LD_LIBRARY_PATH"], changed["ENVKIT_NAME"]) == ("/bin", "/lib", "toy")


def test_a_bind_whose_source_is_not_there(tmp_path: Path) -> None:
    binds = (f"{tmp_path}:/mnt", "/proc/nonexistent/a", "/proc/nonexistent/b:/b")
    with pytest.raises(HostProblem, match="/proc/nonexistent/a, /proc/nonexistent/b") as problem:
        image(binds=binds).command(["x"])
    assert "--site" in problem.value.fix
    assert image(binds=binds[:1]).command(["x"])[3:5] == ["--bind", f"{tmp_path}:/mnt"]
