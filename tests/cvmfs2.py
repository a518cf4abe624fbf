"""Stand in for CernVM-FS's client: its words, on its streams, its statuses, and a folder shown by FUSE.

Called as the client is: ``cvmfs2 [-f] [-o config=FILE:...] REPOSITORY MOUNTPOINT``.
Like the client it says on standard output what it does, and gives up without a proxy (23), without a key (15), and
without a catalog (16): of a repository that no server has, or behind a proxy that does not answer.
"""

import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

REPOSITORY = "software.eessi.io"
DEFAULT = "/etc/cvmfs/default.local"


def program(folder: Path, asked: Path | None = None) -> str:
    """Return the text of a program in the place of cvmfs2, which shows a folder; ``asked`` is left its arguments."""
    text = Path(__file__).read_text()
    return f"#!/usr/bin/python3 -I\n{text}\n\nmain({str(folder)!r}, {str(asked or '')!r}, sys.argv[1:])\n"


def main(folder: str, asked: str, arguments: list[str]) -> None:
    """Mount, or give up."""
    if asked:
        Path(asked).write_text(" ".join(arguments) + "\n")
    options = [arguments[at + 1] for at, word in enumerate(arguments) if word == "-o"]
    words = [word for at, word in enumerate(arguments) if not word.startswith("-") and arguments[at - 1 : at] != ["-o"]]
    repository, target = words[:2]
    if re.fullmatch(r"/dev/fd/\d+", target):
        print(f"CernVM-FS: pre-mounted on file descriptor {target.rpartition('/')[2]}", flush=True)
    else:
        print("CernVM-FS: running in fuse mode", flush=True)
    print("CernVM-FS: loading Fuse module... ", end="", flush=True)
    files = next((word.removeprefix("config=") for word in options if word.startswith("config=")), DEFAULT)
    settings = dict(pair for name in files.split(":") for pair in read(Path(name)))
    proxy, url = settings.get("CVMFS_HTTP_PROXY", ""), settings.get("CVMFS_SERVER_URL", "")
    if not proxy:
        give_up("failed to discover HTTP proxy servers", 23, "failed to discover or use proxy")
    if "CVMFS_PUBLIC_KEY" in settings and not Path(settings["CVMFS_PUBLIC_KEY"]).is_file():
        give_up("failed to load public key", 15, "signature verification setup failure")
    cached = Path(settings.get("CVMFS_ALIEN_CACHE", "/nowhere"), "00").is_dir()
    if not (cached or answers(url.replace("@fqrn@", repository), proxy)) or repository != REPOSITORY:
        give_up("Failed to initialize root file catalog", 16, "file catalog failure")
    print("done", flush=True)
    print(f"CernVM-FS: mounted cvmfs on {target}", flush=True)
    foreground = ["-f"] if "-f" in arguments else []
    os.execvp("fuse-overlayfs", ["fuse-overlayfs", *foreground, "-o", f"lowerdir={folder}", target])


def read(path: Path) -> list[tuple[str, str]]:
    """Return the settings in a file, which are assignments of a shell."""
    text = path.read_text() if path.is_file() else ""
    return [(name, value.strip("'\"")) for name, value in re.findall(r"^(CVMFS_\w+)=(.*)$", text, re.MULTILINE)]


def answers(url: str, proxies: str) -> bool:
    """Say whether a server has the repository."""
    for proxy in re.split(r"[;|]", proxies):
        through = {} if proxy == "DIRECT" else {"http": proxy}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(through))
        try:
            opener.open(f"{url}/.cvmfspublished", timeout=5).close()
        except (OSError, ValueError):
            continue
        return True
    return False


def give_up(what: str, status: int, meaning: str) -> NoReturn:
    """End as the client does."""
    print(f"\n{what} ({status} - {meaning})", file=sys.stderr, flush=True)
    sys.exit(status)
