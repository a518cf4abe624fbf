import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from envkit import launcher
from envkit.errors import EnvironmentDamaged
from envkit.host import cores
from envkit.receipt import Mpi

Fake = Callable[..., Path]
MANY = cores() + 1
OPEN_MPI_4 = Mpi(family="Open MPI", version="4.1.4")
OPEN_MPI_5 = Mpi(family="Open MPI", version="5.0.0rc12")
MPICH = Mpi(family="MPICH", version="4.0.2")
INTEL = Mpi(family="Intel MPI", version="2021.11")


@dataclass(frozen=True, kw_only=True)
class Plain:
    """An environment that is where one is already."""

    name: str = "plain"

    def command(self, argv: Sequence[str], launcher: Sequence[str] = ()) -> list[str]:
        return [*launcher, *argv]

    def shell(self) -> list[str]:
        return ["sh"]

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)


@pytest.mark.parametrize(
    ("mpi", "ranks", "argv"),
    [
        (OPEN_MPI_4, 1, "mpirun -np 1 --oversubscribe"),
        (OPEN_MPI_4, MANY, f"mpirun -np {MANY} --oversubscribe --bind-to none"),
        (OPEN_MPI_5, 1, "mpirun -np 1 --map-by :OVERSUBSCRIBE"),
        (OPEN_MPI_5, MANY, f"mpirun -np {MANY} --map-by :OVERSUBSCRIBE --bind-to none"),
        (MPICH, 1, "mpiexec -n 1"),
        (MPICH, MANY, f"mpiexec -n {MANY}"),
        (INTEL, 2, "mpiexec -n 2"),
        (None, 2, "mpiexec -n 2"),
    ],
)
def test_command_lines(mpi: Mpi | None, ranks: int, argv: str) -> None:
    assert launcher.command(mpi, ranks) == argv.split()


def test_what_open_mpi_wants_from_root_is_given_to_root_only() -> None:
    given = {"PATH": "/bin", "OMPI_MCA_btl": "self"}
    added = launcher.variables(given).items() - given.items()
    assert given.items() <= launcher.variables(given).items()
    if os.geteuid() != 0:
        assert not added
    else:
        assert {name for name, _ in added} == {
            f"{part}_ALLOW_RUN_AS_ROOT{end}" for part in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
        }
    assert given == {"PATH": "/bin", "OMPI_MCA_btl": "self"}


@pytest.mark.parametrize(("tree", "embedded"), [("tree", True), ("elsewhere", False)])
def test_the_mpi_that_an_environment_brings(tree: str, embedded: bool, fake: Fake, tmp_path: Path) -> None:
    program = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'", "tree")
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    found = launcher.mpi_of(Plain(), str(tmp_path / tree), env)
    assert found == Mpi(family="Open MPI", version="4.1.4", embedded=embedded)


@pytest.mark.parametrize("body", ["exit 1", "echo 'mpirun: error while loading shared libraries'; exit 127"])
def test_an_environment_whose_launcher_does_not_answer(body: str, fake: Fake) -> None:
    program = fake("mpirun", body)
    with pytest.raises(EnvironmentDamaged, match=r"The environment has no MPI launcher\.") as damaged:
        launcher.mpi_of(Plain(), "/tree", {"PATH": f"{program.parent}:{os.environ['PATH']}"})
    assert str(program) in damaged.value.why


def test_an_environment_without_a_launcher(fake: Fake) -> None:
    shell = fake("sh", 'exec /bin/sh "$@"')
    with pytest.raises(EnvironmentDamaged) as damaged:
        launcher.mpi_of(Plain(), "/tree", {"PATH": str(shell.parent)})
    assert damaged.value.why == "mpirun was not found in it."
