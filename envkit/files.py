"""Files and folders put in place, removed and known by their digest, those of images among them."""

import shutil
from pathlib import Path

from envkit import process


def replace(source: Path, target: Path) -> None:
    """Put a file or folder in its place."""
    if target.is_dir():
        discard(target)
    source.replace(target)


def discard(path: Path) -> None:
    """Remove a file or folder, if it is there; what belongs to subordinate ids as well."""
    if path.is_file():
        path.unlink()
    if not path.is_dir():
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        process.capture(["unshare", "--user", "--map-auto", "--map-root-user", "rm", "-rf", str(path)], timeout_s=300)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
