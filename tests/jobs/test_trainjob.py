from dataclasses import replace
from typing import Any

import pytest
import yaml

from envkit.cli import run
from envkit.errors import UsageProblem
from envkit.jobs import trainjob
from envkit.jobs.job import Shape

from . import test_mpijob
from .test_mpijob import IMAGE, changed_in, expanded
from .test_slurm import GOLDEN, HOSTILE

Output = pytest.CaptureFixture[str]
JOB = replace(test_mpijob.JOB, uid=1000, home="/home/mpiuser")
SCRIPTS = {
    "trainjob-gpus": trainjob.text(JOB),
    "trainjob-cpus": trainjob.text(replace(JOB, shape=Shape(nodes=1, ranks_per_node=2), time_s=0)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_whole_manifest(name: str) -> None:
    assert SCRIPTS[name] == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_trainers_own_models_know_all_of_it(name: str) -> None:
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
    from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

    models = {"TrainJob": TrainerV1alpha1TrainJob, "TrainingRuntime": TrainerV1alpha1TrainingRuntime}
    runtime, job = yaml.safe_load_all(SCRIPTS[name])
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    for made in (runtime, job):
        read = models[made["kind"]].from_dict(made)
        assert read is not None and read.to_dict() == made  # they drop what they do not know


def test_the_launcher_is_one_and_the_nodes_are_as_many_as_was_said() -> None:
    runtime, job = trainjob.checked(JOB)
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 1 and job["spec"]["trainer"]["numNodes"] == 2
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["command"][:3] == ["mpirun", "-np", "8"]


def test_hostile_words_reach_the_command_as_they_are() -> None:
    words = [*HOSTILE, "$(PATH)", "$$", "yes", "null", "1e3", "# no", "---", "{}"]
    _, job = yaml.safe_load_all(trainjob.text(replace(JOB, command=tuple(words))))
    assert [expanded(word) for word in job["spec"]["trainer"]["args"]] == words


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("metadata.name", "Train", "no DNS label"),
        ("metadata.name", "1train", "no DNS label"),
        ("metadata.name", "a" * 45, "no DNS label"),
        ("spec.runtimeRef.name", "", "runtimeRef.name is missing"),
        ("spec.runtimeRef.kind", "MPIJob", "no runtime of the Trainer"),
        ("spec.runtimeRef.apiGroup", "kubeflow.org", "no runtime of the Trainer"),
        ("spec.activeDeadlineSeconds", 0, "activeDeadlineSeconds has to be 1 or more"),
        ("spec.trainer.numNodes", -1, "numNodes is less than 0"),
        ("spec.trainer.numProcPerNode", 0, "numProcPerNode has to be 1 or more"),
        ("spec.trainer.image", "a" * 501, "image has more than 500 characters"),
        ("spec.trainer.args", ["a"] * 129, "args has 129 words; it may have 128"),
        ("spec.trainer.command", ["a"] * 129, "command has 129 words; it may have 128"),
        ("spec.trainer.args", ["a" * (1 << 20) + "a"], "args has a word of more than 1048576 characters"),
        ("spec.trainer.env", [{"name": "OMPI_MCA_plm_rsh_args"}], "OMPI_MCA_plm_rsh_args is the Trainer's own"),
        ("spec.trainer.env", [{"name": "A"}, {"name": "A"}], "names a variable twice"),
    ],
)
def test_what_is_rejected_of_a_trainjob(path: str, value: Any, says: str) -> None:
    (wrong,) = trainjob.rejections(changed_in(trainjob.trainjob(JOB), path, value))
    assert says in wrong
    assert list(trainjob.rejections(trainjob.trainjob(JOB))) == []


JOBS = "spec.template.spec.replicatedJobs"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("spec.mlPolicy.torch", {}, "more than one policy"),
        ("spec.mlPolicy.mpi.mpiImplementation", "MPICH", "mpiImplementation is 'MPICH'; it has to be OpenMPI"),
        ("spec.mlPolicy.mpi.numProcPerNode", 0, "numProcPerNode has to be 1 or more"),
        ("spec.mlPolicy.mpi.sshAuthMountPath", "/" + "a" * 4096, "more than 4096 characters"),
        ("spec.template.spec.successPolicy.targetReplicatedJobs", ["start"], "there is no job 'start'"),
        (f"{JOBS}.0.dependsOn", [{"name": "launcher", "status": "Ready"}], "'node' depends on 'launcher', which"),
        (f"{JOBS}.1.dependsOn.0.status", "Running", "'launcher' waits for 'Running'"),
        (f"{JOBS}.1.replicas", 2, "'launcher' has to have 1 replica"),
        (f"{JOBS}.1.template.spec.template.spec.containers.0.name", "launcher", "'launcher' has no container 'node'"),
    ],
)
def test_what_is_rejected_of_a_runtime(path: str, value: Any, says: str) -> None:
    (wrong,) = trainjob.rejections_of_runtime(changed_in(trainjob.runtime(JOB), path, value))
    assert says in wrong
    assert list(trainjob.rejections_of_runtime(trainjob.runtime(JOB))) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"uid": 0}, "Under the Trainer an image cannot run as root."),
        ({"family": "MPICH"}, "The Trainer does not start MPICH."),
        ({"family": "Intel MPI"}, "The Trainer does not start Intel MPI."),
        ({"image": "horovod:latest"}, "does not name an image by its digest"),
        ({"name": "A"}, "The Trainer would reject this job."),
        ({"command": ("a",) * 129}, "The Trainer would reject this job."),
        ({"command": ("\udcff",)}, "is no text in UTF-8"),
        ({"shape": Shape(nodes=1, ranks_per_node=2, gpus_per_node=1)}, "2 ranks per node do not fit 1 GPU per node."),
    ],
)
def test_what_cannot_be_written_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        trainjob.text(replace(JOB, **wrong))
    assert what in refused.value.what


SHAPE = ["--image", IMAGE, "--nodes", "2", "--gpus-per-node", "1"]


def test_the_command(capsys: Output) -> None:
    assert run(["job", "trainjob", *SHAPE, "--uid", "1000", "--home", "/home/a/", "--", "true"]) == 0
    runtime, job = yaml.safe_load_all(capsys.readouterr().out)
    assert runtime["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"] == "/home/a/.ssh"
    assert job["metadata"]["name"] == "horovod" and job["spec"]["trainer"]["args"] == ["true"]
    assert run(["job", "trainjob", *SHAPE, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "cannot run as root" in said and "--uid UID --home DIR" in said
