"""Images: entering one, building one anew where Horovod's version alone differs, and how large they are.

    python benchmarks/images.py [start|rebuild|size]...

``start`` looks at the image of pytorch-2.13-cpu that is in $ENVKIT_PREFIX; ``rebuild`` builds that from nothing in a
prefix of its own; ``size`` takes what sizes.toml names, as it is in $ENVKIT_PREFIX, and builds the same by naive.def,
in an hour or two and 40 GB of $APPTAINER_TMPDIR. Ends with 1 if a claim does not hold.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from timing import ENVKIT, seconds, side_by_side

from envkit.apptainer import definition_file
from envkit.apptainer.build import FINAL_LEVEL, SQUASHFS
from envkit.apptainer.image_plan import PIN, Base, ImageRecipe, mirror, pinned, plan
from envkit.apptainer.installation import ImageInstallation
from envkit.apptainer.receipt import ImageReceipt
from envkit.environments import prefix
from envkit.environments.prefix import Prefix
from envkit.machine import host, runtime
from envkit.methods.installed import find
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.sources import fetch
from envkit.sources.pipconfig import pip_settings
from envkit.system import files
from envkit.system.resources import data, recipes

IMAGE = "pytorch-2.13-cpu-image"
OTHER = "0.28.1.post1"
START_S, REBUILD = 0.120, 0.40
NAIVE, SMALL, SIZES = (Path(__file__).with_name(name) for name in ("naive.def", "small.def", "sizes.toml"))


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
    work.build(place.new_log_folder(work.stack.name), Console(file=sys.stderr))
    return time.monotonic() - began


def planned(stack: Stack, place: Prefix, folder: Path) -> ImageInstallation:
    """Return what it takes to build a stack's image in a prefix, by recipes in a folder."""
    place.create()
    machine = host.detect()
    tree = place.tree(machine.platform)
    own = {"PIP": "--no-index --find-links=/mnt", "JOBS": str(host.cores()), "PROBE": str(data("inside/probe"))}
    layers = plan(wanted(stack, own, folder), tree.layers)
    return ImageInstallation(
        request=Request(prefix=place), stack=stack, host=machine, runtime=runtime.require(), plan=layers, tree=tree
    )


def wanted(stack: Stack, own: Mapping[str, str], folder: Path) -> ImageRecipe:
    """Return the recipe of a stack with its arguments, on a Debian from this host's mirror."""
    return ImageRecipe(
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


def compared(name: str, naive: Mapping[str, str], at_most: float, like: str = "") -> bool:
    """Print the sizes of an image and of the naive one; return whether it is larger than claimed."""
    stack = named(like or name)
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as folder:
        image = Path(folder) / "naive.sif"
        values = {**arguments(stack), **naive}
        said = packed(NAIVE, image, values, pip_of_this_host(Path(folder) / "pip"))
        found = re.search(r"^(\d+)\t/var/cache/apt/archives$", said, re.MULTILINE)
        theirs, debs = image.stat().st_size, int(found[1]) if found else 0
        ours = installed(name).size if not like else made_small(image, values)
    ratio = ours / theirs
    print(f"{name}: {ours / 1e6:.0f} MB against {theirs / 1e6:.0f} MB installed naively, ratio", end=" ")
    print(verdict(ratio, at_most))
    print(
        f"  without the {debs / 1e6:.0f} MB of packages that apt has kept in that: {ours / (theirs - debs):.3f}",
        flush=True,
    )
    return ratio > at_most


def arguments(stack: Stack) -> dict[str, str]:
    """Return what naive.def is told for the software of a stack."""
    recipe = wanted(stack, {}, recipes("containers"))
    values = recipe.values(recipe.stages)
    pins = (PIN.match(line) for line in (recipe.folder / values["WHEELS"]).read_text().splitlines())
    words = [f"{pin['name']}==={pin['version']}" for pin in pins if pin and pin["machine"] in (None, recipe.machine)]
    return values | {
        "MIRROR": recipe.base.reference,
        "ACCELERATOR": stack.accelerator.value,
        "FLAGS": " ".join(stack.requires),
        "REQUIREMENTS": " ".join(words),
        "JOBS": str(host.cores()),
        "PROBE": str(data("inside/probe")),
    }


def made_small(image: Path, values: Mapping[str, str]) -> int:
    """Build small.def from a naive image, as an installation packs an image; return its size (bytes)."""
    base, small = image.with_name("debian.sif"), image.with_name("small.sif")
    packed(recipes("containers") / "debian.def", base, values)
    more = {"NAIVE": str(image), "BASE": str(base)}
    packed(SMALL, small, {**values, **more}, words=["--mksquashfs-args", SQUASHFS.format(FINAL_LEVEL)])
    return small.stat().st_size


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


def packed(
    recipe: Path,
    image: Path,
    values: Mapping[str, str],
    binds: Sequence[tuple[Path, str]] = (),
    words: Sequence[str] = (),
) -> str:
    """Build a recipe; return what Apptainer said. Ends with the end of that if it fails."""
    takes = {name for stage in definition_file.read(recipe) for name in stage.arguments}
    file = image.with_suffix(".arguments")
    file.write_text("".join(f"{name}={values[name]}\n" for name in values if name in takes))
    argv = [str(runtime.require().path), "build", *runtime.build_words(), *words, "--build-arg-file", str(file)]
    argv += [f"--bind={source}:{target}" for source, target in binds]
    argv += [str(image), str(recipe)]
    done = subprocess.run(argv, cwd=recipe.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        sys.exit(f"{recipe.name} was not built:\n{said[-3000:]}")
    return said


def named(name: str) -> Stack:
    """Return a stack."""
    return next(stack for stack in stacks() if stack.name == name)


def installed(name: str) -> ImageReceipt:
    """Return the receipt of an image."""
    found = find(prefix.locate(None), name)
    assert isinstance(found, ImageReceipt)
    return found


def verdict(value: float, most: float) -> str:
    """Say whether a claim holds."""
    return f"{value:.3f} (at most {most:.3f}): {'holds' if value <= most else 'FAILS'}"


if __name__ == "__main__":
    sys.exit(main())
