"""Wheels of nothing, for pip to install without a network."""

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str = "1.0", *needs: str) -> Path:
    """Write a wheel with one module of its name, which has its version and requires ``needs``; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    module, notes = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in needs),
    ]
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"__version__ = {version!r}\n")
        archive.writestr(f"{notes}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{notes}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{notes}/RECORD", f"{module}.py,,\n{notes}/METADATA,,\n{notes}/WHEEL,,\n{notes}/RECORD,,\n")
    return path
