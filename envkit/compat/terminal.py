"""The answer about a combination, for people at a terminal."""

from collections.abc import Iterator, Mapping

from envkit.compat.complete import Complete
from envkit.compat.evidence import VersionRule, Workaround, known
from envkit.compat.judge import Judgement, Verdict
from envkit.report.paper import Paper

STYLES = {Verdict.WORKS: "green", Verdict.FAILS: "red", Verdict.RISKY: "yellow", Verdict.UNKNOWN: "yellow"}
LABEL = 9
CHOSEN = {
    Verdict.WORKS: "the newest in it that is known to work with the rest; others may fail",
    Verdict.FAILS: "but every other fails, too",
}


def render(asked: Judgement, best: Complete | None, paper: Paper, ranges: Mapping[str, str]) -> str:
    """Return the verdict on what was asked, and the best complete combination, as text that ends in a newline."""
    out = paper.paragraph(asked.verdict.value.ljust(LABEL), STYLES[asked.verdict], listed(asked.parts))
    for label, text in (*chosen(asked, ranges), *needed(asked), *evidence(asked)):
        out += paper.paragraph(label.rjust(LABEL), "dim", text)
    out += ["", *complete(best, paper, ranges)]
    return "\n".join(out) + "\n"


def chosen(asked: Judgement, ranges: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield which version of each range is judged, and what that says of the others."""
    why = CHOSEN.get(asked.verdict, "the newest; no other in it is known to work")
    for name, text in ranges.items():
        yield "of", f"{known().component[name].title} {text}: judged is {asked.parts[name]}, {why}"


def listed(parts: Mapping[str, str]) -> str:
    """Return versions with their titles."""
    return ", ".join(f"{known().component[name].title} {version}" for name, version in parts.items())


def needed(asked: Judgement) -> Iterator[tuple[str, str]]:
    """Yield what has to be done for it, and what nobody is known to have had together."""
    for cure in asked.cures:
        yield "with", " or ".join(", ".join(measure(known().measure[name]) for name in measures) for measures in cure)
    if asked.unproven and asked.verdict is not Verdict.FAILS:
        missing = listed({name: asked.parts[name] for name in asked.unproven})
        rest = listed({name: version for name, version in asked.parts.items() if name not in asked.unproven})
        yield "unknown", f"nobody is known to have had {missing}" + (f" together with {rest}" if asked.proof else "")


def measure(workaround: Workaround) -> str:
    """Describe a measure."""
    return f"{workaround.what} ({workaround.source}{'; the recipes of envkit do it' if workaround.envkit else ''})"


def evidence(asked: Judgement) -> Iterator[tuple[str, str]]:
    """Yield who has had it, all of it or the rest, and each rule that is about it, by its evidence."""
    if (proof := asked.proof) and asked.verdict is not Verdict.FAILS:
        missing = listed({name: asked.parts[name] for name in (*asked.unproven, *asked.silent)})
        what = f"without {missing}" if missing else "all of it"
        with_what = f", with {', '.join(proof.measures)}" if proof.measures else ""
        with_what += f", and to be done besides: {', '.join(proof.besides)}" if proof.besides else ""
        yield proof.evidence.value, f"{what}: {listed(proof.parts)}{with_what}{remark(proof.note)} ({proof.source})"
        yield from (("note", known().component[name].silent) for name in asked.silent)
        yield from (("against", f"what that evidence has: {sentence(rule)}") for rule in asked.against)
    for rule in asked.rules:
        yield rule.evidence.value, sentence(rule, "; the above mends it" if rule.cure else "")


def remark(note: str) -> str:
    """Return a note as the rest of a sentence."""
    return f"; {note}" if note else ""


def sentence(rule: VersionRule, mended: str = "") -> str:
    """Say what a rule says, and whether that is mended."""
    when = ", ".join(f"{known().component[name].title} {wanted}" for name, wanted in rule.when.items())
    with_what = " as released" if rule.cure else ""
    note = f": {rule.note}" if rule.note else ""
    source = f" ({rule.source})" if rule.source != "none" else ""
    return f"{when} {rule.status}{with_what}{mended}{note}{source}"


def complete(best: Complete | None, paper: Paper, ranges: Mapping[str, str]) -> list[str]:
    """Describe the best complete combination."""
    if best is None:
        return paper.paragraph("best".ljust(LABEL), "bold", "no complete combination is known for this machine")
    combination, judgement = best.combination, best.judgement
    label = "nearest" if best.differs else "best"
    other = "".join(f"; {differing(name, judgement.parts.get(name, ''), ranges)}" for name in best.differs)
    state = "" if judgement.verdict is Verdict.WORKS else f"; {judgement.verdict} as it is here"
    text = f"{listed(judgement.parts)} ({combination.evidence}{instead(best)}{remark(combination.note)}{state}{other})"
    with_what = ", ".join(known().measure[name].what for name in combination.proof().taken())
    out = paper.paragraph(label.ljust(LABEL), "bold", text)
    out += paper.paragraph("with".rjust(LABEL), "dim", with_what) if with_what else []
    return out + paper.paragraph("how".rjust(LABEL), "dim", combination.how)


def differing(name: str, version: str, ranges: Mapping[str, str]) -> str:
    """Say what of a combination is not as it was asked for."""
    title = known().component[name].title
    if name not in ranges:
        return f"{title} not as asked"
    beginning = f"{title} {version} is not in" if version else f"no {title} in"
    return f"{beginning} {ranges[name]}, of which no way to install one is known"


def instead(best: Complete) -> str:
    """Say with what the evidence is, where other parts were put in."""
    own = best.combination.parts
    others = listed({name: own[name] for name in best.replaced if name in own})
    absent = ", ".join(known().component[name].title for name in best.replaced if name not in own)
    return (f" with {others}" if others else "") + (f" without {absent}" if absent else "")
