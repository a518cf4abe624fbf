"""Which NCCL is loaded, and over which network it went."""

import ctypes
import os
import re
from typing import Any, Dict, List, Optional

from .gpu import has_nvidia
from .machine import lines
from .record import attempt

TELLING = re.compile(
    r"NET/|[Uu]sing network|[Pp]lugin|[Pp]rovider|Bootstrap|NCCL version|RCCL version| via (NET|P2P|SHM)|NCCL WARN"
)
KEPT = 60


def nccl_loaded(libraries: Dict[str, List[str]]) -> Dict[str, Any]:
    """The version code that each loaded NCCL or RCCL tells, by path."""
    paths = libraries.get("libnccl", []) + libraries.get("librccl", [])
    own = [path for path in paths if re.match(r"lib[nr]ccl\.so", os.path.basename(path))]
    return {path: attempt(lambda path=path: version_of(path)) for path in own}  # type: ignore[misc]


def version_of(path: str) -> int:
    version = ctypes.c_int(0)
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    return version.value


def listen(record: str) -> Optional[str]:
    """Have NCCL write about its networks into a file beside the record; not where the user has set this.

    The file's path, or None.
    """
    chosen = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"} & set(os.environ)
    if chosen or not (has_nvidia() or os.path.exists("/dev/kfd")):
        return None
    path = record + ".nccl"
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", path)
    return path


def heard(path: str) -> List[str]:
    """Return what NCCL wrote of networks, plugins and warnings, each line once and without its host and process."""
    messages = [re.sub(r"^\S+?:\d+:\d+ ", "", line) for line in lines(path) if TELLING.search(line)]
    return list(dict.fromkeys(messages))[:KEPT]
