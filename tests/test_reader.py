"""Remedies for who reads them; what explains a failure; names on the line below."""

from pathlib import Path

import pytest

from envkit.cli import run
from envkit.diagnose import first_cause, judged, seen_in
from envkit.diagnose.reader import Reader, scheduler

LIMIT = "slurmstepd: error: *** JOB 1 ON n CANCELLED AT x DUE TO TIME LIMIT ***"
NO_HOROVOD = "ModuleNotFoundError: No module named 'horovod'"
LMOD = b'Lmod has detected the following error:  The following module(s) are unknown:\n"%s"\n\n'


def test_without_a_reader_all_schedulers_are_told() -> None:
    found = first_cause([LIMIT])
    assert found is not None
    assert all(word in found.fix for word in ("sbatch --time=", "qsub -l walltime=", "bsub -W"))


def test_a_reader_is_told_of_their_own() -> None:
    reader = Reader(environment="pytorch-2.13-cpu", scheduler="pbs")
    found = judged(seen_in([LIMIT]), None, reader)
    assert found is not None and "qsub -l walltime=" in found.fix and "sbatch" not in found.fix
    found = judged(seen_in([NO_HOROVOD]), None, reader)
    assert found is not None and "envkit run pytorch-2.13-cpu -- CMD" in found.fix
    found = judged(seen_in([NO_HOROVOD]), None, Reader(environment="my env; x"))
    assert found is not None and "envkit run 'my env; x' -- CMD" in found.fix


def test_the_scheduler_is_that_of_the_job_else_the_only_one_here(tmp_path: Path) -> None:
    for name in ("sbatch", "qsub"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert scheduler({"PATH": str(tmp_path)}) == ""
    assert scheduler({"PATH": str(tmp_path), "PBS_JOBID": "1"}) == "pbs"
    (tmp_path / "qsub").unlink()
    assert scheduler({"PATH": str(tmp_path)}) == "slurm"
    assert scheduler({"PATH": "/none"}) == ""


def test_here_fills_in_what_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{NO_HOROVOD}\n")
    monkeypatch.setenv("ENVKIT_NAME", "tensorflow-2.21-cpu")
    assert run(["diagnose", "--here", str(log)]) == 0
    assert "envkit run tensorflow-2.21-cpu" in " ".join(capsys.readouterr().out.split())
    assert run(["diagnose", str(log)]) == 0
    assert "envkit run NAME" in " ".join(capsys.readouterr().out.split())


def test_a_module_that_was_not_loaded_explains_what_is_missing_below() -> None:
    found = first_cause([LMOD % b"Horovod/0.28.1-foss-2023a" + NO_HOROVOD.encode()])
    assert found is not None and found.rule.id == "module-unknown"
    assert "the module Horovod/0.28.1-foss-2023a here" in found.cause
    assert "'module spider Horovod/0.28.1-foss-2023a'" in found.fix
    found = first_cause([NO_HOROVOD.encode() + b"\n" + LMOD % b"foss/2023a"])
    assert found is not None and found.rule.id == "horovod-missing"  # what stands below explains nothing
    found = first_cause([LMOD % b"foss/2023a" + b"RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"])
    assert found is not None and found.rule.id == "gpu-out-of-memory"  # nor what is no echo of it


@pytest.mark.parametrize("name", [b"$(touch x)", b"a;b", b"`x`"])
def test_a_module_is_part_of_a_command_only_if_it_is_a_name(name: bytes) -> None:
    found = first_cause([LMOD % name])
    assert found is not None and name.decode() not in found.fix


def test_a_name_that_a_log_has_not_leaves_no_hole() -> None:
    found = first_cause(["Lmod has detected the following error:  The following module(s) are unknown:"])
    assert found is not None and "the module here, or" in found.cause
