"""Do known vulnerabilities of Horovod concern this launch?"""

from __future__ import annotations

from envkit.knowledge.known import known
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result


def vulnerabilities(ranks: Ranks) -> list[Result]:
    """The CVEs of this version whose weak part runs in the launch in use; a warning, since the results are right."""
    facts = next((facts for facts in ranks.facts if facts.horovod and facts.horovod.version), None)
    if facts is None or facts.horovod is None or facts.horovod.version is None:
        return []
    mode, title = launch_mode(facts)
    version = facts.horovod.version
    hit = [cve for cve in known("security")["cves"] if mode in cve["modes"] and is_affected(version, cve["affected"])]
    values = {"version": version, "title": title, "ids": ", ".join(cve["id"] for cve in hit)}
    what = "; ".join(f"{cve['id']}: {cve['what']}" for cve in hit)
    return [ranks.outcome("vulnerabilities", "affected" if hit else "pass", what=what, **values)]


def launch_mode(facts: RankFacts) -> tuple[str, str]:
    """How the ranks were launched, as far as it matters here; variables of another launcher do not tell it."""
    started_by = facts.started.launcher if facts.started else ""
    for mode in known("security")["modes"]:
        is_set = facts.environment.get(mode["variable"]) not in {None, mode.get("off")}
        if is_set and mode.get("launcher", "") in {"", started_by or mode.get("launcher")}:
            return mode["mode"], mode["title"]
    return "", "this launcher"


def is_affected(version: str, affected: str) -> bool:
    """Say whether a version is one of those that a weakness is known of."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(affected, prereleases=True).contains(version)


CHECKS = (vulnerabilities,)
