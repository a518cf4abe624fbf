"""Say of the interpreter that runs this file, on a line each: the one below its virtual environment, version, headers.

    python3 base_interpreter.py

Standard library only, Python 3.6 or later.
"""

import os
import platform
import sys
import sysconfig

print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
print(platform.python_version())
print(sysconfig.get_path("include"))
