"""Which objects go with a machine and a plan, by what they need, and why the others do not."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from envkit.cache.manifest import Manifest, Needs
from envkit.environments.lockfile import Lock


@dataclass(frozen=True, kw_only=True)
class Provided:
    """The means of a machine and a plan: what they have of what objects need.

    ``recipes`` are the SHA-256 of the recipes of the plan, by module; ``mpi`` is family and version, ``tools`` are
    path and version of what modules can stand for.
    """

    recipes: Mapping[str, str]
    machine: str
    python: str
    accelerator: str
    mpi: tuple[str, str]
    is_embedded: bool
    mpi_library: str
    versions: Mapping[str, str]
    cpu: frozenset[str]
    syntax: str
    load: tuple[str, ...]
    tools: Mapping[str, str]


def of_module(here: Provided, module: str, sha256: str) -> Provided:
    """Return the means for a module that is linked with no other: of the recipes, its own alone counts."""
    return replace(here, recipes={module: sha256})


def reasons(manifest: Manifest, here: Provided) -> Iterator[str]:
    """Yield why an object does not fit; nothing of one that does."""
    needs = manifest.needs
    yield from differs("device", needs.accelerator, here.accelerator)
    if manifest.part.sha256 != here.recipes.get(manifest.module):
        yield "it was made from another recipe or other patches"
    for module in sorted({*needs.recipes, *here.recipes} - {manifest.module}):
        if needs.recipes.get(module) != here.recipes.get(module):
            yield f"it was built for another {module}"
    yield from of_machine(manifest, here)


def of_machine(manifest: Manifest, here: Provided) -> Iterator[str]:
    """Yield why an object does not fit a machine, whatever the plan."""
    needs = manifest.needs
    if manifest.is_image:
        yield from of_image(manifest, here.machine, here.cpu)
        return
    yield from differs("machine type", needs.machine, here.machine)
    yield from differs("Python", needs.python, here.python)
    for tool, wanted in needs.tools.items():
        yield from differs(tool, wanted, here.tools.get(tool, "none"))
    if needs.mpi_library:
        yield from of_mpi(needs, here)
    for kind, wanted in needs.versions.items():
        offered = here.versions.get(kind)
        if offered is None or Version(offered) < Version(wanted):
            yield f"it needs {kind} {wanted}, and this machine has {offered or 'none'}"
    yield from of_cpu(manifest, here.cpu)
    if (needs.syntax, here.syntax) == ("Lua", "Tcl"):
        yield "its module file is for Lmod"
    if needs.load != here.load:
        modules = f"the site modules {', '.join(needs.load)}" if needs.load else "no site modules"
        yield f"it was built with {modules}"


def of_mpi(needs: Needs, here: Provided) -> Iterator[str]:
    """Yield that what loads an MPI goes with another one."""
    family, version = here.mpi
    if (needs.mpi.family, needs.mpi.embedded) != (family, here.is_embedded):
        was, now = mpi_named(needs.mpi.family, needs.mpi.embedded), mpi_named(family, here.is_embedded)
        yield f"it was built with {was}, and here is {now}"
    elif here.mpi_library and needs.mpi_library != here.mpi_library:
        yield f"it loads {needs.mpi_library}, and {family} {version} is {here.mpi_library}"


def of_image(manifest: Manifest, machine: str, cpu: frozenset[str]) -> Iterator[str]:
    """Yield why an image does not fit a machine."""
    yield from differs("machine type", manifest.needs.machine, machine)
    yield from of_cpu(manifest, cpu)


def of_cpu(manifest: Manifest, cpu: frozenset[str]) -> Iterator[str]:
    """Yield that a CPU lacks what code needs."""
    if lacking := [name for name in manifest.needs.cpu if name not in cpu]:
        yield f"its code needs {', '.join(lacking)}, which this CPU lacks"


def differs(what: str, wanted: str, present: str) -> Iterator[str]:
    """Yield that something is another one."""
    if wanted != present:
        yield f"it is for {what} {wanted}, and here it is {present}"


def mpi_named(family: str, is_embedded: bool) -> str:
    """Return an MPI in words."""
    return f"the {family} of a wheel" if is_embedded else family or "none"


def nearness(manifest: Manifest, here: Provided) -> tuple[bool, Version, str]:
    """Return what is the greater the nearer a fitting object is: the same MPI, the newest libraries, the last built."""
    needs = manifest.needs
    glibc = Version(needs.versions.get("GLIBC", "0"))
    return needs.mpi.version == here.mpi[1], glibc, manifest.provenance.built


def recipes_of(lock: Lock, compared: Container[str]) -> dict[str, str]:
    """Return the SHA-256 of the recipes that count, by module: what the machine has is compared itself."""
    return {part.name: part.sha256 for part in lock.parts if part.name not in compared}
