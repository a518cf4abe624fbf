"""Kubernetes: a job as a TrainJob of Kubeflow's Trainer (v1alpha1) with a runtime of its own, and what is rejected.

The runtime says that MPI starts the ranks, and what the pods are. The Trainer puts image, command and number of nodes
of the TrainJob into it, and mounts ssh's key and the file of hosts in the containers that are called "node".
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from envkit.errors import UsageProblem
from envkit.jobs import mpijob
from envkit.jobs.job import counted, require_shape
from envkit.jobs.mpijob import MpiJob

GROUP = "trainer.kubeflow.org"
API = f"{GROUP}/v1alpha1"
NODE, LAUNCHER = "node", "launcher"
ANCESTOR = f"{GROUP}/trainjob-ancestor-step"
IMPLEMENTATIONS = ("OpenMPI", "")
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
STATUSES = ("Ready", "Complete")
MOST_WORDS, MOST_CHARACTERS, MOST_IMAGE, MOST_PATH = 128, 1 << 20, 500, 4096
RESERVED = frozenset(
    f"OMPI_MCA_{name}"
    for name in ("orte_default_hostfile", "plm_rsh_args", "orte_keep_fqdn_hostnames", "orte_set_default_slots")
)


def text(job: MpiJob) -> str:
    """Return the manifests of a job as YAML. Raises UsageProblem for what would be rejected."""
    import yaml

    documents = checked(job)
    shape = f"{counted(job.shape.nodes, 'node')} with {counted(job.shape.ranks_per_node, 'rank')} each"
    comment = f"# {job.name}: {shape}. Submit it with: kubectl apply -f FILE\n"
    return comment + yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)


def checked(job: MpiJob) -> list[dict[str, Any]]:
    """Return the runtime and the TrainJob. Raises UsageProblem for what would be rejected, or could not start."""
    mpijob.require_image(job.image)
    mpijob.require_text(job.command)
    require_shape(job.shape)
    require_user(job)
    if job.family != "Open MPI":
        raise UsageProblem(
            what=f"The Trainer does not start {job.family}.",
            why="Of the MPIs, its runtimes know only Open MPI.",
            fix="Take an image with Open MPI, or write an MPIJob: envkit job mpijob",
        )
    documents = [runtime(job), trainjob(job)]
    if wrong := [*rejections_of_runtime(documents[0]), *rejections(documents[1])]:
        raise UsageProblem(
            what="The Trainer would reject this job.",
            why="\n".join(wrong),
            fix="Use another --name; put a command of many words into a script.",
        )
    return documents


def require_user(job: MpiJob) -> None:
    """Raise UsageProblem for root, who could not log in from one pod to the other."""
    if not job.uid:
        raise UsageProblem(
            what="Under the Trainer an image cannot run as root.",
            why="The key that it mounts is root's, and others may read it: ssh refuses such a key to root itself.",
            fix="Say as which other user: --uid UID --home DIR",
        )


def trainjob(job: MpiJob) -> dict[str, Any]:
    """Return the TrainJob, in the order in which it is read."""
    words, variables = mpijob.starting(job)
    limit = {"activeDeadlineSeconds": job.time_s} if job.time_s else {}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": job.name},
            **limit,
            "trainer": {
                "image": job.image,
                "numNodes": job.shape.nodes,
                "numProcPerNode": job.shape.ranks_per_node,
                "command": words,
                "args": [mpijob.as_is(word) for word in job.command],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
            },
        },
    }


def runtime(job: MpiJob) -> dict[str, Any]:
    """Return the runtime: the nodes run sshd, and the launcher starts the ranks on them."""
    worker = {**mpijob.worker(job), "name": NODE}
    step = {"labels": {ANCESTOR: "trainer"}}
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": {"name": job.name},
        "spec": {
            "mlPolicy": {
                "numNodes": 1,  # of launchers; the nodes are as many as the TrainJob says
                "mpi": {
                    "numProcPerNode": job.shape.ranks_per_node,
                    "mpiImplementation": mpijob.IMPLEMENTATIONS[job.family],
                    "sshAuthMountPath": f"{job.home.rstrip('/')}/.ssh",
                    "runLauncherAsNode": False,
                },
            },
            "template": {
                "spec": {
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [
                        replicated(NODE, job, {}, worker, volumes=[mpijob.memory()]),
                        {
                            **replicated(LAUNCHER, job, {"metadata": step}, mpijob.container(job, NODE)),
                            "dependsOn": [{"name": NODE, "status": "Ready"}],
                        },
                    ],
                }
            },
        },
    }


def replicated(
    name: str, job: MpiJob, labels: Mapping[str, Any], container: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return one of the two jobs of pods; their group may read the key."""
    group = {"securityContext": {"fsGroup": job.uid}}
    pod = {"restartPolicy": "Never", **group, "containers": [container], **more}
    return {"name": name, "template": {**labels, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}}


def rejections(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the Trainer, or the JobSet that it makes, rejects a TrainJob for."""
    spec = row["spec"]
    trainer = spec.get("trainer") or {}
    nodes = trainer.get("numNodes", 1)
    called = f"{row['metadata']['name']}-{max(f'{LAUNCHER}-0-0', f'{NODE}-0-{nodes - 1}', key=len)}-12345"
    if not mpijob.LABEL.fullmatch(called):
        yield f"metadata.name: {called!r}, as a pod will be called, is no DNS label: a-z, 0-9 and -, 63 at most"
    reference = spec.get("runtimeRef") or {}
    if not reference.get("name"):
        yield "spec.runtimeRef.name is missing"
    if reference.get("kind", RUNTIMES[0]) not in RUNTIMES or reference.get("apiGroup", GROUP) != GROUP:
        yield f"spec.runtimeRef is no runtime of the Trainer: {' or '.join(RUNTIMES)}"
    if spec.get("activeDeadlineSeconds", 1) < 1:
        yield "spec.activeDeadlineSeconds has to be 1 or more"
    if nodes < 0:
        yield "spec.trainer.numNodes is less than 0"
    if trainer.get("numProcPerNode", 1) < 1:
        yield "spec.trainer.numProcPerNode has to be 1 or more"
    yield from rejections_of_words(trainer)


def rejections_of_words(trainer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the command and its settings."""
    if len(trainer.get("image", "")) > MOST_IMAGE:
        yield f"spec.trainer.image has more than {MOST_IMAGE} characters"
    for name in ("command", "args"):
        words = trainer.get(name) or []
        if len(words) > MOST_WORDS:
            yield f"spec.trainer.{name} has {len(words)} words; it may have {MOST_WORDS}"
        if any(len(word) > MOST_CHARACTERS for word in words):
            yield f"spec.trainer.{name} has a word of more than {MOST_CHARACTERS} characters"
    names = [variable["name"] for variable in trainer.get("env") or []]
    for name in sorted(RESERVED.intersection(names)):
        yield f"spec.trainer.env: {name} is the Trainer's own"
    if len(set(names)) < len(names):
        yield "spec.trainer.env names a variable twice"


def rejections_of_runtime(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the Trainer rejects a runtime for, or the JobSet that is made of it."""
    policy = row["spec"].get("mlPolicy") or {}
    if len(policy.keys() - {"numNodes"}) > 1:
        yield "spec.mlPolicy has more than one policy"
    mpi = policy.get("mpi") or {}
    if mpi.get("mpiImplementation", "") not in IMPLEMENTATIONS:
        yield f"spec.mlPolicy.mpi.mpiImplementation is {mpi['mpiImplementation']!r}; it has to be {IMPLEMENTATIONS[0]}"
    if mpi.get("numProcPerNode", 1) < 1:
        yield "spec.mlPolicy.mpi.numProcPerNode has to be 1 or more"
    if len(mpi.get("sshAuthMountPath", "")) > MOST_PATH:
        yield f"spec.mlPolicy.mpi.sshAuthMountPath has more than {MOST_PATH} characters"
    jobs = row["spec"]["template"]["spec"].get("replicatedJobs") or []
    success = row["spec"]["template"]["spec"].get("successPolicy") or {}
    for name in {*success.get("targetReplicatedJobs", ())} - {entry["name"] for entry in jobs}:
        yield f"spec.template.spec.successPolicy: there is no job {name!r}"
    before = set[str]()
    for job in jobs:
        yield from rejections_of_job(job, before)
        before.add(job["name"])


def rejections_of_job(row: Mapping[str, Any], before: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with one of the jobs of pods, which are in order."""
    place = f"spec.template.spec.replicatedJobs: {row['name']!r}"
    for other in row.get("dependsOn") or []:
        if other["name"] not in before:
            yield f"{place} depends on {other['name']!r}, which is not before it"
        if other.get("status") not in STATUSES:
            yield f"{place} waits for {other.get('status')!r}; it has to be {' or '.join(STATUSES)}"
    template = row["template"]
    if template.get("metadata", {}).get("labels", {}).get(ANCESTOR) != "trainer":
        return
    if row.get("replicas", 1) != 1:
        yield f"{place} has to have 1 replica"
    if NODE not in {container["name"] for container in template["spec"]["template"]["spec"]["containers"]}:
        yield f"{place} has no container {NODE!r}"
