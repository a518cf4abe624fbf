"""The versions that an installation would put together here, and what is known to be wrong with them."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envkit.compat.complete import GPU, MachineParts
from envkit.compat.evidence import Combination, RuleStatus, VersionRule, known
from envkit.compat.judge import is_cured, judge
from envkit.errors import Problem
from envkit.machine.host import Accelerator, Host, capability
from envkit.planning.stack import Stack, find_easyconfig
from envkit.system import files

MPIS = {  # as compat.toml names them
    "Open MPI": "openmpi",
    "MPICH": "mpich",
    "Intel MPI": "impi",
    "Cray MPICH": "cray-mpich",
}
SYSTEM = "-system"  # in the name of a recipe: by the machine's own compiler and Python


def here(machine: Host) -> MachineParts:
    """Return what a machine has of a combination."""
    own = {"python": machine.python.version}
    own |= {"gcc": machine.compiler.version} if machine.compiler else {}
    own |= {MPIS[machine.mpi.family]: machine.mpi.version} if machine.mpi and machine.mpi.family in MPIS else {}
    own |= {GPU: capability(machine.env)} if machine.accelerator is Accelerator.CUDA else {}
    parts = {name: version for name, version in own.items() if is_version(version)}
    return MachineParts(accelerator=machine.accelerator.value, parts={"machine": machine.machine, **parts})


def known_bad(stack: Stack, machine: Host, modules: Iterable[str] = ()) -> Iterator[Problem]:
    """Yield what is known to fail of a stack on this machine; ``modules`` are those of its plan, once it is made."""
    parts, measures = versions(stack, machine, modules)
    for rule in judge(parts, measures).rules if parts else ():
        if rule.status is RuleStatus.FAILS and not is_cured(rule, measures):
            yield Problem(what=f"Known to fail: {said(rule, parts)}.", fix=remedy(rule))


def said(rule: VersionRule, parts: dict[str, str]) -> str:
    """Say what a rule is about, why it fails, and how that is known."""
    pair = " with ".join(f"{known().component[name].title} {parts[name]}" for name in rule.when)
    return f"{pair}{f'; {rule.note}' if rule.note else ''} ({rule.evidence}; {rule.source})"


def remedy(rule: VersionRule) -> str:
    """Say what to do about a rule."""
    words = " ".join(f"{name}=VERSION" for name in rule.when)
    cures = " or ".join(", ".join(known().measure[name].what for name in group) for group in rule.cure)
    mend = f"Its recipe needs {cures}. " if cures else ""
    return f"{mend}See what goes together: envkit compat {words}. To try it all the same: --force."


def versions(stack: Stack, machine: Host, modules: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what a stack puts together, and the measures it takes."""
    combination = next((entry for entry in known().combination if entry.stack == stack.name), None)
    if combination is not None:
        return of_combination(combination, machine), combination.measures
    parts = of_name(Path(stack.easyconfig).stem) if stack.easyconfig else {}
    if "horovod" not in parts:
        return {}, ()
    parts = of_modules(modules) | parts
    own = here(machine).parts if "cuda" in parts or SYSTEM in stack.easyconfig else {}
    wanted = ({GPU} if "cuda" in parts else set()) | (
        {"gcc", "python", *MPIS.values()} if SYSTEM in stack.easyconfig else set()
    )
    parts |= {name: version for name, version in own.items() if name in wanted}
    return parts, measures_of(stack.easyconfig)


def of_combination(combination: Combination, machine: Host) -> dict[str, str]:
    """Return the parts of a combination, with the machine's own."""
    own, mpis = here(machine).parts, {*MPIS.values()}
    of_host = {*combination.host, GPU} | (mpis if mpis & {*combination.host} else set())
    mine = {name: version for name, version in own.items() if name in of_host}
    replaced = mpis if mpis & mine.keys() else set()
    return {name: version for name, version in combination.parts.items() if name not in replaced} | mine


def of_name(stem: str) -> dict[str, str]:
    """Return the versions that the name of a recipe tells, such as Horovod-0.28.1-foss-2022a-PyTorch-1.12.0."""
    parts = dict[str, str]()
    for name, component in known().component.items():
        match = re.search(rf"(?:^|-){component.recipe}-(\d[\w.]*)", stem) if component.recipe else None
        if match and is_version(match[1]):
            parts[name] = match[1]
    return parts


def of_modules(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions that the names of modules tell, such as GCC/14.2.0 and Python/3.13.1-GCCcore-14.2.0."""
    recipes = {component.recipe: name for name, component in known().component.items() if component.recipe}
    parts = dict[str, str]()
    for module in modules:
        recipe, _, version = module.partition("/")
        version = version.partition("-")[0]
        if recipe in recipes and is_version(version):
            parts[recipes[recipe]] = version
    return parts


def is_version(text: str) -> bool:
    """Say whether a text is a version that can be compared."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def measures_of(easyconfig: str) -> tuple[str, ...]:
    """Return the measures that a recipe may take: none without patches, else all but those that no patch can be."""
    path = find_easyconfig(easyconfig)
    names = set(re.findall(r"[\w.+-]+\.patch", text_of(path))) if path else set[str]()
    if path is None or not names:
        return ()
    patches = [path.with_name(name) for name in sorted(names)]
    is_read = all(patch.is_file() for patch in patches)
    changed = "".join(map(text_of, patches)) if is_read else ""
    return tuple(name for name, measure in known().measure.items() if not is_read or measure.file in changed)


def text_of(path: Path) -> str:
    """Return what is in a recipe or a patch. Raises OSError."""
    return files.read(path).decode(errors="replace")
