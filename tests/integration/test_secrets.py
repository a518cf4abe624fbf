"""Secrets of the caller are in no file and no output that envkit leaves, and files are the user's alone."""

import getpass
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..verify.conftest import make_site as make_fakes
from .site import Site, needs

pytestmark = pytest.mark.integration

SECRET = "s3cr3t-Tok3n"
URL = f"http://{getpass.getuser()}:{SECRET}@127.0.0.1:9"
PLANTED = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "ftp_proxy"), URL),
    "PIP_INDEX_URL": f"{URL}/simple",
    "PIP_EXTRA_INDEX_URL": f"{URL}/more",
    "PIP_FIND_LINKS": f"{URL}/links",
    "PIP_PROXY": URL,
    "HF_TOKEN": SECRET,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "GITHUB_TOKEN": SECRET,
    "SLURM_JWT": SECRET,
    "APPTAINER_DOCKER_PASSWORD": SECRET,
    "HOROVOD_SECRET_KEY": SECRET,
    "HOROVOD_TEST_TOKEN": SECRET,
    "NCCL_TEST_TOKEN": SECRET,
    "OMPI_MCA_test_token": SECRET,
    "CVMFS_HTTP_PROXY": URL,
}


def planted(site: Site) -> dict[str, str]:
    """What a person has in the environment and in files."""
    (site.home / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    (site.home / ".netrc").chmod(0o600)
    (site.home / ".config" / "pip").mkdir(parents=True)
    (site.home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {URL}/simple\nproxy = {URL}\n")
    return {**PLANTED, "XDG_CACHE_HOME": str(site.folder / "cache")}


def files(site: Site) -> Iterator[Path]:
    """All that is in the folder of a site, but for what was planted."""
    given = (site.home / ".netrc", site.home / ".config" / "pip" / "pip.conf")
    yield from (path for path in site.folder.rglob("*") if path not in given)


def holding(site: Site) -> list[str]:
    """The files that hold the secret: logs, caches, recipes, modules, reports, what was printed."""
    plain = [path for path in files(site) if path.is_file() and not path.is_symlink()]
    assert len(plain) > 10
    return [str(path) for path in plain if SECRET.encode() in path.read_bytes()]


def test_no_secret_is_in_anything_that_an_installation_leaves(site: Site) -> None:
    env = planted(site)
    site.installed("toy-top", env=env)
    assert "PATH=" in (site.tree / "software/toy-middle/1.0/settings").read_text()  # all that reaches a build
    for words in (["list"], ["show", "toy-top-1.0", "--json"], ["show", "toy-top-1.0", "--lock"], ["doctor", "--json"]):
        site.start(*words, env=env).wait()
    site.run("show", "toy-top-1.0", "--sbom", env=env)
    site.run("fetch", site.recipe("toy-other"), "--bundle", str(site.folder / "toys.tar"), "--recheck", env=env)
    broken = site.own_recipes("tampered")
    broken.install("toy-other", env={**env, "ENVKIT_PREFIX": str(site.folder / "other")}).wait()
    assert holding(site) == []


def test_no_secret_is_in_a_report(site: Site) -> None:
    """Of a Horovod that does what a real one does in the ranks, with all that a verification writes."""
    fakes = make_fakes(site.folder / "fakes", "")
    env = {**planted(site), "PYTHONPATH": str(fakes), "FAKE_FAULTS": "", "FAKE_MEETING": str(site.folder)}
    env["PATH"] = f"{Path(sys.executable).parent}:{site.env['PATH']}"
    words = ["verify", "-n", "1", "--timeout", "20", "--json"]
    told = site.start(*words, "--html", site.folder / "r.html", "--junit", site.folder / "r.xml", env=env)
    assert told.wait() in (0, 1), told.err
    assert '"verdict"' in told.out and (site.folder / "r.html").stat().st_size > 1000
    assert holding(site) == []


@pytest.mark.parametrize(("umask", "user"), [("000", 0), ("077", 0), ("000", 1000), ("077", 1000)])
def test_files_are_the_users_alone(site: Site, umask: str, user: int) -> None:
    """Also where root is in a namespace in which it is somebody else."""
    before: tuple[str, ...] = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    if user and os.geteuid() == 0:
        needs("unshare")
        before = ("unshare", "--user", f"--map-user={user}", f"--map-group={user}", *before)
    shutil.rmtree(site.home / ".cache", ignore_errors=True)
    env = {"XDG_CACHE_HOME": str(site.home / ".cache")}
    site.installed("toy-top", before=before, env=env)
    assert stat.S_IMODE(site.prefix.stat().st_mode) == 0o700
    folders = [site.home / ".cache" / name for name in ("", "envkit", "envkit/plans")]
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in folders] == [oct(0o700)] * 3
    ours = [path for path in site.prefix.rglob("*") if not path.is_symlink()]
    for_all = site.prefix if os.geteuid() == 0 and not user else site.tree / "software"
    assert len(ours) > 50
    for path in ours:
        allowed = 0o755 if path.is_relative_to(for_all) else 0o700
        assert not stat.S_IMODE(path.stat().st_mode) & 0o777 & ~allowed, path
    for path in (site.home / ".cache" / "envkit" / "plans").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site.run("run", "toy-top-1.0", "--", "sh", "-c", "umask", before=before).out.strip() == f"0{umask}"


@pytest.mark.parametrize("umask", ["000", "077"])
def test_a_prefix_that_is_shared_on_purpose(site: Site, umask: str) -> None:
    """Who makes the folder with that mode before lets others read what is in it, and nobody else write."""
    site.prefix.mkdir()
    site.prefix.chmod(0o755)
    before = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    site.installed("toy-top", before=before)
    receipt = site.tree / "environments" / "toy-top-1.0.json"
    for path in (receipt, receipt.parent, site.tree / "software/toy-top/1.0/bin/toy-top", site.tree / "modules/all"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o044 == 0o044 and not mode & 0o022, (path, oct(mode))


def test_a_plan_that_others_may_have_written_is_not_taken(site: Site) -> None:
    """It names recipes, which eb runs."""
    env = {"XDG_CACHE_HOME": str(site.home / "cache")}

    def planned() -> str:
        return site.run("install", site.recipe("toy-base"), "--dry-run", env=env).out

    planned()
    [plan] = (site.home / "cache/envkit/plans").iterdir()
    evil = plan.read_text().replace("toy-base/1.0", "toy-evil/1.0")
    plan.write_text(evil)
    assert "toy-evil/1.0" in planned()  # one's own is believed, or nothing would be shown by what follows
    for others in (plan, plan.parent):
        plan.write_text(evil)
        others.chmod(0o777)
        told = planned()
        assert "toy-evil" not in told and "toy-base/1.0" in told
        assert (oct(plan.stat().st_mode & 0o777), oct(plan.parent.stat().st_mode & 0o777)) == ("0o600", "0o700")


def test_the_planted_secrets_would_be_found(site: Site) -> None:
    """What is asserted above can fail."""
    env = planted(site)
    log = site.folder / "log"
    with log.open("wb") as stream:
        subprocess.run(["env"], env={**site.env, **env}, stdout=stream, check=True)
    for number in range(10):
        (site.folder / f"filler-{number}").touch()
    assert holding(site) == [str(log)]
