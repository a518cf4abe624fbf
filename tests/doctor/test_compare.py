"""What a node has otherwise than a login node: from what was recorded of both, and each changed in one thing."""

from typing import Any

import msgspec
import pytest

from envkit.doctor.compare import with_comparison
from envkit.doctor.facts import Cpu, Facts, PackageIndex, Room
from envkit.doctor.report import Comparison
from envkit.doctor.rules import judge
from envkit.doctor.terminal import render
from envkit.report.paper import Paper

from .test_rules import facts, inner


def compared(node: Facts, here: Facts) -> Comparison:
    found = with_comparison(judge(node), judge(here)).comparison
    assert found is not None
    return found


def differs(node: Facts, here: Facts) -> dict[str, tuple[str, str]]:
    return {one.what: (one.node, one.here) for one in compared(node, here).differences}


def within(found: Facts, *path: str, **changes: Any) -> Facts:
    """Facts with one of them changed, some levels down."""

    def changed(struct: Any, names: tuple[str, ...]) -> Any:
        if not names:
            return msgspec.structs.replace(struct, **changes)
        return msgspec.structs.replace(struct, **{names[0]: changed(getattr(struct, names[0]), names[1:])})

    replaced: Facts = changed(found, path)
    return replaced


def test_a_host_does_not_differ_from_itself() -> None:
    assert differs(facts(), facts()) == {}
    assert "differs     nothing between" in render(with_comparison(judge(facts()), judge(facts())), Paper(width=200))


def test_a_node_of_the_lab_is_like_its_login_node() -> None:
    """But for its network. Its name, that a job is there, and how full its disk and memory are, is no difference."""
    found = compared(facts("job"), facts("login"))
    assert (found.node, found.here) == ("node1", "login")
    assert [(one.what, "eth0" in one.node, "eth0" in one.here) for one in found.differences] == [
        ("fabric", True, False)
    ]


@pytest.mark.parametrize(
    ("path", "changes", "what", "there"),
    [
        (("cpu",), {"target": "zen4"}, "CPU", "zen4"),
        (("node", "gpus"), {"nvidia": ("NVIDIA H100",) * 2, "nvidia_driver": "580.65"}, "GPUs", "2 x NVIDIA H100"),
        (("node", "fabric"), {"rdma": {"mlx5_0": ("InfiniBand",)}}, "fabric", "InfiniBand: mlx5_0"),
        (("node", "fabric"), {"interfaces": {"hsn0": "10.0.0.7"}}, "fabric", "hsn0 10.0.0.7"),
        (("node",), {"kernel": "9.9.9", "hostname": "n7"}, "host", "n7, as root: Linux 9.9.9"),
        (("node",), {"shm_size": 1 << 20}, "/dev/shm", "free of 1"),
        (("limits",), {"memlock": 65536}, "limits", "memlock 64"),
        (("room",), {"writable": False}, "prefix", "not writable"),
        ((), {"container": None}, "container", "none"),
        ((), {"modules": None}, "modules", "none"),
        ((), {"namespaces": "may not be made"}, "user ns", "may not be made"),
        ((), {"mounts": ("/cvmfs/software.eessi.io",)}, "CVMFS", "/cvmfs/software.eessi.io"),
        ((), {"indexes": (PackageIndex(url="u", problem="Connection refused"),)}, "pip", "u Connection refused"),
        ((), {"cpu": None}, "CPU", "not known"),
        ((), {"mpi": ()}, "MPI", "none on PATH"),
    ],
)
def test_what_differs_is_named_with_both(path: tuple[str, ...], changes: dict[str, Any], what: str, there: str) -> None:
    here = facts()
    found = differs(within(here, *path, **changes), here)
    assert what in found and there in found[what][0]
    assert set(found) <= {what, "easybuild", "eessi", "apptainer"}


def test_what_becomes_of_the_methods() -> None:
    node = facts(indexes=(PackageIndex(url="https://index.example.org/simple", problem="Connection refused"),))
    found = differs(node, facts())
    assert found["easybuild"][0].startswith("partly: ") and found["easybuild"][1].startswith("works: ")
    assert "eessi" not in found


def test_what_changes_from_one_second_to_the_next_is_no_difference() -> None:
    room = Room(prefix="/p", writable=True, free_mb=17, inodes=3)
    silent = PackageIndex(url="u", problem="it has not answered in 3.9 s")
    other = msgspec.structs.replace(silent, problem="it has not answered in 3.8 s")
    node = facts(room=room, indexes=(silent,))
    here = facts(room=msgspec.structs.replace(room, free_mb=18, inodes=4), indexes=(other,))
    assert differs(node, here) == {}


def test_what_it_means_for_an_installation() -> None:
    node = facts(cpu=Cpu(machine="x86_64", target="zen4", cores=64))
    node = within(node, "builder", accelerator="cuda")
    found = with_comparison(judge(node), judge(facts()))
    told = {note.id: note for note in found.notes}
    assert "The CPU of the node is zen4, and here it is x86_64_v4" in told["other-cpu"].what
    assert told["other-gpu"].fix == "Say it: envkit install --accelerator cuda"
    said = render(found, Paper(width=200))
    assert "differs     CPU\n     there  x86_64 (zen4), 64 cores (" in said
    assert not {"other-cpu", "other-gpu"} & {note.id for note in with_comparison(judge(facts()), judge(facts())).notes}


@pytest.mark.parametrize("unknown", ["node", "builder", "cpu", "room", "limits", "indexes", "schedulers", "mpi"])
def test_what_is_not_known_of_one(unknown: str) -> None:
    less = inner("root", "node", hostname="n1")
    less = msgspec.structs.replace(less, **{unknown: None})
    for one, other in ((less, facts()), (facts(), less)):
        report = with_comparison(judge(one), judge(other))
        assert report.comparison is not None and render(report, Paper(width=40))


def test_hostile_texts_stay_texts() -> None:
    node = inner("root", "node", hostname="n\x1b[31m\n1", kernel="{here}")
    said = render(with_comparison(judge(node), judge(facts())), Paper(width=80))
    assert "\x1b" not in said
