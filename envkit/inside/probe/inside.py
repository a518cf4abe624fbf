"""Say where Horovod is in the interpreter that runs this file, and for which frameworks; nothing is imported.

    python inside.py

Standard library only, Python 3.6 or later. Prints one JSON object; ends with 1 where there is no Horovod.
`frameworks` are those with an extension first, then those that metadata.json names; failing both, those installed.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Dict, List

EXTENSIONS = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib"}
NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}


def main() -> int:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.submodule_search_locations:
        return 1
    home = list(spec.submodule_search_locations)[0]
    facts = {
        "executable": sys.executable,
        "horovod": home,
        "frameworks": frameworks(home),
        "suffix": importlib.machinery.EXTENSION_SUFFIXES[0],
        "site_packages": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "library_path": [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path],
    }
    print(json.dumps(facts))
    return 0


def frameworks(home: str) -> List[str]:
    ranked = []
    for name in EXTENSIONS:
        if os.path.isfile(extension(home, name)):
            ranked.append((0, name))
        elif built_for(home).get(NAMES[name]):
            ranked.append((1, name))
        elif importlib.util.find_spec(name):
            ranked.append((2, name))
    best = [name for how, name in sorted(ranked) if how < 2]
    return best or [name for _, name in sorted(ranked)]


def extension(home: str, framework: str) -> str:
    """Return where a framework's extension has to be; of importlib's suffixes, Horovod asks for the first."""
    return os.path.join(home, framework, EXTENSIONS[framework] + importlib.machinery.EXTENSION_SUFFIXES[0])


def built_for(home: str) -> Dict[str, str]:
    try:
        with open(os.path.join(home, "metadata.json")) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
