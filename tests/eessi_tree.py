"""Make a tree of the shape of EESSI's repository: two releases, a compatibility layer, CPU targets, modules.

``python -m tests.eessi_tree FOLDER [COUNT]`` makes one to look at, with COUNT more software in it. Everything in it is
written here; Lmod is the machine's own, and so are what add_extend and add_frameworks add.
What it does is what EESSI's releases do: the start files return 0 when they fail, and end a shell that has ``set -u``.
"""

import os
import sys
from pathlib import Path

from envkit.environments.prefix import Prefix, compiler_cache

REPOSITORY = "/cvmfs/software.eessi.io"
RELEASES = ("2023.06", "2025.06")
TARGETS = ("generic", "amd/zen2", "amd/zen3", "intel/haswell")
LMOD = Path("/usr/share/lmod/lmod")

# What the shell has from before steers it: a release, and that another one was started.
INIT = """\
# Start a release of EESSI in this shell.
echo "Starting EESSI$NEVER_SET_BEFORE"
eessi_repository=${{EESSI_CVMFS_REPO:-{repository}}}
EESSI_VERSION=${{EESSI_VERSION:-{version}}}
export LMOD_SYSTEM_DEFAULT_MODULES=EESSI/$EESSI_VERSION
if [ -n "$__Init_EESSI_Default_Modules" ]; then
    module reset
    return 0
fi
export __Init_EESSI_Default_Modules=1
eessi_layer=$eessi_repository/versions/${{EESSI_VERSION/2023.06/2025.06}}/compat/linux/$(uname -m)
if [ ! -d "$eessi_layer" ]; then
    echo "$eessi_layer is not there" >&2
    return 0
fi
module purge >/dev/null 2>&1
unset __LMOD_REF_COUNT_MODULEPATH _ModuleTable001_
export MODULEPATH=$eessi_repository/init/modules
. "$eessi_layer/usr/share/Lmod/init/bash"
module --initial_load --no_redirect restore
echo "Started for $EESSI_SOFTWARE_SUBDIR"
"""

DETECT = """\
#!/bin/sh
# Print the CPU targets that this machine can run, the best first, with colons between them.
machine=$(uname -m)
vendor=$(sed -n 's/^vendor_id[^:]*: //p' /proc/cpuinfo | head -n 1)
flags=" $(sed -n 's/^flags[^:]*: //p' /proc/cpuinfo | head -n 1) "
case $vendor$flags in
    AuthenticAMD*" avx2 "*" vaes "*) printf '%s' "$machine/amd/zen3:$machine/amd/zen2:" ;;
    AuthenticAMD*" avx2 "*) printf '%s' "$machine/amd/zen2:" ;;
    GenuineIntel*" avx2 "*) printf '%s' "$machine/intel/haswell:" ;;
esac
printf '%s' "$machine/generic"
"""

EESSI_MODULE = """\
local repository = "{repository}"
local version = "{version}"
local release = pathJoin(repository, "versions", version)
local all = os.getenv("EESSI_ARCHDETECT_OPTIONS_OVERRIDE") or capture(pathJoin(release, "init/detect.sh"))
local subdir
for one in all:gmatch("[^:%s]+") do
    if not subdir and isDir(pathJoin(release, "software/linux", one, "software")) then
        subdir = one
    end
end
if not subdir then
    LmodError("there is no software for any of " .. all)
end
local machine = subdir:match("[^/]+")
local prefix = pathJoin(release, "compat/linux", machine)
local software = pathJoin(release, "software/linux", subdir)
local injected = pathJoin(repository, "host_injections", version, "software/linux", subdir)
if os.getenv("EESSI_SITE_SOFTWARE_PREFIX") then
    injected = pathJoin(os.getenv("EESSI_SITE_SOFTWARE_PREFIX"), "versions", version, "software/linux", subdir)
end
local settings = {{
    EESSI_VERSION = version,
    EESSI_CVMFS_REPO = repository,
    EESSI_PREFIX = release,
    EESSI_EPREFIX = prefix,
    EPREFIX = prefix,
    EESSI_CPU_FAMILY = machine,
    EESSI_OS_TYPE = "linux",
    EESSI_ARCHDETECT_OPTIONS = all,
    EESSI_SOFTWARE_SUBDIR = subdir,
    EESSI_SOFTWARE_PATH = software,
    EESSI_MODULEPATH = pathJoin(software, "modules/all"),
    EESSI_SITE_SOFTWARE_PATH = injected,
    EESSI_SITE_MODULEPATH = pathJoin(injected, "modules/all"),
}}
for name, value in pairs(settings) do
    setenv(name, value)
end
prepend_path("PATH", pathJoin(prefix, "usr/bin"))
prepend_path("MODULEPATH", settings.EESSI_MODULEPATH)
local gpu = capture("nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null"):match("%d+%.%d+")
local exact = os.getenv("EESSI_ACCELERATOR_TARGET_OVERRIDE") or gpu and "accel/nvidia/cc" .. gpu:gsub("%.", "")
if exact then
    setenv("EESSI_ACCEL_SUBDIR", exact)
    for _, one in ipairs({{ exact, exact:sub(1, -2) .. "0" }}) do
        local modules = pathJoin(software, one, "modules/all")
        if isDir(modules) and not os.getenv("EESSI_ACCELERATOR_TARGET") then
            setenv("EESSI_ACCELERATOR_TARGET", one)
            prepend_path("MODULEPATH", modules)
            break
        end
    end
end
prepend_path("MODULEPATH", settings.EESSI_SITE_MODULEPATH)
"""

MODULE = """\
local repository = "{repository}"
local version = "{version}"
local release = pathJoin(repository, "versions", version)
local machine = capture("uname -m"):gsub("%s", "")
local subdir = os.getenv("EESSI_SOFTWARE_SUBDIR_OVERRIDE")
    or capture(pathJoin(release, "init/detect.sh") .. " " .. release):gsub("%s", "")
local prefix = pathJoin(release, "compat/linux", machine)
local software = pathJoin(release, "software/linux", subdir)
local settings = {{
    EESSI_VERSION = version,
    EESSI_CVMFS_REPO = repository,
    EESSI_PREFIX = release,
    EESSI_INIT_PREFIX = pathJoin(release, "init"),
    EESSI_EPREFIX = prefix,
    EPREFIX = prefix,
    EESSI_CPU_FAMILY = machine,
    EESSI_OS_TYPE = "linux",
    EESSI_SOFTWARE_SUBDIR = subdir,
    EESSI_SOFTWARE_PATH = software,
    EESSI_MODULEPATH = pathJoin(software, "modules/all"),
    EESSI_SITE_SOFTWARE_PATH = pathJoin(repository, "host_injections", version, "software/linux", subdir),
}}
for name, value in pairs(settings) do
    setenv(name, value)
end
prepend_path("MODULEPATH", settings.EESSI_MODULEPATH)
local gpus = capture("nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null"):match("%d+%.%d+")
if gpus then
    local accelerator = pathJoin("accel/nvidia", "cc" .. gpus:gsub("%.", ""))
    if isDir(pathJoin(software, accelerator, "modules/all")) then
        setenv("EESSI_ACCEL_SUBDIR", accelerator)
        prepend_path("MODULEPATH", pathJoin(software, accelerator, "modules/all"))
    end
end
"""

MODULE = """\
help("{name} {version}")
{load}
prepend_path("PATH", "{root}/bin")
if isDir("{root}/lib/python3.11/site-packages") then
    prepend_path("PYTHONPATH", "{root}/lib/python3.11/site-packages")
end
setenv("EBROOT{variable}", "{root}")
setenv("EBVERSION{variable}", "{version}")
"""

# Name, version, what it loads, and its programs.
SOFTWARE: tuple[tuple[str, str, tuple[str, ...], dict[str, str]], ...] = (
    ("GCCcore", "12.3.0", (), {"gcc": "exec /usr/bin/gcc"}),
    ("OpenMPI", "4.1.5-GCC-12.3.0", ("GCCcore/12.3.0",), {"mpirun": "exec /usr/bin/mpirun"}),
    ("foss", "2023a", ("OpenMPI/4.1.5-GCC-12.3.0",), {}),
    ("PyTorch", "2.1.2-foss-2023a", ("foss/2023a",), {}),
    ("TensorFlow", "2.13.0-foss-2023a", ("foss/2023a",), {}),
    ("Tool", "1.0", (), {"tool": 'echo "tool 1.0"; exit "${1:-0}"'}),
    ("Tool", "2.0", (), {"tool": 'echo "tool 2.0"; exit "${1:-0}"'}),
)


EXTEND = """\
local prefix = os.getenv("EESSI_USER_INSTALL") or pathJoin(os.getenv("HOME"), "eessi")
if not isDir(prefix) then
    LmodError("EESSI_USER_INSTALL: there is no " .. prefix)
end
depends_on("EasyBuild/{easybuild}")
local settings = {{
    PREFIX = prefix,
    INSTALLPATH = pathJoin(prefix, "software"),
    SYSROOT = os.getenv("EESSI_EPREFIX"),
    HOOKS = "{release}/init/easybuild/hooks.py",
    RPATH = "1",
    FILTER_ENV_VARS = "LD_LIBRARY_PATH",
    FILTER_DEPS = "binutils,bzip2,libreadline,ncurses,XZ,zlib",
    READ_ONLY_INSTALLDIR = "1",
    UMASK = "077",
    MODULE_EXTENSIONS = "1",
}}
for name, value in pairs(settings) do
    setenv("EASYBUILD_" .. name, value)
end
"""

HOOKS = """\
import os


def pre_module_hook(self, *args, **kwargs):
    with open(os.path.join(os.environ['HOME'], 'eessi-hooks'), 'a') as stream:
        stream.write(self.name + '\\n')
"""

EASYBUILD = "5.4.1"
COMPILERS = {name: f"exec /usr/bin/{name}" for name in ("gcc", "g++", "gfortran")}
MPI = {name: f"exec /usr/bin/{name}" for name in ("mpirun", "mpicc", "mpicxx", "mpifort", "ompi_info")}
# The toolchain foss of 2023a, with the machine's own compilers and MPI.
TOOLCHAIN: tuple[tuple[str, str, tuple[str, ...], dict[str, str]], ...] = (
    ("GCCcore", "12.3.0", (), COMPILERS),
    ("GCC", "12.3.0", ("GCCcore/12.3.0",), {}),
    ("OpenMPI", "4.1.5-GCC-12.3.0", ("GCC/12.3.0",), MPI),
    ("gompi", "2023a", ("GCC/12.3.0", "OpenMPI/4.1.5-GCC-12.3.0"), {}),
    ("FlexiBLAS", "3.3.1-GCC-12.3.0", ("GCC/12.3.0",), {"flexiblas": "exit 0"}),
    ("FFTW", "3.3.10-GCC-12.3.0", ("GCC/12.3.0",), {}),
    ("FFTW.MPI", "3.3.10-gompi-2023a", ("gompi/2023a", "FFTW/3.3.10-GCC-12.3.0"), {}),
    ("ScaLAPACK", "2.2.0-gompi-2023a-fb", ("gompi/2023a", "FlexiBLAS/3.3.1-GCC-12.3.0"), {}),
    ("CMake", "3.26.3-GCCcore-12.3.0", ("GCCcore/12.3.0",), {"cmake": "exec /usr/bin/cmake"}),
)
# Modules whose software is elsewhere, by its folder among what EasyBuild has installed, and what they load.
ELSEWHERE = (
    ("Python", "3.11.3-GCCcore-12.3.0", "Python/system", ("GCCcore/12.3.0",)),
    ("PyTorch", "2.1.2-foss-2023a", "PyTorch/2.13.0", ("foss/2023a", "Python/3.11.3-GCCcore-12.3.0")),
)
TENSORFLOW = ("TensorFlow", "2.13.0-foss-2023a", ("foss/2023a", "Python/3.11.3-GCCcore-12.3.0"))


def make(root: Path, repository: str = REPOSITORY, releases: tuple[str, ...] = RELEASES) -> Path:
    """Make the tree; return its folder, which is to be seen at ``repository``."""
    for version in releases:
        make_release(root / "versions" / version, version, repository)
        text = EESSI_MODULE.format(repository=repository, version=version)
        write(root / "init" / "modules" / "EESSI" / f"{version}.lua", text)
    return root


def make_release(release: Path, version: str, repository: str) -> None:
    """Make one release."""
    machine = os.uname().machine
    words = {"repository": repository, "version": version}
    write(release / "init" / "bash", INIT.format(**words))
    write(release / "init" / "lmod" / "bash", INIT.format(**words))
    write(release / "init" / "detect.sh", DETECT, program=True)
    layer = release / "compat" / "linux" / machine
    (layer / "usr" / "share").mkdir(parents=True)
    (layer / "usr" / "share" / "Lmod").symlink_to(LMOD)
    for target in TARGETS:
        software = Path("software", "linux", machine, target)
        shown = Path(repository, "versions", version) / software
        for name, number, load, programs in SOFTWARE:
            make_module(release / software, shown, name, number, load, programs)
    gpu = Path("software", "linux", machine, "amd/zen2", "accel/nvidia/cc80")
    make_module(release / gpu, Path(repository, "versions", version) / gpu, "CUDA", "12.1.1", (), {"nvcc": "true"})


def make_module(
    software: Path, shown: Path, name: str, version: str, load: tuple[str, ...], programs: dict[str, str]
) -> None:
    """Make one module and what it is for; ``shown`` is where the software is seen."""
    root = shown / "software" / name / version
    write(software / "modules" / "all" / name / f"{version}.lua", module(name, version, root, load))
    (software / "software" / name / version / "bin").mkdir(parents=True, exist_ok=True)
    for program, body in programs.items():
        path = software / "software" / name / version / "bin" / program
        write(
            path,
            f"#!/bin/sh\n{body}{' ' + chr(34) + '$@' + chr(34) if body.startswith('exec') else ''}\n",
            program=True,
        )


def add_extend(root: Path) -> None:
    """Add what builds on top of 2023.06: EasyBuild, which is the one beside envkit, EESSI-extend, and its hooks."""
    release = root / "versions" / "2023.06"
    shown = Path(REPOSITORY, "versions", "2023.06")
    write(release / "init" / "easybuild" / "hooks.py", HOOKS)
    programs = release / "compat" / "linux" / os.uname().machine / "usr" / "bin"
    programs.mkdir()
    (programs / "env").symlink_to("/usr/bin/env")
    venv = Path(sys.prefix)
    eb = f"exec env EB_SCRIPT_PATH={venv}/bin/eb {venv}/bin/python -m easybuild.main"
    for software in release.glob(f"software/linux/{os.uname().machine}/**/modules/all"):
        target = software.parents[1]
        seen = shown / target.relative_to(release)
        make_module(target, seen, "EasyBuild", EASYBUILD, (), {"eb": eb})
        text = EXTEND.format(easybuild=EASYBUILD, release=shown)
        write(software / "EESSI-extend" / "2023.06-easybuild.lua", text)


def add_frameworks(root: Path, installed: Path, tensorflow: Path | None = None) -> None:
    """Add the toolchain and PyTorch to 2023.06; Python and PyTorch are what envkit has installed in a folder.

    ``tensorflow`` is a folder whose lib/python3.11/site-packages has that.
    """
    release = root / "versions" / "2023.06"
    shown = Path(REPOSITORY, "versions", "2023.06")
    horovod = next((installed / "Horovod").glob("*-PyTorch-*/lib/python*/site-packages"))
    packages = [path for path in horovod.iterdir() if not path.name.startswith("horovod")]
    for software in release.glob(f"software/linux/{os.uname().machine}/**/modules/all"):
        target = software.parents[1]
        seen = shown / target.relative_to(release)
        for name, version, load, programs in TOOLCHAIN:
            make_module(target, seen, name, version, load, cached(root) if programs is COMPILERS else programs)
        parts = [f"{name}/{version}" for name, version, *_ in TOOLCHAIN if name not in ("GCCcore", "gompi", "CMake")]
        make_module(target, seen, "foss", "2023a", tuple(parts), {})
        for name, version, place, load in ELSEWHERE:
            write(software / name / f"{version}.lua", module(name, version, installed / place, load))
        if tensorflow:
            name, version, load = TENSORFLOW
            write(software / name / f"{version}.lua", module(name, version, tensorflow, load))
        for name, version in (("Python-bundle-PyPI", "2023.06"), ("PyYAML", "6.0")):
            number = f"{version}-GCCcore-12.3.0"
            make_module(target, seen, name, number, ("Python/3.11.3-GCCcore-12.3.0",), {})
        folder = target / "software" / "Python-bundle-PyPI" / "2023.06-GCCcore-12.3.0" / "lib" / horovod.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "site-packages").exists():
            (folder / "site-packages").mkdir()
            for path in packages:
                (folder / "site-packages" / path.name).symlink_to(path)


def cached(root: Path) -> dict[str, str]:
    """Return the compilers, which know what they compiled in an earlier tree, in a folder beside that one."""
    folder = compiler_cache(Prefix(root=root.parent))
    settings = f"CCACHE_DIR={folder} CCACHE_BASEDIR={root.parent} CCACHE_NOHASHDIR=1"
    return {name: f"exec env {settings} ccache /usr/bin/{name}" for name in COMPILERS}


def module(name: str, version: str, root: Path, load: tuple[str, ...]) -> str:
    """Return the text of a module, with the version of the software alone where EasyBuild looks for it."""
    return MODULE.format(
        name=name,
        version=version.partition("-")[0],
        root=root,
        variable=name.upper().replace("-", "MIN").replace(".", ""),
        load="\n".join(f'depends_on("{one}")' for one in load),
    )


def write(path: Path, text: str, *, program: bool = False) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if program else 0o644)


def add_software(root: Path, count: int) -> None:
    """Add software to each target of each release, of three versions each, with modules as long as EasyBuild's."""
    for software in root.glob("versions/*/software/linux/*/**/modules/all"):
        for number in range(count):
            name = f"Software{number:04}"
            for version in ("1.0", "1.1-foss-2023a", "2.0-foss-2023a"):
                words = [f'whatis("Description: {"what it is for, in some words; " * 8}")', f'conflict("{name}")']
                words += [f'prepend_path("{path}", "/software/{name}")' for path in ("PATH", "CPATH", "MANPATH")]
                words += [f'setenv("EBSETTING{one}{number}", "{one}")' for one in range(10)]
                words.append(f'extensions("{", ".join(f"part{one}/{version}" for one in range(number % 50))}")')
                text = f"help([==[\n{'A long text of help.' * 20}\n]==])\n" + "\n".join(words)
                write(software / name / f"{version}.lua", text)


if __name__ == "__main__":
    add_software(make(Path(sys.argv[1])), int((sys.argv[2:] or ["0"])[0]))
