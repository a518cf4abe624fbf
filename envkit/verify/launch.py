"""Verifying: start the probe inside an environment, once per rank, and judge what it found."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from envkit import launcher, process
from envkit.receipt import Receipt
from envkit.resources import data
from envkit.verify.build_flags import read_extensions
from envkit.verify.checks import Expected, check
from envkit.verify.facts import load
from envkit.verify.report import Report, make_report

TIMEOUT_S = 300


def verify(
    receipt: Receipt, *, ranks: int, require: Sequence[str] = (), env: Mapping[str, str] = os.environ
) -> Report:
    """Start ``ranks`` ranks of the probe inside an environment and return the verdict on what they state."""
    began = time.monotonic()
    built = read_extensions(Path(receipt.horovod), paths(receipt.library_path), paths(receipt.site_packages))
    with tempfile.TemporaryDirectory(prefix="envkit-verify-") as folder:
        output = Path(folder)
        probe = [
            "python",
            str(data("verify/probe.py")),
            "--framework",
            receipt.framework,
            "--output",
            str(output),
        ]
        inside = receipt.environment
        argv = inside.command([*probe, "--timeout", str(TIMEOUT_S)], launcher.command(receipt.mpi, ranks))
        log = output / "launcher.log"
        status = process.supervise(
            argv, env=inside.variables(launcher.variables(env)), log=log, timeout_s=TIMEOUT_S + 60
        )
        facts = load(output)
        said = log.read_text(errors="replace")
    expected = Expected(
        size=ranks,
        frameworks=(receipt.framework,),
        required=frozenset((*receipt.requires, *require)),
        built=built,
    )
    return make_report(
        receipt.name,
        facts,
        check(facts, expected),
        launcher_status=status,
        said=said,
        seconds=time.monotonic() - began,
    )


def paths(names: Sequence[str]) -> list[Path]:
    """Return names as paths."""
    return [Path(name) for name in names]
