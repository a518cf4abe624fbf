"""Settings of Open MPI, Horovod, Python and the shell: in the environment, and in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World

# what breaks the launch or MPI_Init: tried with Open MPI 4.1
MCA = {
    "btl": ("openib", "nothing", "self"),
    "pml": ("nothing", "yalla"),
    "plm": ("slurm", "nothing"),
    "oob": ("ud",),
    "ess": ("nothing",),
    "rmaps": ("nothing",),
    "ras": ("nothing",),
    "odls": ("nothing",),
    "iof": ("nothing",),
    "grpcomm": ("nothing",),
    "state": ("nothing",),
    "errmgr": ("nothing",),
    "routed": ("nothing",),
    "coll": ("nothing", "self"),
    "shmem": ("nothing",),
    "oob_tcp_if_include": ("ib7",),
    "orte_default_hostfile": ("/nonexistent/hosts",),
    "mca_base_component_path": ("/nonexistent",),
    "rmaps_base_mapping_policy": ("ppr:1:node", "nonsense"),
    "orte_tmpdir_base": ("/proc/nowhere",),
    "hwloc_base_binding_policy": ("nonsense",),
}
HOROVOD = {
    "HOROVOD_CONTROLLER": ("gloo",),
    "HOROVOD_CPU_OPERATIONS": ("GLOO", "CCL"),
    "HOROVOD_CYCLE_TIME": ("300000",),
}
PYTHON = {
    "PYTHONHOME": ("/nonexistent",),
    "PYTHONHASHSEED": ("today",),
    "PYTHONMALLOC": ("tcmalloc",),
    "PYTHONPLATLIBDIR": ("lib128",),
}
HARMLESS = {
    "OMPI_MCA_mpi_show_mca_params": "all",
    "OMPI_MCA_orte_tag_output": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_mpi_leave_pinned": "0",
    "OMPI_MCA_nonsense_nothing": "7",
    "OMPI_MCA_plm_rsh_agent": "ssh",
    "HOROVOD_LOG_LEVEL": "trace",
    "HOROVOD_FUSION_THRESHOLD": "0",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
    "HOROVOD_CACHE_CAPACITY": "0",
    "HOROVOD_STALL_CHECK_DISABLE": "1",
    "HOROVOD_CPU_OPERATIONS": "MPI",
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_GLOO_IFACE": "ib7",
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_NUM_NCCL_STREAMS": "4",
    "OMP_NUM_THREADS": "999",
    "OMP_PROC_BIND": "true",
    "KMP_AFFINITY": "compact",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_XLA_FLAGS": "--tf_xla_auto_jit=0",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NCCL_SOCKET_IFNAME": "ib7",
    "NCCL_DEBUG": "TRACE",
    "PYTHONHASHSEED": "1",
    "PYTHONOPTIMIZE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONIOENCODING": "ascii",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONSTARTUP": "/nonexistent/startup.py",
    "LC_ALL": "C",
    "LANG": "tlh_QO.UTF-8",
    "LANGUAGE": "de:fr",
    "COLUMNS": "1",
    "TERM": "",
    "NO_COLOR": "1",
    "FORCE_COLOR": "3",
    "BASH_ENV": "/nonexistent/env.sh",
    "CDPATH": "/tmp:/usr",
    "IFS": "/",
    "POSIXLY_CORRECT": "1",
    "GREP_OPTIONS": "--color=always",
    "SLURM_JOB_NAME": "interactive",
    "PMIX_MCA_gds": "hash",
    "LMOD_DISABLE_SAME_NAME_AUTOSWAP": "yes",
    "LMOD_QUIET": "yes",
    "http_proxy": "http://127.0.0.1:9",
}


def setting(name: str, value: str) -> Do:
    return lambda world: world.env.update({name: value})


def in_file(name: str, value: str) -> Do:
    """Set a parameter in the user's own file."""

    def do(world: World) -> None:
        world.write("home/.openmpi/mca-params.conf", f"# set in spring\n{name} = {value}\n")

    return do


def in_named_file(name: str, value: str) -> Do:
    """Set a parameter in a file that the environment names."""

    def do(world: World) -> None:
        file = world.write("home/tuned.conf", f"{name} = {value}\n")
        world.env["OMPI_MCA_mca_base_param_files"] = str(file)

    return do


def in_system_file(name: str, value: str) -> Do:
    """Set a parameter in the administrator's file."""

    def do(world: World) -> None:
        world.overlay(Path("/etc/openmpi"))
        with Path("/etc/openmpi/openmpi-mca-params.conf").open("a") as file:
            file.write(f"\n{name} = {value}\n")

    return do


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Each setting, in the places where it can be made."""
    for name, values in MCA.items():
        for value in values:
            yield Kind(
                name=f"settings/env/{name}={value}",
                group="OMPI_MCA_* in the environment",
                did=f"export OMPI_MCA_{name}={value}",
                do=setting(f"OMPI_MCA_{name}", value),
                true=rf"OMPI_MCA_{name}\b",
            )
    for name, value in (
        ("btl", "openib"),
        ("pml", "nothing"),
        ("plm", "nothing"),
        ("coll", "nothing"),
        ("oob", "ud"),
        ("rmaps", "nothing"),
        ("btl", "self"),
        ("orte_default_hostfile", "/nonexistent/hosts"),
    ):
        yield Kind(
            name=f"settings/file/{name}={value}",
            group="mca-params.conf and other files",
            did=f"~/.openmpi/mca-params.conf has '{name} = {value}'",
            do=in_file(name, value),
            true=r"mca-params\.conf",
        )
    for name, value in (("btl", "openib"), ("plm", "nothing"), ("pml", "yalla")):
        yield Kind(
            name=f"settings/named-file/{name}={value}",
            group="mca-params.conf and other files",
            did=f"OMPI_MCA_mca_base_param_files names ~/tuned.conf, which has '{name} = {value}'",
            do=in_named_file(name, value),
            true=r"OMPI_MCA_mca_base_param_files|tuned\.conf",
        )
    for name, values in (HOROVOD | PYTHON).items():
        for value in values:
            yield Kind(
                name=f"settings/env/{name}={value}",
                group="HOROVOD_*" if name in HOROVOD else "PYTHON*",
                did=f"export {name}={value}",
                do=setting(name, value),
                true=rf"{name}\b",
                options=("-n", "2", "--timeout", "30") if name in HOROVOD else (),
            )
    for name, value in (
        ("OPAL_PREFIX", "/nonexistent"),
        ("OPAL_LIBDIR", "/nonexistent"),
        ("OPAL_PKGDATADIR", "/nonexistent"),
        ("PMIX_MCA_gds", "nothing"),
        ("PMIX_MCA_psec", "nothing"),
        ("PMIX_MCA_ptl", "nothing"),
        ("PMIX_MCA_bfrops", "nothing"),
        ("OMPI_MCA_pmix", "nothing"),
    ):
        yield Kind(
            name=f"settings/env/{name}={value}",
            group="OPAL_PREFIX, PMIX_MCA_*",
            did=f"export {name}={value}",
            do=setting(name, value),
            true=rf"{name}\b",
        )
    for name, value in HARMLESS.items():
        yield Kind(
            name=f"harmless/{name}={value.replace('/', ':')}",
            group="harmless",
            did=f"export {name}={value}",
            do=setting(name, value),
        )
