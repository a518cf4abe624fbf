"""The image with a CernVM-FS client: pulled once, by digest, into a cache that all sessions share."""

import json
import os
import platform
import re
import shutil
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import platformdirs
from filelock import FileLock

from envkit.environments import trust
from envkit.errors import DiskFull, HostProblem, NotWritable, SourcesMissing, UsageProblem
from envkit.knowledge.eessi import symptom
from envkit.machine.runtime import Runtime
from envkit.sources.connection import PAGE_LIMIT_BYTES
from envkit.system import owners, process, temporary
from envkit.system.files import make_private

LIMIT_S = 20.0
UNPACKED = 3  # what a pull takes at most, over the size of its layers: the layers, unpacked, and the image
REFERENCE = re.compile(r"docker://([^/]+)/([\w./-]+?)(?::[\w.-]+)?@(sha256:[0-9a-f]{64})")
KINDS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)


@dataclass(frozen=True, kw_only=True)
class Remote:
    """An image in a registry: its place, its digest, and the size of its layers."""

    host: str
    name: str
    digest: str
    size: int

    @property
    def scheme(self) -> str:
        """The scheme of the registry: one on this machine itself has no certificate."""
        return "http" if self.host.partition(":")[0] in ("127.0.0.1", "localhost") else "https"


def folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the shared cache: in that of Apptainer or Singularity if one is named that no stranger can change.

    Else it is the user's own.
    """
    place = named(env)
    return own() if place is None or changer(place, env) else place


def named(env: Mapping[str, str]) -> Path | None:
    """Return the cache in that of Apptainer or Singularity, if one is named."""
    place = env.get("APPTAINER_CACHEDIR") or env.get("SINGULARITY_CACHEDIR")
    return Path(place) / "envkit" if place else None


def own() -> Path:
    """Return the user's own cache."""
    return platformdirs.user_cache_path("envkit") / "images"


def changer(place: Path, env: Mapping[str, str]) -> str:
    """Say which stranger can change a folder, or put another in its place; nothing if none can."""
    known = trust.trusted(env)
    if (found := owners.usurper(place, known)) is not None:
        return f"{found[0]}: {found[1]}."
    with suppress(FileNotFoundError):
        if (who := owners.stranger(place.stat(), place, known)) is not None:
            return f"{place}: {who[0]}."
    return ""


def is_ours(path: Path, env: Mapping[str, str]) -> bool:
    """Say whether an image is there, is no link, and no stranger can change it."""
    with suppress(OSError):
        state = path.lstat()
        return not stat.S_ISLNK(state.st_mode) and owners.stranger(state, path, trust.trusted(env)) is None
    return False


def find(tool: Runtime, env: Mapping[str, str], say: Callable[[str], None], digest: str = "") -> tuple[Path, str]:
    """Return the image that ENVKIT_EESSI_IMAGE names, and its digest ("" for a file); pulled first if it is not there.

    The one with the digest that is given, which was used before, if it is still there. None that a stranger can change.
    Raises SourcesMissing, DiskFull, HostProblem, UsageProblem.
    """
    place = folder(env)
    who = changer(place, env)  # of the user's own, as it is used where the shared one can be changed
    if digest and not who and is_ours(file_of(place, digest), env):
        return file_of(place, digest), digest
    image = env.get("ENVKIT_EESSI_IMAGE", "")
    if "://" not in image:
        if not image or not Path(image).exists():
            raise UsageProblem(what=f"ENVKIT_EESSI_IMAGE: there is no {image}.", fix="Correct it, or unset it.")
        return Path(image).absolute(), ""
    match = REFERENCE.fullmatch(image)
    if match is None:
        fix = "Write docker://HOST/NAME@sha256:DIGEST, since what a tag means changes; or name a file."
        raise UsageProblem(what=f"ENVKIT_EESSI_IMAGE: {image} is no image by digest.", fix=fix)
    host, name, digest = match.groups()
    target = file_of(place, digest)
    if who:
        raise HostProblem(
            what=f"No image in {place} is run: others can change it.",
            why=f"{who} What they put there would run as you.",
            fix="Set APPTAINER_CACHEDIR to a folder of your own.",
        )
    if is_ours(target, env):
        return target, digest
    try:
        make_private(place)
    except OSError as error:
        fix = "Set APPTAINER_CACHEDIR to a folder of your own."
        raise NotWritable(what=f"{place} cannot be made.", why=f"{error.strerror}.", fix=fix) from error
    with process.interruptible(), FileLock(place / "lock"):
        if not is_ours(target, env):
            if (shared := named(env)) not in (None, place):
                say(f"{shared} is left aside, since others can change it: {changer(shared, env)}")
            pull(tool, sized(Remote(host=host, name=name, digest=digest, size=0)), target, env, say)
        return target, digest


def file_of(place: Path, digest: str) -> Path:
    """Return where the image of a digest lies."""
    return place / f"{digest.replace(':', '-')}.sif"


def pull(tool: Runtime, remote: Remote, target: Path, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Pull an image, which appears complete or not at all. Raises DiskFull and SourcesMissing."""
    image = f"docker://{remote.host}/{remote.name}@{remote.digest}"
    wanted, free = remote.size * UNPACKED // 1_000_000, shutil.disk_usage(target.parent).free // 1_000_000
    if free < wanted:
        words = symptom("no-room", wanted_mb=wanted, free_mb=free, folder=target.parent)
        raise DiskFull(what=words.what, why=words.why, fix=words.fix)
    say(f"pulling {image}, {remote.size // 1_000_000} MB, once")
    partial, log = target.with_suffix(f".{os.getpid()}"), target.with_suffix(".log")
    plain = ["--no-https"] if remote.scheme == "http" else []
    try:
        argv = [str(tool.path), "pull", "--disable-cache", *plain, str(partial), image]
        named = env.get("APPTAINER_TMPDIR", "")
        place = temporary.kept_apart(Path(named), trust.trusted()) if named else None
        settings = {**env, "APPTAINER_TMPDIR": str(place or target.parent)}
        status = process.supervise(argv, env=settings, log=log)
        if status:
            last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise missing(image, last or f"{tool.path.name} ended with {status}")
        partial.chmod(partial.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        partial.replace(target)
        log.unlink()
    finally:
        partial.unlink(missing_ok=True)


def missing(image: str, reason: str) -> SourcesMissing:
    """Say that an image cannot be had."""
    words = symptom("image-unreachable", image=image, reason=reason)
    return SourcesMissing(what=words.what, why=words.why, fix=words.fix)


def sized(remote: Remote) -> Remote:
    """Ask the registry for the size of an image. Raises SourcesMissing."""
    image = f"docker://{remote.host}/{remote.name}@{remote.digest}"
    try:
        manifest = manifest_of(remote, remote.digest)
        if "manifests" in manifest:
            machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
            fitting = [m for m in manifest["manifests"] if m.get("platform", {}).get("architecture") == machine]
            if not fitting:
                raise missing(image, f"it is not made for {platform.machine()}")
            manifest = manifest_of(remote, fitting[0]["digest"])
        return replace(remote, size=sum(layer["size"] for layer in manifest["layers"]))
    except (OSError, ValueError, KeyError) as error:
        raise missing(image, str(error)) from error


def manifest_of(remote: Remote, which: str) -> dict[str, Any]:
    """Fetch a manifest, with a token for anybody if the registry wants one."""
    url = f"{remote.scheme}://{remote.host}/v2/{remote.name}/manifests/{which}"
    try:
        return ask(url, {"Accept": KINDS})
    except urllib.error.HTTPError as error:
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate", "")))
        if error.code != 401 or "realm" not in challenge:
            raise
        query = urlencode({"service": challenge.get("service", ""), "scope": f"repository:{remote.name}:pull"})
        token = ask(f"{challenge['realm']}?{query}", {})
        return ask(url, {"Accept": KINDS, "Authorization": f"Bearer {token['token']}"})


def ask(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Fetch JSON."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no address of a registry")
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310
        content: dict[str, Any] = json.loads(answer.read(PAGE_LIMIT_BYTES))
        return content


def clean(env: Mapping[str, str] = os.environ) -> int:
    """Remove the images in the cache; return how many there were."""
    found = sorted(folder(env).glob("sha256-*.sif")) if folder(env).is_dir() else []
    for path in found:
        path.unlink()
    return len(found)
