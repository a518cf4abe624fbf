"""Installing on top of a release of EESSI, for real: a tree of its shape, whose EESSI-extend drives the real eb."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.system.resources import data

from .. import cvmfs2, eessi_tree
from .. import stacks as real
from ..eessi_tree import REPOSITORY, write
from .site import Running, Site, needs
from .test_eessi import apptainer, make_image

pytestmark = pytest.mark.integration

STACK = "pytorch-2.1-eessi"
TENSORFLOW = "tensorflow-cpu==2.13.0"
MODULES = ("toy-base", "toy-middle", "toy-top")
SCRIPTS = Path(__file__).with_name("scripts")
WAYS = ("native", "dir", "userns", "apptainer")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which EasyBuild is."""
    needs("lmod")
    root = eessi_tree.make(tmp_path_factory.mktemp("eessi") / "repository")
    eessi_tree.add_extend(root)
    return root


@pytest.fixture
def place(site: Site, tree: Path) -> Site:
    """A site with that copy."""
    return replace(site, env={**site.env, "ENVKIT_EESSI_DIR": str(tree)})


def install(place: Site, toy: str, *words: str, **how: Any) -> Running:
    return place.install(toy, "--method", "eessi", *words, **how)


def on_top(place: Site) -> Path:
    return place.prefix / f"{os.uname().machine}-eessi-2023.06"


def built(place: Site) -> set[str]:
    return {path.parent.name for path in (on_top(place) / "modules" / "all").glob("*/1.0.lua")}


def mounted(folder: Path) -> tuple[str, ...]:
    """What stands before a command to which a folder is mounted where EESSI is."""
    return (sys.executable, "-I", "-S", str(data("system/mount_namespace.py")), "bind", str(folder), REPOSITORY, "--")


def test_what_the_eb_of_eessi_builds(place: Site, tree: Path) -> None:
    done = install(place, "toy-top").expect(0)
    assert "Installed toy-top-1.0. Enter it with '" in done.out
    assert f"envkit shell toy-top-1.0 --prefix {place.prefix}'.{os.linesep}" in done.out
    assert built(place) == set(MODULES)
    assert (place.home / "eessi-hooks").read_text().split() == list(MODULES)  # EESSI's own, called after ours
    settings = (on_top(place) / "software/toy-middle/1.0/settings").read_bytes().split(b"\0")
    assert b"EESSI_VERSION=2023.06" in settings
    assert not any(line.startswith(b"VIRTUAL_ENV=") for line in settings)
    shown = json.loads(place.run("show", "toy-top-1.0", "--json").out)
    assert (shown["method"], shown["release"], shown["copy"]) == ("eessi", "2023.06", str(tree))
    assert [module["name"] for module in shown["modules"]] == [f"{name}/1.0" for name in MODULES]
    hand = f"module load EESSI/2023.06 && module use {on_top(place)}/modules/all && module load toy-top/1.0"
    assert hand in place.run("show", "toy-top-1.0").out
    assert place.states()["toy-top-1.0"].startswith("installed")


def test_the_way_in_is_chosen_anew(place: Site, tree: Path) -> None:
    install(place, "toy-base").expect(0)
    command = ("run", "toy-base-1.0", "--", "sh", "-c", "toy-base; echo $EESSI_VERSION $ENVKIT_NAME")
    for env, before, access in (
        ({}, (), "dir"),
        ({"ENVKIT_EESSI_DIR": ""}, (), "dir"),  # where it was found when it was installed
        ({}, mounted(tree), "native"),
    ):
        done = place.run(*command, env=env, before=before)
        assert done.out.splitlines()[-1].split()[0] == "2023.06", done.err
        assert f"(--access {access})" in done.err


def test_a_second_time_there_is_nothing_to_do(place: Site) -> None:
    install(place, "toy-base").expect(0)
    again = install(place, "toy-base").expect(0)
    assert "toy-base-1.0 is installed already" in again.out
    assert again.err == ""  # and nothing is entered to find that out
    rebuilt = install(place, "toy-base", "--rebuild").expect(0)
    assert "Building 1 of 1 modules" in rebuilt.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_it_resumes(place: Site, number: signal.Signals) -> None:
    place.hold("middle")
    running = install(place, "toy-top")
    place.wait_for(running, "middle")
    assert running.stop(number) == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert place.is_quiet()
    assert built(place) == {"toy-base"}
    assert number == signal.SIGKILL or "toy-middle/1.0 was being built; nothing of the build goes on." in running.err
    assert place.states()["toy-top-1.0"] == "unfinished"
    place.let_go()
    resumed = install(place, "toy-top").expect(0)
    assert "1 of 3 modules are in place; left: toy-middle/1.0, toy-top/1.0." in resumed.out
    assert place.begun().count("toy-base/1.0") == 1


@pytest.mark.parametrize("way", ["userns", "apptainer"])
def test_by_a_client_that_mounts_it(place: Site, tree: Path, way: str, server: Mapping[str, str]) -> None:
    """The host's client, or one in an image, which sees what it has to of the host; each ends with what it is for."""
    needs("fuse-overlayfs")
    programs = place.folder / "bin"
    programs.mkdir()
    env = {**server, "PATH": f"{programs}:{place.env['PATH']}", "XDG_STATE_HOME": str(place.home / "state")}
    if way == "userns":
        write(programs / "cvmfs2", cvmfs2.program(tree), program=True)
    else:
        (programs / "apptainer").symlink_to(apptainer())
        env["ENVKIT_EESSI_IMAGE"] = str(make_image(place.folder, tree))
        env["SINGULARITY_BIND"] = f"/usr,/etc/alternatives,{sys.prefix},{sys.base_prefix},{tree}"
        env["APPTAINER_HOME"] = str(place.home)  # Apptainer's is that of the list of users, not of HOME
    place.hold("middle")
    running = install(place, "toy-middle", "--access", way, env=env)
    place.wait_for(running, "middle")
    assert running.stop(signal.SIGINT) == 130
    assert place.is_quiet()
    place.let_go()
    resumed = install(place, "toy-middle", "--access", way, env=env).expect(0)
    assert "1 of 2 modules are in place" in resumed.out
    done = place.run("run", "toy-middle-1.0", "--", "sh", "-c", "toy-base; echo $EESSI_VERSION", env=env)
    assert done.out.splitlines()[-1] == "2023.06"
    assert f"(--access {way})" in done.err


def test_a_build_that_fails(place: Site) -> None:
    (place.home / "more-sources").write_text("/nowhere/more.c")
    failed = install(place, "toy-base").expect(5)
    assert "Building toy-base/1.0 failed in step build" in failed.err
    assert "/nowhere/more.c" in failed.err


def test_damage(place: Site, tree: Path) -> None:
    install(place, "toy-base").expect(0)
    other = place.folder / "other"
    (other / "versions" / "2025.06").mkdir(parents=True)
    gone = place.run("run", "toy-base-1.0", "--", "true", env={"ENVKIT_EESSI_DIR": str(other)}, status=6)
    assert f"its release of EESSI has gone: {other} has no 2023.06." in gone.err
    (on_top(place) / "modules/all/toy-base/1.0.lua").unlink()
    gone = place.run("run", "toy-base-1.0", "--", "true", status=6)
    assert "its module toy-base/1.0 has gone" in gone.err
    install(place, "toy-base").expect(0)
    place.run("run", "toy-base-1.0", "--", "toy-base")


def test_what_is_damaged_is_built_again_by_the_eb_of_eessi(place: Site) -> None:
    """Which makes read-only what it installs."""
    install(place, "toy-top").expect(0)
    begun = place.begun()
    program = on_top(place) / "software/toy-base/1.0/bin/toy-base"
    program.parent.chmod(0o755)
    program.unlink()
    place.run("repair", "toy-top-1.0", "--dry-run", status=6)
    told = place.run("repair", "toy-top-1.0")
    assert f"    gone     {program}\n" in told.out
    assert place.begun()[len(begun) :] == ["toy-base/1.0"]
    assert "Nothing of toy-top-1.0 is damaged" in place.run("repair", "toy-top-1.0").out
    place.run("run", "toy-top-1.0", "--", "toy-top")


def test_removal(place: Site) -> None:
    install(place, "toy-top").expect(0)
    removed = place.run("remove", "toy-top-1.0", "--dependencies")
    assert "Removed toy-top-1.0: toy-base/1.0, toy-middle/1.0, toy-top/1.0." in removed.out
    assert built(place) == set()
    assert not list((on_top(place) / "software").iterdir())
    assert "toy-top-1.0" not in place.states()


def test_without_eessi_each_way_says_why(place: Site) -> None:
    bare = {"ENVKIT_EESSI_DIR": "", "PATH": f"{place.env['PATH'].partition(':')[0]}:/usr/bin:/bin"}
    refused = place.run("install", STACK, env=bare, status=3)
    assert "There is no way to EESSI's repository on this machine." in refused.err
    assert [line.split(":")[0].strip() for line in refused.err.splitlines() if line.startswith("  ")] == list(WAYS)
    for way in WAYS:
        refused = place.run("install", STACK, "--access", way, env=bare, status=3)
        assert f"--access {way}: " in refused.err
    assert not place.prefix.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([STACK, "--release", "2025.06"], f"{STACK} and --release 2025.06 contradict each other."),
        (
            ["pytorch-2.13-cpu", "--access", "dir"],
            "--access goes with --method eessi; pytorch-2.13-cpu is by easybuild.",
        ),
        ([STACK, "--load", "gcc"], f"does not go with {STACK}: a site's modules (--load) are not seen in EESSI."),
        ([STACK, "--method", "easybuild"], f"{STACK} and --method easybuild contradict each other."),
        (
            ["--method", "eessi", "--framework", "tensorflow", "--accelerator", "cuda"],
            "There is no stack for tensorflow on cuda by --method eessi.",
        ),
    ],
)
def test_what_does_not_go_together(place: Site, words: list[str], said: str) -> None:
    assert said in place.run("install", *words, status=2).err


def test_a_release_without_eessi_extend(place: Site) -> None:
    refused = install(place, "toy-base", "--release", "2025.06").expect(3)
    assert "there is no module EESSI-extend/2025.06-easybuild" in refused.err


def installed_on_a_tree(
    folder: Path, stacks: real.Site, framework: str, tensorflow: Path | None = None
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Have Horovod installed on top of a tree that has a framework; return what runs envkit with that."""
    needs("lmod")
    software = next(stacks.prefix.glob("*-py*/software/PyTorch/2.13.0")).parents[1]
    root = eessi_tree.make(folder / "repository")
    eessi_tree.add_extend(root)
    eessi_tree.add_frameworks(root, software, tensorflow)
    (folder / "prefix" / "sources").mkdir(parents=True)
    for source in (stacks.prefix / "sources").glob("horovod-*"):
        shutil.copy(source, folder / "prefix" / "sources")
    own = real.Site(folder / "prefix")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"ENVKIT_EESSI_DIR": str(root), "XDG_STATE_HOME": str(folder / "state")}
        return own.envkit(*words, timeout_s=1800, env=env)

    done = run("install", "--method", "eessi", "--framework", framework)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"PASS  {framework}-[\d.]+-eessi: 2 ranks in one world", done.stdout), done.stdout
    return run


@pytest.fixture(scope="module")
def horovod(
    tmp_path_factory: pytest.TempPathFactory, installed: Callable[[str], str], stacks: real.Site
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Horovod on top of a tree that has PyTorch: the wheels of the stack pytorch-2.13-cpu stand in for EESSI's."""
    installed("pytorch-2.13-cpu")
    return installed_on_a_tree(tmp_path_factory.mktemp("eessi-horovod"), stacks, "pytorch")


@pytest.mark.about("eessi")
@pytest.mark.builds(after=True)
@pytest.mark.xdist_group("horovod-on-eessi")
def test_horovod_on_top_of_eessi(horovod: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = horovod("run", STACK, "-n", "2", "--", "python", str(SCRIPTS / "train.py"))
    assert done.returncode == 0, done.stderr
    assert "0 of 2: [0.0, 3.0, 6.0, 9.0]" in done.stdout
    block = horovod("check-build", STACK)
    assert (block.returncode, "[X] PyTorch" in block.stdout, "[X] MPI" in block.stdout) == (0, True, True), block.stderr


@pytest.mark.about("eessi")
@pytest.mark.builds(after=True)
@pytest.mark.xdist_group("horovod-on-eessi")
def test_its_verdict(horovod: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = horovod("verify", STACK, "-n", "2", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass"), done.stderr


@pytest.mark.all
@pytest.mark.builds(after=True)
def test_horovod_for_tensorflow_on_top_of_eessi(
    tmp_path: Path, installed: Callable[[str], str], stacks: real.Site
) -> None:
    """The wheels of TensorFlow 2.13 stand in for EESSI's."""
    installed("pytorch-2.13-cpu")  # of which the tree has Python
    packages = tmp_path / "TensorFlow" / "lib" / "python3.11" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"--target={packages}", TENSORFLOW], check=True, stdin=subprocess.DEVNULL)
    run = installed_on_a_tree(tmp_path, stacks, "tensorflow", packages.parents[2])
    done = run("verify", "tensorflow-2.13-eessi", "-n", "2", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass"), done.stderr
    assert [one["installed"] for one in report["frameworks"]] == ["2.13.0"], report["frameworks"]


CUDA_STACK = "Horovod-0.28.1-foss-2023a-CUDA-12.1.1-PyTorch-2.1.2"
TARGET = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": f"{os.uname().machine}/amd/zen2"}
GPU = {**TARGET, "EESSI_ACCELERATOR_TARGET_OVERRIDE": "accel/nvidia/cc80"}


def test_the_gpu_variant_is_resolved_against_easybuilds_own_collection(place: Site) -> None:
    done = place.run("install", "--method", "eessi", "--accelerator", "cuda", "--dry-run", env=GPU, status=3)
    assert "Stack:    pytorch-2.1-eessi-cuda" in done.out and "planned only" in done.out
    for module in ("NCCL/2.18.3-GCCcore-12.3.0-CUDA-12.1.1", "PyTorch/2.1.2-foss-2023a-CUDA-12.1.1"):
        assert f"(module: {module})" in done.out
    assert f"{CUDA_STACK}.eb (module: " in done.out
    assert "Problem: CUDA/12.1.1 is not installed for building" in done.out  # though EESSI has its module


def test_what_a_site_has_added_counts(place: Site, tmp_path: Path) -> None:
    """Its modules are under a prefix of its own, which EESSI's module puts first."""
    words = ("install", "--method", "eessi", "--accelerator", "cuda", "--dry-run")
    nccl = "NCCL/2.18.3-GCCcore-12.3.0-CUDA-12.1.1"
    subdir = TARGET["EESSI_ARCHDETECT_OPTIONS_OVERRIDE"]
    modules = tmp_path / "site" / "versions" / "2023.06" / "software" / "linux" / subdir / "modules" / "all"
    write(modules / f"{nccl}.lua", "")
    assert f"(module: {nccl})" in place.run(*words, env=GPU, status=3).out
    done = place.run(*words, env={**GPU, "EESSI_SITE_SOFTWARE_PREFIX": str(tmp_path / "site")}, status=3)
    assert f"{CUDA_STACK}.eb (module: " in done.out and nccl not in done.out


def test_what_a_site_has_to_add_for_gpus(place: Site, tree: Path, tmp_path: Path) -> None:
    """Each part of host_injections that is missing is told with the command that adds it; with all of it none is."""
    copy = shutil.copytree(tree, tmp_path / "copy", symlinks=True)
    words = ("install", "--method", "eessi", "--accelerator", "cuda", "--offline")
    none = place.run(*words, env={**TARGET, "ENVKIT_EESSI_DIR": str(copy)}, status=3)
    said = " ".join(none.err.split())
    injected = f"{REPOSITORY}/host_injections"
    scripts = f"{REPOSITORY}/versions/2023.06/scripts/gpu_support/nvidia"
    machine = os.uname().machine
    assert "EESSI has chosen no GPU target here." in said
    assert f"there is no {injected}/2023.06/compat/linux/{machine}/lib/libcuda.so." in said
    assert f"envkit shell eessi --release 2023.06 -- {scripts}/link_nvidia_host_libraries.sh" in said
    for module in ("CUDA/12.1.1", "cuDNN/8.9.2.26-CUDA-12.1.1"):
        path = f"host_injections/{machine}/software/{module}/easybuild"
        assert f"{module} is not installed for building on top of EESSI" in said and f"{REPOSITORY}/{path}" in said
        (copy / path).mkdir(parents=True)
    assert f"{scripts}/install_cuda_and_libraries.sh --accept-cuda-eula --accept-cudnn-eula" in said
    driver = place.run(*words, env={**GPU, "ENVKIT_EESSI_DIR": str(copy)}, status=3).err
    assert "driver are not linked" in driver and "is not installed for building" not in driver
    write(copy / "host_injections" / "2023.06" / "compat" / "linux" / machine / "lib" / "libcuda.so", "")
    whole = place.run(*words, env={**GPU, "ENVKIT_EESSI_DIR": str(copy)}, status=3)  # the sources are not here
    assert "host_injections" not in whole.err and "GPU target" not in whole.err
