"""Images: entering one, building one anew where Horovod's version alone differs, and how large they are.

    python benchmarks/images.py [start|rebuild|size]...

``start`` and ``size`` look at the images of pytorch-2.13-cpu, pytorch-2.13-cuda and tensorflow-2.13-rocm that are in
$ENVKIT_PREFIX; ``rebuild`` builds the first of them from nothing in a prefix of its own. Ends with 1 if a claim does
not hold.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from timing import ENVKIT, seconds, side_by_side

from envkit import build, fetch, files, host, prefix, receipt, runtime
from envkit.methods.apptainer import Base, Wanted, mirror, pinned, plan
from envkit.prefix import Prefix
from envkit.provide.image import ImageWork
from envkit.receipt import ImageReceipt
from envkit.request import Request
from envkit.resources import data, recipes
from envkit.stack import stacks

IMAGES = ("pytorch-2.13-cpu-image", "pytorch-2.13-cuda-image", "tensorflow-2.13-rocm-image")
OTHER = "0.28.1.post1"
START_S, REBUILD = 0.120, 0.40
SIZES = {IMAGES[0]: 0.75, IMAGES[1]: 0.55, IMAGES[2]: 0.60}


def main() -> int:
    """Measure what is asked for, or all of it."""
    parts = {"start": start, "rebuild": rebuild, "size": size}
    return sum(parts[name]() for name in sys.argv[1:] or parts)


def start() -> int:
    """Entering an image over plain Apptainer."""
    found = installed(IMAGES[0])
    env = found.environment.variables(os.environ)
    ours, theirs, _ = side_by_side(
        lambda: seconds([ENVKIT, "run", IMAGES[0], "--", "true"], os.environ)[0],
        lambda: seconds([found.runtime, "exec", found.image, "true"], env)[0],
        15,
    )
    over = ours - theirs
    print(
        f"entering {IMAGES[0]}: {ours:.3f} s against {theirs:.3f} s, {over * 1000:.0f} ms more", verdict(over, START_S)
    )
    return int(over > START_S)


def rebuild() -> int:
    """A build where Horovod's version alone differs, against the first."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as name:
        place = Prefix(root=Path(name) / "prefix")
        folder = recipes_of_both(Path(name), place)
        first, second = (timed(folder, place, version) for version in ("0.28.1", OTHER))
    ratio = second / first
    print(
        f"a build for another version: {second:.0f} s against {first:.0f} s, ratio {ratio:.3f}", verdict(ratio, REBUILD)
    )
    return int(ratio > REBUILD)


def recipes_of_both(folder: Path, place: Prefix) -> Path:
    """Copy the recipes, with what a second version of Horovod needs; return their folder.

    That version is the first with another number and a changed source: 0.28.0 compiles with no compiler of today.
    """
    for kind in ("containers", "easyconfigs"):
        shutil.copytree(recipes(kind), folder / kind)
    for patch in (folder / "easyconfigs").glob("Horovod-0.28.1_*.patch"):
        shutil.copyfile(patch, patch.with_name(patch.name.replace("0.28.1", OTHER)))
    place.create()
    fetch.fetch(
        list(pinned(folder / "containers" / "horovod-0.28.1.txt", os.uname().machine)),
        place.sources,
        offline=False,
        progress=lambda _: None,
    )
    made = place.sources / f"horovod-{OTHER}.tar.gz"
    subprocess.run(["tar", "-xzf", place.sources / "horovod-0.28.1.tar.gz", "-C", folder], check=True)
    top = (folder / "horovod-0.28.1").rename(folder / f"horovod-{OTHER}")
    for name, before, after in (
        ("horovod/__init__.py", "0.28.1", OTHER),
        ("horovod/common/operations.cc", "namespace horovod", "// another version\nnamespace horovod"),
    ):
        source = top / name
        source.write_text(source.read_text().replace(before, after, 1))
    subprocess.run(["tar", "-czf", made, "-C", folder, top.name], check=True)
    pin = f"horovod=={OTHER} --hash=sha256:{files.sha256(made)}  # {made.name}\n"
    (folder / "containers" / f"horovod-{OTHER}.txt").write_text(pin)
    return folder / "containers"


def timed(folder: Path, place: Prefix, version: str) -> float:
    """Build the image for a version of Horovod; return how long it took (s), without fetching."""
    place.create()
    machine, (stack,) = host.look(), [stack for stack in stacks() if stack.name == IMAGES[0]]
    tree = place.tree(machine.platform)
    wanted = Wanted(
        name=f"horovod-{version}",
        recipe=stack.recipe,
        arguments={**stack.arguments, "HOROVOD": version},
        own={"PIP": "--no-index --find-links=/mnt", "JOBS": str(build.jobs(0)), "PROBE": str(data("verify/probe"))},
        base=Base(bootstrap="debootstrap", reference=mirror() or ""),
        machine=machine.machine,
        folder=folder,
    )
    work = ImageWork(
        request=Request(prefix=place),
        stack=stack,
        host=machine,
        runtime=runtime.demand(),
        plan=plan(wanted, tree.layers),
        tree=tree,
    )
    fetch.fetch(work.sources, place.sources, offline=False, progress=lambda _: None)
    began = time.monotonic()
    work.build(build.new_log_folder(place, wanted.name), Console(file=sys.stderr))
    return time.monotonic() - began


def size() -> int:
    """Each image against all that it was made of in one stage, as Apptainer packs it if it is told nothing."""
    failed = 0
    for name, most in SIZES.items():
        found = installed(name)
        with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as folder:
            naive = Path(folder) / "naive.sif"
            last = next(layer for layer in found.layers if layer.name == "build-2")
            below = next((Path(found.tree) / "layers").glob(f"build-2-{last.key[:20]}.sif"))
            argv = [found.runtime, "build", *runtime.build_words(), str(naive), str(below)]
            subprocess.run(argv, check=True, capture_output=True)
            ours, theirs = found.size / 1e6, naive.stat().st_size / 1e6
        print(f"{name}: {ours:.0f} MB against {theirs:.0f} MB in one stage, ratio", verdict(ours / theirs, most))
        failed += ours / theirs > most
    return failed


def installed(name: str) -> ImageReceipt:
    """Return the receipt of an image."""
    found = receipt.find(prefix.locate(None), name)
    assert isinstance(found, ImageReceipt)
    return found


def verdict(value: float, most: float) -> str:
    """Say whether a claim holds."""
    return f"{value:.3f} (at most {most:.3f}): {'holds' if value <= most else 'FAILS'}"


if __name__ == "__main__":
    sys.exit(main())
