"""A job for each module: eb --job against real Slurm, followed to the end, resumed, failed and cancelled."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..integration.site import TOYS, Site, make_site, needs, sha256, until
from ..stacks import Site as Stacks
from .cluster import Cluster
from .conftest import STACK

pytestmark = pytest.mark.integration
BOTH = """
easyblock = 'Bundle'

name = 'toy-both'
version = '1.0'

homepage = 'https://example.org/'
description = "What needs two that do not need each other."

toolchain = SYSTEM

dependencies = [('toy-top', '1.0'), ('toy-other', '1.0')]

moduleclass = 'devel'
"""
CONFIG_GUESS = "ec2577614252326f889df1de97b9a457c03a9a94811048563c211a44496d8ba3"


class User:
    """A person on the login host, who has recipes of toys and installs them in jobs."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        self.cluster, self.site = cluster, site
        self.env = {**site.env, "PIP_NO_INDEX": "1"}  # the cluster has no network, and here nobody waits for it

    def argv(self, toy: str, *words: str, prefix: Path | None = None) -> list[str]:
        """The command line that installs a toy in one job."""
        where = ["--prefix", str(prefix or self.site.prefix)]
        recipe = str(self.site.recipe(toy))
        return ["envkit", "install", recipe, *where, "--submit", "--jobs", "1", "--time", "5", *words]

    def install(self, toy: str, *words: str, prefix: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Install a toy in jobs, and wait for the end."""
        return self.cluster.run(self.argv(toy, *words, prefix=prefix), env=self.env, timeout=150)

    def start(self, toy: str, *words: str) -> subprocess.Popen[str]:
        """Start to install a toy in jobs."""
        begin = ["sh", "-c", 'echo $$ >"$HOME/pid"; exec "$@"', "sh"]
        return self.cluster.start([*begin, *self.argv(toy, *words)], env=self.env)

    def stop(self, running: subprocess.Popen[str], how: str, *begun: str) -> tuple[str, str]:
        """Send a signal to an installation once these toys are being built; return what it said."""
        marks = [self.site.home / f"at-{toy}" for toy in begun]
        until(lambda: all(mark.exists() for mark in marks) or running.poll() is not None, f"{begun} side by side")
        self.cluster.run(["kill", f"-{how}", (self.site.home / "pid").read_text().strip()])
        out, err = running.communicate()
        return out, err

    def queue(self, form: str) -> list[str]:
        """What squeue says of the jobs that have not ended."""
        return self.cluster.run(["squeue", "--noheader", "--states=PENDING,RUNNING", f"--format={form}"]).stdout.split()


@pytest.fixture
def user(cluster: Cluster, toys: Path) -> Iterator[User]:
    needs("envkit", "eb", "lmod", "gcc", "make", "patch")
    folder = Path(tempfile.mkdtemp(prefix="jobs-", dir=cluster.folder))
    made = User(cluster, make_site(folder, toys))
    yield made
    left = made.queue("%i")
    cluster.run(["scancel", "--user", "root"])
    shutil.rmtree(folder, ignore_errors=True)
    assert left == []


@pytest.fixture(scope="session")
def toys(cluster: Cluster) -> Path:
    """The recipes of the toys where the nodes see them, and one that needs two of them."""
    folder = cluster.folder / "recipes"
    shutil.copytree(TOYS, folder)
    for recipe in folder.glob("*.eb"):
        recipe.write_text(recipe.read_text().replace("/toy-sources", str(folder)))
    (folder / "toy-both-1.0.eb").write_text(BOTH)
    return folder


EACH = "--job-per-module"


def test_side_by_side_cancelled_left_alone_and_resumed(user: User) -> None:
    site = user.site
    site.run("fetch", site.recipe("toy-both"))  # on a host with a network
    site.hold("middle", "other")
    running = user.start("toy-both", EACH, "--partition", "gpu", "--account", "project")
    until(lambda: (site.home / "at-middle").exists() and (site.home / "at-other").exists(), "both at once")
    assert set(user.queue("%P|%a|%l|%C")) == {"gpu|project|5:00|1"}
    out, err = user.stop(running, "INT")
    assert running.returncode == 130, out + err
    assert "toy-base/1.0: job " in out and " is done after 0:0" in out
    assert "toy-both/1.0: job " in out and "waits for toy-other/1.0, toy-top/1.0" in out
    assert "Slurm was asked to cancel jobs " in err and user.queue("%i") == []
    assert site.built() == {"toy-base"}

    for mark in site.home.glob("at-*"):
        mark.unlink()
    running = user.start("toy-both", EACH)
    out, err = user.stop(running, "TERM", "middle", "other")
    assert running.returncode == 143, out + err
    assert "Building 4 of 5 modules in jobs" in out and len(user.queue("%i")) == 4
    assert " go on." in err and "it follows them. Cancel them with: scancel " in err

    out = ""
    with user.start("toy-both", EACH) as running:
        assert running.stdout and running.stderr
        while "are still there: " not in out and (line := running.stdout.readline()):
            out += line
        site.let_go()
        out += running.stdout.read()
        assert running.wait() == 0, out + running.stderr.read()
    assert "4 jobs of an earlier call are still there: " in out
    assert "Installed toy-both-1.0." in out and "Resuming" not in out.partition("Installed")[0][-200:]
    assert site.is_offered("toy-both")
    assert "Nothing to do." in user.install("toy-both", EACH).stdout
    assert "Nothing of toy-both-1.0 is damaged" in site.run("repair", "toy-both-1.0").out
    assert len(list((site.tree / "built").glob("*.files"))) == 5
    (guess,) = site.prefix.glob("sources/generic/*/ConfigureMake/config.guess")
    assert sha256(guess) == CONFIG_GUESS and os.access(guess, os.X_OK)
    printed = "".join(path.read_text() for path in site.prefix.glob("logs/*/jobs/*.out"))
    assert "COMPLETED: Installation ended successfully" in printed and "config.guess" not in printed


def test_what_failed_and_what_was_cancelled_because_of_it(user: User) -> None:
    user.site = user.site.own_recipes()
    recipe = user.site.recipe("toy-middle")
    good = recipe.read_text()
    recipe.write_text(good.replace("env -0 > settings", "gcc -include no-such-header.h toy.c"))
    done = user.install("toy-both", EACH)
    assert done.returncode == 5, done.stdout + done.stderr
    said = done.stderr
    assert "1 of 5 jobs failed; 2 cancelled because of that, 2 done. The first to fail: toy-middle/1.0." in said
    assert "1. toy-middle/1.0 failed in step build (job " in said and "no-such-header.h" in said
    cancelled = next(line for line in said.splitlines() if "Cancelled because of it: " in line)
    assert "toy-top/1.0 (job " in cancelled and "toy-both/1.0 (job " in cancelled and "toy-other" not in cancelled
    assert "it resumes with what is missing" in said
    assert user.site.built() == {"toy-base", "toy-other"} and not user.site.is_offered("toy-both")


def test_ctrl_c_while_eb_submits(user: User) -> None:
    running = user.start("toy-both", EACH)
    until(lambda: user.queue("%i") or running.poll() is not None, "the first job")
    out, err = user.stop(running, "INT")
    assert running.returncode == 130, out + err
    assert "jobs that were submitted are cancelled." in err or "asked to cancel" in err, err
    assert user.queue("%i") == []


def test_what_cannot_be(user: User) -> None:
    done = user.install("toy-both", EACH, "--partition", "none")
    assert done.returncode == 3 and "invalid partition specified: none" in done.stderr, done.stderr
    assert "Name one of the partitions that 'sinfo -s' lists" in done.stderr and user.queue("%i") == []
    done = user.install("toy-both", EACH, prefix=user.cluster.unshared / "prefix")
    assert done.returncode == 3, done.stderr
    assert f"left nothing in {user.cluster.unshared}/prefix/logs/" in done.stderr
    assert "Choose a --prefix on a file system that the nodes share" in done.stderr
    done = user.cluster.run(["envkit", "install", "toy", EACH], env=user.env)
    assert done.returncode == 2 and "--job-per-module goes with --submit." in done.stderr
    image = ["envkit", "install", "pytorch-2.13-cpu-image", "--submit", EACH]
    done = user.cluster.run(image, env={**user.env, "ENVKIT_PREFIX": str(user.site.prefix)})
    assert done.returncode == 2, done.stderr
    assert "--job-per-module goes with --method easybuild; pytorch-2.13-cpu-image is by apptainer." in done.stderr


def test_a_whole_build_in_one_job_without_a_network(user: User) -> None:
    done = user.install("toy-other")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "config.guess is not to be had, so that modules are configured without it." in done.stdout
    assert "Building 2 of 2 modules" in done.stdout and "Installed toy-other-1.0." in done.stdout
    assert "1 min" not in "".join(path.read_text() for path in user.site.prefix.glob("logs/toy-other-*/eb.log"))


@pytest.mark.all
def test_what_a_cache_has_is_not_built_in_a_job(user: User, stacks: Stacks, installed: Callable[[str], str]) -> None:
    """Each other module is."""
    installed(STACK)
    folder = user.site.home.parent
    (folder / "cache").mkdir()
    own = {"XDG_STATE_HOME": str(folder / "state")}  # tests beside this one have verdicts of their own
    assert stacks.envkit("verify", STACK, "--quick", env=own).returncode == 0
    pushed = stacks.envkit("cache", "push", STACK, "--unsigned", "--to", str(folder / "cache"), env=own)
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    shutil.copytree(stacks.prefix / "sources", folder / "new" / "sources", copy_function=os.link)
    argv = ["envkit", "install", STACK, "--prefix", str(folder / "new"), "--submit", EACH, "--unsigned-cache"]
    env = {**user.env, "ENVKIT_CACHE_FROM": str(folder / "cache")}
    done = user.cluster.run([*argv, "--jobs", "1", "--time", "10"], env=env, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = ["PyTorch/2.13.0", "Horovod/0.28.1-gompi-system-PyTorch-2.13.0"]
    for module in taken:
        assert f"Taken from {folder}/cache: {module}, built on " in done.stdout and f"{module}: job " not in done.stdout
    assert "Building 5 of 7 modules in jobs" in done.stdout and f"PASS  {STACK}: 2 ranks in one world" in done.stdout
