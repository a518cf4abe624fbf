"""From the facts of a machine to a verdict for each method, and to notes. Pure: nothing is looked at here."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from envkit.doctor.facts import LOAD, Facts, Missing, Preflight
from envkit.doctor.report import VERSION, MethodState, MethodVerdict, Report
from envkit.errors import Problem
from envkit.knowledge import methods
from envkit.system import toml
from envkit.system.resources import data

RUN_ALONE = "images that were built elsewhere can be run"


def judge(facts: Facts) -> Report:
    """Return the report on a machine."""
    names = dict.fromkeys((*RULES, *methods.names()))
    verdicts = tuple(RULES[name](facts) if name in RULES else usual(name, facts) for name in names)
    return Report(version=VERSION, facts=facts, methods=verdicts, notes=tuple(notes(facts)))


def easybuild(facts: Facts) -> MethodVerdict:
    """EasyBuild works where its preflight finds nothing, and with a bundle alone where sources cannot be fetched."""
    preflight = facts.preflights.get("easybuild")
    if preflight is None or facts.builder is None:
        return not_told("easybuild", facts)
    lacking = no_index(facts, preflight)
    if preflight.problems:
        return fails("easybuild", preflight, lacking)
    if lacking:
        return partly("easybuild", f"{preflight.stack} can be built from a bundle", lacking)
    if facts.sources:
        return partly("easybuild", f"{preflight.stack} can be built from a bundle", *facts.sources)
    if any(entry.probe == LOAD for entry in facts.missing):
        return partly("easybuild", f"{preflight.stack} can be built without the modules of --load", problem("unloaded"))
    with_what = [f"{tool.path.rpartition('/')[2]} {tool.version}" for tool in (facts.builder.compiler,) if tool]
    with_what += [f"{mpi.family} {mpi.version}" for mpi in (facts.builder.mpi,) if mpi]
    with_what += [facts.modules.family] if facts.modules else []
    return MethodVerdict(
        method="easybuild", state=MethodState.WORKS, why=f"{preflight.stack} can be built ({', '.join(with_what)})"
    )


def apptainer(facts: Facts) -> MethodVerdict:
    """Apptainer works where images can be built, and in part where they can be run alone."""
    preflight, here = facts.preflights.get("apptainer"), facts.container
    if preflight is None:
        return not_told("apptainer", facts)
    lacking = no_index(facts, preflight)
    if preflight.problems:
        runs = here is not None and (here.setuid or not facts.namespaces or facts.uid == 0)
        if here is None or not runs or set(preflight.problems) - set(here.building):
            return fails("apptainer", preflight, lacking)
        return partly(
            "apptainer", "images that were built elsewhere can be run", problem("image-elsewhere"), *here.building
        )
    if lacking:
        return partly("apptainer", RUN_ALONE, lacking)
    with_what = f" ({here.runtime.family} {here.runtime.version})" if here else ""
    return MethodVerdict(method="apptainer", state=MethodState.WORKS, why=f"{preflight.stack} can be built{with_what}")


def eessi(facts: Facts) -> MethodVerdict:
    """EESSI can be entered where one of the ways to it fits."""
    fitting = [way for way in facts.ways if way.refusal is None]
    if fitting:
        why = f"{fitting[0].why} (--access {fitting[0].access})"
        return MethodVerdict(method="eessi", state=MethodState.WORKS, why=why, problems=(problem("no-horovod"),))
    problems = tuple(
        Problem(what=f"{way.access}: {way.refusal.what}.", fix=way.refusal.fix) for way in facts.ways if way.refusal
    )
    cut = [entry for entry in facts.missing if entry.probe.startswith("eessi ")]
    state, why = MethodState.FAILS, "there is no way to its repository; one of these is enough"
    if cut:
        state, why = MethodState.UNKNOWN, f"no other way fits, and --access {cut[0].probe.split()[1]}: {cut[0].why}"
    return MethodVerdict(method="eessi", state=state, why=why, problems=problems)


RULES: Mapping[str, Callable[[Facts], MethodVerdict]] = {"easybuild": easybuild, "eessi": eessi, "apptainer": apptainer}


def usual(method: str, facts: Facts) -> MethodVerdict:
    """A method without a rule of its own works where its preflight finds nothing."""
    preflight = facts.preflights.get(method)
    if preflight is None:
        return not_told(method, facts)
    if preflight.problems:
        return fails(method, preflight, None)
    return MethodVerdict(method=method, state=MethodState.WORKS, why=f"{preflight.stack} can be installed")


def fails(method: str, preflight: Preflight, lacking: Problem | None) -> MethodVerdict:
    """Return that a method does not work, with all that stands in its way."""
    problems = (*preflight.problems, *((lacking,) if lacking else ()))
    number = "one thing stands" if len(problems) == 1 else f"{len(problems)} things stand"
    why = f"{preflight.stack} cannot be installed: {number} in its way"
    return MethodVerdict(method=method, state=MethodState.FAILS, why=why, problems=problems)


def partly(method: str, why: str, *problems: Problem) -> MethodVerdict:
    """Return that a method works in part."""
    return MethodVerdict(method=method, state=MethodState.PARTLY, why=why, problems=problems)


def not_told(method: str, facts: Facts) -> MethodVerdict:
    """Return that it could not be found out, and what was waited for."""
    why = next(
        (entry.why for entry in facts.missing if entry.probe in ("host", f"preflight {method}")), "nothing was told"
    )
    return MethodVerdict(method=method, state=MethodState.UNKNOWN, why=f"it could not be found out: {why}")


def no_index(facts: Facts, preflight: Preflight) -> Problem | None:
    """Say that no package index answers, if that is so."""
    if facts.indexes is None or any(not index.problem for index in facts.indexes):
        return None
    places = "; ".join(f"{index.url}: {index.problem}" for index in facts.indexes) or "pip's no-index is set"
    return problem("no-index", places=places, stack=preflight.stack)


def notes(facts: Facts) -> Iterator[Problem]:
    """Yield what there is to know besides."""
    yield from (problem("configuration", mistake=mistake) for mistake in facts.configuration)
    yield from (of_missing(entry) for entry in facts.missing if not entry.by_configuration)
    built = facts.preflights.get("easybuild")
    in_time = not any(entry.probe == "sources" for entry in facts.missing)
    if built and not built.problems and facts.sources is None and in_time:
        yield problem("sources-not-asked", stack=built.stack)
    if facts.session_mpi:
        yield problem("session-mpi", what=facts.session_mpi.what, fix=facts.session_mpi.fix)
    elif built and facts.builder and (facts.builder.mpi is None or facts.builder.mpi.family not in toolchains()):
        yield problem("no-mpi")
    yield from on_gpus(facts)
    yield from on_node(facts)
    for scheduler in facts.schedulers or ():
        if not any(other.job for other in facts.schedulers or ()):
            own, usual = f"login-node-{scheduler.name}", "login-node"
            attempt = scheduler.attempt.format(command="envkit doctor")
            note = problem(own if own in words() else usual, scheduler=scheduler.name, attempt=attempt)
            yield Problem(id=usual, what=note.what, fix=note.fix)


def of_missing(missing: Missing) -> Problem:
    """Return the note on a probe that gave nothing."""
    name = f"missing-{missing.probe}"
    return problem(name if name in words() else "missing", probe=missing.probe, why=missing.why)


def on_gpus(facts: Facts) -> Iterator[Problem]:
    """Yield what there is to know of GPUs that are there and do not work, or are not used."""
    if facts.gpu_driver and facts.gpu_driver.problem:
        yield problem("gpu-driver", problem=facts.gpu_driver.problem)
    if facts.node and facts.node.gpus.nvidia_files and facts.nvidia_smi:
        yield problem("no-smi", reason=facts.nvidia_smi)
    kind = facts.builder.accelerator if facts.builder else "cpu"
    for method, preflight in facts.preflights.items():
        if kind not in ("cpu", preflight.accelerator):
            yield problem("gpu-unused", accelerator=kind, method=method, stack_accelerator=preflight.accelerator)


def on_node(facts: Facts) -> Iterator[Problem]:
    """Yield what there is to know of limits and of the place."""
    if facts.node is None:
        return
    devices = [*facts.node.fabric.rdma, *facts.node.fabric.slingshot]
    if devices and facts.limits and facts.limits.memlock is not None:
        yield problem("memlock", devices=", ".join(devices), memlock=f"{facts.limits.memlock // 1024} KiB")
    if facts.node.container:
        yield problem("in-container", container=facts.node.container)


def problem(name: str, **values: object) -> Problem:
    """Return the words of a name, with their values put in."""
    return Problem(id=name, **{key: text.format_map(values) for key, text in words()[name].items()})


@cache
def toolchains() -> dict[str, str]:
    """Return the toolchain for each family of MPI that Horovod can be compiled with."""
    table: dict[str, str] = toml.read(data("easybuild/easybuild.toml"), toml.Tables)["toolchains"]
    return table


@cache
def words() -> dict[str, dict[str, str]]:
    """Return words.toml."""
    return toml.read(data("doctor/words.toml"), toml.Tables)
