"""The builds that this user has packed before: the id of each, by all that it was packed from.

So a second push need not pack a module again to know that a place has it. Names, sizes and times of files stand for
what is in them. What is noted is for this user alone, and of bounded size.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from envkit import __version__
from envkit.cache import pack, wheels
from envkit.cache.manifest import rules
from envkit.environments.lockfile import LockedPart
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Receipt
from envkit.errors import HostProblem
from envkit.system import files

MOST = 50  # modules


def fingerprint(receipt: Receipt, part: LockedPart, used: Mapping[str, Path]) -> str:
    """Return a digest of what a module is packed from; ``used`` are its wheels, by their SHA-256. Raises OSError."""
    names = sorted(pack.paths(Tree(root=Path(receipt.tree)), part.name))
    states = [(name, os.lstat(f"{receipt.tree}/{name}")) for name in names]
    listed = [(ascii(name), one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_mode) for name, one in states]
    same = msgspec.structs.replace(receipt, verified="", log="", created="")
    told = (__version__, wheels.PYTHON, rules(), msgspec.to_builtins(same), part, sorted(used), listed)
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()


def known(mark: str) -> str:
    """Return the id of the build that was packed from what has a fingerprint; nothing where that is not known."""
    with suppress(OSError, HostProblem, ValueError):
        files.require_own(folder())
        return files.read(folder() / mark).decode("ascii")
    return ""


def keep(mark: str, build: str) -> None:
    """Note the id of the build that was packed from what has a fingerprint. Where it cannot be, it is packed again."""
    with suppress(OSError, HostProblem):
        files.make_private(folder())
        files.require_own(folder())
        files.write(folder() / mark, build.encode(), own=True, mode=0o600)
        for old in sorted(folder().iterdir(), key=lambda path: path.lstat().st_mtime)[:-MOST]:
            old.unlink(missing_ok=True)


def folder() -> Path:
    """Return where they are noted."""
    from platformdirs import user_state_path

    return user_state_path("envkit") / "packed"
