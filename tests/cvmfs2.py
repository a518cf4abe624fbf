"""Stand in for CernVM-FS's client: its words, on its streams, its statuses, and a folder shown by FUSE.

Called as the client is: ``cvmfs2 [-f] [-o config=FILE:...] REPOSITORY MOUNTPOINT``.
Like the client it says on standard output what it does, and in the file that CVMFS_USYSLOG names what it would tell the
system's log. It gives up without a cache (9), without a proxy (23), without a key (15), and without a catalog (16): of
a repository that no server has, behind a proxy that does not answer, with a whitelist that has expired. It mounts
without a server from a cache that it has mounted from, and aborts where that is damaged.
"""

import os
import re
import resource
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

OF = {"repository": ""}  # named in each line of the log
DEFAULT = "/etc/cvmfs/default.local"
BREADCRUMB = "0123456789abcdef0123456789abcdef01234567T1700000000R1"


def program(folder: Path, asked: Path | None = None, repository: str = "software.eessi.io") -> str:
    """Return the text of a program in the place of cvmfs2, which shows a folder as the ``repository`` that it finds.

    ``asked`` is left its arguments.
    """
    text = Path(__file__).read_text()
    told = f"{str(folder)!r}, {str(asked or '')!r}, {repository!r}, sys.argv[1:]"
    return f"#!/usr/bin/python3 -I\n{text}\n\nmain({told})\n"


def main(folder: str, asked: str, there: str, arguments: list[str]) -> None:
    """Mount, or give up; ``there`` is the repository that its servers have."""
    if asked:
        Path(asked).write_text(" ".join(arguments) + "\n")
    options = [arguments[at + 1] for at, word in enumerate(arguments) if word == "-o"]
    words = [word for at, word in enumerate(arguments) if not word.startswith("-") and arguments[at - 1 : at] != ["-o"]]
    repository, target = words[:2]
    OF["repository"] = repository
    if re.fullmatch(r"/dev/fd/\d+", target):
        print(f"CernVM-FS: pre-mounted on file descriptor {target.rpartition('/')[2]}", flush=True)
    else:
        print("CernVM-FS: running in fuse mode", flush=True)
    print("CernVM-FS: loading Fuse module... ", end="", flush=True)
    files = next((word.removeprefix("config=") for word in options if word.startswith("config=")), DEFAULT)
    settings = dict(pair for name in files.split(":") for pair in read(Path(name)))
    log = Path(settings["CVMFS_USYSLOG"])  # the client aborts where it cannot write there, and so does this
    log.touch()
    proxy, url = settings.get("CVMFS_HTTP_PROXY", ""), settings.get("CVMFS_SERVER_URL", "")
    cache = cache_of(settings, repository, log)
    if not proxy:
        give_up(log, "failed to discover HTTP proxy servers", 23, "proxy auto-discovery failed")
    if "CVMFS_PUBLIC_KEY" in settings and not Path(settings["CVMFS_PUBLIC_KEY"]).is_file():
        tell(log, f"failed to open public key '{settings['CVMFS_PUBLIC_KEY']}'")
        give_up(log, "failed to load public key(s)", 15, "signature verification failure")
    warm = Path(settings.get("CVMFS_ALIEN_CACHE") or cache, f"cvmfschecksum.{repository}")
    published = fetched(url.replace("@fqrn@", repository), proxy, log)
    if published and "Nother" in published:
        tell(log, f"repository name does not match (found other.example.org, expected {repository})")
    if not (published or warm.exists()) or repository != there:
        give_up(log, "Failed to initialize root file catalog", 16, "file catalog failure")
    if warm.exists() and warm.read_text() != BREADCRUMB:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    warm.write_text(BREADCRUMB)
    print("done", flush=True)
    print(f"CernVM-FS: mounted cvmfs on {target}", flush=True)
    tell(log, f"CernVM-FS: linking {target} to repository {repository}")
    foreground = ["-f"] if "-f" in arguments else []
    os.execvp("fuse-overlayfs", ["fuse-overlayfs", *foreground, "-o", f"lowerdir={folder}", target])


def cache_of(settings: dict[str, str], repository: str, log: Path) -> Path:
    """Make the folder of a cache, and write to it."""
    cache = Path(settings["CVMFS_CACHE_BASE"], repository)
    try:
        cache.mkdir(exist_ok=True)
        (cache / "running").write_bytes(b"x" * 4096)
    except OSError as error:
        what = f"Failed to setup posix cache 'default' in {cache}: {error.strerror}"
        give_up(log, what, 9, "cache directory/plugin problem")
    return cache


def read(path: Path) -> list[tuple[str, str]]:
    """Return the settings in a file, which are assignments of a shell."""
    text = path.read_text() if path.is_file() else ""
    return [(name, value.strip("'\"")) for name, value in re.findall(r"^(CVMFS_\w+)=(.*)$", text, re.MULTILINE)]


def fetched(url: str, proxies: str, log: Path) -> str:
    """Return what a server has of the repository, nothing where none is to be had or trusted."""
    for proxy in re.split(r"[;|]", proxies):
        through = {} if proxy == "DIRECT" else {"http": proxy}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(through))
        try:
            with opener.open(f"{url}/.cvmfspublished", timeout=5) as answer:
                published = answer.read().decode(errors="replace")
        except urllib.error.HTTPError:
            tell(log, "failed to download repository manifest (9 - host returned HTTP error)")
            continue
        except (OSError, ValueError):
            code = "6 - proxy connection problem" if through else "7 - host connection problem"
            tell(log, f"failed to download repository manifest ({code})")
            continue
        return published if is_trusted(opener, url, log) else ""
    return ""


def is_trusted(opener: urllib.request.OpenerDirector, url: str, log: Path) -> bool:
    """Say whether the whitelist, if there is one, has not expired."""
    try:
        with opener.open(f"{url}/.cvmfswhitelist", timeout=5) as answer:
            until = re.search(r"^E(\d+)$", answer.read().decode(errors="replace"), re.MULTILINE)
    except OSError:
        return True
    if until and until[1] < time.strftime("%Y%m%d%H%M%S", time.gmtime()):
        tell(log, "whitelist verification failed (5): expired whitelist")
        return False
    return True


def tell(log: Path, what: str) -> None:
    """Write what the client would tell the system's log, as it does."""
    with log.open("a") as stream:
        stream.write(f"{time.ctime()} ({OF['repository']}) {what}\n")


def give_up(log: Path, what: str, status: int, meaning: str) -> NoReturn:
    """End as the client does."""
    tell(log, f"{what} ({status} - {meaning})")
    print(f"\n{what} ({status} - {meaning})", file=sys.stderr, flush=True)
    sys.exit(status)
