"""The job of a CI that this process runs in, as the job's own variables tell it; no variable of a secret is read."""

import re
from collections.abc import Mapping

from envkit.cache.manifest import Ci, rules
from envkit.errors import UsageProblem

FORMS = {
    "repository": re.compile(r"https?://[\w.-]+(:\d+)?(/[\w.~+-]+)+", re.ASCII),  # with no user and no question in it
    "commit": re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII),
    "run": re.compile(r"https?://[\w.-]+(:\d+)?(/[\w.~+-]+)+", re.ASCII),
}


def job(env: Mapping[str, str]) -> Ci:
    """Return the job that a process runs in. Raises UsageProblem where it runs in none, or that does not say enough."""
    for kind, variables in rules()["ci"].items():
        if env.get(variables["known_by"]) == "true":
            return Ci(kind=kind, **{part: told(kind, variables[part], form, env) for part, form in FORMS.items()})
    names = [f"{table['known_by']} ({kind})" for kind, table in rules()["ci"].items()]
    raise UsageProblem(
        what=f"--from-ci is for jobs of {' and '.join(rules()['ci'])}, and this is none.",
        why=f"None of the variables by which such a job is known is 'true' here: {', '.join(names)}.",
        fix="Leave --from-ci out to push from here; hand the job's variables on to a container that the job starts.",
    )


def told(kind: str, text: str, form: re.Pattern[str], env: Mapping[str, str]) -> str:
    """Return what variables make, where that is of a form. Raises UsageProblem, which does not show them."""
    names = re.findall(r"\{(\w+)\}", text)
    value = text.format_map({name: env.get(name, "") for name in names})
    if all(map(env.get, names)) and form.fullmatch(value):
        return value
    unset = [name for name in names if not env.get(name)]
    odd = f"{' and '.join(names)}: a whole commit, or a URL without a user in it, is expected, as {kind} sets them."
    raise UsageProblem(
        what=f"This job of {kind} does not say what it is.",
        why=f"{' and '.join(unset)} must be set." if unset else odd,
        fix="Hand these variables on as the job has them, or leave --from-ci out.",
    )
