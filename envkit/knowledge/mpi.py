"""The families of MPI, by what the command line calls them."""

import re

FAMILIES = {
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "intelmpi": "Intel MPI",
    "mvapich": "MVAPICH",
    "cray": "Cray MPICH",
}
ALSO = {  # what others call them
    "intel": "intelmpi",
    "impi": "intelmpi",
    "ompi": "openmpi",
    "hpcx": "openmpi",
    "craympich": "cray",
    "mvapich2": "mvapich",
}


def meant(word: str) -> str:
    """Return the family that a word which is none may mean; nothing if there is none."""
    import difflib

    plain = re.sub(r"[^a-z0-9]", "", word.lower())
    if plain in FAMILIES:
        return plain
    return ALSO.get(plain) or next(iter(difflib.get_close_matches(plain, FAMILIES, 1)), "")
