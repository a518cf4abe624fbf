"""The prefix: one folder for all environments of a user, with one tree per kind of machine in it.

::

    PREFIX/sources/                every source, checked
    PREFIX/logs/                   one folder per install
    PREFIX/x86_64-py3.11/          what belongs to one machine type and Python: a tree
    PREFIX/x86_64-eessi-2023.06/   what is built on top of a release of EESSI: a tree as well
        software/ modules/         EasyBuild's own layout
        built/                     what each module was made from, and what its files were
        images/ layers/            Apptainer's images, and the layers they were made of
        environments/NAME.json     receipts: an environment exists when its receipt does
        kept/NAME.json             what their files were when they were installed
        unfinished/NAME.json       installs that have begun and not ended
        replaced/                  what is being built again, as it was, until the new one has passed
        locks/
"""

import os
import pwd
import re
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from envkit.config import configuration as config
from envkit.errors import HostProblem, NotReadable, NotWritable
from envkit.machine.host import Platform
from envkit.system import owners, umask
from envkit.system.files import at_home, discard_in, make_private, opened

ALMOST_NOTHING = 20_000_000  # bytes free on a disk that counts as full
KEPT_LOGS = 10
TOLERATED = re.compile(r"[\w./+@=,~^-]+")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The part of a prefix that belongs to one machine type and Python, or to a release of EESSI."""

    root: Path

    @property
    def modulepath(self) -> Path:
        """The folder to give to ``module use``."""
        return self.root / "modules" / "all"

    @property
    def software(self) -> Path:
        """The folder that EasyBuild installs into."""
        return self.root / "software"

    @property
    def images(self) -> Path:
        """The folder of the images of environments."""
        return self.root / "images"

    @property
    def layers(self) -> Path:
        """The folder of the layers that images are made of, by what each was made from."""
        return self.root / "layers"

    @property
    def environments(self) -> Path:
        """The folder of the receipts."""
        return self.root / "environments"

    @property
    def unfinished(self) -> Path:
        """The folder of the notes of installs under way."""
        return self.root / "unfinished"

    @property
    def locks(self) -> Path:
        """The folder of the locks; the kernel drops them with the process that holds them."""
        return self.root / "locks"

    @property
    def replaced(self) -> Path:
        """The folder in which that is set aside which an installation takes the place of."""
        return self.root / "replaced"

    @property
    def kept(self) -> Path:
        """The folder of the notes of what the files of environments were when they were installed."""
        return self.root / "kept"

    def has(self, module: str) -> bool:
        """Say whether a module has been installed in this tree."""
        return self.file(module) is not None

    def file(self, module: str) -> Path | None:
        """Return the file of a module, None if it has not been installed in this tree."""
        files = (self.modulepath / f"{module}.lua", self.modulepath / module)
        return next((path for path in files if path.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """The folder that holds a user's environments; ``order`` is where environments are looked for, it among them."""

    root: Path
    order: tuple[Path, ...] = ()

    @property
    def every(self) -> tuple["Prefix", ...]:
        """All that environments are looked for in, each alone; the first that has a name wins."""
        return tuple(Prefix(root=root) for root in self.order or (self.root,))

    def __str__(self) -> str:
        """Return it as ENVKIT_PREFIX names it."""
        return os.pathsep.join(map(str, self.order or (self.root,)))

    @property
    def shown(self) -> str:
        """It in words, and which of it is not there."""
        return ", ".join(f"{prefix}{'' if prefix.root.is_dir() else ' (no such folder)'}" for prefix in self.every)

    @property
    def sources(self) -> Path:
        """Every source, checked; EasyBuild's sourcepath."""
        return self.root / "sources"

    @property
    def logs(self) -> Path:
        """One folder per install."""
        return self.root / "logs"

    def tree(self, platform: Platform, release: str = "") -> Tree:
        """Return the tree for a platform, or on top of a release of EESSI, which has its own Python."""
        return Tree(root=self.root / (f"{platform.machine}-eessi-{release}" if release else str(platform)))

    def trees(self, machine: str) -> list[Tree]:
        """Return the trees there are for a machine type, newest Python first, then those on top of EESSI.

        Raises NotReadable.
        """
        names = listed(self.root)
        pythons = {int(match[1]): match[0] for name in names if (match := re.fullmatch(rf"{machine}-py3\.(\d+)", name))}
        own = [pythons[minor] for minor in sorted(pythons, reverse=True)]
        on_top = [name for name in reversed(names) if name.startswith(f"{machine}-eessi-")]
        return [Tree(root=self.root / name) for name in (*own, *on_top)]

    def create(self) -> None:
        """Make the folder, private to the user. Raises NotWritable."""
        try:
            make_private(self.root)
            with umask.like(self.root):
                for folder in (self.sources, self.logs):
                    folder.mkdir(exist_ok=True)
        except OSError as error:
            raise not_writable(self.root, error) from error

    @property
    def is_shared(self) -> bool:
        """Whether a group may write to it."""
        return bool(self.root.stat().st_mode & stat.S_IWGRP)

    def new_log_folder(self, stack: str) -> Path:
        """Make the folder for the logs of one installation."""
        first = folder = self.logs / f"{stack}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while folder.exists():
            number += 1
            folder = first.with_name(f"{first.name}-{number}")
        folder.mkdir(parents=True)
        return folder


def prune_logs(prefix: Prefix, stack: str, needed: Collection[str]) -> None:
    """Remove the logs of earlier installations of a stack but for the latest, and what failed builds have left in them.

    ``needed`` are the folders that something still refers to; of the others KEPT_LOGS stay, and of these the last keeps
    its temporary files, which are part of the log of a build that failed.
    """
    dated = re.compile(rf"{re.escape(stack)}-\d{{8}}-\d{{6}}(-\d+)?")
    names = [name for name in listed(prefix.logs) if dated.fullmatch(name)]
    for number, name in enumerate(reversed(names)):
        with suppress(NotADirectoryError, FileNotFoundError):  # a link is not followed
            if number >= KEPT_LOGS and str(prefix.logs / name) not in needed:
                with opened(prefix.root, "logs") as logs:
                    discard_in(logs, name)
            elif number > 1:
                with opened(prefix.root, "logs", name) as folder:
                    discard_in(folder, "tmp")


def locate(option: str | None, env: Mapping[str, str] = os.environ) -> Prefix:
    """Return the prefix: ``--prefix``, else what the configuration says (variables first), else the data folder.

    Each may name several, with colons between, as PATH does: environments are looked for in all of them, in this order,
    and made in the first that this user may write to. Each of several is absolute. Raises what ``usable`` does.
    """
    named = option or config.read(env).get("prefix")
    words = [word for word in (named or "").split(os.pathsep) if word]
    if len(words) > 1 and (relative := [word for word in words if not word.startswith(("/", "~"))]):
        raise HostProblem(
            what=f"The prefix {named!r} cannot be used: it has ':' in it, and {relative[0]!r} is not an absolute path.",
            why="A colon stands between several prefixes, and each of several is an absolute path.",
            fix="Write each as an absolute path, or name one prefix without a colon.",
        )
    roots = [at_home(word).absolute() for word in words] or [Path(platformdirs.user_data_dir("envkit"))]
    roots = list(map(usable, dict.fromkeys(roots)))
    own = next(filter(is_writable, roots), roots[0])
    return Prefix(root=own, order=tuple(roots) if len(roots) > 1 else ())


def is_writable(root: Path) -> bool:
    """Say whether this user may write to a folder, or make it."""
    while not os.path.exists(root):  # noqa: PTH110  (False for what this user cannot look at)
        root = root.parent
    return root.is_dir() and os.access(root, os.W_OK | os.X_OK)


def usable(root: Path) -> Path:
    """Return a path. Raises HostProblem for one that shebang lines and module files cannot carry, and for a file."""
    if not TOLERATED.fullmatch(str(root)):
        odd = " ".join(sorted({repr(c) for c in str(root) if not TOLERATED.fullmatch(c)}))
        raise HostProblem(
            what=f"The prefix {str(root)!r} cannot be used: it has {odd} in it.",
            why="Shebang lines, make and search paths split or change such a path, and a build fails in the middle.",
            fix="Choose another with --prefix, of letters, digits and . _ - + @ = , ~ ^ only.",
        )
    if is_kernels(root):
        raise HostProblem(
            what=f"The prefix {root} cannot be used: it lies in a folder of the kernel's.",
            why="What is in /proc, /sys and /dev is no file on a disk.",
            fix="Name a folder on a file system with --prefix or ENVKIT_PREFIX.",
        )
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112  (False for what cannot be looked at)
        raise HostProblem(
            what=f"The prefix {root} cannot be used: it is no folder.",
            fix="Name the folder that environments are in, or are to be in, with --prefix or ENVKIT_PREFIX.",
        )
    return root


def is_kernels(path: Path) -> bool:
    """Say whether a path lies where only the kernel makes files: in /proc, /sys or /dev, but for /dev/shm."""
    parts = Path(os.path.realpath(path)).parts[1:3]
    return parts[:1] in (("proc",), ("sys",), ("dev",)) and parts != ("dev", "shm")


def compiler_cache(prefix: Prefix, env: Mapping[str, str] = os.environ) -> Path:
    """Return the compiler cache, which is one for all of a user's prefixes: ``CCACHE_DIR``, else envkit's own.

    Where that cannot be written to, or somebody who is not trusted can, it is a folder of the prefix: what is in it is
    linked into what others run.
    """
    folder = Path(env.get("CCACHE_DIR") or platformdirs.user_cache_path("envkit") / "ccache")
    try:
        make_private(folder)
        who = owners.stranger(folder.stat(), folder, owners.known(config.read(env).get("trust") or ()))
    except OSError:
        return prefix.root / "ccache"
    return folder if who is None and os.access(folder, os.W_OK) else prefix.root / "ccache"


def not_writable(path: Path, error: OSError) -> NotWritable:
    """Say that a folder cannot be written to, and who can do it where it is somebody else's."""
    fix = "Choose another folder with --prefix, or set ENVKIT_PREFIX."
    with suppress(OSError, KeyError):
        if (owner := path.stat().st_uid) != os.geteuid():
            name = pwd.getpwuid(owner).pw_name
            fix = f"It belongs to {name}, who can do it. For environments of your own: --prefix DIR"
    return NotWritable(what=f"{path} cannot be written to.", why=f"{error.strerror or error}.", fix=fix)


def listed(folder: Path) -> list[str]:
    """Return the names in a folder in order, none where there is no such folder. Raises NotReadable."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NotReadable(
            what=f"{folder} cannot be read.",
            why=f"{error.strerror or error}.",
            fix="It may belong to somebody else: ask them for the right to read it, or choose another --prefix.",
        ) from error
