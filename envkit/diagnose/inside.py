"""Say what Python packages are installed for the interpreter that runs this file, and the state of Horovod's extensions.

    python inside.py

Standard library only; nothing that is looked at is imported. Prints one JSON object.
"""

import json
import os
import struct
import sys
from importlib import metadata, util


def main() -> None:
    del sys.path[0]
    names = ((one.metadata["Name"], one.version) for one in metadata.distributions())
    versions = {str(name).lower(): version for name, version in reversed(list(names))}
    spec = util.find_spec("horovod")
    home = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
    found = {
        "executable": sys.executable,
        "versions": versions,
        "horovod": home,
        "extensions": extensions(home),
    }
    print(json.dumps(found))


def extensions(home: str) -> list:
    """Return path, size and the size that its own header tells, for each extension."""
    found = []
    for folder, _, files in os.walk(home) if home else ():
        for file in files:
            if file.startswith("mpi_lib") and file.endswith(".so"):
                path = os.path.join(folder, file)
                found.append({"path": path, "size": os.path.getsize(path), "wanted": wanted(path)})
    return found


def wanted(path: str) -> int:
    """Return the end of the table of sections, the last thing in a 64-bit ELF file; 64 where there is no header."""
    with open(path, "rb") as stream:
        header = stream.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return max(64, len(header) + 1)
    place, size, count = struct.unpack_from("<Q", header, 40) + struct.unpack_from("<HH", header, 58)
    return place + size * count


if __name__ == "__main__":
    main()
