"""Are the collectives as fast as the network allows, and does training scale? Only where that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.knowledge.known import known
from envkit.report.words import duration, percent, rate, size
from envkit.verify import speed
from envkit.verify.checks.elements import others, wrong_elements
from envkit.verify.facts import RankFacts, Sweep, Throughput
from envkit.verify.outcome import Expected, Ranks, Result
from envkit.verify.speed import Baseline, Scaling


def bandwidth(ranks: Ranks) -> list[Result]:
    if "bandwidth" not in ranks.expected.measures:
        return []
    lacking = ranks.lacking("bandwidth")
    if lacking:
        return [ranks.not_measured("bandwidth", lacking)]
    failed = failed_measurement(ranks, "bandwidth", "bandwidth") or wrong(ranks)
    return [failed or bandwidth_result(ranks), *raw_results(ranks)]


def throughput(ranks: Ranks) -> list[Result]:
    if "throughput" not in ranks.expected.measures:
        return []
    lacking = ranks.lacking("throughput")
    if lacking:
        return [ranks.not_measured("throughput", lacking)]
    failed = failed_measurement(ranks, "throughput", "throughput")
    trained = speed.trained(ranks.facts, "throughput")
    if failed or trained is None:
        return [failed] if failed else []
    return [ranks.outcome("throughput", "pass", where=place(trained), models=trained_models(trained))]


def ddp(ranks: Ranks) -> list[Result]:
    if "ddp_throughput" not in ranks.expected.measures:
        return []
    if ranks.framework != "torch":
        return [ranks.outcome("ddp", "no-torch")]
    failed = failed_measurement(ranks, "ddp_meeting", "ddp") or failed_measurement(ranks, "ddp_throughput", "ddp")
    if failed:
        return [failed]
    lacking = ranks.lacking("ddp_throughput")
    own, beside = speed.trained(ranks.facts, "throughput"), speed.trained(ranks.facts, "ddp_throughput")
    if lacking or own is None or beside is None:
        return [ranks.not_measured("ddp", lacking or ranks.facts[0], required=False)]
    ratios = {name: own.models[name].samples_per_s / ddp.samples_per_s for name, ddp in beside.models.items()}
    slowest = min(ratios, key=lambda name: ratios[name])
    near = ratios[slowest] >= known("speed")["scaling"]["ddp_ratio"] or speed.oversubscribed(ranks.facts)
    case = "pass" if near else "slower"
    return [ranks.outcome("ddp", case, models=trained_models(beside), ratio=percent(ratios[slowest]), slowest=slowest)]


def baseline(ranks: Ranks, path: str, saved: Baseline | None, tolerance: float, unsaved: str = "") -> Result:
    """The result of holding what was measured against a baseline (None: it is saved now as `path`, if that can be)."""
    own = speed.baseline(ranks.facts, when="")
    if own is None:
        return ranks.outcome("bandwidth-baseline", "nothing", path=path)
    if unsaved:
        return ranks.outcome("bandwidth-baseline", "unsaved", path=path, why=unsaved)
    if saved is None:
        return ranks.outcome("bandwidth-baseline", "saved", path=path)
    if saved.world != own.world:
        return ranks.outcome("bandwidth-baseline", "other", path=path, other=saved.world, own=own.world)
    count = len(saved.seconds.keys() & own.seconds.keys())
    if not count:
        return ranks.outcome("bandwidth-baseline", "no-common-size", path=path)
    slower = [f"{size(length)} by {percent(part)}" for length, part in speed.slower(own, saved, tolerance).items()]
    values = {"path": path, "when": saved.when, "tolerance": percent(tolerance), "count": count}
    return ranks.outcome("bandwidth-baseline", "slower" if slower else "pass", slower=", ".join(slower), **values)


def scaling(runs: Sequence[Sequence[RankFacts]], asked: Sequence[int], expected: Expected) -> list[Result]:
    """How training scaled over several runs of one framework, which `asked` names by their numbers of ranks."""
    ranks = Ranks(framework=expected.frameworks[0], facts=(), expected=expected)
    rows = speed.scaling(runs)
    missing = [number for number in asked if number not in {row.ranks for row in rows}]
    results = [ranks.outcome("scaling-efficiency", "missing", ranks=number) for number in missing]
    if len(asked) < 2:
        return [*results, ranks.outcome("scaling-efficiency", "one-run")]
    crowded = next((where for run in runs if (where := speed.oversubscribed(run))), "")
    models = dict.fromkeys(row.model for row in rows)
    return results + [scaling_of_model(ranks, [row for row in rows if row.model == model], crowded) for model in models]


def scaling_of_model(ranks: Ranks, rows: Sequence[Scaling], crowded: str) -> Result:
    """Return the result for the scaling of one model."""
    threshold = known("speed")["scaling"]["efficiency"]
    low = any(row.efficiency < threshold for row in rows)
    case = "oversubscribed" if crowded else "low" if low else "pass"
    shown = "; ".join(scaled(row, shares=not crowded) for row in rows)
    values = {"model": rows[0].model, "rows": shown, "threshold": percent(threshold), "where": crowded}
    return ranks.outcome("scaling-efficiency", case, **values)


def scaled(row: Scaling, *, shares: bool) -> str:
    """Return a run in words: its ranks, and the speed of Horovod and of DDP."""
    count = "1 rank" if row.ranks == 1 else f"{row.ranks} ranks"
    ddp = "" if row.ddp_samples_per_s is None else f", DDP {pace(row.ddp_samples_per_s, row.ddp_efficiency, shares)}"
    return f"{count} {pace(row.samples_per_s, row.efficiency, shares)}{ddp}"


def pace(samples_per_s: float, efficiency: float | None, shares: bool) -> str:
    """Return a speed in words, with its efficiency where that is known and means something."""
    share = f" ({percent(efficiency)})" if shares and efficiency is not None else ""
    return f"{samples_per_s:,.0f} samples/s{share}"


def bandwidth_result(ranks: Ranks) -> Result:
    """Return the result for the bandwidth, held against the raw library's."""
    if ranks.facts[0].size == 1:
        return ranks.outcome("bandwidth", "one-rank")
    rows, sweep = speed.bandwidth(ranks.facts), speed.swept(ranks.facts, "bandwidth")
    if not rows or sweep is None:
        return ranks.outcome("bandwidth", "no-time")
    last, ratio = rows[-1], rows[-1].ratio
    raw = speed.swept(ranks.facts, "raw_bandwidth")
    values = {
        "size": size(last.size_bytes),
        "where": sweep.where.upper(),
        "bus": rate(last.bus_bytes_per_s),
        "smallest": size(rows[0].size_bytes),
        "latency": duration(rows[0].seconds),
        "library": raw.library if raw else "",
        "ratio": percent(ratio),
        "left_out": left_out(sweep),
    }
    if ratio is None:
        return ranks.outcome("bandwidth", "alone", **values)
    case = "pass" if ratio >= known("speed")["bandwidth"]["ratio"] else "below-raw"
    return ranks.outcome("bandwidth", case, **values)


def wrong(ranks: Ranks) -> Result | None:
    """The result for the first rank that got wrong elements from an allreduce that was timed."""
    timed = [(facts, row) for facts in ranks.facts if facts.bandwidth for row in facts.bandwidth.rows]
    bad = [(facts, row) for facts, row in timed if row.wrong]
    if not bad:
        return None
    facts, row = bad[0]
    values = {"rank": facts.label, "size": size(row.size), **wrong_elements(row)}
    return ranks.outcome("bandwidth", "wrong", **values, others=others([facts.label for facts, _ in bad]))


def raw_results(ranks: Ranks) -> list[Result]:
    """Return the result for the raw library where it failed."""
    failed = failed_measurement(ranks, "raw_bandwidth", "bandwidth-raw")
    return [failed] if failed else []


def failed_measurement(ranks: Ranks, fact: str, check: str) -> Result | None:
    """The result for the first rank in which a measurement failed."""
    for facts in ranks.facts:
        measurement = getattr(facts, fact)
        if measurement is not None and measurement.error:
            return ranks.outcome(check, "error", rank=facts.label, error=measurement.error)
    return None


def left_out(sweep: Sweep) -> str:
    """Return the sizes for which there was no time, as a part of a message."""
    return f"; no time for {', '.join(size(length) for length in sweep.left_out)}" if sweep.left_out else ""


def trained_models(measured: Throughput) -> str:
    """Return the models that were trained, with the speed of each."""
    return ", ".join(f"{name} {trained.samples_per_s:,.0f} samples/s" for name, trained in measured.models.items())


def place(measured: Throughput) -> str:
    """Return the device and the number of ranks of a training, in words."""
    return f"on {measured.where.upper()}, {'1 rank' if measured.ranks == 1 else f'{measured.ranks} ranks'}"


CHECKS = (bandwidth, throughput, ddp)
