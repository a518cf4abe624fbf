"""Reads what software a rank finds: interpreter, variables, packages, Horovod, the framework, loaded libraries."""

import gc
import importlib
import importlib.util
import json
import os
import re
import sys
from typing import Any, Dict, List, Optional

from . import inside
from .record import attempt
from .shared_object import shared_object

FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")
WORLD = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
DISTRIBUTIONS = (
    "horovod",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "keras",
    "tf-keras",
    "numpy",
    "mpi4py",
)
SECRET = r"(?!.*(SECRET|KEY|TOKEN|PASS|COOKIE|CRED|AUTH|TRANSPORT|_URI))"
DISTRIBUTION = re.compile(r"([\w.-]+?)-(\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info$")
ENVIRONMENT = re.compile(
    SECRET + r"(HOROVOD_\w+|OMPI_(COMM_WORLD|UNIVERSE)_\w+|PMIX_(RANK|NAMESPACE|ID|HOSTNAME|VERSION|MCA_\w+)|PRTE_\w+"
    r"|OMPI_MCA_((btl|pml|mtl|oob|coll|ess|osc|pmix|plm|rmaps|hwloc)(_\w+)?|orte_(ess|num|bound)_\w+|orte_launch|orte_default_hostfile)"
    r"|PMI_\w+|MPI_LOCAL\w+|HYDI?_\w+|HYDRA_\w+|I_MPI_(HYDRA_UUID|FABRICS|PMI_LIBRARY|PIN\w*|OFI_PROVIDER)"
    r"|JSM_\w+|LSB_JOBID|PBS_JOBID|PALS_\w+|FLUX_\w+|ALPS_APP_PE"
    r"|SLURM_(PROCID|LOCALID|NODEID|NODENAME|NTASKS\w*|NPROCS|NNODES|TASKS_PER_NODE|STEP_\w+|JOB_(ID|NUM_NODES|GPUS)"
    r"|MPI_TYPE|CPU_BIND\w*|CPUS_(PER_TASK|ON_NODE)|GPUS\w*|GPU_BIND|STEPID|JOBID|PMIX\w*)|SLURMD_NODENAME"
    r"|(CUDA|ROCR|HIP|NVIDIA)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUDA_DEVICE_ORDER|OMP_NUM_THREADS|TF_USE_LEGACY_KERAS"
    r"|[NR]CCL_(SOCKET_IFNAME|IB_\w+|NET\w*|DEBUG\w*|P2P_\w+|SHM_\w+|ALGO|PROTO|COMM_ID)|GLOO_SOCKET_IFNAME"
    r"|FI_PROVIDER|FI_CXI_\w+|UCX_(TLS|NET_DEVICES)|MPICH_\w+|MV2_\w+|MVP_\w+|MPIRUN_(ID|RANK|NPROCS)|APPTAINER_NAME|SINGULARITY_NAME)"
)
VALUE_LENGTH = 300
LIBRARIES = re.compile(
    r"(/\S*/(lib(?:mpich|mpi|nccl|rccl|cudart|cuda|amdhip64|fabric|stdc\+\+|torch|tensorflow_framework|tensorflow_cc))"
    r"(?:_(?:gnu|cray|intel|nvidia|amd)\w*)?[-.\w]*?\.so[.\d]*)$"
)


def python() -> Dict[str, str]:
    return {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3]}


def environment() -> Dict[str, str]:
    """The variables by which launchers, MPI, NCCL and Horovod steer a rank; no secrets, no addresses of servers."""
    named = sorted(name for name in os.environ if ENVIRONMENT.fullmatch(name))
    return {name: os.environ[name][:VALUE_LENGTH] for name in named}


def installed() -> Dict[str, str]:
    """The versions of the distributions of interest, by the names of their folders, of which the first counts."""
    wanted = {name.replace("-", "_"): name for name in DISTRIBUTIONS}
    versions = {}  # type: Dict[str, str]
    for folder in sys.path:
        for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            match = DISTRIBUTION.match(entry)
            name = wanted.get(match.group(1).lower().replace("-", "_").replace(".", "_")) if match else None
            if match and name:
                versions.setdefault(name, match.group(2))
    return versions


def horovod() -> Dict[str, Any]:
    """Return where Horovod is and what it was built for and with, without importing it."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.origin:
        raise ImportError("No module named 'horovod'")
    directory = os.path.dirname(spec.origin)
    with open(spec.origin) as stream:
        version = re.search(r"^__version__ = ['\"](.+?)['\"]", stream.read(), re.MULTILINE)
    return {
        "path": directory,
        "version": version.group(1) if version else None,
        "metadata": attempt(lambda: read_json(os.path.join(directory, "metadata.json"))),
        "extensions": {name: extension(directory, name) for name in inside.EXTENSIONS},
    }


def extension(directory: str, framework: str) -> Optional[str]:
    """The path of a framework's compiled extension, if this Python has one."""
    path = inside.extension(directory, framework)
    return path if os.path.isfile(path) else None


def extension_file(framework: str) -> Any:
    """Return what the file of the framework's extension says of itself."""
    spec = importlib.util.find_spec("horovod")
    path = extension(os.path.dirname(str(spec.origin)), framework) if spec else None
    return shared_object(path) if path else None


def read_json(path: str) -> Any:
    with open(path) as stream:
        return json.load(stream)


def import_framework(name: str) -> Dict[str, Any]:
    gc.disable()  # an import makes objects that stay: looking through them is a tenth of its time
    try:
        module = importlib.import_module(name)
    finally:
        if sys.version_info >= (3, 7):
            gc.freeze()
        gc.enable()
    return {"version": str(module.__version__), "path": getattr(module, "__file__", None)}


def load_extension(name: str) -> Dict[str, Any]:
    module = importlib.import_module("horovod." + name)
    if not hasattr(module, "init"):
        raise ImportError("horovod.%s was imported, but without its extension" % name)
    return {"module": module.__name__}


def flags(hvd: Any) -> Dict[str, Any]:
    return {name: attempt(getattr(hvd, name + "_built")) for name in FLAGS}


def initialise(hvd: Any) -> Dict[str, Any]:
    """Start Horovod, ready for process sets where it has them: which ones, is known when the size of the world is."""
    hvd.init(**({"process_sets": "dynamic"} if hasattr(hvd, "ProcessSet") else {}))
    return {"initialised": True}


def world(hvd: Any) -> Dict[str, Any]:
    return {name: attempt(getattr(hvd, name)) for name in WORLD}


def mpi_threads(hvd: Any) -> bool:
    return bool(hvd.mpi_threads_supported())


def libraries() -> Dict[str, List[str]]:
    """The libraries of interest that this process has mapped, by name."""
    paths = {}  # type: Dict[str, List[str]]
    with open("/proc/self/maps") as stream:
        for line in stream:
            match = LIBRARIES.search(line.rstrip("\n"))
            if match and match.group(1) not in paths.setdefault(match.group(2), []):
                paths[match.group(2)].append(match.group(1))
    return paths


EARLY = (python, environment, installed, horovod)  # facts that need no Horovod, in this order
JOINED = (world, mpi_threads)  # facts of a rank that has joined the others
