"""What a job can be given: each setting is tried with a small job first, which says whether it breaks anything."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World
from .kinds_settings import in_file, in_named_file, in_system_file, setting
from .world import LIBC, MS_BIND, mount

FRAMEWORKS = [
    "allocator",
    "backtrace",
    "bml",
    "btl",
    "coll",
    "compress",
    "crs",
    "dl",
    "errmgr",
    "ess",
    "event",
    "fbtl",
    "fcoll",
    "filem",
    "fs",
    "grpcomm",
    "hook",
    "hwloc",
    "if",
    "installdirs",
    "io",
    "iof",
    "memchecker",
    "memcpy",
    "memory",
    "mpool",
    "mtl",
    "odls",
    "oob",
    "op",
    "osc",
    "patcher",
    "plm",
    "pmix",
    "pml",
    "pstat",
    "ras",
    "rcache",
    "reachable",
    "regx",
    "rmaps",
    "rml",
    "routed",
    "rtc",
    "schizo",
    "sharedfp",
    "shmem",
    "state",
    "timer",
    "topo",
    "vprotocol",
]
OTHERS = {
    "btl": ("tcp,self", "vader", "^vader,tcp", "^self", "usnic,self"),
    "pml": ("cm", "ucx", "ob1,", "^ob1", "monitoring", "v"),
    "mtl": ("ofi", "psm2"),
    "plm": ("rsh", "isolated", "tm"),
    "coll": ("basic,libnbc,self,inter,sync", "^basic", "tuned", "^tuned,han"),
    "osc": ("pt2pt",),
    "ras": ("simulator",),
    "rmaps": ("seq", "rank_file"),
    "routed": ("direct", "radix"),
    "schizo": ("slurm",),
    "shmem": ("posix", "sysv"),
    "btl_tcp_if_include": ("ib7", "192.0.2.0/24"),
    "btl_tcp_if_exclude": ("lo,eth0",),
    "oob_tcp_if_include": ("eth0",),
    "oob_tcp_if_exclude": ("lo,eth0",),
    "btl_vader_single_copy_mechanism": ("xpmem", "knem", "cma"),
    "btl_vader_segment_size": ("4096",),
    "btl_vader_backing_directory": ("/nonexistent",),
    "mpi_param_check": ("0",),
    "mpi_abort_delay": ("5",),
    "mpi_abort_print_stack": ("1",),
    "mpi_add_procs_cutoff": ("0",),
    "mpi_cuda_support": ("1",),
    "mpi_preconnect_mpi": ("1",),
    "mpi_warn_on_fork": ("1",),
    "mpi_show_handle_leaks": ("1",),
    "orte_abort_on_non_zero_status": ("0",),
    "orte_base_help_aggregate": ("0",),
    "orte_create_session_dirs": ("0",),
    "orte_execute_quiet": ("1",),
    "orte_forward_job_control": ("1",),
    "orte_launch_agent": ("/nonexistent/orted",),
    "orte_max_vm_size": ("1",),
    "orte_no_session_dirs": ("/tmp",),
    "orte_output_filename": ("/nonexistent/out",),
    "orte_report_bindings": ("1",),
    "orte_rankfile": ("/nonexistent/ranks",),
    "orte_set_default_slots": ("none", "cores"),
    "orte_startup_timeout": ("1",),
    "orte_xterm": ("0",),
    "orte_timeout_for_stack_trace": ("1",),
    "rmaps_base_mapping_policy": ("node", "socket", "numa", "dist", "ppr:2:node", "ppr:1:core"),
    "rmaps_base_oversubscribe": ("0",),
    "rmaps_base_no_oversubscribe": ("1",),
    "rmaps_base_no_schedule_local": ("1",),
    "rmaps_base_cpus_per_rank": ("2", "64"),
    "rmaps_base_ranking_policy": ("nonsense",),
    "hwloc_base_binding_policy": ("core", "hwthread", "none", "numa"),
    "hwloc_base_cpu_list": ("0", "99"),
    "hwloc_base_topo_file": ("/nonexistent/topo.xml",),
    "hwloc_base_use_hwthreads_as_cpus": ("1",),
    "ras_base_launch_orted_on_hn": ("1",),
    "plm_rsh_agent": ("/nonexistent/ssh",),
    "plm_rsh_no_tree_spawn": ("1",),
    "opal_set_max_sys_limits": ("1", "nonsense:5"),
    "opal_signal": ("6,7,8,11", "none", "nonsense"),
    "opal_event_include": ("poll", "nothing"),
    "coll_tuned_use_dynamic_rules": ("1",),
    "coll_tuned_allreduce_algorithm": ("3", "99"),
    "coll_base_verbose": ("100",),
    "btl_base_verbose": ("100",),
    "mca_base_verbose": ("stderr", "file:/nonexistent/x"),
    "mca_base_param_files": ("/nonexistent/mca.conf",),
    "mca_base_env_list": ("NOTHING_SET",),
    "state_base_verbose": ("5",),
    "ess_base_vpid": ("7",),
    "ess_base_jobid": ("77",),
    "ess_hnp_uri": ("1.0;tcp://127.0.0.1:9",),
    "orte_hnp_uri": ("1.0;tcp://127.0.0.1:9",),
    "orte_local_daemon_uri": ("1.0;tcp://127.0.0.1:9",),
    "orte_ess_num_procs": ("9",),
    "orte_launch": ("1",),
    "pml_ob1_priority": ("-1",),
    "pml_base_warn_dep_cancel_send_level": ("x",),
}
HOROVOD = {
    "HOROVOD_CONTROLLER": ("GLOO", "nccl", ""),
    "HOROVOD_CPU_OPERATIONS": ("gloo", "MLSL", "nonsense"),
    "HOROVOD_CYCLE_TIME": ("0", "20000", "-1", "fast"),
    "HOROVOD_FUSION_THRESHOLD": ("-1", "99999999999999", "64M", "1"),
    "HOROVOD_CACHE_CAPACITY": ("-5", "1"),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ("yes",),
    "HOROVOD_THREAD_AFFINITY": ("99", "0,1", "x"),
    "HOROVOD_MPI_THREADS_DISABLE": ("1",),
    "HOROVOD_ELASTIC": ("1",),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": ("0",),
    "HOROVOD_TIMELINE": ("/nonexistent/t.json", "/tmp/t.json"),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("1",),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("1",),
    "HOROVOD_BATCH_D2D_MEMCOPIES": ("0",),
    "HOROVOD_DISABLE_GROUP_FUSION": ("1",),
    "HOROVOD_DYNAMIC_PROCESS_SETS": ("1",),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": ("1",),
    "HOROVOD_LOG_LEVEL": ("nonsense", "debug"),
    "HOROVOD_LOG_HIDE_TIME": ("1",),
    "HOROVOD_NUM_NCCL_STREAMS": ("0",),
    "HOROVOD_RANK": ("0", "5", "x"),
    "HOROVOD_SIZE": ("1", "8"),
    "HOROVOD_LOCAL_RANK": ("1",),
    "HOROVOD_AUTOTUNE_LOG": ("/nonexistent/a.csv",),
}
REST = {
    "UCX_TLS": ("nothing", "tcp", "self"),
    "UCX_NET_DEVICES": ("ib7",),
    "UCX_LOG_LEVEL": ("trace",),
    "FI_PROVIDER": ("nothing", "tcp"),
    "HWLOC_XMLFILE": ("/nonexistent/topo.xml",),
    "HWLOC_SYNTHETIC": ("numa:2 core:8 pu:2",),
    "HWLOC_COMPONENTS": ("-linux",),
    "OMP_NUM_THREADS": ("0", "many"),
    "OMP_STACKSIZE": ("1T", "1"),
    "OMP_THREAD_LIMIT": ("1",),
    "GOMP_CPU_AFFINITY": ("99", "0"),
    "KMP_STACKSIZE": ("64T",),
    "MKL_THREADING_LAYER": ("nonsense", "TBB"),
    "MALLOC_CHECK_": ("3",),
    "MALLOC_PERTURB_": ("90",),
    "MALLOC_ARENA_MAX": ("1",),
    "GLIBC_TUNABLES": ("glibc.malloc.check=3", "glibc.rtld.optional_static_tls=1"),
    "LD_DEBUG": ("libs",),
    "LD_AUDIT": ("/nonexistent/audit.so",),
    "LD_TRACE_LOADED_OBJECTS": ("",),
    "LD_USE_LOAD_BIAS": ("1",),
    "LOCPATH": ("/nonexistent",),
    "GCONV_PATH": ("/nonexistent",),
    "PYTHONWARNINGS": ("error", "error::DeprecationWarning", "ignore"),
    "PYTHONOPTIMIZE": ("2",),
    "PYTHONINSPECT": ("1",),
    "PYTHONDEBUG": ("1",),
    "PYTHONVERBOSE": ("1",),
    "PYTHONTRACEMALLOC": ("1", "lots"),
    "PYTHONMALLOC": ("debug", "malloc"),
    "PYTHONUTF8": ("0", "yes"),
    "PYTHONCASEOK": ("1",),
    "PYTHONIOENCODING": ("nonsense",),
    "PYTHONPYCACHEPREFIX": ("/nonexistent/cache",),
    "PYTHONINTMAXSTRDIGITS": ("10",),
    "PYTHONNODEBUGRANGES": ("1",),
    "PYTHONFAULTHANDLER": ("1",),
    "PYTHONPROFILEIMPORTTIME": ("1",),
    "PYTHONEXECUTABLE": ("/nonexistent/python",),
    "PYTHONBREAKPOINT": ("nonsense.nothing",),
    "__PYVENV_LAUNCHER__": ("/nonexistent/python",),
    "TORCH_LOGS": ("nonsense", "+all"),
    "TORCH_SHOW_CPP_STACKTRACES": ("1",),
    "TORCH_DEVICE_BACKEND_AUTOLOAD": ("0",),
    "ATEN_CPU_CAPABILITY": ("default", "avx512"),
    "PYTORCH_JIT": ("0",),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1",),
    "TORCHDYNAMO_DISABLE": ("1",),
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": ("1",),
    "PYTORCH_NVML_BASED_CUDA_CHECK": ("1",),
    "NPY_DISABLE_CPU_FEATURES": ("AVX512F", "nonsense", "SSE2"),
    "NPY_PROMOTION_STATE": ("legacy",),
    "TF_XLA_FLAGS": ("--nonsense=1",),
    "XLA_FLAGS": ("--nonsense=1",),
    "TF_NUM_INTRAOP_THREADS": ("-1",),
    "TF_USE_LEGACY_KERAS": ("0", "1"),
    "KERAS_BACKEND": ("nonsense",),
    "LUA_PATH": ("/nonexistent/?.lua",),
    "LUA_CPATH": ("/nonexistent/?.so",),
    "LUA_INIT": ("error('lua of the site')", "print('hello')"),
    "LMOD_SYSTEM_DEFAULT_MODULES": ("StdEnv",),
    "LMOD_RC": ("/nonexistent/lmodrc.lua",),
    "LMOD_ADMIN_FILE": ("/nonexistent/admin.list",),
    "LMOD_CMD": ("/nonexistent/lmod",),
    "LMOD_DIR": ("/nonexistent",),
    "LMOD_EXACT_MATCH": ("yes",),
    "LMOD_EXTENDED_DEFAULT": ("no",),
    "LMOD_TMOD_PATH_RULE": ("yes",),
    "LMOD_IGNORE_CACHE": ("1",),
    "LMOD_PIN_VERSIONS": ("yes",),
    "LMOD_SHELL_PRGM": ("nonsense",),
    "LMOD_TRACING": ("yes",),
    "LMOD_SILENT_SHELL_STARTUP": ("yes",),
    "MODULEPATH": ("/nonexistent:/usr",),
    "MODULESHOME": ("/nonexistent",),
    "LOADEDMODULES": ("nothing/1.0:other/2",),
    "_LMFILES_": ("/nonexistent/nothing/1.0",),
    "_ModuleTable001_": ("bm9uc2Vuc2U=",),
    "__LMOD_REF_COUNT_PATH": ("/nonexistent:9",),
    "SHELLOPTS": ("braceexpand:hashall:nounset", "braceexpand:errexit", "braceexpand:noexec", "xtrace", "posix"),
    "BASHOPTS": ("nullglob:failglob",),
    "BASH_XTRACEFD": ("9",),
    "GLOBIGNORE": ("*",),
    "POSIXLY_CORRECT": ("yes",),
    "TMP": ("/nonexistent",),
    "TEMP": ("/nonexistent",),
    "OMPI_MCA_orte_precondition_transports": ("nonsense", "0123456789abcdef-0123456789abcdef"),
    "OMPI_COMM_WORLD_SIZE": ("4",),
    "OMPI_COMM_WORLD_RANK": ("3",),
    "OMPI_UNIVERSE_SIZE": ("9",),
    "PMIX_RANK": ("3",),
    "PMIX_NAMESPACE": ("4242",),
    "PMIX_SERVER_TMPDIR": ("/nonexistent",),
    "PMIX_SYSTEM_TMPDIR": ("/nonexistent",),
    "PMIX_INSTALL_PREFIX": ("/nonexistent",),
    "PMIX_MCA_ptl": ("tcp",),
    "PMIX_MCA_psec": ("native", "munge"),
    "PMIX_MCA_gds": ("ds12", "ds21"),
    "PMIX_MCA_pcompress": ("nothing",),
    "PMIX_MCA_preg": ("nothing",),
    "PMIX_MCA_plog": ("nothing",),
    "PMIX_MCA_mca_base_component_path": ("/nonexistent",),
    "PMIX_MCA_ptl_tcp_if_include": ("ib7",),
    "OPAL_DATADIR": ("/nonexistent",),
    "OPAL_SYSCONFDIR": ("/nonexistent",),
    "OPAL_PKGLIBDIR": ("/nonexistent",),
    "OPAL_EXEC_PREFIX": ("/nonexistent",),
    "OPAL_BINDIR": ("/nonexistent",),
    "OPAL_DESTDIR": ("/nonexistent",),
    "PRTE_MCA_plm": ("nothing",),
    "OMPI_ALLOW_RUN_AS_ROOT": ("0",),
    "OMPI_PREFIX": ("/nonexistent",),
    "EBROOTPYTORCH": ("/nonexistent",),
    "EBROOTOPENMPI": ("/opt/ompi",),
    "VIRTUAL_ENV": ("/nonexistent",),
    "CONDA_PREFIX": ("/nonexistent",),
}


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Whatever a launcher, a loader or a library takes from the environment or its files; and odd machines."""
    for name in FRAMEWORKS:
        yield tried(f"mca/{name}=absent", "OMPI_MCA_* in the environment", f"OMPI_MCA_{name}", "absent")
    for name, values in OTHERS.items():
        for value in values:
            yield tried(f"mca/{name}={value}", "OMPI_MCA_* in the environment", f"OMPI_MCA_{name}", value)
    for group, table in (("HOROVOD_*", HOROVOD), ("other settings", REST)):
        for name, values in table.items():
            for value in values:
                yield tried(f"given/{name}={value}", group, name, value)
    for place, do, true in (
        ("home", in_file, r"mca-params\.conf"),
        ("named", in_named_file, r"OMPI_MCA_mca_base_param_files|tuned\.conf"),
        ("system", in_system_file, r"openmpi-mca-params\.conf"),
    ):
        for name, value in (
            ("btl", "absent"),
            ("pml", "ucx"),
            ("oob_tcp_if_include", "ib7"),
            ("ras", "absent"),
            ("btl", "^self"),
            ("rmaps_base_mapping_policy", "ppr:1:node"),
            ("orte_rankfile", "/nonexistent/ranks"),
            ("state", "absent"),
        ):
            yield Kind(
                name=f"mca-{place}/{name}={value}".replace("/nonexistent/ranks", "gone"),
                group="mca-params.conf and other files",
                did=f"{place}: '{name} = {value}' in a file of parameters",
                do=do(name, value),
                true=true,
                either=True,
                mended="run" if place != "system" else "words",
                words=r"openmpi-mca-params\.conf",
                options=("-n", "2", "--timeout", "30"),
            )
    yield from machines()


def tried(name: str, group: str, variable: str, value: str) -> Kind:
    """A setting of which a small job says whether it breaks anything."""
    return Kind(
        name=name.replace("/nonexistent", "gone"),
        group=group,
        did=f"export {variable}={value}",
        do=setting(variable, value),
        true=rf"(?<![A-Za-z]){variable}\b",
        either=True,
        options=("-n", "2", "--timeout", "30"),
    )


def odd(name: str, did: str, do: Do, true: str, words: str = "", mended: bool = False) -> Kind:
    """An odd machine, of which a small job says whether it breaks anything."""
    return Kind(
        name=f"machine/{name}",
        group="the machine",
        did=did,
        do=do,
        true=true,
        either=True,
        mended="run" if mended else "words",
        words=words or ".",
        options=("-n", "2", "--timeout", "30"),
    )


def hidden(path: str) -> Do:
    return lambda world: mount("zoo", path, "tmpfs", 0, "mode=755")


def instead(path: str, text: str) -> Do:
    """Show a file with other words."""

    def do(world: World) -> None:
        mount(str(world.write(f"shown/{Path(path).name}", text)), path, flags=MS_BIND)

    return do


def host_name(name: str) -> Do:
    """Call the machine something else."""

    def do(world: World) -> None:
        if LIBC.unshare(0x04000000):
            raise OSError("unshare")
        socket.sethostname(name)

    return do


def without(folder: str, *patterns: str) -> Do:
    """Have files of the host gone."""

    def do(world: World) -> None:
        world.overlay(Path(folder))
        for pattern in patterns:
            for path in Path(folder).glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return do


def cut(folder: str, name: str) -> Do:
    """Have a file of the host cut short."""

    def do(world: World) -> None:
        world.overlay(Path(folder))
        os.truncate(Path(folder, name), 900)

    return do


def somebody(world: World) -> None:
    """Be a user whom nobody knows."""
    for path in (world.home, world.cwd, world.out, world.folder):
        os.chown(path, 54321, 54321)
    world.shell = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]


def tight(world: World) -> None:
    world.prelude.append("umask 777")
    world.shell = [
        "setpriv",
        "--bounding-set=-dac_override,-dac_read_search",
        "--inh-caps=-dac_override,-dac_read_search",
    ]


def no_path(world: World) -> None:
    world.env["PATH"] = f"{world.folder / 'bin'}"


def prelude(text: str) -> Do:
    return lambda world: world.prelude.append(text)


def written(name: str, text: str) -> Do:
    def do(world: World) -> None:
        world.write(f"home/{name}", text)

    return do


def stdlib(name: str) -> Do:
    """Have a file of the host's Python cut short."""

    def do(world: World) -> None:
        world.overlay(world.base)
        path = world.base / name
        os.truncate(path, path.stat().st_size // 2)

    return do


def other_loaded(world: World) -> None:
    """Have modules of the other stack loaded already."""
    other = next(
        path for path in (world.tree / "modules/all/Horovod").glob("*.lua") if world.module("Horovod") not in str(path)
    )
    world.prelude += [
        f"export MODULEPATH={world.tree}/modules/all",
        f'eval "$({world.receipt["modules_command"]} bash load Horovod/{other.stem})"',
    ]


def site_package(world: World) -> None:
    folder = world.write("lmod/SitePackage.lua", "error('SitePackage of the site is broken')\n").parent
    world.env["LMOD_PACKAGE_PATH"] = str(folder)


def hides(world: World) -> None:
    file = world.write("lmod/modulerc.lua", f'hide_version("{world.module("Horovod")}")\nnonsense(\n')
    world.env["LMOD_MODULERCFILE"] = str(file)


def host_file(world: World) -> None:
    for name in ("hostfile", "mpirun"):
        (world.cwd / name).write_text("nonsense slots=x\n")


def machines() -> Iterator[Kind]:
    """Machines that lack something."""
    library = "/usr/lib/x86_64-linux-gnu"
    components = f"{library}/openmpi/lib/openmpi3"
    yield odd("sys-hidden", "/sys is empty", hidden("/sys"), r"/sys\b")
    yield odd("no-localhost", "/etc/hosts has nothing", instead("/etc/hosts", ""), r"/etc/hosts|localhost|resol")
    yield odd(
        "localhost-elsewhere",
        "/etc/hosts says localhost is 192.0.2.77",
        instead("/etc/hosts", "192.0.2.77 localhost vm\n"),
        r"/etc/hosts|localhost|192\.0\.2\.77",
    )
    yield odd("no-passwd", "/etc/passwd has nothing", instead("/etc/passwd", ""), r"passwd|user|uid")
    yield odd("unknown-user", "the user has no name (uid 54321)", somebody, r"passwd|user|uid|54321|permission")
    yield odd("umask-777", "umask 777", tight, r"umask|permission", words="umask|permission")
    yield odd("path-without-usr-bin", "PATH has only envkit", no_path, r"PATH|mpirun|not found", words="PATH|mpirun")
    yield odd(
        "one-cpu", "one CPU is granted (taskset)", lambda world: world.shell.extend(["taskset", "-c", "0"]), r"CPU|core"
    )
    yield odd("stdin-closed", "stdin is closed", prelude("exec 0<&-"), "stdin")
    yield odd(
        "many-descriptors",
        "40 files are open in the shell",
        prelude('for n in {10..50}; do eval "exec $n</etc/hostname"; done'),
        "files|descriptor",
    )
    yield odd("dev-null-file", "/dev/null is a file", instead("/dev/null", ""), "/dev/null")
    yield odd(
        "host-dotted",
        "the host is called node-1.cluster.example.org",
        host_name("node-1.cluster.example.org"),
        "host|name",
    )
    yield odd("host-long", "the name of the host has 63 letters", host_name("n" * 63), "host|name")
    yield odd("host-localhost", "the host is called localhost", host_name("localhost"), "host|name")
    yield odd("host-odd", "the host is called node_1,a", host_name("node_1,a"), r"host\s?name|node_1")
    yield odd(
        "no-mpi-components",
        "all components of the host's Open MPI are gone",
        without(components, "*.so"),
        r"openmpi3|component|Open MPI|ess",
        words="Open MPI|install|package",
    )
    yield odd(
        "no-mpi-pml",
        "the host's Open MPI has no mca_pml_ob1.so",
        without(components, "mca_pml_ob1.so"),
        r"pml|ob1",
        words="Open MPI|install|package",
    )
    yield odd(
        "no-mpi-ess",
        "the host's Open MPI has no mca_ess_*.so",
        without(components, "mca_ess_*.so"),
        r"ess\b|mca_ess|component",
        words="Open MPI|install|package",
    )
    yield odd(
        "no-mpi-coll",
        "the host's Open MPI has no mca_coll_*.so",
        without(components, "mca_coll_*.so"),
        r"coll",
        words="Open MPI|install|package",
    )
    yield odd(
        "no-mpi-btl",
        "the host's Open MPI has no mca_btl_*.so",
        without(components, "mca_btl_*.so"),
        r"btl",
        words="Open MPI|install|package",
    )
    yield odd(
        "no-mpi-help",
        "the host's Open MPI has no texts",
        without("/usr/share/openmpi", "*.txt"),
        r"/usr/share/openmpi|help",
    )
    yield odd("no-mpi-etc", "the host's Open MPI has no settings", without("/etc/openmpi", "*"), r"/etc/openmpi")
    for name in (
        "libmpi.so.40*",
        "libmpi_cxx.so.40*",
        "libopen-rte.so.40*",
        "libopen-pal.so.40*",
        "libpmix.so.2*",
        "libhwloc.so.15*",
        "libevent_core-2.1.so.7*",
    ):
        short = name.removesuffix("*")
        yield odd(
            f"no-{short}",
            f"the host's {short} is gone",
            without(library, name),
            short.replace(".", r"\."),
            words="Open MPI|install|package|MPI",
        )
    for name in ("libopen-rte.so.40.30.3", "libopen-pal.so.40.30.3", "libmpi_cxx.so.40.30.1"):
        if Path(library, name).exists():
            yield odd(
                f"cut-{name}",
                f"the host's {name} is cut short",
                cut(library, name),
                name.partition(".")[0],
                words="Open MPI|install|package|MPI",
            )
    for name in (
        "multiprocessing/__init__.py",
        "uuid.py",
        "pickletools.py",
        "cProfile.py",
        "unittest/mock.py",
        "tarfile.py",
        "timeit.py",
        "concurrent/futures/thread.py",
    ):
        dotted = name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        yield odd(
            f"stdlib-{dotted}",
            f"{name} of the host's Python is cut short",
            stdlib(name),
            rf"{Path(name).name if '__init__' not in name else name}|{dotted.replace('.', '[./]')}",
            words="Python|install",
        )
    yield odd(
        "other-stack-loaded", "the modules of the other stack are loaded in this shell", other_loaded, "module|load"
    )
    yield odd(
        "lmod-site-package",
        "LMOD_PACKAGE_PATH has a SitePackage.lua that raises",
        site_package,
        "SitePackage|LMOD_PACKAGE_PATH",
        mended=True,
    )
    yield odd(
        "lmod-modulerc", "LMOD_MODULERCFILE names a broken file", hides, "modulerc|LMOD_MODULERCFILE", mended=True
    )
    yield odd(
        "lmodrc",
        "~/.lmodrc.lua has a syntax error",
        written(".lmodrc.lua", "scDescriptT = {\n"),
        r"lmodrc",
        mended=True,
    )
    yield odd(
        "home-modulerc", "~/.modulerc is no module file", written(".modulerc", "nonsense {\n"), r"modulerc", mended=True
    )
    yield odd(
        "home-pydistutils",
        "~/.pydistutils.cfg and pip.conf are odd",
        written(".config/pip/pip.conf", "nonsense\n"),
        r"pip\.conf",
    )
    yield odd(
        "home-usercustomize",
        "the user's own site-packages have a torch that raises",
        written(".local/lib/python3.11/site-packages/torch.py", "raise ImportError\n"),
        r"\.local",
    )
    yield odd(
        "hosts-file-in-cwd",
        "the folder has files called hostfile and mpirun",
        host_file,
        "hostfile",
    )
