"""Run kinds in worlds of their own, and print a table of how right the verdicts are.

python -m tests.zoo --prefix P [--stack S] [--set dev|held-out|all] [--seed N] [--sample K] [--group G] [--kind NAME]
[--envkit PATH] [--json FILE] [--no-repair] [--pairs K]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .kinds import Kind, every, is_held_out
from .world import interpreter, remove

HERE = Path(__file__).parent
WHOLE_S = 1800
EXTRAS = Path.home() / ".cache" / "envkit-tests" / "zoo"
PACKAGES = ("mpich", "libmpich12", "libslurm38", "libhwloc15", "faketime", "libfaketime")
FIRST = 3
MANIFEST = """
import json, sys
from pathlib import Path
try:
    from envkit.environments import manifest
except ImportError:
    sys.exit(0)
from envkit.environments.prefix import Tree
for path in Path(sys.argv[1]).glob("*/environments/*.json"):
    told = json.loads(path.read_text())
    for module in told.get("modules", ()):
        manifest.write(Tree(root=Path(told["tree"])), module["name"])
"""


def main() -> int:
    """Run what is asked for; 1 where a verdict is wrong."""
    given = arguments()
    work = Path(tempfile.mkdtemp(prefix="zoo-", dir=given.worlds))
    work.chmod(0o755)
    try:
        return run(given, work)
    finally:
        remove(work)


def arguments() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description="Score the verdicts on broken worlds.")
    parser.add_argument("--prefix", type=Path, required=True, help="where the environments are: never changed")
    parser.add_argument("--stack", default="pytorch-2.13-cpu")
    parser.add_argument("--set", choices=["dev", "held-out", "all"], default="dev")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, help="so many of them, by the seed")
    parser.add_argument("--each", type=int, help="at most so many of each group, by the draw")
    parser.add_argument("--again", type=Path, help="also what was wrong in a file that --json has written")
    parser.add_argument("--shuffle", action="store_true", help="some of each group first, then the rest in any order")
    parser.add_argument("--until", help="begin no case after this time of the day: HH:MM, of today or, early, tomorrow")
    parser.add_argument("--draw", type=int, default=0, help="which samples are taken")
    parser.add_argument("--group", help="a pattern")
    parser.add_argument("--kind", action="append", help="a pattern of names, or a name")
    parser.add_argument("--pairs", type=int, default=0, help="so many pairs of two at once")
    parser.add_argument("--envkit", type=Path, default=Path(sys.executable).with_name("envkit"))
    parser.add_argument("--json", type=Path, help="where all that was found is written, after each case")
    parser.add_argument("--no-repair", action="store_true")
    parser.add_argument("--rebuilds", type=int, default=1000, help="at most so many remedies that build in a group")
    parser.add_argument("--oracle", action="store_true", help="only say whether a small job works in these worlds")
    parser.add_argument(
        "--extras", type=Path, default=EXTRAS, help="MPICH and faketime, unpacked; fetched if not there"
    )
    parser.add_argument("--worlds", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="name no kind")
    return parser.parse_args()


def run(given: Any, work: Path) -> int:
    """Run the cases one after another."""
    fetch(given.extras)
    used = files_used(given, work)
    (work / "used.json").write_text(json.dumps(used))
    names = chosen(given, used)
    if given.list:
        print("\n".join(names))
        return 0
    lower = prepared(given, work)
    records: list[dict[str, Any]] = []
    built: Counter[str] = Counter()
    group_of = {kind.name: kind.group for kind in every(used, given.seed)}
    for number, name in enumerate(names):
        if given.until and is_past(given.until):
            break
        began = time.monotonic()
        group = group_of.get(name, "two at once")
        record = case(given, work, name, number, lower, given.rebuilds - built[group])
        built[group] += int(bool(record.get("builds") and "second" in record))
        record["wall"] = round(time.monotonic() - began, 1)
        records.append(record)
        if not given.quiet:
            print(f"{number + 1}/{len(names)} {record['wall']:6.1f} s {outcome(record):28} {name}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(records, indent=1))
    print(table(records))
    return int(any(record.get("score") not in FINE for record in records))


def fetch(folder: Path) -> None:
    """Unpack what some kinds need from Debian's packages, where they can be had; the machine itself stays as it is."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        for package in PACKAGES:
            subprocess.run(["apt-get", "download", package], cwd=place, capture_output=True, check=False)
        for file in Path(place).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", file, folder], capture_output=True, check=False)


def is_past(moment: str) -> bool:
    """Whether a time of the day is over; one in the first hours is tomorrow's where it is evening."""
    now = time.strftime("%H:%M")
    return now >= moment and not (moment < "06:00" and now > "18:00")


def chosen(given: Any, used: list[str]) -> list[str]:
    """The names of the kinds to run."""
    framework = given.stack.partition("-")[0]
    kinds = [kind for kind in every(used, given.seed) if framework in kind.stacks and is_asked(given, kind)]
    names = [kind.name for kind in kinds]
    dice = random.Random(given.draw)
    if given.pairs:
        broken = [k.name for k in kinds if not k.harmless and k.mended == "run" and not k.during]
        return ["&".join(dice.sample(broken, 2)) for _ in range(given.pairs)]
    wrong = was_wrong(given.again) if given.again else set()
    if given.each:
        mixed = dice.sample(kinds, len(kinds))
        groups = {kind.group for kind in kinds}
        few = {kind.name for group in groups for kind in [k for k in mixed if k.group == group][: given.each]} | wrong
        names = [name for name in names if name in few]
    if given.sample and given.sample < len(names):
        keep = set(dice.sample(names, given.sample))
        names = [name for name in names if name in keep]
    if given.shuffle:
        dice.shuffle(names)
        group_of = {kind.name: kind.group for kind in kinds}
        seen: Counter[str] = Counter()
        place = {}
        for name in names:
            place[name] = seen[group_of[name]] // FIRST
            seen[group_of[name]] += 1
        names.sort(key=lambda name: min(place[name], 1))
    return names


def was_wrong(file: Path) -> set[str]:
    """The kinds of earlier records that were not as they should be."""
    return {
        record["name"]
        for record in json.loads(file.read_text())
        if record["score"] not in FINE
        or (record.get("true") and record.get("mended") is False)
        or record.get("traceback")
        or left(record)
    }


def is_asked(given: Any, kind: Kind) -> bool:
    """Whether a kind is of the set, the group and the names asked for, and can be made here."""
    if kind.needs and not (given.extras / kind.needs).exists():
        return False
    if given.kind:
        return any(fnmatch.fnmatchcase(kind.name, pattern) for pattern in given.kind)
    if given.group and not fnmatch.fnmatchcase(kind.group, given.group):
        return False
    return bool(given.set == "all" or is_held_out(kind.name) == (given.set == "held-out"))


def files_used(given: Any, work: Path) -> list[str]:
    """The files that a rank of Horovod loads."""
    framework = "torch" if given.stack.startswith("pytorch") else "tensorflow"
    argv = [given.envkit, "run", given.stack, "--", "python", HERE / "used.py", framework]
    env = {**os.environ, "ENVKIT_PREFIX": str(given.prefix), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, cwd=work)
    return list(json.loads(done.stdout.splitlines()[-1]))


def prepared(given: Any, work: Path) -> list[Path]:
    """A layer over the prefix with what this envkit writes about modules when they are built, once for all worlds."""
    layer = work / "manifests"
    for name in ("upper", "work"):
        (layer / name).mkdir(parents=True)
    script = (
        f"mount -t overlay zoo -o lowerdir={given.prefix},upperdir={layer}/upper,workdir={layer}/work {given.prefix} "
        "&& "
        f'exec {interpreter(given.envkit)} -I -c "$1" {given.prefix}'
    )
    subprocess.run(["unshare", "-m", "bash", "-c", script, "bash", MANIFEST], check=True)
    shutil.rmtree(layer / "work", ignore_errors=True)
    return [layer / "upper"] if any((layer / "upper").iterdir()) else []


def case(given: Any, work: Path, name: str, number: int, lower: list[Path], rebuilds: int) -> dict[str, Any]:
    """Run one case in namespaces of its own."""
    folder, file = work / f"w{number}", work / "record.json"
    folder.mkdir()
    file.unlink(missing_ok=True)
    root = [] if os.geteuid() == 0 else ["-Ur"]
    argv = ["unshare", *root, "-m", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child"]
    argv += [
        sys.executable,
        "-m",
        "tests.zoo.case",
        "--kind",
        name,
        "--stack",
        given.stack,
        "--prefix",
        str(given.prefix),
    ]
    argv += ["--envkit", str(given.envkit.absolute()), "--folder", str(folder), "--extras", str(given.extras)]
    argv += ["--record", str(file), "--used", str(work / "used.json"), "--seed", str(given.seed)]
    argv += [word for layer in lower for word in ("--lower", str(layer))] + (["--no-repair"] if given.no_repair else [])
    argv += ["--oracle"] if given.oracle else []
    argv += [] if rebuilds > 0 else ["--no-rebuild"]
    try:
        done = subprocess.run(argv, cwd=HERE.parents[1], capture_output=True, text=True, timeout=WHOLE_S, check=False)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        said = "the case did not end"
    remove(folder)
    if not file.exists():
        return {"name": name, "group": "?", "defect": said[-4000:], "score": "defect"}
    record = dict(json.loads(file.read_text()))
    record.setdefault("name", name)
    if "defect" in record:
        record |= {"group": "?", "score": "defect"}
    return record


def outcome(record: dict[str, Any]) -> str:
    """A case in a few words."""
    words = [record.get("score", "?")]
    if record.get("how"):
        words.append(
            "mended" if record.get("mended") else "not tried" if record.get("mended") is None else "not mended"
        )
    if record.get("traceback"):
        words.append("TRACEBACK")
    if record.get("first", {}).get("hung"):
        words.append("HUNG")
    if left(record):
        words.append("LEFT")
    return ", ".join(words)


def left(record: dict[str, Any]) -> list[str]:
    """What a case left behind."""
    runs = [record.get("first", {}), record.get("second", {})]
    return [word for one in runs for word in (*one.get("processes_left", ()), *one.get("folders_left", ()))]


FINE = ("right", "pass", "works anyway", "disputed", "apart")
COLUMNS = (
    "kinds",
    "cause",
    "by run",
    "of",
    "by words",
    "of",
    "false PASS",
    "false FAIL",
    "traceback",
    "hung",
    "left",
    "defect",
    "slowest",
)


def table(records: list[dict[str, Any]]) -> str:
    """The score by group."""
    groups = sorted({record["group"] for record in records})
    lines = [f"{'group':36}" + "".join(f"{name:>11}" for name in COLUMNS)]
    for group in [*groups, "all"]:
        of = [record for record in records if group in ("all", record["group"])]
        if group == "all":
            of = [record for record in of if not record["group"].startswith("apart")]
        broken = [record for record in of if record.get("true")]
        by_run = [record for record in broken if record.get("how") == "run"]
        by_words = [record for record in broken if record.get("how") == "words"]
        counts = [
            len(of),
            f"{sum(record.get('score') == 'right' for record in broken)}/{len(broken)}",
            sum(bool(record.get("mended")) for record in by_run),
            len(by_run),
            sum(bool(record.get("mended")) for record in by_words),
            len(by_words),
            sum(record.get("score") == "false pass" for record in of),
            sum(record.get("score") == "false fail" for record in of),
            sum(bool(record.get("traceback")) for record in of),
            sum(bool(record.get("first", {}).get("hung")) for record in of),
            sum(bool(left(record)) for record in of),
            sum("defect" in record for record in of),
            max((record.get("first", {}).get("seconds", 0) for record in of), default=0),
        ]
        lines.append(f"{group:36}" + "".join(f"{count!s:>11}" for count in counts))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
