"""``envkit compat``."""

import click

from envkit.cli import echo_json


@click.command()
@click.argument("versions", metavar="[NAME=VERSION]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compat(versions: tuple[str, ...], as_json: bool) -> int:
    """Say whether versions go together with Horovod, by what evidence, and which complete combination is best here.

    Such as torch=2.13 cuda=13 gcc=12 python=3.11, where 2 would stand for any 2.x. It works where somebody is known to
    have had all of it together. Ends with 0 if it is known to work, with 1 if it is known to fail, with 9 if it is
    risky or nobody knows.

    Names: horovod, torch, tensorflow, mxnet, keras, python, numpy, gcc, cmake, pip, flatbuffers, cuda, cudnn, nccl,
    rocm, capability, cray-mpich, openmpi, mpich, impi, spark, machine. Also: torch==2.13, cu130, gpu=h100, arch=arm64.
    """
    import sys

    from envkit.compat import complete, judge, report, terminal
    from envkit.machine import host
    from envkit.planning import compatibility
    from envkit.report.paper import Paper

    asked = judge.parse(versions)
    found, best = judge.judge(asked), complete.best(asked, compatibility.here(host.look()))
    if as_json:
        echo_json(report.to_json(found, best))
    else:
        sys.stdout.write(terminal.render(found, best, Paper.of(sys.stdout)))
    return report.CODES[found.verdict]
