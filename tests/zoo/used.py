"""Run inside an environment: print the files that a rank of Horovod has loaded, as JSON."""

import importlib
import json
import sys
from pathlib import Path

importlib.import_module("horovod." + sys.argv[1])
importlib.import_module("numpy")
modules = list(sys.modules.values())
files = {getattr(module, "__file__", None) for module in modules} | {getattr(m, "__cached__", None) for m in modules}
with Path("/proc/self/maps").open() as maps:
    files |= {line.split()[-1] for line in maps if "/" in line}
print(json.dumps(sorted(path for path in files if isinstance(path, str))))
