"""Say of a module that could not be loaded which ones are near: ``python nearest.py MODULE MODULEPATH``.

Runs inside, maybe by the Python of EESSI: the standard library alone, Python 3.6. absent.json beside it has what is in
no release.
"""

import difflib
import json
import os
import sys


def main(module, modulepath):
    """Print what there is in place of it."""
    names = modules(modulepath.split(os.pathsep))
    wanted = module.partition("/")[0]
    if module in names:
        print("envkit: the module {} is there, and did not load: read what it said above.".format(module))
        return
    print("envkit: there is no module {}.\n".format(module))
    near = nearest(module, names)
    print("  The nearest: {}\n".format(", ".join(near)) if near else "  None is near it.\n")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "absent.json")) as stream:
        absent = json.load(stream)
    print("What to do: {}".format(absent.get(wanted, "see all of them with 'envkit eessi modules'.")))


def modules(folders):
    """Return every module in the folders, as NAME/VERSION."""
    found = set()
    for folder in folders:
        for path, _, files in os.walk(folder):
            name = os.path.relpath(path, folder)
            found |= {os.path.join(name, file[:-4] if file.endswith(".lua") else file) for file in files if file[0] != "."}
    return sorted(name for name in found if name[0] != ".")


def nearest(module, names):
    """Return up to three modules: versions of the same software first, then names like it."""
    wanted = module.partition("/")[0].lower()
    same = [name for name in names if name.partition("/")[0].lower() == wanted]
    if same:
        return difflib.get_close_matches(module, same, 3, 0) or same[-3:]
    software = {name.partition("/")[0].lower(): name for name in names}
    return [software[name] for name in difflib.get_close_matches(wanted, software, 3, 0.6)]


if __name__ == "__main__":
    main(*sys.argv[1:])
