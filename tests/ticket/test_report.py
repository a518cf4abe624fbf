"""``envkit report``: one file, whatever is wrong."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envkit.cli import run
from envkit.commands import verify
from envkit.easybuild.receipt import ModuleReceipt
from envkit.ticket import gather
from envkit.ticket.private import Redactor
from envkit.verify import last
from tests.verify.test_report import report as recorded

from ..small_disk import leave, small_disk

ENVKIT = Path(sys.executable).with_name("envkit")
Output = pytest.CaptureFixture[str]
LOG = "srun: error: gpu17: task 3\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB. password=hunter2hunter2\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log; the doctor says little, and the state is kept there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    monkeypatch.delenv("ENVKIT_NAME", raising=False)
    monkeypatch.setattr(gather, "doctor", lambda *_: {"summary": "it works", "text": "all of it", "data": {"a": 1}})
    (tmp_path / "run.log").write_text(LOG)
    return tmp_path


def parts(text: str) -> dict[str, dict[str, str]]:
    """Return the parts of a report in JSON by their ids."""
    return {part["id"]: part for part in json.loads(text)["parts"]}


def test_with_no_environment_it_is_written_all_the_same(here: Path, capsys: Output) -> None:
    assert run(["report", "--log", "run.log"]) == 0
    page = (here / "envkit-report.html").read_text()
    assert "envkit-report.html" in capsys.readouterr().err
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert "gpu-out-of-memory" in page and "Nothing is installed" in page and "There is none" in page
    assert "hunter2" not in page and "gpu17" not in page
    assert "src=" not in page and "<script" not in page


def test_the_name_of_the_file_says_the_form(here: Path, capsys: Output) -> None:
    assert run(["report", "-o", "a.json", "--log", "run.log"]) == 0
    told = parts((here / "a.json").read_text())
    assert told["logs"]["data"][0]["diagnosis"]["cause"]["id"] == "gpu-out-of-memory"  # type: ignore[index]
    assert run(["report", "-o", "a.md", "--log", "run.log"]) == 0
    text = (here / "a.md").read_text()
    assert text.startswith("# envkit report") and "```json" in text
    capsys.readouterr()
    assert run(["report", "--json"]) == 0
    assert set(parts(capsys.readouterr().out)) == {"verdict", "environment", "doctor", "versions"}
    assert run(["report", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("# envkit report")
    assert not (here / "envkit-report.html").exists()


def test_what_fails_in_one_part_leaves_the_others(here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "doctor", lambda *_: 1 / 0)
    receipts = here / "prefix" / f"{os.uname().machine}-py3.11" / "environments"
    receipts.mkdir(parents=True)
    (receipts / "pytorch-2.13-cpu.json").write_text("{")
    assert run(["report", "pytorch-2.13-cpu", "--json"]) == 0
    told = parts(capsys.readouterr().out)
    assert "ZeroDivisionError" in told["doctor"]["problem"]
    assert "cannot be read" in told["environment"]["problem"] and "damaged" in told["environment"]["text"]
    assert told["versions"]["text"]


def test_a_prefix_that_is_somebody_elses(here: Path, capsys: Output) -> None:
    foreign = here / "prefix"
    foreign.mkdir()
    foreign.chmod(0)
    if not os.geteuid():
        os.chown(foreign, 12345, 12345)
    assert run(["report", "--json"]) == 0
    told = parts(capsys.readouterr().out)
    assert told["environment"]["problem"]
    foreign.chmod(0o700)


def test_a_name_that_is_none_is_one_clear_message(here: Path, capsys: Output) -> None:
    assert run(["report", "nosuch"]) == 6
    said = capsys.readouterr()
    assert said.err.startswith("envkit: There is no environment 'nosuch'.") and said.err.count("nosuch") == 1
    assert not said.out and not (here / "envkit-report.html").exists()


@pytest.mark.integration
def test_who_is_called_like_a_word_of_the_verdict_keeps_it(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded("rank-killed")
    last.keep(made, "pytorch", "")
    for word in ("pass", "mpi", "openmpi", "launcher_said"):
        for names in (
            {"USER": word, "LOGNAME": word},
            {"SLURM_JOB_ACCOUNT": word},
            {"SLURM_JOB_NODELIST": word, "HOSTNAME": word},
            {"MY_TOKEN": word},
        ):
            with monkeypatch.context() as patch:
                for name, value in names.items():
                    patch.setenv(name, value)
                assert run(["report", "--json"]) == 0
            told = parts(capsys.readouterr().out)["verdict"]
            assert "problem" not in told or not told["problem"], (word, names, told["problem"])
            assert told["data"]["verdict"] == "fail" and "FAIL" in told["text"]  # type: ignore[index]
            assert [one["id"] for one in told["data"]["results"]] == [one.id for one in made.results]  # type: ignore[index]


@pytest.mark.integration
def test_a_verdict_of_very_many_nodes_is_told_soon(here: Path, capsys: Output) -> None:
    made = recorded("rank-killed")
    names = [f"nid{number:06d}" for number in range(600)]
    rows = tuple(msgspec.structs.replace(made.hosts[0], name=name) for name in names)
    ranks = tuple(msgspec.structs.replace(made.ranks[0], host=name, rank=at) for at, name in enumerate(names))
    last.keep(msgspec.structs.replace(made, hosts=rows, ranks=ranks), "pytorch", "")
    (here / "run.log").write_text("".join(f"srun: error: {name}: task 1: Killed\n" for name in names))
    began = time.process_time()
    assert run(["report", "--json", "--log", "run.log"]) == 0
    spent = time.process_time() - began
    text = capsys.readouterr().out
    assert "nid0" not in text and "<host-600>" in text
    assert spent < 10, spent


def test_standard_input_is_no_log(here: Path, capsys: Output) -> None:
    assert run(["report", "--log", "-"]) == 2
    assert "--log takes the file of a log" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--log", "none.log"], ["-o", "."]])
def test_a_mistake_is_told_before_anything_is_written(words: list[str], here: Path, capsys: Output) -> None:
    assert run(["report", *words]) == 2
    assert capsys.readouterr().err
    assert not (here / "envkit-report.html").exists()


def test_a_file_that_cannot_be_written(here: Path, capsys: Output) -> None:
    for path in ("/dev/full", "none/x.html"):
        assert run(["report", "-o", path]) == 7
        assert "What to do: Name another file: -o FILE" in capsys.readouterr().err


def test_a_full_disk_has_nothing_half_made(here: Path, capsys: Output) -> None:
    with small_disk(here / "small", 16) as small:
        leave(small, 1)
        assert run(["report", "-o", str(small / "r.html"), "--log", "run.log"]) == 7
        assert [path.name for path in small.iterdir()] == ["filler"]
    assert "could not be written" in capsys.readouterr().err


def test_the_last_verdict_is_in_it(here: Path, capsys: Output) -> None:
    last.keep(recorded("rank-killed"), "pytorch", "")
    assert run(["report", "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert "FAIL of pytorch" in text and '"verdict": "fail"' in text
    assert run(["report", "pytorch-2.13-cpu", "--json"]) == 0
    assert "There is none" in parts(capsys.readouterr().out)["verdict"]["problem"]


def test_of_many_verdicts_the_last_few_are_kept_privately(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = recorded("pytorch-2ranks")
    for number in range(last.MOST + 3):
        last.keep(report, f"e{number}", "/p")
        os.utime(last.path_of(f"e{number}", "/p"), (number, number))
    kept = list(last.folder().iterdir())
    assert len(kept) <= last.MOST + 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE(last.folder().stat().st_mode) == 0o700
    newest = last.last(f"e{last.MOST + 2}", "/p")
    assert newest is not None and newest.report == report and last.last("e0", "/p") is None
    monkeypatch.setattr(last, "LARGEST", 10)
    last.keep(report, "e9", "/p")
    assert not last.path_of("e9", "/p").exists()  # an older one would mislead
    last.path_of("e8", "/p").write_bytes(b"no record")
    assert last.last("e8", "/p") is None


def test_the_verdict_of_a_virtual_environment_is_not_that_of_its_base(
    here: Path, install: Callable[..., ModuleReceipt]
) -> None:
    base = install("toy")
    verify.keep(recorded("pytorch-2ranks"), base)
    verify.keep(recorded("rank-killed"), base.within(here / "own"))
    kept = {name: last.last(name, base.tree) for name in ("toy", str(here / "own"))}
    assert [one.report.verdict for one in kept.values() if one] == ["pass", "fail"]
    told = gather.verdict(base.within(here / "own"), None, Redactor({}))
    assert told["summary"].startswith(f"FAIL of {here / 'own'}, ")


def test_a_verdict_that_cannot_be_kept_is_no_matter(here: Path) -> None:
    (here / "state").write_text("")
    last.keep(recorded("pytorch-2ranks"), "e", "")
    assert last.latest() is None


@pytest.mark.integration
def test_a_whole_report_has_no_secret_of_the_session(tmp_path: Path) -> None:
    """With the real doctor, in a process of its own."""
    log = tmp_path / "run.log"
    log.write_text("connecting with xK9-secret-value-77 as https://anna:Pq7-Zz99@proxy.site.example:3128\n" + LOG)
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "ENVKIT_PREFIX": str(tmp_path / "prefix"),
        "HF_TOKEN": "xK9-secret-value-77",
        "USER": "annamiller",
        "https_proxy": "http://anna:Pq7-Zz99@127.0.0.1:9",
        "PIP_INDEX_URL": "http://anna:Pq7-Zz99@127.0.0.1:9/simple",
    }
    for name in ("r.html", "r.md", "r.json"):
        done = subprocess.run(
            [ENVKIT, "report", "-o", name, "--log", log],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text = (tmp_path / name).read_text()
        for private in ("xK9-secret", "Pq7-Zz99", "annamiller", str(tmp_path), "gpu17", "proxy.site.example"):
            assert private not in text, private


@pytest.mark.parametrize("in_the_way", ["link", "pipe"])
def test_what_lies_under_its_default_name_is_not_written_through(here: Path, capsys: Output, in_the_way: str) -> None:
    own = here / "thesis"
    own.write_text("years of work")
    if in_the_way == "link":
        (here / "envkit-report.html").symlink_to(own)
    else:
        os.mkfifo(here / "envkit-report.html")
    assert run(["report"]) == 7
    assert "Name another file: -o FILE" in capsys.readouterr().err
    assert own.read_text() == "years of work"
