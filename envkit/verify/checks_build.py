"""Is Horovod there, does it load, and was it built as required?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from envkit.verify.build_flags import FLAGS, FRAMEWORKS, same_version
from envkit.verify.checks_process import mpi_paths
from envkit.verify.facts import Fact, RankFacts
from envkit.verify.outcome import Ranks, Result, catalogue

_METADATA_KEYS = {framework.name: framework.metadata_key for framework in FRAMEWORKS}


def horovod_present(ranks: Ranks) -> list[Result]:
    return [_without_error(ranks, "horovod-present", "horovod")]


def framework_present(ranks: Ranks) -> list[Result]:
    return [_without_error(ranks, "framework-present", "imported")]


def extension_present(ranks: Ranks) -> list[Result]:
    lacking = next((f for f in ranks.facts if not f.horovod or f.horovod.error), None)
    if lacking:
        return [ranks.not_measured("extension-present", lacking)]
    absent = next((facts for facts in ranks.facts if not _extension(facts)), None)
    case = "absent" if absent else "pass"
    rank, path = (absent.label, absent.horovod.path if absent.horovod else "") if absent else ("", "")
    return [ranks.outcome("extension-present", case, framework=ranks.framework, rank=rank, path=path)]


def extension_loads(ranks: Ranks) -> list[Result]:
    if any(f.horovod and not f.horovod.error and not _extension(f) for f in ranks.facts):
        return [ranks.outcome("extension-loads", "absent")]
    failed = next((facts for facts in ranks.facts if facts.load and facts.load.error), None)
    if failed and failed.load and failed.load.error:
        values = {"rank": failed.label, "error": failed.load.error}
        return [ranks.outcome("extension-loads", _load_case(failed.load), **values)]
    if lacking := ranks.lacking("load"):
        return [ranks.not_measured("extension-loads", lacking)]
    return [ranks.outcome("extension-loads", "pass")]


def framework_drift(ranks: Ranks) -> list[Result]:
    for facts in ranks.facts:
        built_for = facts.horovod.metadata.get(_METADATA_KEYS[facts.framework]) if facts.horovod else None
        used = facts.imported.version if facts.imported else None
        values = {"rank": facts.label, "built_for": built_for, "used": used}
        if not built_for or not used:
            return [ranks.outcome("framework-drift", "unknown", **values)]
        if not same_version(built_for, used):
            return [ranks.outcome("framework-drift", "drift", **values)]
    return [ranks.outcome("framework-drift", "pass")]


def flags_required(ranks: Ranks) -> list[Result]:
    return [_flag_required(ranks, name) for name in sorted(ranks.expected.required)]


def flags_agree(ranks: Ranks) -> list[Result]:
    built = _flags_in_file(ranks)
    if not built:
        return [ranks.outcome("flags-agree", "unread")]
    lacking = next((f for f in ranks.facts if not f.flags or f.flags.error), None)
    if lacking:
        return [ranks.not_measured("flags-agree", lacking)]
    unknown = [name for name in FLAGS if built.get(name) is None]
    for facts in ranks.facts:
        told = {name: facts.flags.get(name) for name in FLAGS} if facts.flags else {}
        wrong = [name for name in FLAGS if name not in unknown and told[name] != built[name]]
        if wrong:
            differ = ", ".join(f"{name}: {built[name]} in the file, {told[name]} loaded" for name in wrong)
            return [ranks.outcome("flags-agree", "differ", rank=facts.label, differ=differ)]
    return [ranks.outcome("flags-agree", "partly" if unknown else "pass", unknown=", ".join(unknown))]


def mpi_threads(ranks: Ranks) -> list[Result]:
    if not _built_with(ranks, "mpi"):
        return [ranks.outcome("mpi-threads", "not-built")]
    lacking = ranks.lacking("mpi_threads")
    if lacking:
        return [ranks.not_measured("mpi-threads", lacking)]
    for facts in ranks.facts:
        if isinstance(facts.mpi_threads, Fact):
            case = "error" if "mpi" in ranks.expected.required else "not-used"
            return [ranks.outcome("mpi-threads", case, rank=facts.label, error=facts.mpi_threads.error)]
    case = "pass" if all(facts.mpi_threads for facts in ranks.facts) else "no"
    return [ranks.outcome("mpi-threads", case)]


def mpi_loaded(ranks: Ranks) -> list[Result]:
    if not _built_with(ranks, "mpi"):
        return [ranks.outcome("mpi-loaded", "not-built")]
    for facts in ranks.facts:
        if "error" in facts.libraries or not any(phase.name == "libraries" for phase in facts.phases):
            return [ranks.not_measured("mpi-loaded", facts)]
        paths = mpi_paths(facts)
        values = {"rank": facts.label, "paths": ", ".join(paths)}
        if len({PurePath(path).parent for path in paths}) != 1:
            return [ranks.outcome("mpi-loaded", "several" if paths else "absent", **values)]
    return [ranks.outcome("mpi-loaded", "pass", path=mpi_paths(ranks.facts[0])[0])]


def _without_error(ranks: Ranks, check: str, fact: str) -> Result:
    for facts in ranks.facts:
        value: Fact | None = getattr(facts, fact)
        if value is None:
            return ranks.not_measured(check, facts)
        if value.error:
            values = {"rank": facts.label, "framework": ranks.framework, "error": value.error}
            return ranks.outcome(check, "error", **values)
    return ranks.outcome(check, "pass", framework=ranks.framework)


def _load_case(load: Fact) -> str:
    """The first case whose pattern the error fits."""
    patterns = {case: words.get("pattern") for case, words in catalogue()["extension-loads"].items()}
    text = f"{load.error}\n{load.traceback}"
    return next((case for case, pattern in patterns.items() if pattern and re.search(pattern, text)), "other")


def _flag_required(ranks: Ranks, name: str) -> Result:
    lacking: RankFacts | None = None
    for facts in ranks.facts:
        value = facts.flags.get(name) if facts.flags else None
        if value == 0:
            return ranks.outcome("flag-required", "lacks", flag=name, rank=facts.label)
        lacking = lacking or (facts if value is None else None)
    if lacking:
        return ranks.not_measured("flag-required", lacking)
    return ranks.outcome("flag-required", "pass", flag=name)


def _extension(facts: RankFacts) -> str | None:
    return facts.horovod.extensions.get(facts.framework) if facts.horovod else None


def _flags_in_file(ranks: Ranks) -> Mapping[str, int | None]:
    return ranks.expected.built.flags_of(ranks.framework) if ranks.expected.built else {}


def _built_with(ranks: Ranks, name: str) -> bool:
    """Whether it was built with a flag, by any account: a demand, the file, or a rank."""
    built = _flags_in_file(ranks).get(name)
    told = any(facts.flags and facts.flags.get(name) for facts in ranks.facts)
    return bool(name in ranks.expected.required or built or told)
