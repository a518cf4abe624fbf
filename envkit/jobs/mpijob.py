"""Kubernetes: a job as an MPIJob (kubeflow.org/v2beta1), and what its operator rejects though the schema accepts it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.errors import UsageProblem
from envkit.jobs.job import Shape, counted, require_shape

DIGEST = re.compile(r"[\w.:/-]+@sha256:[0-9a-f]{64}", re.ASCII)
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
IMPLEMENTATIONS = {"Open MPI": "OpenMPI", "MPICH": "MPICH", "Intel MPI": "Intel"}
GPUS = {"": "nvidia.com/gpu", "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
HOSTFILE = "/etc/mpi/hostfile"
POLICIES = {
    "cleanPodPolicy": ("None", "Running", "All"),
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "mpiImplementation": tuple(IMPLEMENTATIONS.values()),
    "restartPolicy": ("Never", "OnFailure"),
}


@dataclass(frozen=True, kw_only=True)
class MpiJob:
    """A command in an image by digest.

    ``family`` is its MPI. ``home`` is the home of the user that it runs as, ``uid`` the number of that user (0: root).
    """

    name: str
    image: str
    shape: Shape
    command: tuple[str, ...]
    family: str = "Open MPI"
    time_s: int = 0
    uid: int = 0
    home: str = "/root"


def text(job: MpiJob) -> str:
    """Return the manifest of a job as YAML. Raises UsageProblem for what the operator would reject."""
    import yaml

    document = checked(job)
    shape = f"{counted(job.shape.nodes, 'worker')} with {counted(job.shape.ranks_per_node, 'rank')} each"
    comment = f"# {job.name}: {shape}. Submit it with: kubectl create -f FILE\n"
    return comment + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def checked(job: MpiJob) -> dict[str, Any]:
    """Return the manifest of a job. Raises UsageProblem for what the operator would reject."""
    require_image(job.image)
    require_text(job.command)
    require_shape(job.shape)
    document = manifest(job)
    if wrong := list(rejections(document)):
        raise UsageProblem(what="The operator would reject this job.", why="\n".join(wrong), fix="Use another --name.")
    return document


def manifest(job: MpiJob) -> dict[str, Any]:
    """Return the manifest of a job, in the order in which it is read."""
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if job.time_s:
        run_policy["activeDeadlineSeconds"] = job.time_s
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job.name},
        "spec": {
            "slotsPerWorker": job.shape.ranks_per_node,
            "mpiImplementation": IMPLEMENTATIONS.get(job.family, job.family),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": f"{job.home.rstrip('/')}/.ssh",
            "runPolicy": run_policy,
            "mpiReplicaSpecs": {
                "Launcher": replica(1, launcher(job)),
                "Worker": replica(job.shape.nodes, worker(job), volumes=[memory()]),
            },
        },
    }


def replica(number: int, container: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return one of the two kinds of pod."""
    pod = {"containers": [container], **more}
    return {"replicas": number, "restartPolicy": "Never", "template": {"spec": pod}}


def launcher(job: MpiJob) -> dict[str, Any]:
    """Return the container that starts the ranks."""
    words, variables = starting(job)
    env = {"env": [{"name": name, "value": value} for name, value in variables.items()]} if variables else {}
    return {**container(job, "launcher"), "command": words, "args": [as_is(word) for word in job.command], **env}


def starting(job: MpiJob) -> tuple[list[str], dict[str, str]]:
    """Return the words of the MPI's own launcher, and the variables that it needs."""
    ranks = str(job.shape.ranks)
    if job.family != "Open MPI":
        return ["mpiexec", "-n", ranks], {}
    # What the image sets is not there in a session of sshd, and what binds to cores does not know of other pods.
    words = ["mpirun", "-np", ranks, "--bind-to", "none", "--map-by", "slot", "-x", "PATH", "-x", "LD_LIBRARY_PATH"]
    # Open MPI 5 does not read the variable that the operator sets, and would run all ranks in the launcher.
    variables = {"PRTE_MCA_prte_default_hostfile": HOSTFILE}
    if job.shape.cpus_per_rank:
        words += ["-x", "OMP_NUM_THREADS"]
        variables["OMP_NUM_THREADS"] = str(job.shape.cpus_per_rank)
    if not job.uid:
        families = [(family, end) for family in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]
        variables |= {f"{family}_ALLOW_RUN_AS_ROOT{end}": "1" for family, end in families}
    return words, variables


def worker(job: MpiJob) -> dict[str, Any]:
    """Return the container in which ranks are started, by sshd."""
    shape = job.shape
    port = 2222 if job.uid else 22
    sshd = ["/usr/sbin/sshd", "-De", *(["-f", f"{job.home.rstrip('/')}/.sshd_config"] if job.uid else [])]
    limits: dict[str, Any] = {}
    if shape.cpus_per_rank:
        limits["cpu"] = shape.cpus_per_rank * shape.ranks_per_node
    if shape.gpus_per_node:
        limits[gpu_resource(shape.gpu_type)] = shape.gpus_per_node
    return {
        **container(job, "worker"),
        "command": sshd,
        **({"resources": {"limits": limits}} if limits else {}),
        "readinessProbe": {"tcpSocket": {"port": port}, "initialDelaySeconds": 2, "periodSeconds": 2},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }


def container(job: MpiJob, name: str) -> dict[str, Any]:
    """Return what both containers have."""
    user = {"securityContext": {"runAsUser": job.uid}} if job.uid else {}
    return {"name": name, "image": job.image, **user}


def memory() -> dict[str, Any]:
    """Return the volume for /dev/shm: the 64 MB of a container are too small for NCCL and for loaders of data."""
    return {"name": "shm", "emptyDir": {"medium": "Memory"}}


def as_is(word: str) -> str:
    """Return a word so that Kubernetes, which fills in $(NAME), leaves it as it is."""
    return word.replace("$", "$$")


def label(name: str) -> str:
    """Return the name of an environment as a name of Kubernetes."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")


def gpu_resource(kind: str) -> str:
    """Return what Kubernetes calls GPUs of a kind. Raises UsageProblem."""
    if kind not in GPUS:
        raise UsageProblem(
            what=f"--gpus-per-node: Kubernetes has no GPUs of type {kind!r}.",
            fix="Write it as 4, as nvidia:4 or as amd:8; a nodeSelector in the manifest chooses among them.",
        )
    return GPUS[kind]


def require_image(image: str) -> None:
    """Raise UsageProblem for an image that is not named by digest."""
    if not DIGEST.fullmatch(image):
        raise UsageProblem(
            what=f"{image!r} does not name an image by its digest.",
            why="All pods have to start from the same one, and the next job as well.",
            fix="Write it as --image IMAGE@sha256:DIGEST.",
        )


def require_text(command: Sequence[str]) -> None:
    """Raise UsageProblem for words that YAML cannot hold."""
    for word in command:
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageProblem(what=f"{word!r} is no text in UTF-8.", fix="A manifest can hold nothing else.")


def rejections(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the operator rejects a manifest for."""
    spec = row["spec"]
    replicas = spec.get("mpiReplicaSpecs") or {}
    workers = (replicas.get("Worker") or {}).get("replicas") or 1
    host = f"{row['metadata']['name']}-worker-{workers - 1}"
    if not LABEL.fullmatch(host):
        yield f"metadata.name: {host!r}, which a pod will be called, is no DNS label: a-z, 0-9 and -, 63 at most"
    if not isinstance(spec.get("slotsPerWorker"), int) or spec["slotsPerWorker"] < 0:
        yield "spec.slotsPerWorker has to be a number, 0 or more"
    if not spec.get("sshAuthMountPath"):
        yield "spec.sshAuthMountPath is missing"
    policy = spec.get("runPolicy") or {}
    places = {"spec.runPolicy": (policy, "cleanPodPolicy"), "spec": (spec, "mpiImplementation")}
    for place, (holder, name) in places.items():
        yield from unknown(place, holder, name)
    if "launcherCreationPolicy" in spec:
        yield from unknown("spec", spec, "launcherCreationPolicy")
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        if policy.get(name, 0) < 0:
            yield f"spec.runPolicy.{name} is less than 0"
    if "Launcher" not in replicas:
        yield "spec.mpiReplicaSpecs.Launcher is missing"
    for kind, specification in replicas.items():
        yield from rejections_of(kind, specification)


def rejections_of(kind: str, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the operator rejects one of the two kinds of pod for."""
    place = f"spec.mpiReplicaSpecs.{kind}"
    number = row.get("replicas")
    if number is None or number < 1 or (kind == "Launcher" and number != 1):
        yield f"{place}.replicas has to be 1" + (" or more" if kind != "Launcher" else "")
    yield from unknown(place, row, "restartPolicy")
    if not row.get("template", {}).get("spec", {}).get("containers"):
        yield f"{place} has no containers"


def unknown(place: str, holder: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what is wrong with a value that has to be one of a few."""
    if holder.get(name) not in POLICIES[name]:
        yield f"{place}.{name} is {holder.get(name)!r}; it has to be one of {', '.join(POLICIES[name])}"
