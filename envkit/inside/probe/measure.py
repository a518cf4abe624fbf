"""The order of the facts: as many as possible are stated before a step that may not return."""

import importlib
import sys
from typing import Any, Callable, Optional, Sequence, Tuple

from . import extras, gpu, machine, mpi_gpu, nccl, software
from .record import Record

EARLY = software.EARLY + machine.EARLY + gpu.EARLY  # type: Tuple[Callable[[], Any], ...]
JOINED = software.JOINED  # type: Tuple[Callable[[Any], Any], ...]
MEASURES = {"torch": "with_torch", "tensorflow": "with_tensorflow"}


def measure(record: Record, framework: str, speed: Optional[Any] = None, added: Sequence[str] = ()) -> None:
    """State every fact of this rank; `speed` is a speed.Speed where it is asked for, `added` as in extras.py."""
    for fact in EARLY:
        record.state(fact.__name__, fact)
    if framework != "none":
        record.state("extension_file", software.extension_file, framework)
    if speed:
        speed.before_import()
    if framework != "none" and record.state("import", software.import_framework, framework):
        record.state("compiled", gpu.compiled, framework)
        if record.state("load", software.load_extension, framework):
            hvd = sys.modules["horovod." + framework]
            record.state("flags", software.flags, hvd)
            loaded = record.state("libraries", software.libraries)
            record.state("nccl", nccl.nccl_loaded, loaded)
            listening = nccl.listen(record.path) if hvd.nccl_built() else None
            if speed:
                speed.before_init(record, hvd)
            if record.state("init", software.initialise, hvd):
                record.joined()
                record.note("affinity", machine.affinity())
                for joined in JOINED:
                    record.state(joined.__name__, joined, hvd)
                record.state("mpi_gpu", mpi_gpu.mpi_gpu, loaded)
                importlib.import_module("." + MEASURES[framework], __package__).measure(record, hvd)
                if listening:
                    record.state("nccl_network", nccl.heard, listening)
                if speed:
                    speed.measure(record, hvd)
                if added:
                    record.state("extras", extras.imported, added)
                record.state("shutdown", hvd.shutdown)
            if speed:
                speed.after_shutdown(record, hvd)
    record.arrive("exit")
