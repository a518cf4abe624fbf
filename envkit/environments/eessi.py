"""A release of EESSI as an environment: how to get inside by the way that was chosen."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envkit.environments.environment import for_shell
from envkit.knowledge.eessi import Repository, known, usual
from envkit.system.resources import data


@dataclass(frozen=True, kw_only=True)
class EessiEnvironment:
    """A release of a ``repository`` with modules loaded; ``way`` is what stands before the shell that enters it.

    ``settings`` are variables for that way; ``cpu`` is archspec's name of this one; ``modulepath`` is a folder of
    modules on top of it; an interactive shell leaves the names of its modules in ``session``; ``log`` has the words of
    the client that mounts it.
    """

    name: str = "eessi"
    version: str
    modules: tuple[str, ...]
    way: tuple[str, ...]
    cpu: str
    settings: tuple[tuple[str, str], ...] = ()
    session: Path | None = None
    modulepath: Path | None = None
    log: Path | None = None
    repository: Repository = field(default_factory=usual)

    @property
    def words(self) -> list[str]:
        """The script that enters, and its arguments."""
        facts = [
            self.repository.mount,
            self.repository.title,
            self.version,
            self.cpu,
            sys.executable,
            str(self.session or ""),
        ]
        return ["eessi.sh", *facts, str(self.modulepath or ""), str(self.log or ""), "--", *self.modules]

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,
        visible: Sequence[Path] = (),  # noqa: ARG002  (all of the host is, but for an image, which has its own binds)
    ) -> list[str]:
        """Return the argv that runs ``argv`` inside; the launcher is inside, so that one mount is for all ranks."""
        enter = ["bash", "--noprofile", "--norc", str(data("environments/shell/enter.sh")), *self.words, "--"]
        return [*self.way, *enter, *launcher, *(enter if remote else ()), *argv]

    def shell(self, argv: Sequence[str] = ()) -> list[str]:
        """Return the argv of a bash that reads ~/.bashrc and then enters: interactive, or to run ``argv`` alone."""
        alone = ["-c", '"$@"', "bash", *argv] if argv else []
        return [*self.way, "bash", "--noprofile", "--rcfile", str(data("environments/shell/rc.bash")), "-i", *alone]

    def variables(self, env: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return ``env`` as the commands above need it, without what XALT preloads; an empty PATH is the usual one."""
        alone = known().one_node if self.way else {}
        changed = {**alone, **for_shell(env, self.name, self.words), **dict(self.settings)}
        changed["PATH"] = changed.get("PATH") or os.defpath
        preloaded = [word for word in changed.pop("LD_PRELOAD", "").replace(":", " ").split() if "xalt" not in word]
        return changed | ({"LD_PRELOAD": ":".join(preloaded)} if preloaded else {})
