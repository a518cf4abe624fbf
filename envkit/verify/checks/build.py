"""Is Horovod there, does it load, and was it built as required?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from envkit.binary.build_flags import FLAGS, FRAMEWORKS, same_version
from envkit.knowledge.known import catalogue, known, owner
from envkit.verify.checks.nodes import all_went_well, warned
from envkit.verify.facts import Fact, RankFacts
from envkit.verify.outcome import Ranks, Result

FRAMEWORKS_BY_NAME = {framework.name: framework for framework in FRAMEWORKS}
SYSTEM = (PurePath("/"), PurePath("/usr"), PurePath("/usr/local"))  # where more lies than an MPI
MISSING = {
    "symbols": re.compile(r"(?:undefined symbol|symbol lookup error: [^:]+: undefined symbol):\s*([^\s,]+)"),
    "files": re.compile(r"([^\s:'\"]+\.so[.\d]*): cannot open shared object file"),
}


def horovod_present(ranks: Ranks) -> list[Result]:
    wanted = ranks.expected.horovod
    for facts in ranks.facts if wanted else ():
        if facts.horovod and not facts.horovod.error and facts.horovod.path != wanted:
            values = {"rank": facts.label, "path": facts.horovod.path, "wanted": wanted}
            return [ranks.outcome("horovod-present", "other", **values)]
    return [without_error(ranks, "horovod-present", "horovod")]


def framework_present(ranks: Ranks) -> list[Result]:
    return [without_error(ranks, "framework-present", "imported")]


def extension_present(ranks: Ranks) -> list[Result]:
    lacking = next((f for f in ranks.facts if not f.horovod or f.horovod.error), None)
    if lacking:
        return [ranks.not_measured("extension-present", lacking)]
    absent = next((facts for facts in ranks.facts if not extension(facts)), None)
    case = "absent" if absent else "pass"
    rank, path = (absent.label, absent.horovod.path if absent.horovod else "") if absent else ("", "")
    cut = next((facts for facts in ranks.facts if is_cut(facts)), None)
    if not absent and cut and cut.extension_file:
        size, wanted = cut.extension_file.size, cut.extension_file.wanted
        values = {"rank": cut.label, "path": extension(cut), "size": size, "wanted": wanted}
        return [ranks.outcome("extension-present", "cut", **values)]
    return [ranks.outcome("extension-present", case, framework=ranks.framework, rank=rank, path=path)]


def working_folder(ranks: Ranks) -> list[Result]:
    """Whether the working folder has what a script in it imports in place of the environment's packages."""
    paths = ranks.expected.shadows
    name = paths[0].removesuffix("/__init__.py").removesuffix(".py") if paths else ""
    return [ranks.outcome("working-folder", "shadows", paths=", ".join(paths), name=name)] if paths else []


def extension_loads(ranks: Ranks) -> list[Result]:
    if any(f.horovod and not f.horovod.error and not extension(f) for f in ranks.facts):
        return [ranks.outcome("extension-loads", "absent")]
    failed = next((facts for facts in ranks.facts if facts.load and facts.load.error), None)
    if failed and failed.load and failed.load.error:
        case, details = load_failure(failed, failed.load)
        return [ranks.outcome("extension-loads", case, rank=failed.label, error=failed.load.error, **details)]
    if lacking := ranks.lacking("load"):
        return [ranks.not_measured("extension-loads", lacking)]
    return [ranks.outcome("extension-loads", "pass")]


def framework_drift(ranks: Ranks) -> list[Result]:
    """Known from the files alone, so also where importing the framework ended the process."""
    loaded = all(facts.load and not facts.load.error for facts in ranks.facts)
    for facts in ranks.facts:
        built_for, used = framework_built_for(facts), framework_used(facts)
        values = {"rank": facts.label, "framework": facts.framework, "built_for": built_for, "used": used}
        if not built_for or not used:
            return [ranks.outcome("framework-drift", "unknown", **values)]
        if not same_version(built_for, used):
            return [warned(ranks.outcome("framework-drift", "drift", **values), harmless=loaded)]
    return [ranks.outcome("framework-drift", "pass")]


def flags_required(ranks: Ranks) -> list[Result]:
    return [flag_required(ranks, name) for name in sorted(ranks.expected.required)]


def flags_agree(ranks: Ranks) -> list[Result]:
    built = flags_in_file(ranks)
    if not built:
        return [ranks.outcome("flags-agree", "unread")]
    lacking = next((f for f in ranks.facts if not f.flags or f.flags.error), None)
    if lacking:
        return [ranks.not_measured("flags-agree", lacking)]
    unknown = [name for name in FLAGS if built.get(name) is None]
    for facts in ranks.facts:
        loaded = {name: facts.flags.get(name) for name in FLAGS} if facts.flags else {}
        wrong = [name for name in FLAGS if name not in unknown and loaded[name] != built[name]]
        if wrong:
            differ = ", ".join(f"{name}: {built[name]} in the file, {loaded[name]} loaded" for name in wrong)
            return [ranks.outcome("flags-agree", "differ", rank=facts.label, differ=differ)]
    return [ranks.outcome("flags-agree", "partly" if unknown else "pass", unknown=", ".join(unknown))]


def mpi_threads(ranks: Ranks) -> list[Result]:
    if not built_with(ranks, "mpi"):
        return [ranks.outcome("mpi-threads", "not-built")]
    lacking = ranks.lacking("mpi_threads")
    if lacking:
        return [ranks.not_measured("mpi-threads", lacking)]
    for facts in ranks.facts:
        if isinstance(facts.mpi_threads, Fact):
            chosen = facts.started is not None and facts.started.launcher == "horovodrun"
            case = "error" if "mpi" in ranks.expected.required and not chosen else "not-used"
            return [ranks.outcome("mpi-threads", case, rank=facts.label, error=facts.mpi_threads.error)]
    without = next((facts for facts in ranks.facts if not facts.mpi_threads), None)
    if without is None:
        return [ranks.outcome("mpi-threads", "pass")]
    variable = known("settings")["no_mpi_threads"]
    if (without.number(variable) or 0) > 0:
        value = without.environment[variable]
        result = ranks.outcome("mpi-threads", "switched-off", rank=without.label, variable=variable, value=value)
        return [replace(result, commands=(f"unset {variable}",))]
    return [ranks.outcome("mpi-threads", "no")]


def mpi_loaded(ranks: Ranks) -> list[Result]:
    if not built_with(ranks, "mpi"):
        return [ranks.outcome("mpi-loaded", "not-built")]
    for facts in ranks.facts:
        if "error" in facts.libraries or not any(phase.name == "libraries" for phase in facts.phases):
            return [ranks.not_measured("mpi-loaded", facts)]
        if case := mpi_case(ranks, facts):
            wanted = ", ".join(proper(mpi_in_file(ranks)) or needed_mpi(facts))
            values = {"rank": facts.label, "paths": ", ".join(mpi(facts)), "wanted": wanted, "found": found_by(facts)}
            values |= {"program": of_its_mpi(facts), "folder": str(PurePath(of_its_mpi(facts)).parent)}
            told = "of-launcher" if case == "elsewhere" and of_its_mpi(facts) else case
            result = ranks.outcome("mpi-loaded", told, **values)
            return [warned(result, harmless=case == "elsewhere" and all_went_well(ranks))]
    return [ranks.outcome("mpi-loaded", "pass", path=mpi(ranks.facts[0])[0])]


def mpi_case(ranks: Ranks, facts: RankFacts) -> str | None:
    """Return the fault of the MPI that a rank has loaded, or None."""
    loaded = mpi(facts)
    if len(loaded) != 1:
        return "several" if loaded else "absent"
    needed, provided = {interface(name) for name in needed_mpi(facts)}, interface(PurePath(loaded[0]).name)
    if provided and needed - {""} and provided not in needed:
        return "other"
    in_file = mpi_in_file(ranks)
    return "elsewhere" if in_file and loaded[0] not in in_file else None


def mpi(facts: RankFacts) -> list[str]:
    """The MPI libraries proper that a rank has loaded, without those for C++ or Fortran."""
    return proper([path for name in ("libmpi", "libmpich") for path in facts.libraries.get(name, ())])


def proper(paths: Sequence[str]) -> list[str]:
    """Return those paths that are of an MPI library proper."""
    pattern = re.compile(known("libraries")["core_mpi"] + r"[.\d]*")
    return [path for path in paths if pattern.fullmatch(PurePath(path).name)]


def needed_mpi(facts: RankFacts) -> list[str]:
    """Return the MPI libraries that the extension of a rank needs, by name."""
    needed = (facts.extension_file.needed if facts.extension_file else None) or ()
    return [name for name in needed if re.fullmatch(known("libraries")["needed_mpi"], name)]


def interface(name: str) -> str:
    """The first number after `.so`, which stands for a library's binary interface."""
    return name.partition(".so.")[2].partition(".")[0]


def mpi_in_file(ranks: Ranks) -> tuple[str, ...]:
    """Return the MPI libraries that the extension's file leads to, by path."""
    extensions = ranks.expected.built.extensions if ranks.expected.built else ()
    return next((e.mpi_libraries for e in extensions if e.framework == ranks.framework), ())


def found_by(facts: RankFacts) -> str:
    """How the loader came to the MPI library of a rank."""
    path = (mpi(facts) or [""])[0]
    folders = facts.search_path.folders if facts.search_path else {}
    own = str(PurePath(path).parent)
    folder = next((name for name, libraries in folders.items() if path in libraries.values() or name == own), None)
    preloaded = facts.search_path and any(PurePath(p).name in path for p in facts.search_path.preload)
    return "LD_PRELOAD" if preloaded else f"LD_LIBRARY_PATH ({folder})" if folder else "the loader's own search"


def of_its_mpi(facts: RankFacts) -> str:
    """Return the first mpirun on PATH if the MPI library of a rank lies beside it, in a folder of its own."""
    program, path = facts.search_path.mpirun if facts.search_path else "", (mpi(facts) or [""])[0]
    place = PurePath(program).parent.parent
    return program if program and place not in SYSTEM and PurePath(path).is_relative_to(place) else ""


def without_error(ranks: Ranks, check: str, fact: str) -> Result:
    """Return the result for a fact that every rank must have without an error."""
    for facts in ranks.facts:
        value: Fact | None = getattr(facts, fact)
        if value is None:
            return ranks.not_measured(check, facts)
        if value.error:
            values = {"rank": facts.label, "framework": ranks.framework, "error": value.error}
            return ranks.outcome(check, "error", **values)
    return ranks.outcome(check, "pass", framework=ranks.framework)


def load_failure(facts: RankFacts, load: Fact) -> tuple[str, dict[str, str]]:
    """The first case whose pattern the error fits, and whose the missing symbol or file is."""
    patterns = {case: words.get("pattern") for case, words in catalogue()["extension-loads"].items()}
    text = f"{load.error}\n{load.traceback}"
    case = next((case for case, pattern in patterns.items() if pattern and re.search(pattern, text)), "other")
    return case, missing(facts, case, text)


def missing(facts: RankFacts, case: str, text: str) -> dict[str, str]:
    """The name of what is missing, whose it is, what to do, and where that library lies on the search path."""
    kind = {"symbol": "symbols", "library": "files"}.get(case)
    match = MISSING[kind].search(text) if kind else None
    if not kind or not match:
        return {"missing": "it", "owner": "a library", "fix": "Read the error.", "where": ""}
    name = PurePath(match[1]).name if kind == "files" else match[1]
    whose = owner(kind, name)
    folders = facts.search_path.folders if facts.search_path else {}
    path = next((files[whose["family"]] for files in folders.values() if whose.get("family") in files), None)
    where = f"; LD_LIBRARY_PATH leads to {path}" if path else ""
    return {"missing": name, "owner": whose["library"], "fix": whose["remedy"], "where": where}


def framework_built_for(facts: RankFacts) -> str | None:
    """Return the version of the framework that Horovod was built for."""
    return facts.horovod.metadata.get(FRAMEWORKS_BY_NAME[facts.framework].metadata_key) if facts.horovod else None


def framework_used(facts: RankFacts) -> str | None:
    """The framework's version: as it told itself, else as its package says."""
    if facts.imported and facts.imported.version:
        return facts.imported.version
    names = (name.replace("_", "-") for name in FRAMEWORKS_BY_NAME[facts.framework].distributions)
    return next((facts.installed[name] for name in names if name in facts.installed), None)


def is_cut(facts: RankFacts) -> bool:
    """Say whether the extension's file is shorter than it should be."""
    file = facts.extension_file
    return file is not None and file.size < file.wanted


def flag_required(ranks: Ranks, name: str) -> Result:
    """Return the result for a flag that Horovod must have been built with."""
    lacking: RankFacts | None = None
    for facts in ranks.facts:
        value = facts.flags.get(name) if facts.flags else None
        if value == 0:
            stack = ranks.expected.stacks.get(name)
            case = "lacks" if not ranks.expected.environment else "lost" if stack is None else "other-stack"
            case = "no-stack" if stack == "" else case
            return ranks.outcome("flag-required", case, flag=name, rank=facts.label, stack=stack)
        lacking = lacking or (facts if value is None else None)
    if lacking:
        return ranks.not_measured("flag-required", lacking)
    return ranks.outcome("flag-required", "pass", flag=name)


def extension(facts: RankFacts) -> str | None:
    """Return the path of Horovod's extension for the framework of a rank."""
    return facts.horovod.extensions.get(facts.framework) if facts.horovod else None


def flags_in_file(ranks: Ranks) -> Mapping[str, int | None]:
    """Return the flags that Horovod was built with, by its file."""
    return ranks.expected.built.flags_of(ranks.framework) if ranks.expected.built else {}


def built_with(ranks: Ranks, name: str) -> bool:
    """Whether it was built with a flag, by any account: a demand, the file, or a rank."""
    built = flags_in_file(ranks).get(name)
    by_rank = any(facts.flags and facts.flags.get(name) for facts in ranks.facts)
    return bool(name in ranks.expected.required or built or by_rank)


CHECKS = (
    horovod_present,
    framework_present,
    extension_present,
    extension_loads,
    framework_drift,
    flags_required,
    flags_agree,
)
OF_MPI = (mpi_threads, mpi_loaded)
OF_FOLDER = (working_folder,)
