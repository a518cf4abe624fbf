"""``envkit.api``: what it returns, what it raises, what it does not do."""

import ast
import dataclasses
import inspect
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from envkit import api, errors
from envkit.api.lines import lines_to
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix
from envkit.methods import registry

RESULTS = [value for name in api.__all__ if isinstance(value := getattr(api, name), type) and name != "EnvkitError"]
FUNCTIONS = [getattr(api, name) for name in api.__all__ if inspect.isfunction(getattr(api, name))]
SCRIPT = """
from datetime import date

from envkit import api

found: api.Verification = api.verify("pytorch", ranks=2, require=["mpi"], timeout_s=60)
if not found.passed and found.cause is not None:
    remedy: str = found.cause.remedy
days: list[date | None] = [one.verified for one in api.environments(prefix="/p")]
works: bool = api.doctor().works
try:
    installed: api.Environment | None = api.install("pytorch", method="easybuild", progress=print).environment
except api.EnvkitError as error:
    code: int = error.exit_code
    said: str = error.what + error.why + error.fix
if api.diagnose("log").state == "cause":
    number: int = api.diagnose(text="x").number
verdict: str = api.compat("torch=2.13", "python=3.11").verdict
"""


def test_has_what_was_promised() -> None:
    assert {"install", "environments", "verify", "doctor", "diagnose", "compat"} <= set(api.__all__)


@pytest.mark.parametrize("result", RESULTS)
def test_results_are_frozen_and_described(result: type) -> None:
    assert dataclasses.is_dataclass(result)
    assert result.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert result.__doc__
    assert not result.__doc__.startswith(f"{result.__name__}(")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_described_with_their_arguments(function: Callable[..., object]) -> None:
    said = inspect.getdoc(function) or ""
    assert "Raises" in said or "an EnvkitError" in said.replace("is no exception", "")
    signature = inspect.signature(function)
    kinds = [one.kind for one in signature.parameters.values()][1:]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds)
    assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


def test_import_is_cheap() -> None:
    code = "import sys; from envkit import api; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "envkit.api" in loaded
    heavy = {"rich", "click", "msgspec", "httpx", "packaging", "subprocess", "easybuild", "jinja2"}
    assert heavy & set(loaded) == set()


@pytest.mark.integration
def test_a_users_script_is_typed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    script.write_text(SCRIPT + "\nwrong: int = api.doctor().works.nothing\napi.verify(ranks='2')\n")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.count("error:") == 2, done.stdout


def test_nothing_in_it_prints_or_ends_the_process() -> None:
    for path in Path(api.__file__).parent.glob("*.py"):
        called = {
            ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        }
        assert called & {"print", "sys.exit", "exit", "click.echo", "echo", "os._exit"} == set()


def test_environments(prefix: Prefix, install: Callable[..., ModuleReceipt]) -> None:
    install("toy-cpu", horovod="/h")
    damaged = Path(install("toy-two", "Other/1").tree)
    (damaged / "environments" / "odd.json").write_text("{")
    (damaged / "modules" / "all" / "Other" / "1.lua").unlink()
    found = {one.name: one for one in api.environments(prefix=prefix.root)}
    assert found["toy-cpu"].method == "easybuild"
    assert found["toy-cpu"].mpi == "Open MPI 4.1.4"
    assert found["toy-cpu"].verified == date(2026, 1, 2)
    assert found["toy-cpu"].prefix == prefix.root
    assert found["toy-cpu"].problem == ""
    assert found["toy-two"].verified is None
    assert "Other/1" in found["toy-two"].problem
    assert "cannot be read" in found["odd"].problem


def test_failures_say_what_to_do(prefix: Prefix, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.EnvironmentMissing) as missing:
        api.verify("nothing", prefix=prefix.root)
    assert missing.value.exit_code == 6
    assert missing.value.fix
    with pytest.raises(errors.UnknownStack):
        api.install("no-such-stack", prefix=prefix.root)
    with pytest.raises(errors.UsageProblem, match="mpy"):
        api.verify(require=["mpy"])
    for odd in (math.nan, math.inf, 0.0, -5.0, 10**400):
        with pytest.raises(errors.UsageProblem, match="--timeout"):
            api.verify(timeout_s=odd)
        with pytest.raises(errors.UsageProblem, match="--tolerance"):
            api.verify(baseline="x", tolerance=odd or 1.5)
    with pytest.raises(errors.UsageProblem):
        api.diagnose()
    with pytest.raises(errors.LogUnreadable):
        api.diagnose("/no/such/log")
    with pytest.raises(errors.UsageProblem, match="torche"):
        api.compat("torche=2")
    assert capfd.readouterr() == ("", "")


def test_a_rank_of_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.UsageProblem, match="rank 1"):
        api.verify("pytorch")


def test_the_one_task_of_a_step_is_refused_only_as_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook in a job is one, and starts ranks itself."""
    ours, theirs = socket.socketpair()
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    with ours, theirs:
        for name, value in {**step, "PMI_FD": str(ours.fileno())}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(errors.UsageProblem, match="rank 0 of srun"):
            api.verify("nothing", ranks=1)
        with pytest.raises(errors.EnvironmentMissing):
            api.verify("nothing", ranks=2)


def test_diagnose(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\nmpirun: error while loading shared libraries: libmpi.so.40: cannot open shared object file\n")
    found = api.diagnose(log)
    assert found.state == "cause"
    assert found.number == 2
    assert found.remedy
    assert api.diagnose(text=log.read_text()) == found
    assert api.diagnose(text="all went well\n").state == "no failure"


def test_compat() -> None:
    found = api.compat("torch=2.13", "python=3.11")
    assert found.parts["torch"] == "2.13"
    assert found.verdict in ("works", "risky", "unknown")
    assert '"verdict"' in found.to_json()


@pytest.mark.integration
def test_doctor_runs_in_any_thread(prefix: Prefix) -> None:
    found: list[api.Examination] = []
    thread = threading.Thread(target=lambda: found.append(api.doctor(prefix=prefix.root)))
    thread.start()
    thread.join()
    assert {one.name for one in found[0].methods} == set(registry.NAMES)
    assert '"methods"' in found[0].to_json()


def test_lines_are_handed_on_whole() -> None:
    said: list[str] = []
    stream = lines_to(said.append)
    for text in ("one ", "line\ntwo\nthr", "ee"):
        stream.write(text)
    assert said == ["one line", "two"]
