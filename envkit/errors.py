"""Every failure that a user can meet: what happened, why, and what to do next.

Exit codes are part of the interface:

====  =====================================================================
code  meaning
====  =====================================================================
0     done; for ``verify`` and ``check-build``: everything required holds; for
      ``doctor``: at least one method works, wholly or in part; for ``compat``:
      somebody is known to have had all of it; for ``diagnose``: a cause was found
1     the verdict is FAIL: the environment does not work on this machine (for
      ``upgrade``: the new one, and the old one is as it was); for
      ``compat``: it is known to fail; for ``diagnose``: the log shows no
      failure; for ``cache push``: the last verdict is not PASS
2     the command line cannot be understood, or names something unknown; the
      configuration has a mistake in it
3     this machine cannot do it as it is; each problem is listed with its remedy
4     a source is missing, damaged, or cannot be fetched; a lock, a bundle or a cache of builds is there and
      cannot be used, or the server of a cache does not answer; for ``cache pull``: not every build that is meant could
      be copied
5     the build failed
6     no such environment, or it is damaged; for ``repair --dry-run``: something of it is;
      for ``upgrade``: it is, and nothing has changed
7     a file could not be read or written: no space, no permission, or its storage has
      failed; for ``verify``: it passes, and a report or the baseline could not be written
8     a job ended before its command did: time limit, cancelled, a node lost
9     unknown, or risky (``compat``); it failed, and the cause is not known (``diagnose``)
10    what was built is for Horovod, and Horovod is not in it
92    a module could not be loaded: it is not there or fails, or the modules tool does
130   interrupted by Ctrl-C; 143: by SIGTERM; 131: by SIGQUIT; 129: the terminal was closed
141   the reader of standard output has gone
====  =====================================================================

``envkit run`` and ``envkit shell`` end with the status of the command itself; before it has started, with one of these.
"""

import errno
import resource
import signal
import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that stands in the way: ``what`` it is, ``why``, what to do about it; by the ``id`` of its words."""

    what: str
    fix: str
    why: str = ""
    id: str = ""


class ConsentMissing(Problem):
    """Only the user's consent is missing."""


class SourceMissing(Problem):
    """Nothing but sources is missing."""


class EnvkitError(Exception):
    """A failure that the user can repair. ``what`` happened, ``why``, and how to ``fix`` it."""

    exit_code = 3

    def __init__(self, *, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    @classmethod
    def of(cls, problem: Problem, *, before: str = "") -> Self:
        """Return the failure that a problem of ``knowledge/`` is, whose first sentence has no full stop."""
        return cls(what=f"{before}{problem.what}.", why=problem.why, fix=problem.fix)

    def problem(self) -> Problem:
        """Return the failure as something that stands in the way of what was not begun."""
        return Problem(what=f"{self.what} {self.why}".strip(), fix=self.fix)


class UsageProblem(EnvkitError):
    """A name or option that means nothing here."""

    exit_code = 2


class ConfigInvalid(UsageProblem):
    """A configuration file, or a variable in its place, with a mistake in it."""


class LogUnreadable(UsageProblem):
    """A log that is not there, or is none."""


class UnknownStack(UsageProblem):
    """No stack of that name, or none that fits what was asked for."""


class HostProblem(EnvkitError):
    """This machine cannot do it as it is."""

    exit_code = 3


class OpensslMissing(HostProblem):
    """The program that signs and checks signatures is missing."""


class RecipeInvalid(EnvkitError):
    """A definition file that cannot be read, or filled in."""

    exit_code = 3


class PlanFailed(EnvkitError):
    """The recipes cannot be resolved to an order of steps."""

    exit_code = 3


class SourcesMissing(EnvkitError):
    """Sources that are neither in the cache nor to be had."""

    exit_code = 4


class ChecksumMismatch(EnvkitError):
    """A source whose content is not what the recipe pins."""

    exit_code = 4


class SignatureInvalid(EnvkitError):
    """An image or a bundle that the key given does not verify."""

    exit_code = 4


class BundleInvalid(EnvkitError):
    """A bundle that cannot be trusted or read."""

    exit_code = 4


class CacheInvalid(EnvkitError):
    """A cache of builds that cannot be read, or an object of it that is damaged or not signed.

    ``build`` is the id of the one whose manifest cannot be used, where it is no more than that.
    """

    exit_code = 4
    build = ""


class CacheSilent(EnvkitError):
    """A cache that nothing can be put into now, since its server does not answer, or fails."""

    exit_code = 4


class CacheBlocked(EnvkitError):
    """A cache in which something that is not envkit's stands in the place of a file."""

    exit_code = 4


class NotRelocatable(EnvkitError):
    """A module that holds the path of its prefix where that cannot be rewritten."""

    exit_code = 3


class NotProven(EnvkitError):
    """An environment whose last verdict is not PASS, or that has none."""

    exit_code = 1


class LockInvalid(EnvkitError):
    """A lock that cannot be read."""

    exit_code = 4


class BuildFailed(EnvkitError):
    """The build tool gave up."""

    exit_code = 5


class RequirementsRefused(EnvkitError):
    """Packages that do not go with what an environment has."""

    exit_code = 3


class HorovodMissing(EnvkitError):
    """What was built should have Horovod, and does not."""

    exit_code = 10


class ModuleNotLoaded(EnvkitError):
    """A module that could not be loaded, be it its own fault or the modules tool's; enter.sh ends with the same."""

    exit_code = 92


class EnvironmentMissing(EnvkitError):
    """No installed environment of that name."""

    exit_code = 6


class EnvironmentDamaged(EnvkitError):
    """An environment whose files are no longer what its receipt says."""

    exit_code = 6


class DiskFull(EnvkitError):
    """No space or no inodes left."""

    exit_code = 7


class NotWritable(EnvkitError):
    """A directory that this user may not write to."""

    exit_code = 7


class NotReadable(EnvkitError):
    """A prefix that this user may not look into."""

    exit_code = 7


class JobRefused(EnvkitError):
    """A scheduler that does not take a job, or does not answer."""

    exit_code = 3


class JobLost(EnvkitError):
    """A job that ended before its command did."""

    exit_code = 8


class Interrupted(EnvkitError):
    """The user or the system asked to stop: by which signal, and ``at`` when (time.time())."""

    def __init__(self, *, signal_number: int, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what=what, why=why, fix=fix)
        self.exit_code = 128 + signal_number
        self.signal_name = signal.Signals(signal_number).name
        self.at = time.time()


class StorageFailed(EnvkitError):
    """The storage of a file, or its server, has failed."""

    exit_code = 7


AGAIN = "Try again; if it stays, ask an administrator: what this machine says of it is in 'dmesg'."
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NETWORK = (errno.ENOTCONN, errno.ETIMEDOUT)
STORAGE = {
    errno.ENOSPC: "Free some room there (df -h, df -i), or use another place.",
    errno.EDQUOT: "Your quota is used up: remove something there (quota -s), ask for more, or use another place.",
    errno.EFBIG: "The file is larger than a limit (ulimit -f), or than its file system allows: use another place.",
    errno.EROFS: "It is mounted read-only here: use another place, or ask an administrator.",
    errno.EIO: f"The storage or its server has failed; room is not what is lacking. {AGAIN}",
    errno.EREMOTEIO: f"The server of the file has failed. {AGAIN}",
    errno.ESTALE: f"The file was replaced on its server, or the server began anew. {AGAIN}",
    errno.ENOTCONN: f"The client that mounts it (FUSE) has ended. {AGAIN}",
    errno.ETIMEDOUT: f"The server of the file does not answer. {AGAIN}",
}  # what to do about the errors of storage: said nowhere else


OF_PATHS = {
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL),
}


HANDLES = (errno.EMFILE, errno.ENFILE)


def of_handles(error: OSError, what: str) -> HostProblem | None:
    """Return ``error`` as a limit of open files; ``what`` could not be done. None if it is no such error."""
    if error.errno not in HANDLES:
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    why = f"Too many files are open (ulimit -n is {most})."
    return HostProblem(what=what, why=why, fix="Raise that limit: ulimit -n 1024")


def of_path(error: OSError) -> NotReadable | None:
    """Return ``error`` as what is wrong with a path, or with this user's right to it. None if it is no such error."""
    if error.errno not in OF_PATHS or not error.filename:
        return None
    return NotReadable(
        what=f"envkit could not use {error.filename}.",
        why=f"{error.strerror}.",
        fix="Name a place that you may use, or ask its owner.",
    )


def of_storage(error: OSError, what: str) -> EnvkitError | None:
    """Return ``error`` as what a user can repair; ``what`` could not be done. None if it is no such error."""
    number = error.errno or 0
    if number not in STORAGE or (number in NETWORK and not error.filename):  # of a connection, not of a file
        return None
    kind = DiskFull if number in FULL else NotWritable if number == errno.EROFS else StorageFailed
    where = f": {error.filename}" if error.filename else ""
    return kind(what=what, why=f"{error.strerror or error}{where}", fix=STORAGE[number])
