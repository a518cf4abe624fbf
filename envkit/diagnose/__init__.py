"""From the log of a build, a launch or a run to the first cause of its failure.

``known`` has what is known, ``scan`` finds in a log what the rules look for, ``place`` looks at the machine, and
``judge`` weighs it all.
"""

from envkit.diagnose.judge import Certainty, Diagnosis, first_cause, first_cause_in, judged, seen_in
from envkit.diagnose.rule import Rule, rules

__all__ = ["Certainty", "Diagnosis", "Rule", "first_cause", "first_cause_in", "judged", "rules", "seen_in"]
