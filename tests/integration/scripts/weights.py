"""Run an example, and keep the weights that this rank ends with: weights.py FOLDER SCRIPT ARGUMENTS..."""

import os
import runpy
import sys
from pathlib import Path

import numpy as np

folder, script, *arguments = sys.argv[1:]
model = runpy.run_path(script)["main"](arguments)
tensors = model.get_weights() if hasattr(model, "get_weights") else [one.numpy() for one in model.state_dict().values()]
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
np.savez(Path(folder) / f"rank{rank}.npz", *tensors)
