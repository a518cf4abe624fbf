"""How often ``envkit diagnose`` finds the same cause after a log went through a launcher, a terminal or a collector.

    python -m tests.diagnose_changes [--show CHANGE]

changes each log of ``diagnose_threads.toml`` and each example of a rule in every way, and prints how often the first
cause is the one that it was. What is not found before the change is left out.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

from envkit.diagnose import first_cause, rules
from tests.diagnose_recall import threads

Change = Callable[[Sequence[str]], Sequence[str]]
DATE = "Tue Nov  1 14:02:25 2022"


def tagged(tag: str) -> Change:
    """Return what puts a tag in front of each line."""
    return lambda lines: [tag + line for line in lines]


def interleaved(*tags: str) -> Change:
    """Return what mixes the output of ranks that say the same, line by line, each with a tag of its own."""
    return lambda lines: [tag + line for line in lines for tag in tags]


def beside(first: str, second: str) -> Change:
    """Return what mixes the output of a rank, line by line, with that of one to which nothing happens."""
    return lambda lines: [said for line in lines for said in (second + "step 4 loss 0.2", first + line)]


TAGS: Mapping[str, Change] = {
    "Open MPI --tag-output": tagged("[1,0]<stderr>:"),
    "Open MPI 5 --output tag": tagged("[1,0]<stderr>: "),
    "Open MPI 5 --output tag-fullname": tagged("[prterun-n1-4711@1,0]<stderr>: "),
    "Open MPI 5 --output tag-detailed": tagged("[1,0][n1:4711]<stderr>: "),
    "Open MPI --timestamp-output": tagged(f"{DATE}<stderr>:"),
    "Open MPI --tag-output --timestamp-output": tagged(f"{DATE}[1,0]<stdout>:"),
    "horovodrun": tagged("[0]<stderr>:"),
    "horovodrun --prefix-output-with-timestamp": tagged(f"{DATE}[0]<stderr>:"),
    "horovodrun over mpirun": tagged("[1,0]<stdout>:"),
    "Hydra -l": tagged("[0] "),
    "srun --label": tagged("0: "),
    "srun --label, many tasks": tagged("  17: "),
    "torchrun --tee": tagged("[default0]:"),
    "PyTorch's excepthook": tagged("[rank0]: "),
    "Ray": tagged("(train_fn pid=4711, ip=10.0.0.7) "),
    "kubectl --timestamps": tagged("2024-05-06T07:08:09.123456789Z "),
    "kubectl --prefix": tagged("[pod/train-worker-0/worker] "),
    "kubectl --timestamps, horovodrun": tagged("2024-05-06T07:08:09.123456789Z [1,0]<stderr>:"),
    "containerd's file": tagged("2024-05-06T07:08:09.123456789+02:00 stderr F "),
    "SageMaker's mpirun": tagged("[1,mpirank:0,algo-1]<stderr>:"),
    "BuildKit": tagged("#12 34.56 "),
    "docker compose": tagged("worker-1  | "),
    "journalctl": tagged("May  6 07:08:09 n1 train[4711]: "),
    "ts": tagged("May 06 07:08:09 "),
    "GitLab": tagged("2024-05-06T07:08:09.123456Z 01O "),
    "Slurm's timestamp": tagged("[2024-05-06T07:08:09.123] "),
}
FORMS: Mapping[str, Change] = {
    "CRLF": lambda lines: [line + "\r" for line in lines],
    "coloured lines": lambda lines: [f"\x1b[31m{line}\x1b[0m" for line in lines],
    "coloured words": lambda lines: [line.replace(" ", " \x1b[1;33m\x1b[K").replace(":", "\x1b[m:") for line in lines],
    "coloured tag": tagged("\x1b[36m[1,0]<stderr>:\x1b[0m"),
    "two ranks": interleaved("", ""),
    "two ranks, Open MPI --tag-output": interleaved("[1,0]<stderr>:", "[1,1]<stderr>:"),
    "two ranks, Hydra -l": interleaved("[0] ", "[1] "),
    "two ranks, srun --label": interleaved("0: ", "1: "),
    "eight ranks": interleaved(*[""] * 8),
    "eight ranks, Open MPI --tag-output": interleaved(*(f"[1,{rank}]<stderr>:" for rank in range(8))),
    "eight ranks, srun --label": interleaved(*(f"{rank}: " for rank in range(8))),
    "beside a rank that is well": beside("", ""),
    "beside a rank that is well, Open MPI --tag-output": beside("[1,0]<stderr>:", "[1,1]<stdout>:"),
    "beside a rank that is well, srun --label": beside("0: ", "1: "),
}
HALF = "only the second half"
CHANGES = {**TAGS, **FORMS}


def verdict(lines: Sequence[str]) -> tuple[str, int]:
    """Return the first cause of a log and its line, or nothing."""
    found = first_cause(["\n".join([*lines, ""]).encode()])
    return (found.rule.id, found.number) if found else ("", 0)


def corpus() -> Mapping[str, Sequence[str]]:
    """Return the logs in which something is found: those of public threads, and the examples of rules."""
    logs = {thread.address: thread.log for thread in threads()}
    logs |= {rule.id: rule.example.strip("\n") for rule in rules() if not rule.quiet}
    return {name: log.split("\n") for name, log in logs.items() if verdict(log.split("\n"))[0]}


def changed(change: Change, logs: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each log whose first cause is another after a change, with the cause before and after."""
    for name, lines in logs.items():
        before, after = verdict(lines)[0], verdict(change(lines))[0]
        if before != after:
            yield name, before, after


def halved(logs: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the logs of at least four lines whose cause stands in their second half."""
    return {name: lines for name, lines in logs.items() if len(lines) > 3 and verdict(lines)[1] > len(lines) // 2}


def main() -> None:
    """Print how often the cause stays the same, for each change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", choices=[*CHANGES, HALF], help="show the logs whose cause is another then")
    shown, logs = parser.parse_args().show, corpus()
    tables = [(name, change, logs) for name, change in CHANGES.items()]
    tables.append((HALF, lambda lines: lines[len(lines) // 2 :], halved(logs)))
    for name, change, some in tables:
        if shown in (None, name):
            other = [*changed(change, some)]
            share = 100 * (1 - len(other) / len(some))
            print(f"{name:<50} {len(some) - len(other):>5} of {len(some)}  {share:.1f} %")
            for one in other if shown else []:
                print("   ", *one)


if __name__ == "__main__":
    main()
