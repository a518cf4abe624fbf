"""Say what an image has: interpreter, C library, MPI, PMIx, packages, and Horovod with its build flags. Runs inside.

    python image_facts.py

Standard library only, Python 3.6 or later; the flags need 3.10, and are null on an older one. Prints one JSON object.
"""

import ctypes
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
MPI = (
    ("Open MPI", r"Open MPI v([\w.]+)"),
    ("MVAPICH", r"MVAPICH(?:2(?:-\w+)?|-Plus)?\s+Version\s*:\s*([\w.]+)"),
    ("MPICH", r"MPICH Version:\s*([\w.]+)"),
    ("MPICH", r"CRAY MPICH version\s+([\w.]+)"),
    ("Intel MPI", r"Intel\(R\) MPI Library ([\w.]+)"),
)


def main() -> None:
    sys.path[: not getattr(sys.flags, "safe_path", False)] = [os.path.dirname(os.path.dirname(HERE))]
    horovod = found("horovod")
    library_path = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    site_packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    built = flags(horovod, library_path, site_packages) if horovod else None
    libraries = [path for extension in (built or {}).get("extensions", ()) for path in extension["mpi_libraries"]]
    facts = {
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "horovod": horovod,
        "built_for": built_for(horovod),
        "site_packages": site_packages,
        "library_path": library_path,
        "built": built,
        "mpi": mpi(libraries or ["libmpi.so.40", "libmpi.so.12"]),
        "pmix": pmix(),
        "system": system(),
        "packages": packages(),
    }
    print(json.dumps(facts))


def found(package: str) -> str:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return places[0] if places else ""


def built_for(horovod: str) -> Dict[str, str]:
    try:
        with open(os.path.join(horovod, "metadata.json")) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {}


def flags(horovod: str, library_path: List[str], site_packages: List[str]) -> Optional[Dict[str, Any]]:
    """Return what was compiled in, read from the files; None where this Python is too old to read them."""
    if sys.version_info < (3, 10):
        return None
    from dataclasses import asdict

    from envkit.binary.build_flags import read_extensions

    return asdict(read_extensions(Path(horovod), [Path(p) for p in library_path], [Path(p) for p in site_packages]))


def mpi(libraries: List[str]) -> Optional[Dict[str, str]]:
    """Family and version, as the library itself says; None without one."""
    for path in libraries:
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
            library.MPI_Get_library_version(text, ctypes.byref(length))
        except (OSError, AttributeError):
            continue
        for family, pattern in MPI:
            match = re.search(pattern, text.value.decode(errors="replace"))
            if match:
                return {"family": family, "version": match.group(1).rstrip(".")}
    return None


def pmix() -> str:
    """The version of the PMIx library, such as "4.2.2"; empty without one."""
    try:
        library = ctypes.CDLL("libpmix.so.2")
        library.PMIx_Get_version.restype = ctypes.c_char_p
        match = re.search(r"PMIx (\d[\w.]*)", library.PMIx_Get_version().decode(errors="replace"))
    except (OSError, AttributeError):
        return ""
    return match.group(1) if match else ""


def system(path: str = "/etc/os-release") -> str:
    """The distribution and its release, such as "debian 12"; empty where it does not say."""
    try:
        with open(path, errors="replace") as stream:
            fields = dict(line.strip().split("=", 1) for line in stream if re.match(r"[A-Z_]+=", line))
    except OSError:
        return ""
    return " ".join(fields.get(name, "").strip("\"'") for name in ("ID", "VERSION_ID")).strip()


def packages(path: str = "/var/lib/dpkg/status") -> Dict[str, str]:
    """The packages of Debian that are installed, as NAME:ARCHITECTURE, with their versions; empty where dpkg is not."""
    versions = {}
    try:
        with open(path, errors="replace") as stream:
            for entry in stream.read().split("\n\n"):
                fields = dict(re.findall(r"^(Package|Status|Architecture|Version): *(\S.*)$", entry, re.MULTILINE))
                if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= set(fields):
                    versions["%s:%s" % (fields["Package"], fields.get("Architecture", ""))] = fields["Version"]
    except OSError:
        pass
    return versions


if __name__ == "__main__":
    main()
