"""Run the probe from its folder, leaving nothing of it on the module search path."""

import importlib
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(here)
main = importlib.import_module(os.path.basename(here) + ".rank").main
del sys.path[0]
try:
    status = main()
except SystemExit as ended:
    status = ended.code
if status:  # else it ends as most scripts do, by its last line: PYTHONINSPECT makes a failure of any SystemExit
    sys.exit(status)
