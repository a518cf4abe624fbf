"""GPUs and systems by the names that people give them: RTX 4090, A100-SXM4-80GB, ubuntu22.04."""

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache

from envkit.compat.evidence import known as components
from envkit.compat.judge import checked, written
from envkit.errors import UsageProblem
from envkit.knowledge.known import known

NUMBER = re.compile(r"\d+(\.\d+)*")
SIZE = re.compile(r"\d+gi?b")
SYSTEM = re.compile(r"(.*?[a-z])[\s:=_-]*(\d.*)?")


def gpu(text: str) -> Mapping[str, str]:
    """Return the compute capability or the architecture of a GPU, and the machine type that alone has it.

    Raises UsageProblem where the name is none, or one of several GPUs.
    """
    number = written("capability", text)
    if NUMBER.fullmatch(number):
        number = checked("capability", number)
        only = {model.get("machine") for model in known("gpu")["model"] if model.get("capability") == number}
        machine = only.pop() if len(only) == 1 else None
        return {"capability": number} | ({"machine": machine} if machine else {})
    if text.lower() in components().component["gfx"].names:
        return {"gfx": text.lower()}
    for name in readings(text):
        if name in models():
            return {key: value for key, value in models()[name].items() if key != "names"}
    listed = {plain(name): name for model in known("gpu")["model"] for name in model["names"]}
    near = [listed[alike] for alike in difflib.get_close_matches(next(iter(readings(text)), ""), listed, 3)]
    raise UsageProblem(
        what=f"gpu={text}: no GPU of that name is known{', or several are' if near else ''}.",
        why=f"The nearest: {', '.join(near)}." if near else "",
        fix="Name it as nvidia-smi does, such as gpu=A100, or give its compute capability "
        "(nvidia-smi --query-gpu=compute_cap), such as capability=9.0, or gfx=gfx90a.",
    )


@cache
def models() -> Mapping[str, Mapping[str, str]]:
    """Return what is known of each GPU, by its plain name."""
    return {plain(name): model for model in known("gpu")["model"] for name in model["names"]}


def plain(text: str) -> str:
    """Return a name without its brand, spaces and case: rtx4090 for NVIDIA GeForce RTX 4090."""
    return "".join(word for word in words(text) if word not in known("gpu")["names"]["brands"])


def words(text: str) -> list[str]:
    """Return the words of a name."""
    return re.findall(r"[a-z0-9]+", text.lower())


def readings(text: str) -> Iterator[str]:
    """Yield the plain name, and the same without one word after another that tells a form: SXM4, 80GB, Ti, Laptop."""
    rest = [word for word in words(text) if word not in known("gpu")["names"]["brands"]]
    yield "".join(rest)
    while rest and (rest[-1] in known("gpu")["names"]["forms"] or SIZE.fullmatch(rest[-1])):
        rest.pop()
        yield "".join(rest)
    whole = re.fullmatch(r"(.*?\d)(ti|super|tisuper)", "".join(rest))
    if whole:
        yield whole[1]


def system(text: str) -> str:
    """Return the glibc that a system has, or that version of it. Raises UsageProblem where it is not known."""
    text = text.strip().lower()
    if NUMBER.fullmatch(text):
        return checked("glibc", text)
    systems = {name: entry["glibc"] for entry in known("systems")["system"] for name in entry["names"]}
    for releases in systems.values():
        if text in releases:
            return str(releases[text])
    match = SYSTEM.fullmatch(text)
    own_releases = systems.get(match[1].strip()) if match else None
    release = re.sub(r"[\s_-]", "", match[2] or "") if match else ""
    for version in (release, release.rpartition(".")[0]):
        if own_releases and version in own_releases:
            return str(own_releases[version])
    listed = ", ".join(own_releases) if own_releases else ", ".join(systems)
    raise UsageProblem(
        what=f"os={text}: envkit does not know its glibc.",
        why=f"Of {match[1].strip()} it knows: {listed}." if own_releases and match else f"It knows: {listed}.",
        fix="Write glibc=VERSION; ldd --version prints it.",
    )
