from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.errors import UsageProblem
from envkit.jobs import mpijob
from envkit.jobs.job import Shape
from envkit.jobs.mpijob import MpiJob

from .test_slurm import GOLDEN, HOSTILE

Output = pytest.CaptureFixture[str]
IMAGE = "ghcr.io/some/horovod@sha256:" + "0" * 64
EXT = ".yaml"
JOB = MpiJob(
    name="train",
    image=IMAGE,
    shape=Shape(nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=8),
    command=("python", "train.py"),
    time_s=3600,
)
PLAIN = replace(JOB, shape=Shape(nodes=1, ranks_per_node=2), time_s=0)
SCRIPTS = {
    "mpijob-gpus": mpijob.text(JOB),
    "mpijob-user": mpijob.text(replace(PLAIN, uid=1000, home="/home/mpiuser")),
    "mpijob-mpich": mpijob.text(replace(PLAIN, family="MPICH")),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_whole_manifest(name: str) -> None:
    assert SCRIPTS[name] == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_reads_as_what_was_meant_and_is_not_rejected(name: str) -> None:
    made = yaml.safe_load(SCRIPTS[name])
    assert (made["apiVersion"], made["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert list(mpijob.rejections(made)) == []


def expanded(word: str) -> str:
    """Kubernetes' own reading of a word, as far as nothing is filled in: two dollars are one."""
    return word.replace("$$", "$")


def test_hostile_words_reach_the_command_as_they_are() -> None:
    words = [*HOSTILE, "$(PATH)", "$$", "yes", "null", "1e3", "# no", "- a", "{}"]
    read = yaml.safe_load(mpijob.text(replace(JOB, command=tuple(words))))
    container = read["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert [expanded(word) for word in container["args"]] == words
    assert "$$(PATH)" in container["args"]


def test_open_mpi_5_is_told_where_the_hosts_are() -> None:
    made = mpijob.manifest(JOB)
    env = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "PRTE_MCA_prte_default_hostfile", "value": "/etc/mpi/hostfile"} in env


def changed_in(made: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A manifest in which one value is another; None takes it away."""
    *folders, last = path.split(".")
    holder: Any = made
    for folder in folders:
        holder = holder[int(folder)] if isinstance(holder, list) else holder[folder]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("metadata.name", "Train", "no DNS label"),
        ("metadata.name", "pytorch-2.13", "no DNS label"),
        ("metadata.name", "1train", "no DNS label"),
        ("metadata.name", "a" * 55, "no DNS label"),
        ("spec.mpiReplicaSpecs", {}, "Launcher is missing"),
        ("spec.mpiReplicaSpecs.Launcher", None, "Launcher is missing"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", 2, "Launcher.replicas has to be 1"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", None, "Launcher.replicas has to be 1"),
        ("spec.mpiReplicaSpecs.Worker.replicas", 0, "Worker.replicas has to be 1 or more"),
        ("spec.mpiReplicaSpecs.Worker.replicas", None, "Worker.replicas has to be 1 or more"),
        ("spec.mpiReplicaSpecs.Worker.restartPolicy", "Always", "restartPolicy is 'Always'"),
        ("spec.mpiReplicaSpecs.Launcher.restartPolicy", None, "restartPolicy is None"),
        ("spec.mpiReplicaSpecs.Worker.template.spec.containers", [], "Worker has no containers"),
        ("spec.slotsPerWorker", -1, "slotsPerWorker"),
        ("spec.slotsPerWorker", None, "slotsPerWorker"),
        ("spec.sshAuthMountPath", "", "sshAuthMountPath is missing"),
        ("spec.runPolicy.cleanPodPolicy", "Never", "cleanPodPolicy is 'Never'"),
        ("spec.runPolicy", None, "cleanPodPolicy is None"),
        ("spec.runPolicy.activeDeadlineSeconds", -1, "activeDeadlineSeconds is less than 0"),
        ("spec.runPolicy.backoffLimit", -1, "backoffLimit is less than 0"),
        ("spec.runPolicy.ttlSecondsAfterFinished", -1, "ttlSecondsAfterFinished is less than 0"),
        ("spec.mpiImplementation", "OpenMPI5", "mpiImplementation is 'OpenMPI5'"),
        ("spec.launcherCreationPolicy", "WhenReady", "launcherCreationPolicy is 'WhenReady'"),
    ],
)
def test_what_the_operator_rejects(path: str, value: Any, says: str) -> None:
    (wrong,) = mpijob.rejections(changed_in(mpijob.manifest(JOB), path, value))
    assert says in wrong


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pytorch-2.13-cuda-image", "pytorch-2-13-cuda-image"), ("Horovod/0.28", "horovod-0-28"), ("_A_", "a")],
)
def test_names_of_environments_become_labels(name: str, expected: str) -> None:
    assert mpijob.label(name) == expected


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"image": "horovod:latest"}, "does not name an image by its digest"),
        ({"image": ""}, "does not name an image by its digest"),
        ({"name": "A"}, "The operator would reject this job."),
        ({"command": ("\udcff",)}, "is no text in UTF-8"),
        ({"shape": Shape(nodes=1, ranks_per_node=2, gpus_per_node=1)}, "2 ranks per node do not fit 1 GPU per node."),
        ({"shape": Shape(nodes=1, ranks_per_node=1, gpus_per_node=1, gpu_type="a100")}, "no GPUs of type 'a100'"),
    ],
)
def test_what_cannot_be_written_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        mpijob.text(replace(JOB, **wrong))
    assert what in refused.value.what


@pytest.fixture
def image(install_image: Callable[..., ImageReceipt], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImageReceipt:
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    return install_image()


SHAPE = ["--nodes", "2", "--gpus-per-node", "1"]


def test_the_image_that_is_named(capsys: Output) -> None:
    words = ["--image", IMAGE, "--mpi", "mpich", "--name", "mine", *SHAPE, "--", "true"]
    assert run(["job", "mpijob", *words]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["metadata"]["name"] == "mine" and made["spec"]["mpiImplementation"] == "MPICH"


def test_the_image_that_was_taken_over(
    image: ImageReceipt, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    from envkit.environments import receipt

    path = next((tmp_path / "prefix").rglob("toy-image.json"))
    receipt.write(path, msgspec.structs.replace(image, source=f"docker://{IMAGE}", accelerator="rocm"))
    assert run(["job", "mpijob", "toy-image", *SHAPE, "--", "true"]) == 0
    said = capsys.readouterr().out
    assert f"image: {IMAGE}\n" in said and "amd.com/gpu: 1\n" in said and "name: toy-image\n" in said


def test_an_image_that_is_in_no_registry(image: ImageReceipt, capsys: Output) -> None:
    assert run(["job", "mpijob", "toy-image", *SHAPE, "--", "true"]) == 2
    assert "'cpu.def' does not name an image by its digest." in capsys.readouterr().err


def test_an_environment_that_is_no_image(
    install: Callable[..., ModuleReceipt], capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    install()
    assert run(["job", "mpijob", "toy-cpu", *SHAPE, "--", "true"]) == 2
    assert "--image IMAGE@sha256:DIGEST" in capsys.readouterr().err


def test_another_user_has_a_home(capsys: Output) -> None:
    assert run(["job", "mpijob", "--image", IMAGE, "--uid", "1000", *SHAPE, "--", "true"]) == 2
    assert "--home DIR" in capsys.readouterr().err
