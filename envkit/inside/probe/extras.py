"""Imports what was added to the stack: whether this rank can, from where, and the world that mpi4py tells of."""

import importlib
from typing import Any, Dict, Sequence

from .record import attempt


def imported(added: Sequence[str]) -> Dict[str, Any]:
    """Import modules, each named with what it belongs to as in "tutorials=PIL.Image"; a fact for each module."""
    pairs = [word.partition("=")[::2] for word in added]
    return {module: attempt(lambda: one(name, module)) for name, module in pairs}


def one(name: str, module: str) -> Dict[str, Any]:
    """Import a module. MPI is neither started nor ended by that: in a world over Gloo there is none."""
    if module == "mpi4py.MPI":
        options = importlib.import_module("mpi4py").rc
        options.initialize = options.finalize = False
    library = importlib.import_module(module)
    world = of_mpi(library) if module == "mpi4py.MPI" else {}
    return dict(world, extra=name, path=getattr(library, "__file__", None) or "")


def of_mpi(mpi: Any) -> Dict[str, Any]:
    """The place of this rank in MPI's world, where there is one, and the MPI library."""
    facts = {"library": mpi.Get_library_version().split("\0")[0].splitlines()[0]}  # type: Dict[str, Any]
    if mpi.Is_initialized() and not mpi.Is_finalized():
        facts.update(rank=mpi.COMM_WORLD.Get_rank(), size=mpi.COMM_WORLD.Get_size())
    return facts
