"""The questions that the probe of ``verify`` answers: the node, its fabric, its GPUs and their driver."""

import sys

import msgspec

from envkit.doctor.facts import Driver, KernelGpus, Networks, NodeFacts
from envkit.system import process, record
from envkit.system.resources import data
from envkit.verify import facts


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe of ``verify`` says of a node."""

    machine: facts.Machine
    fabric: facts.Fabric
    gpus: facts.NodeGpus


def node() -> NodeFacts:
    """Ask the probe of ``verify`` for the node, in a process of its own."""
    told = record.decode(stated("node"), Stated)
    shm = told.machine.shm or facts.Space()
    return NodeFacts(
        hostname=told.machine.hostname,
        kernel=told.machine.kernel,
        libc=told.machine.libc,
        container=told.machine.container,
        shm_size=shm.size,
        shm_free=shm.free,
        fabric=fabric(told.fabric),
        gpus=gpus(told.gpus),
    )


def fabric(measured: facts.Fabric) -> Networks:
    """Return the networks."""
    return Networks(
        interfaces={one.name: one.address for one in measured.interfaces if one.up and one.kind != "loopback"},
        rdma={one.name: one.active for one in measured.infiniband},
        slingshot=measured.cxi,
        libraries=measured.libraries,
    )


def gpus(node_gpus: facts.NodeGpus) -> KernelGpus:
    """Return the GPUs."""
    return KernelGpus(
        nvidia=tuple(one.name for one in node_gpus.nvidia),
        nvidia_files=node_gpus.nvidia_files,
        nvidia_driver=node_gpus.nvidia_driver,
        mig=node_gpus.mig,
        amd=tuple(one.name for one in node_gpus.amd),
        amd_files=node_gpus.amd_files,
        amd_driver=node_gpus.amd_driver,
    )


def gpu_driver() -> Driver | None:
    """Ask the probe for NVIDIA's driver library, in a process of its own: it may never come back."""
    told = record.decode(stated("driver"), facts.GpuDriver)
    if not told.present and not told.error:
        return None
    problem = told.error or (f"cuInit ended with status {told.status}" if told.status else "")
    cuda = f"{told.cuda // 1000}.{told.cuda % 1000 // 10}" if told.cuda else ""
    return Driver(cuda=cuda, devices=tuple(one.name for one in told.devices), problem=problem)


def stated(what: str) -> str:
    """Return what the probe says of the node, or of its driver. Raises OSError."""
    done = process.capture([sys.executable, "-I", "-S", str(data("inside/node_facts.py")), what])
    if done.status:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"status {done.status}")
    return done.stdout
