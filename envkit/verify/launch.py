"""Verifying: start the probe inside an environment, once per rank, and judge what it found."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from envkit import launcher, process
from envkit.receipt import Receipt
from envkit.resources import data
from envkit.verify.build_flags import PACKAGES, BuildFlags, read_extensions
from envkit.verify.checks import check
from envkit.verify.facts import load
from envkit.verify.outcome import Expected
from envkit.verify.report import Report, make_report

TIMEOUT_S = 300
FAREWELL_S = 60


def verify(receipt: Receipt, *, ranks: int, require: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Report:
    """Start ``ranks`` ranks of the probe inside an environment and return the verdict on what they state."""
    began = time.monotonic()
    framework = PACKAGES[receipt.framework]
    inside = receipt.environment
    with tempfile.TemporaryDirectory(prefix="envkit-verify-") as folder:
        log = Path(folder) / "launcher.log"
        facts_folder = Path(folder) / "facts"
        facts_folder.mkdir()
        probe = ["python", str(data("verify/probe.py")), "--framework", framework]
        probe += ["--output", str(facts_folder), "--timeout", str(TIMEOUT_S)]
        argv = inside.command(probe, launcher.command(receipt.mpi, ranks))
        status = process.supervise(
            argv,
            env=inside.variables(launcher.variables(env)),
            log=log,
            timeout_s=TIMEOUT_S + FAREWELL_S,
        )
        facts = load(facts_folder)
        said = log.read_text(errors="replace")
    expected = Expected(
        size=ranks,
        frameworks=(framework,),
        required=frozenset((*receipt.requires, *require)),
        built=built(receipt),
        launcher_status=status,
    )
    return make_report(
        receipt.name,
        facts,
        check(facts, expected),
        expected=expected,
        said=said,
        seconds=time.monotonic() - began,
    )


def built(receipt: Receipt) -> BuildFlags:
    """Return the build flags of an environment, read from its compiled extensions."""
    return read_extensions(
        Path(receipt.horovod),
        [Path(path) for path in receipt.library_path],
        [Path(path) for path in receipt.site_packages],
    )
