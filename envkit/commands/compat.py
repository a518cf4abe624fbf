"""``envkit compat``."""

import click

from envkit.cli import echo_json


@click.command()
@click.argument("versions", metavar="[NAME=VERSION]...", nargs=-1)
@click.option(
    "--from", "file", metavar="FILE", help="Read versions from the output of pip freeze, conda list or module list."
)
@click.option("--here", is_flag=True, help="Check what is installed and loaded here now.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compat(versions: tuple[str, ...], file: str | None, here: bool, as_json: bool) -> int:
    """Check whether versions work together with Horovod, on what evidence, and which complete combination is best here.

    For example torch=2.13 cuda=13 gcc=12 python=3.11; a version 2 stands for any 2.x. The verdict is 'works' only if
    somebody is known to have had all of it together. Ends with 0 if it is known to work, with 1 if it is known to fail,
    with 9 if it is risky or not known.

    Names: horovod, torch, tensorflow, mxnet, keras, python, numpy, gcc, cmake, pip, flatbuffers, cuda, cudnn, nccl,
    rocm, capability, gfx, driver, glibc, protobuf, cray-mpich, openmpi, mpich, impi, spark, machine. Also: torch==2.13,
    cu130, arch=arm64; gpu=h100, gpu='RTX 4090' or gpu=mi250x; driver=535.104 and os=ubuntu22.04: with a GPU of NVIDIA
    they only limit, as protobuf does, for no evidence names them; 'torch>=2.1,<2.3', for the newest version in it that
    is known to work; foss=2023a, a toolchain of EasyBuild (foss, gompi, intel, iimpi), for its compiler, MPI, Python.
    """
    import sys
    from pathlib import Path

    from envkit.compat import report, terminal
    from envkit.doctor.combination import answer
    from envkit.report.paper import Paper

    result = answer(versions, Path(file) if file else None, here=here)
    judgement, ranges = result.judgement, result.asked.ranges
    if here and "horovod" not in result.asked.parts:
        click.echo(f"envkit: Horovod is not installed here; judged with {judgement.parts['horovod']}.", err=True)
    if as_json:
        echo_json(report.to_json(judgement, result.best, ranges))
    else:
        sys.stdout.write(terminal.render(judgement, result.best, Paper.of(sys.stdout), ranges))
    return report.CODES[judgement.verdict]
