"""Sites: what images and jobs need of one besides what envkit gives them by itself, as data in sites/*.toml."""

from pathlib import Path

import msgspec

from envkit.errors import UsageProblem
from envkit.system import toml
from envkit.system.resources import data


class JobWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job needs at a site: words for #SBATCH and #PBS, resources of each chunk of ``select``, and notes.

    ``mpiexec`` are words for that of PALS, which is the launcher where they are given, be it none of them.
    """

    partition: str = ""
    account: str = ""
    sbatch: tuple[str, ...] = ()
    qsub: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    mpiexec: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site: folders and files to bind (PATH or SOURCE:TARGET), variables inside, words for srun, those for jobs.

    ``data`` are folders with sets of data such as MNIST, or with a folder for each.
    ``status`` says what was tried there, ``source`` where it is written.
    """

    title: str
    status: str
    source: str
    binds: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    data: tuple[str, ...] = ()
    job: JobWords = JobWords()


def find(name: str) -> Site:
    """Return a site by its name, or by the path of a file. Raises UsageProblem."""
    path = Path(name) if name.endswith(".toml") else data("machine/sites") / f"{name}.toml"
    try:
        return toml.read(path, Site)
    except FileNotFoundError as error:
        known = ", ".join(sorted(one.stem for one in data("machine/sites").glob("*.toml")))
        raise UsageProblem(
            what=f"There is no site {name!r}.",
            why=f"envkit knows: {known}.",
            fix="Give the path of a file of your own (.toml); those in envkit/machine/sites are examples.",
        ) from error
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UsageProblem(what=f"{path} does not describe a site.", why=str(error)) from error
