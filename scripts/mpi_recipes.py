"""Write recipes for each other family of MPI: they differ from those for the first in the toolchain's name alone.

python scripts/mpi_recipes.py    from easyconfigs/*-gompi-system*.eb
"""

from collections.abc import Iterator
from pathlib import Path

from envkit.easybuild import mpi

RECIPES = Path(__file__).resolve().parents[1] / "easyconfigs"
ALONE = ("-ROCm-",)  # planned for Open MPI only


def written() -> Iterator[tuple[Path, str]]:
    """Yield each such recipe, and what is to be in it."""
    first, *others = mpi.modules()
    for path in sorted(RECIPES.glob(f"*-{first}-system*.eb")):
        if not any(word in path.name for word in ALONE):
            for one in others:
                yield path.with_name(path.name.replace(first, one)), path.read_text().replace(first, one)


if __name__ == "__main__":
    for path, text in written():
        path.write_text(text)
