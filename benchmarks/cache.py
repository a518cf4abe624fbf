"""Horovod from a cache against building it, and a push against tar and xz of the same files; 10 minutes.

``python benchmarks/cache.py [STACK]``, in the prefix where STACK was built, which is installed there again three times.
What Horovod stands on is there each time, and the compiler cache is empty. Each installation is verified on two ranks.
"""

import functools
import http.server
import json
import sys
import tempfile
import threading
from pathlib import Path

from timing import ENVKIT, own, report, seconds

from envkit.cache import pack
from envkit.environments import prefix as place
from envkit.environments.prefix import Tree
from envkit.methods import installed


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(name: str) -> int:
    """Push, and install from the folder, by a server, and by building."""
    root = place.locate(None).root
    found = installed.find(place.locate(None), name)
    module = found.recipes[-1].name
    with tempfile.TemporaryDirectory() as folder:
        cache, names = Path(folder, "cache"), Path(folder, "names")
        cache.mkdir()
        names.write_text("\n".join(pack.paths(Tree(root=Path(found.tree)), module)))
        pushing, _ = seconds([ENVKIT, "cache", "push", name, "--to", str(cache), "--unsigned"], own(root))
        archive = ["tar", "-cJf", f"{folder}/plain.tar.xz", "-C", found.tree, "-T", str(names)]
        packing, _ = seconds(archive, own(root))
        size = next((cache / "objects").iterdir()).stat().st_size
        print(f"an object has {size} bytes, tar and xz of the same files {Path(folder, 'plain.tar.xz').stat().st_size}")
        print(f"push: {pushing:.1f} s, of which every file of {name} that counts is read; tar and xz: {packing:.1f} s")
        handler = functools.partial(Quiet, directory=str(cache))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            near, far = (again(root, name, {"ENVKIT_CACHE_FROM": one}) for one in (str(cache), url))
            server.shutdown()
        built = again(root, name, {"CCACHE_DIR": f"{folder}/ccache"})
        verified = json.loads(seconds([ENVKIT, "verify", name, "--json"], own(root))[1])["seconds"]
    print(f"of each, verification about {verified:.1f} s")
    failed = report(f"{name} from a folder, against building its Horovod", near, built, near / built, bound=0.2)
    return failed + report("by a server, against the folder", far, near, far / near, bound=1.2)


def again(root: Path, name: str, settings: dict[str, str]) -> float:
    """Remove an environment, and install it again; return how long that took (s)."""
    seconds([ENVKIT, "remove", name], own(root))
    words = ["--unsigned-cache"] if "ENVKIT_CACHE_FROM" in settings else []
    return seconds([ENVKIT, "install", name, *words], {**own(root), **settings})[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"))
