"""Images: entering one, building one anew where Horovod's version alone differs, and how large they are.

    python benchmarks/images.py [start|rebuild|size]...

``start`` and ``size`` look at the images of pytorch-2.13-cpu, pytorch-2.13-cuda and tensorflow-2.13-rocm that are in
$ENVKIT_PREFIX; ``rebuild`` builds the first of them from nothing in a prefix of its own. ``size`` builds the same as
naive.def has it, in an hour and 35 GB of $APPTAINER_TMPDIR. Ends with 1 if a claim does not hold.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from timing import ENVKIT, seconds, side_by_side

from envkit import build, definition, fetch, files, host, prefix, receipt, runtime
from envkit.methods.apptainer import PIN, Base, Wanted, mirror, pinned, plan
from envkit.prefix import Prefix
from envkit.provide.image import ImageWork
from envkit.receipt import ImageReceipt
from envkit.request import Request
from envkit.resources import data, recipes
from envkit.sources.pipconfig import pip_settings
from envkit.stack import Stack, stacks

IMAGE = "pytorch-2.13-cpu-image"
OTHER = "0.28.1.post1"
START_S, REBUILD = 0.120, 0.40
NAIVE = Path(__file__).with_name("naive.def")
SIZES = Path(__file__).with_name("sizes.toml")


def main() -> int:
    """Measure what is asked for, or all of it."""
    parts = {"start": start, "rebuild": rebuild, "size": size}
    return sum(parts[name]() for name in sys.argv[1:] or parts)


def start() -> int:
    """Entering an image over plain Apptainer."""
    found = installed(IMAGE)
    env = found.environment.variables(os.environ)
    ours, theirs, _ = side_by_side(
        lambda: seconds([ENVKIT, "run", IMAGE, "--", "true"], os.environ)[0],
        lambda: seconds([found.runtime, "exec", found.image, "true"], env)[0],
        15,
    )
    over = ours - theirs
    print(f"entering {IMAGE}: {ours:.3f} s against {theirs:.3f} s, {over * 1000:.0f} ms more", verdict(over, START_S))
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
    stack = named(IMAGE)
    arguments = {**stack.arguments, "HOROVOD": version}
    work = planned(msgspec.structs.replace(stack, name=f"horovod-{version}", arguments=arguments), place, folder)
    fetch.fetch(work.sources, place.sources, offline=False, progress=lambda _: None)
    began = time.monotonic()
    work.build(build.new_log_folder(place, work.stack.name), Console(file=sys.stderr))
    return time.monotonic() - began


def planned(stack: Stack, place: Prefix, folder: Path) -> ImageWork:
    """Return what it takes to build a stack's image in a prefix, by recipes in a folder."""
    place.create()
    machine = host.look()
    tree = place.tree(machine.platform)
    own = {"PIP": "--no-index --find-links=/mnt", "JOBS": str(build.jobs(0)), "PROBE": str(data("verify/probe"))}
    layers = plan(wanted(stack, own, folder), tree.layers)
    return ImageWork(
        request=Request(prefix=place), stack=stack, host=machine, runtime=runtime.demand(), plan=layers, tree=tree
    )


def wanted(stack: Stack, own: Mapping[str, str], folder: Path) -> Wanted:
    """Return the recipe of a stack with its arguments, on a Debian from this host's mirror."""
    return Wanted(
        name=stack.name,
        recipe=stack.recipe,
        arguments=stack.arguments,
        own=own,
        base=Base(bootstrap="debootstrap", reference=mirror() or ""),
        machine=os.uname().machine,
        folder=folder,
    )


def size() -> int:
    """Each image against the same software installed naively in one stage."""
    return sum(compared(name, **row) for name, row in tomllib.loads(SIZES.read_text()).items())


def compared(name: str, naive: Mapping[str, str], at_most: float = 0, like: str = "", recipe: str = "") -> bool:
    """Print the sizes of an image and of the naive one; return whether it is larger than claimed."""
    stack = named(like or name)
    if recipe:
        stack = msgspec.structs.replace(stack, name=name, recipe=recipe, arguments={})
    ours = built(stack) if recipe else installed(name).size
    theirs, debs, wheels = built_naively(stack, naive)
    ratio = ours / theirs
    said = verdict(ratio, at_most) if at_most else f"{ratio:.3f}"
    print(f"{name}: {ours / 1e6:.0f} MB against {theirs / 1e6:.0f} MB installed naively, ratio {said}")
    print(f"  in that, apt has kept {debs / 1e6:.0f} MB, without which {ours / (theirs - debs):.3f}", end="")
    print(f"; pip {wheels / 1e6:.0f} MB", flush=True)
    return 0 < at_most < ratio


def built(stack: Stack) -> int:
    """Build an image in a prefix of its own; return its size (bytes)."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as name:
        place = Prefix(root=Path(name))
        work = planned(stack, place, recipes("containers"))
        work.build(build.new_log_folder(place, stack.name), Console(file=sys.stderr))
        return work.image.image.stat().st_size


def built_naively(stack: Stack, more: Mapping[str, str]) -> tuple[int, int, int]:
    """Build naive.def with the software of a stack; return the size of that, and of what apt and pip kept (bytes)."""
    recipe = wanted(stack, {}, recipes("containers"))
    values, (one,) = recipe.values(recipe.stages), definition.read(NAIVE)
    pins = (PIN.match(line) for line in (recipe.folder / values["WHEELS"]).read_text().splitlines())
    words = [f"{pin['name']}==={pin['version']}" for pin in pins if pin and pin["machine"] in (None, recipe.machine)]
    values |= {
        "MIRROR": recipe.base.reference,
        "ACCELERATOR": stack.accelerator.value,
        "FLAGS": " ".join(stack.requires),
        "REQUIREMENTS": " ".join(words),
        "JOBS": str(build.jobs(0)),
        "PROBE": str(data("verify/probe")),
        **more,
    }
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as name:
        arguments, image = Path(name) / "arguments", Path(name) / "naive.sif"
        arguments.write_text("".join(f"{name}={values[name]}\n" for name in one.arguments if name in values))
        binds = [f"--bind={source}:{target}" for source, target in pip_of_this_host(Path(name) / "pip")]
        said = packed([*binds, "--build-arg-file", str(arguments)], image)
        debs, wheels = (int(found) for found in re.findall(r"^(\d+)\t/(?:var|root)/", said, re.MULTILINE))
        return image.stat().st_size, debs, wheels


def pip_of_this_host(folder: Path) -> list[tuple[Path, str]]:
    """Write a pip.conf that says in an image what pip is told here; return what to bind, and where.

    An index that is a folder is left out.
    """
    settings = pip_settings()
    links = [Path(link) for link in settings.find_links if Path(link).is_dir()]
    said = {
        "index-url": settings.index_urls[0],
        "extra-index-url": " ".join(url for url in settings.index_urls[1:] if not url.startswith("file:")),
        "find-links": " ".join(f"/mnt/{number}" for number, _ in enumerate(links)),
        "trusted-host": " ".join(settings.trusted_hosts),
        "proxy": settings.proxy or "",
        "timeout": str(settings.timeout_s),
        "cert": "/mnt/cert" if settings.cert else "",
    }
    folder.mkdir()
    for number, _ in enumerate(links):
        (folder / str(number)).mkdir()
    if settings.cert:
        shutil.copyfile(settings.cert, folder / "cert")
    lines = [f"{name} = {value}" for name, value in said.items() if value]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return [(folder, "/mnt"), *((link, f"/mnt/{number}") for number, link in enumerate(links))]


def packed(words: list[str], image: Path) -> str:
    """Build naive.def; return what Apptainer said. Ends with the end of that if it fails."""
    argv = [str(runtime.demand().path), "build", *runtime.build_words(), *words, str(image), str(NAIVE)]
    done = subprocess.run(
        argv, cwd=NAIVE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode:
        sys.exit(f"{image.name} was not built:\n{done.stdout[-3000:]}")
    return done.stdout


def named(name: str) -> Stack:
    """Return a stack."""
    return next(stack for stack in stacks() if stack.name == name)


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
