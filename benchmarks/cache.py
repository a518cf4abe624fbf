"""A stack from a cache against unpacking the same files, and against building; 10 to 20 minutes.

``python benchmarks/cache.py [STACK]``, in the prefix where STACK was built, which is read alone. Each installation
begins in an empty prefix, fetches its sources, is verified on two ranks, and has an empty compiler cache. The claims
are held by the clock and by time of the processor. Begin five minutes after many files were removed: until then, ext4
looks at each that has gone before it makes a new one. Where STACK is an image, it is the image that is pushed and
taken, beside ``cp`` of the same file; it is not built anew. Without a claim: ``pip install`` of the framework alone.
"""

import functools
import http.server
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from timing import ENVKIT, Cost, cost, own, report_cost

from envkit.apptainer.receipt import ImageReceipt
from envkit.cache import pack
from envkit.environments import prefix as place
from envkit.environments.prefix import Tree
from envkit.methods import installed

RUNS = 5


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(name: str) -> int:
    """Push, and install from the folder, by a server, by unpacking, and by building."""
    root = place.locate(None).root
    found = installed.find(place.locate(str(root)), name)
    if isinstance(found, ImageReceipt):
        return of_image(root, name, Path(found.image))
    with tempfile.TemporaryDirectory(prefix="envkit-cache-") as temporary:
        folder = Path(temporary)
        cache, built, runs = folder / "cache", folder / "built", []
        cache.mkdir()
        failed = pushing(root, name, folder, cache)
        for near in (folder / f"near{number}" for number in range(RUNS)):
            took = install(near, name, cache)
            tree = Path(installed.find(place.locate(str(near)), name).tree)
            runs.append(
                (took, unpacked(tree, folder / f"unpacked{near.name}"), cost([ENVKIT, "verify", name], own(near)))
            )
        taken, unpacking, verifying = (median(column) for column in zip(*runs, strict=True))
        failed += report_cost(
            f"{name} from a folder, against tar -x of the same files and verify",
            taken, unpacking + verifying, bound=1.5,
        )  # fmt: skip
        print(f"  tar -x: {unpacking}; verify: {verifying}; pip install of the framework alone: {by_pip(near, folder)}")
        with served(cache) as url:
            rounds = [(again(near, name, url), again(near, name, str(cache))) for _ in range(RUNS)]
        by_server, by_folder = (median(column) for column in zip(*rounds, strict=True))
        failed += report_cost("Horovod alone by a server, against the folder", by_server, by_folder, bound=1.2)
        building = install(built, name, None, {"CCACHE_DIR": str(folder / "ccache")})
    return failed + report_cost(f"{name} from a folder, against building", taken, building, bound=0.1)


def of_image(root: Path, name: str, file: Path) -> int:
    """Push an image, and install it from a folder and by a server, beside copying its file and verifying it."""
    with tempfile.TemporaryDirectory(prefix="envkit-cache-") as temporary:
        folder = Path(temporary)
        cache, near = folder / "cache", folder / "near"
        cache.mkdir()
        push = [ENVKIT, "cache", "push", name, "--to", str(cache), "--unsigned"]
        first, second = cost(push, own(root)), cost(push, own(root))
        copying = cost(["cp", str(file), str(folder / "copy.sif")], own(root))
        (folder / "copy.sif").unlink()
        print(f"push: {first}; a second push: {second}; cp: {copying}; the file: {file.stat().st_size} bytes")
        taken = install(near, name, cache)
        verifying = cost([ENVKIT, "verify", name], own(near))
        failed = report_cost(
            f"{name} from a folder, against cp of the file and verify", taken, copying + verifying, bound=1.5
        )
        shutil.rmtree(near)
        with served(cache) as url:
            by_server = cost([ENVKIT, "install", name, "--unsigned-cache"], {**own(near), "ENVKIT_CACHE_FROM": url})
        return failed + report_cost(f"{name} by a server, against the folder", by_server, taken, bound=1.2)


def pushing(root: Path, name: str, folder: Path, cache: Path) -> int:
    """Push anew some times, push again what is there, and pack the same modules with tar and zstd."""
    found = installed.find(place.locate(str(root)), name)
    tree, names = Tree(root=Path(found.tree)), folder / "names"
    names.write_text("\n".join(path for module in found.recipes for path in pack.paths(tree, module.name)))
    places = [folder / f"pushed{number}" for number in range(RUNS - 1)] + [cache]
    packed, runs = folder / "packed.tar.zst", []
    argv = ["tar", "--zstd", "-cf", str(packed), "-C", str(tree.root), "-T", str(names)]
    for to in places:
        to.mkdir(exist_ok=True)
        runs.append((cost(push_to(to, name), own(root)), cost(argv, own(root))))
    objects = [*(cache / "objects").iterdir()]
    written = [at.stat().st_mtime_ns for at in objects]
    second = cost(push_to(cache, name), own(root))
    pushed, packing = (median(column) for column in zip(*runs, strict=True))
    failed = report_cost("push, against tar --zstd of the same modules", pushed, packing, bound=1.3)
    is_same = [at.stat().st_mtime_ns for at in objects] == written
    print(f"a second push: {second}; {'nothing is' if is_same else 'is'} sent")
    size = sum(at.stat().st_size for at in objects)
    print(f"{len(objects)} objects: {size} bytes; tar --zstd: {packed.stat().st_size}")
    return failed + (not is_same)


def push_to(to: Path, name: str) -> list[str]:
    """Return the command that packs an environment and puts it into a place."""
    return [ENVKIT, "cache", "push", name, "--to", str(to), "--unsigned"]


def install(prefix: Path, name: str, cache: Path | None, settings: dict[str, str] | None = None) -> Cost:
    """Install a stack where nothing is; return what that took."""
    words = ["--unsigned-cache"] if cache else []
    taking = {"ENVKIT_CACHE_FROM": str(cache)} if cache else {}
    return cost([ENVKIT, "install", name, *words], {**own(prefix), **taking, **(settings or {})})


def again(prefix: Path, name: str, cache: str) -> Cost:
    """Remove an environment, and install it again where all that it stands on is left; return what that took."""
    cost([ENVKIT, "remove", name], own(prefix))
    settings = {**own(prefix), "ENVKIT_CACHE_FROM": cache}
    return cost([ENVKIT, "install", name, "--unsigned-cache"], settings)


def by_pip(prefix: Path, folder: Path) -> Cost:
    """Return what pip takes for the framework alone, from the wheels that an installation has fetched."""
    sources = prefix / "sources"
    [wheel] = [path for name in ("torch", "tensorflow", "tensorflow_cpu") for path in sources.glob(f"{name}-*.whl")]
    words = ["--no-index", "--find-links", str(sources), "--target", str(folder / "pip"), str(wheel)]
    return cost([sys.executable, "-m", "pip", "install", *words], own(prefix))


def unpacked(tree: Path, new: Path) -> Cost:
    """Pack a tree with zstd, and return what unpacking it into a folder took.

    What was unpacked stays: for some minutes after many files were removed, ext4 makes new ones slowly.
    """
    packed = new.with_suffix(".tar.zst")
    new.mkdir()
    cost(["tar", "--zstd", "-cf", str(packed), "-C", str(tree), "."], own(tree))
    took = cost(["tar", "--zstd", "-xf", str(packed), "-C", str(new)], own(tree))
    packed.unlink()
    return took


def median(costs: Iterable[Cost]) -> Cost:
    """Return the median of each measure."""
    walls, cpus = zip(*((one.wall, one.cpu) for one in costs), strict=True)
    return Cost(statistics.median(walls), statistics.median(cpus))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yield its URL."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"))
