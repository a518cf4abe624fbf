"""Say what the interpreter that runs this file has: its version, Horovod and what that was built for, search paths.

    python3 interpreter.py

Standard library only, Python 3.6 or later. Nothing is imported but that, and nothing of the current folder. Prints one
JSON object.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import importlib.machinery
import importlib.util
import json
import os
import platform
from pathlib import Path


def main() -> None:
    spec = importlib.util.find_spec("horovod")
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    facts = {
        "python": platform.python_version(),
        "suffix": importlib.machinery.EXTENSION_SUFFIXES[0],
        "horovod": str(places[0]) if places else "",
        "built_for": json.loads((places[0] / "metadata.json").read_text()) if places else {},
        "site_packages": [path for path in sys.path if path.endswith("site-packages")],
        "library_path": [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
