"""Say what Python packages the interpreter that runs this file has, and the state of Horovod's extensions.

    python packages.py

Standard library only, Python 3.8 or later; nothing that is looked at is imported. Prints one JSON object.
"""

import json
import os
import platform
import stat
import struct
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Dict, List, Union  # noqa: UP035

Extension = Dict[str, Union[str, int]]  # noqa: UP006, UP007


def main() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    names = ((distribution.metadata["Name"], distribution.version) for distribution in metadata.distributions())
    versions = {str(name).lower(): version for name, version in reversed(list(names))}
    spec = util.find_spec("horovod")
    home = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
    facts = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "versions": versions,
        "horovod": home,
        "extensions": extensions(home),
    }
    print(json.dumps(facts))


def extensions(home: str) -> List[Extension]:  # noqa: UP006
    """Return path, size and the size that its own header tells, for each extension."""
    paths = sorted(Path(home).glob("*/mpi_lib*.so")) if home else []
    return [{"path": str(path), "size": path.stat().st_size, "wanted": wanted(path)} for path in paths]


def wanted(path: Path) -> int:
    """Return the end of the table of sections, the last thing in a 64-bit ELF file; more than there is without one."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123
        header = stream.read(64) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else b""
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return path.stat().st_size + 1
    place = int(struct.unpack_from("<Q", header, 40)[0])
    size, count = struct.unpack_from("<HH", header, 58)
    return place + int(size) * int(count)


if __name__ == "__main__":
    main()
