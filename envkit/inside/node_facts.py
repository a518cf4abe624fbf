"""Say what the probe finds of this node, without Horovod and without ranks.

    python3 -I -S node_facts.py node|driver

``node`` is the machine, its fabric and GPUs; ``driver`` is NVIDIA's driver library, which may never answer. Prints one
JSON object.
"""

import importlib
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    gpu, machine, record = (importlib.import_module("probe." + name) for name in ("gpu", "machine", "record"))
    if sys.argv[1] == "driver":
        found = record.attempt(gpu.gpu_driver)
    else:
        found = {"machine": machine.machine(), "fabric": machine.fabric(), "gpus": gpu.node_gpus()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
