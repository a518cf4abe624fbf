"""Two unrelated faults at once, and launches that are wrong in more than one way: either true cause may come first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, During, Kind, World
from .kinds_jobs import cut, host_name, instead, without
from .kinds_libraries import FAILING, preload, search
from .kinds_limits import full, limit, little_memory, setting
from .kinds_places import no_shared_memory, noexec, read_only_home, temporary
from .kinds_settings import in_file, in_named_file
from .kinds_shadows import stub
from .kinds_signals import at_step
from .kinds_tools import launcher, lmod
from .kinds_worlds import as_ranks, settings

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
COMPONENTS = f"{LIBRARIES}/openmpi/lib/openmpi3"
ENDED = {
    "SLURM_JOB_ID": "90210",
    "SLURM_NODELIST": "gpu[07-09]",
    "SLURM_JOB_NODELIST": "gpu[07-09]",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "12",
    "SLURM_TASKS_PER_NODE": "4(x3)",
}
BY_MPIRUN = ("mpirun", "-np", "2", "--oversubscribe")
SHORT = ("-n", "2", "--timeout", "30")


def all_of(*deeds: Do) -> Do:
    def do(world: World) -> None:
        for deed in deeds:
            deed(world)

    return do


def short(software: str, pattern: str, less: int) -> Do:
    """Cut some bytes off the end of a file of a module."""

    def do(world: World) -> None:
        path = next(iter(sorted(world.software(software).rglob(pattern))))
        os.truncate(path, path.stat().st_size - less)

    return do


def gone(software: str, pattern: str) -> Do:
    return lambda world: next(iter(sorted(world.software(software).rglob(pattern)))).unlink()


def zeros(software: str, pattern: str) -> Do:
    """Have nothing but zeros in a file, as after a crash of a file system."""

    def do(world: World) -> None:
        path = next(iter(sorted(world.software(software).rglob(pattern))))
        path.write_bytes(bytes(path.stat().st_size))

    return do


def foreign_home(world: World) -> None:
    """PYTHONHOME names the Python of another version."""
    world.env["PYTHONHOME"] = "/usr" if "pyenv" in str(world.base) else str(world.base.parents[1])


def conda(world: World) -> None:
    """A folder of PATH has an mpirun and a python that are something else's."""
    world.program("mpirun", "echo 'mpirun (Open MPI) 1.2.8'; exit 64")
    world.program("python", "exit 3")
    world.program("orted", "exit 3")


def in_one_rank(line: str) -> Do:
    """Have a line of shell be run before one of the ranks that mpirun starts."""

    def do(world: World) -> None:
        script = world.write(
            "wrap", f'#!/bin/bash\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && {{ {line}; }}\nexec "$@"\n', 0o755
        )
        as_ranks(*BY_MPIRUN, str(script))(world)

    return do


def random_for_one(world: World) -> None:
    """Have one of the ranks that mpirun starts find a random.py that is somebody's own."""
    world.write(world.folder / "mine" / "random.py", "numbers = [4]\n")
    in_one_rank(f"export PYTHONPATH={world.folder}/mine")(world)


def exported(text: str) -> Do:
    """Have mpirun give its ranks a variable."""
    return as_ranks(*BY_MPIRUN, "-x", text)


def at(rank: int, phase: str, whom: str, number: signal.Signals) -> During:
    return at_step(rank, phase, whom, number)


def raising_site(world: World) -> None:
    stub(
        "sitecustomize.py",
        "import sys\nif 'probe' in ' '.join(sys.orig_argv): raise SystemExit('quota')\n",
        "PYTHONPATH",
    )(world)


def two(name: str, did: str, *deeds: Do, true: str, **more: object) -> Kind:
    """Two deeds, either of which may be told first."""
    told = {"options": SHORT, "mended": "run", "rounds": 2, **more}
    return Kind(name=f"two/{name}", group="two at once, by hand", did=did, do=all_of(*deeds), true=true, **told)  # type: ignore[arg-type]


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Combinations."""
    stub_numpy = stub("numpy/__init__.py", "__version__ = '1.11.0'\n", "PYTHONPATH")
    stub_torch = stub("torch/__init__.py", "__version__ = '1.4.0'\n", "PYTHONPATH")
    numpy, torch = r"PYTHONPATH|mine/numpy", r"PYTHONPATH|mine/torch"
    packages = r"apt-get install --reinstall|dnf reinstall"
    nothing = r"^$"
    yield two(
        "btl-self-and-numpy",
        "btl=self; an old numpy on PYTHONPATH",
        setting("OMPI_MCA_btl", "self"),
        stub_numpy,
        true=rf"OMPI_MCA_btl|{numpy}",
    )
    yield two(
        "pml-cm-and-tmpdir-full",
        "pml=cm in ~/.openmpi; TMPDIR full",
        in_file("pml", "cm"),
        temporary("full"),
        true=r"mca-params\.conf|TMPDIR|/scratch\b",
    )
    yield two(
        "gloo-and-failing-preload",
        "HOROVOD_CONTROLLER=gloo; a preloaded library fails MPI_Init_thread",
        setting("HOROVOD_CONTROLLER", "gloo"),
        preload(FAILING),
        true=r"HOROVOD_CONTROLLER|LD_PRELOAD|libtuned",
    )
    yield two(
        "rmaps-and-home",
        "rmaps=absent; the home can only be read",
        setting("OMPI_MCA_rmaps", "absent"),
        read_only_home,
        true=r"OMPI_MCA_rmaps|home",
    )
    yield two(
        "interface-and-ended-job",
        "oob_tcp_if_include=ib7; variables of a job of Slurm that has ended",
        setting("OMPI_MCA_oob_tcp_if_include", "ib7"),
        settings(**ENDED),
        true=r"oob_tcp_if_include|ib7|SLURM_|90210",
    )
    yield two(
        "files-and-plm",
        "ulimit -n 30; plm=nothing",
        limit("n", 30),
        setting("OMPI_MCA_plm", "nothing"),
        true=r"open files|ulimit|OMPI_MCA_plm",
        mended="words",
        words=r"ulimit|OMPI_MCA_plm",
    )
    yield two(
        "noexec-and-btl",
        "the prefix is mounted noexec; btl=nothing",
        noexec,
        setting("OMPI_MCA_btl", "nothing"),
        true=r"noexec|OMPI_MCA_btl",
        mended="words",
        words="exec|OMPI_MCA_btl",
        never=nothing,
    )
    yield two(
        "no-ob1-and-torch",
        "mca_pml_ob1.so gone; an old torch on PYTHONPATH",
        without(COMPONENTS, "mca_pml_ob1.so"),
        stub_torch,
        true=rf"ob1|{torch}",
        mended="words",
        words=rf"{packages}|PYTHONPATH",
        never=nothing,
    )
    yield two(
        "cut-pal-and-pmi",
        "libopen-pal cut short; PMI variables left over",
        cut(LIBRARIES, Path(LIBRARIES, "libopen-pal.so.40").resolve().name),
        settings(PMI_RANK="2", PMI_SIZE="6"),
        true=r"libopen-pal|PMI_RANK",
        mended="words",
        words=rf"{packages}|PMI_RANK",
        never=nothing,
    )
    yield two(
        "no-shm-and-vader",
        "no /dev/shm; vader's segments there",
        no_shared_memory,
        setting("OMPI_MCA_btl_vader_backing_directory", "/dev/shm"),
        true=r"/dev/shm|OMPI_MCA_btl_vader",
        either=True,
    )
    yield two(
        "pythonhome-and-lang",
        "PYTHONHOME of another Python; an unknown LC_ALL",
        foreign_home,
        setting("LC_ALL", "xx_YY.UTF-9"),
        true=r"PYTHONHOME",
    )
    yield two(
        "opal-prefix-and-verbose",
        "OPAL_PREFIX names nothing; much is said by btl_base_verbose",
        setting("OPAL_PREFIX", "/opt/openmpi-4.0.3"),
        setting("OMPI_MCA_btl_base_verbose", "100"),
        true=r"OPAL_PREFIX",
    )
    yield two(
        "ess-and-agent",
        "ess=absent; plm_rsh_agent names nothing",
        setting("OMPI_MCA_ess", "absent"),
        setting("OMPI_MCA_plm_rsh_agent", "/opt/site/ssh"),
        true=r"OMPI_MCA_ess|OMPI_MCA_plm_rsh_agent",
    )
    yield two(
        "mpirun-site-and-coll",
        "a site's mpirun refuses; coll=^basic in ~/.openmpi",
        launcher("echo 'use bsub' >&2; exit 2"),
        in_file("coll", "^basic"),
        true=r"first\b[^\n]*mpirun|use bsub|mca-params",
    )
    yield two(
        "torch-short-and-openib",
        "a library of torch lacks its last bytes; btl=openib",
        short("PyTorch", "libtorch_cpu.so", 4096),
        setting("OMPI_MCA_btl", "openib"),
        true=r"libtorch_cpu|OMPI_MCA_btl",
        stacks=("pytorch",),
    )
    yield two(
        "horovod-short-and-ended-job",
        "Horovod's extension lacks its end; an ended job",
        short("Horovod", "mpi_lib_v2*.so", 500),
        settings(**ENDED),
        true=r"mpi_lib_v2|90210|SLURM_",
        stacks=("pytorch",),
    )
    yield two(
        "zeros-and-stack",
        "cloudpickle of Horovod's module is zeros; ulimit -s 100",
        zeros("Horovod", "cloudpickle.py"),
        limit("s", 100),
        true=r"cloudpickle|stack|ulimit -s",
        mended="words",
        words=r"repair|ulimit",
        never=nothing,
    )
    yield two(
        "stopped-and-verbose",
        "a stopped watchdog; btl_base_verbose=50",
        setting("OMPI_MCA_btl_base_verbose", "50"),
        true=r"stopped|SIGSTOP",
        mended="words",
        words="stopped|resume|signal",
        during=at(1, "init", "watchdog", signal.SIGSTOP),
    )
    yield two(
        "killed-and-stray",
        "rank 0 is killed in training; OMPI variables of a world of one left over",
        settings(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1"),
        true=r"SIGKILL|killed|vanished",
        mended="words",
        words=r"memory|record|again|log",
        during=at(0, "training", "measuring process", signal.SIGKILL),
    )
    yield two(
        "rank-stopped-and-cycle",
        "all of rank 0 stopped at import; HOROVOD_CYCLE_TIME=20",
        setting("HOROVOD_CYCLE_TIME", "20"),
        true=r"stopped|SIGSTOP",
        mended="words",
        words="stopped|resume|signal",
        during=at(0, "import", "whole rank", signal.SIGSTOP),
    )
    yield two(
        "lua-and-btl",
        "LUA_INIT raises; btl=self",
        setting("LUA_INIT", "error('profile of the site')"),
        setting("OMPI_MCA_btl", "self"),
        true=r"LUA_INIT|profile of the site|OMPI_MCA_btl",
    )
    yield two(
        "lmod-and-ended-job",
        "Lmod is killed; an ended job",
        lmod("kill -9 $$"),
        settings(**ENDED),
        true=r"lmod|modules tool|90210|SLURM_",
        mended="words",
        words=r"lmod|modules|SLURM_",
    )
    yield two(
        "stdc-and-horovodrun",
        "a stub of libstdc++ in LD_LIBRARY_PATH; horovodrun on a network that is not there",
        search("libstdc++.so.6"),
        setting("HOROVOD_GLOO_IFACE", "ib7"),
        true=r"LD_LIBRARY_PATH|/lib/libstdc|HOROVOD_GLOO_IFACE|ib7",
        options=("-n", "2", "--launcher", "horovodrun", "--timeout", "30"),
    )
    yield two(
        "hwloc-and-trace",
        "a stub of libhwloc in LD_LIBRARY_PATH; HOROVOD_LOG_LEVEL=trace",
        search("libhwloc.so.15"),
        setting("HOROVOD_LOG_LEVEL", "trace"),
        true=r"LD_LIBRARY_PATH|/lib/libhwloc",
    )
    yield two(
        "hosts-and-oob",
        "/etc/hosts says localhost is elsewhere; oob=^tcp",
        instead("/etc/hosts", "192.0.2.78 localhost\n"),
        setting("OMPI_MCA_oob", "^tcp"),
        true=r"OMPI_MCA_oob|/etc/hosts|localhost",
    )
    yield two(
        "site-and-timeline",
        "a sitecustomize ends ranks; HOROVOD_TIMELINE cannot be written",
        raising_site,
        setting("HOROVOD_TIMELINE", "/nonexistent/t.json"),
        true=r"PYTHONPATH|sitecustomize|quota|HOROVOD_TIMELINE",
    )
    yield two(
        "coll-named-and-gds",
        "a named file has coll=^tuned,basic,libnbc,self; PMIX_MCA_gds=nothing",
        in_named_file("coll", "^tuned,basic,libnbc,self"),
        setting("PMIX_MCA_gds", "nothing"),
        true=r"mca_base_param_files|tuned\.conf|PMIX_MCA_gds",
    )
    yield two(
        "gds-and-psec",
        "PMIX_MCA_gds and PMIX_MCA_psec name nothing",
        setting("PMIX_MCA_gds", "nothing"),
        setting("PMIX_MCA_psec", "nothing"),
        true=r"PMIX_MCA_(gds|psec)",
    )
    yield two(
        "binding-and-home-full",
        "a binding policy that is none; the home is full",
        setting("OMPI_MCA_hwloc_base_binding_policy", "everywhere"),
        lambda world: full(str(world.home))(world),
        true=r"hwloc_base_binding_policy|home",
    )
    yield two(
        "memory-and-xpmem",
        "a control group of 200 MB; single copies by xpmem",
        little_memory(200),
        setting("OMPI_MCA_btl_vader_single_copy_mechanism", "xpmem"),
        true=r"memory|OOM",
        mended="words",
        words="memory",
    )
    yield two(
        "address-space-and-malloc",
        "ulimit -v 900000; PYTHONMALLOC=debug",
        limit("v", 900000),
        setting("PYTHONMALLOC", "debug"),
        true=r"memory|ulimit|address space",
        mended="words",
        words="ulimit|memory",
    )
    yield two(
        "shmem-and-tmpdir-noexec",
        "shmem=absent; TMPDIR noexec",
        temporary("noexec"),
        setting("OMPI_MCA_shmem", "absent"),
        true=r"OMPI_MCA_shmem|TMPDIR",
    )
    yield two(
        "no-host-and-btl",
        "one of two hosts is not there; btl=tcp",
        setting("OMPI_MCA_btl", "tcp"),
        true=r"no-such-host|ssh|resolv|OMPI_MCA_btl",
        options=("-n", "2", "--hosts", "localhost:1,no-such-host:1", "--timeout", "30"),
        mended="words",
        words=r"ssh|host|OMPI_MCA_btl",
    )
    yield two(
        "srun-and-ended-job",
        "srun is asked for with the variables of an ended job",
        settings(**ENDED),
        true=r"90210|SLURM_|srun",
        options=("-n", "2", "--launcher", "srun", "--timeout", "30"),
        mended="words",
        words=r"srun|SLURM_|launcher",
    )
    yield two(
        "one-rank-random-and-btl",
        "mpirun -np 2 of which one rank has a random.py of its own; btl=self,vader",
        random_for_one,
        setting("OMPI_MCA_btl", "self,vader"),
        true=r"PYTHONPATH|mine/random",
        mended="words",
        words="PYTHONPATH|random|rank",
    )
    yield two(
        "one-rank-limit",
        "mpirun -np 2 of which one rank has ulimit -v 700000, and a strange locale",
        in_one_rank("ulimit -v 700000"),
        setting("LC_ALL", "xx_YY.UTF-9"),
        true=r"memory|ulimit|address space",
        mended="words",
        words="memory|ulimit",
    )
    yield two(
        "exported-preload-and-verbose",
        "mpirun -x LD_PRELOAD of a library that fails MPI_Init_thread; verbose",
        lambda world: exported(f"LD_PRELOAD={world.library('lib/libtuned.so', FAILING)}")(world),
        setting("OMPI_MCA_pml_base_verbose", "10"),
        true=r"LD_PRELOAD|libtuned",
        mended="words",
        words="LD_PRELOAD|libtuned",
    )
    yield two(
        "torch-gone-and-no-hosts",
        "torch/_tensor.py gone; the host is called localhost",
        gone("PyTorch", "torch/_tensor.py"),
        host_name("localhost"),
        true=r"_tensor",
        stacks=("pytorch",),
    )
    yield two(
        "conda-and-pml",
        "another mpirun and python first on PATH; pml=^ob1",
        conda,
        setting("OMPI_MCA_pml", "^ob1"),
        true=r"first\b[^\n]*(mpirun|python)|in PATH|OMPI_MCA_pml",
    )
    yield two(
        "interpreter-short-and-lib",
        "numpy's core is zeros; LD_LIBRARY_PATH has a stub of libgcc_s",
        zeros("PyTorch", "_multiarray_umath*.so"),
        search("libgcc_s.so.1"),
        true=r"_multiarray_umath|LD_LIBRARY_PATH|libgcc_s",
        stacks=("pytorch",),
    )
