"""Say of a module that could not be loaded which ones are near: ``python nearest.py MODULE MODULEPATH``.

Runs inside, by the Python of EESSI's compatibility layer where that of envkit is not seen (in an image): the standard
library alone, and Python 3.6. not_in_eessi.json beside it has what is in no release.
"""

import difflib
import json
import os
import sys
from pathlib import Path
from typing import Dict, Iterable, List, Sequence


def main(module: str, modulepath: str) -> None:
    """Print what there is in place of it."""
    names = modules(modulepath.split(os.pathsep))
    if module in names or any(name.startswith(f"{module}/") for name in names):
        print(f"envkit: the module {module} is there, and did not load: read what it said above.")
        return
    near = nearest(module, names)
    print(f"envkit: there is no module {module}.\n")
    print("  The nearest: " + ", ".join(near) + "\n" if near else "  No name is near it.\n")
    print(f"What to do: {absent(module) or 'see all of them with envkit eessi modules.'}")


def absent(module: str) -> str:
    """Return what is known of software that is in no release; nothing of other software."""
    notes = json.loads(Path(__file__).with_name("not_in_eessi.json").read_text())
    wanted = module.partition("/")[0].lower()
    return next((words for name, words in notes.items() if name.lower() == wanted), "")


def modules(folders: Iterable[str]) -> List[str]:
    """Return every module in the folders, as NAME/VERSION."""
    files = (path.relative_to(folder) for folder in filter(None, folders) for path in Path(folder).glob("[!.]*/[!.]*"))
    return sorted(str(file.with_suffix("") if file.suffix == ".lua" else file) for file in files)


def nearest(module: str, names: Sequence[str]) -> List[str]:
    """Return up to three modules: versions of the same software, else of the one with the most similar name."""
    versions: Dict[str, List[str]] = {}
    for name in names:
        versions.setdefault(name.partition("/")[0].lower(), []).append(name)
    wanted = module.partition("/")[0].lower()
    for software in difflib.get_close_matches(wanted, versions, 1):
        return difflib.get_close_matches(module, versions[software], 3, 0)
    return []


if __name__ == "__main__":
    main(*sys.argv[1:])
