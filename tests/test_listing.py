import io
import os
import platform
import pwd
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import filelocks, receipt
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Module, Mpi
from envkit.errors import HostProblem, Problem
from envkit.install import listing, needs
from envkit.install.install import find_installed, say_already
from envkit.install.listing import ListedEnvironment
from envkit.machine.host import Platform
from envkit.planning.request import Request
from envkit.planning.stack import stacks
from envkit.report.paper import Paper
from envkit.sources import fetch

Install = Callable[..., ModuleReceipt]
HERE = Platform.own()


def listed(prefix: Prefix) -> dict[str, ListedEnvironment]:
    return {entry.name: entry for entry in listing.entries(prefix)}


def shown(found: list[ListedEnvironment], prefix: Prefix) -> str:
    return listing.text(found, prefix, Paper(width=80))


def test_whether_a_stack_fits_is_unknown_until_it_is_asked(prefix: Prefix) -> None:
    assert {one.name: one.state for one in listing.entries(prefix)} == {one.name: "unknown" for one in stacks()}


def test_what_this_machine_lacks_is_told_with_its_remedy(prefix: Prefix) -> None:
    lacking = {one.name: [Problem(what="A is missing.", fix="Get A."), Problem(what="B.", fix="")] for one in stacks()}
    lacking["pytorch-2.13-cpu"] = []
    found = {entry.name: entry for entry in listing.entries(prefix, lacking)}
    assert found.pop("pytorch-2.13-cpu").state == "fits"
    assert {(one.state, one.why, one.fix, len(one.lacking)) for one in found.values()} == {
        ("lacks", "A is missing.", "Get A.", 2)
    }
    text = shown([*found.values()], prefix)
    assert text.count("A is missing. And 1 more: 'envkit doctor'.") == 1, "what is alike is said once"


def test_what_was_never_built_is_no_more_than_planned(prefix: Prefix) -> None:
    found = listing.entries(prefix, {one.name: [] for one in stacks()})
    assert {one.name for one in found if not one.built} == {one.name for one in stacks() if not one.tried}
    [_, never] = shown(found, prefix).split("Never built by this project")
    assert all(one.name in never for one in stacks() if not one.tried)
    assert "pytorch-2.13-cpu " not in never


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int, prefix: Prefix, install: Install) -> None:
    install("toy", horovod="/h")
    lacking: dict[str, list[Problem]] = {one.name: [] for one in stacks()}
    lacking["pytorch-2.1-eessi"] = [Problem(what="many words " * 30, fix="and a remedy " * 10)]
    elsewhere = Prefix(root=Path("/elsewhere"))  # so that the path of the other one is shown
    text = listing.text(listing.entries(prefix, lacking), elsewhere, Paper(width=width))
    assert f"in{prefix.root}" in "".join(text.split())
    titles = set(listing.TITLES.values())
    assert [line for line in text.splitlines() if len(line) > width and line not in titles] == []


def test_no_server_is_asked_what_is_lacking(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(fetch, "ask", asked)
    for name in ("pytorch-2.13-cpu-image", "pytorch-2.13-cpu"):
        [stack] = [one for one in stacks() if one.name == name]
        assert needs.lacking(prefix, [stack])[name] is not None


def test_modules_of_the_configuration_that_cannot_be_loaded(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise HostProblem(what="The modules mpi/1.0 could not be loaded.", fix="See 'module avail'.")

    monkeypatch.setenv("ENVKIT_LOAD", "mpi/1.0")
    monkeypatch.setattr("envkit.planning.chosen_mpi.detect", refused)
    for found in needs.lacking(prefix, stacks()).values():
        assert found is not None
        assert [one.what for one in found] == ["The modules mpi/1.0 could not be loaded."]


@pytest.mark.integration
def test_it_agrees_with_the_doctor(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that the doctor says does not work gives none of its stacks."""
    import os

    from envkit.doctor import gather, rules

    monkeypatch.setattr("envkit.machine.modules_tool.find_modules_tool", lambda *_: None)
    verdicts = {one.method: one for one in rules.judge(gather.gather(prefix, (), os.environ)).methods}
    assert verdicts["easybuild"].state == "fails"
    for stack in stacks():
        found = needs.lacking(prefix, [stack])[stack.name]
        state = verdicts[stack.method].state
        if found is not None and state in ("works", "fails") and stack.tried and stack.method != "eessi":
            assert bool(found) == (state == "fails"), (stack.name, found)


def test_what_is_installed_comes_first_and_once(
    prefix: Prefix, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = stacks()[0].name
    install(name, python="3.11.7")
    install(name, python="3.13.1", verified="2026-03-04", horovod="/h")
    install("own-recipe", python="3.11.7")
    monkeypatch.setattr(Platform, "own", lambda: Platform(machine=HERE.machine, python="3.13"))
    found = listing.entries(prefix)
    assert {entry.name for entry in found[:3]} == {"own-recipe", name, f"{name}-py3.11"}
    assert len(found) == len(stacks()) + 2
    one, other = listed(prefix)[name], listed(prefix)["own-recipe"]
    assert (one.state, one.verified, one.python, one.horovod) == ("installed", "2026-03-04", "3.13.1", True)
    assert (other.state, other.verified, other.horovod, other.built) == ("installed", None, False, None)
    assert datetime.fromisoformat(str(one.created)).tzinfo and date.fromisoformat(str(one.verified))
    assert "verified 2026-03-04" in shown(found, prefix) and "no Horovod" in shown(found, prefix)
    assert listed(prefix)[f"{name}-py3.11"].state == "installed"


@pytest.mark.parametrize("folder", ["embedded/", ""])
def test_the_mpi_of_a_wheel_is_told(folder: str, prefix: Prefix, install: Install) -> None:
    """And of each stack where it was tried."""
    name, other = stacks()[0], stacks()[1]
    modules = (Module(name="OpenMPI/system", easyconfig=f"/r/{folder}openmpi/x.eb", sha256=""),)
    install(name.name, modules=modules, mpi=Mpi(family="Open MPI", version="4.1.8"), horovod="/h")
    found = listed(prefix)
    assert found[name.name].wheel_mpi is bool(folder)
    told = "MPI of a wheel: only TCP between nodes" in " ".join(shown(listing.entries(prefix), prefix).split())
    assert told is bool(folder)
    assert (found[name.name].status, found[other.name].status) == (name.status, other.status)
    assert not found[other.name].wheel_mpi


def test_what_has_begun(prefix: Prefix) -> None:
    stack = stacks()[0].name
    receipt.begin(prefix.tree(HERE), stack, "building", prefix.logs)
    found = listed(prefix)[stack]
    assert found.state == "unfinished" and f"envkit remove {stack}" in found.fix
    assert found.begun and not found.begun.running


def test_what_was_to_be_added_is_asked_for_again_and_nothing_else(prefix: Prefix) -> None:
    stack = stacks()[0].name
    receipt.begin(prefix.tree(HERE), stack, "building", prefix.logs, ["mpi4py", "$(evil)", "tutorials"])
    found = listed(prefix)[stack]
    again = (
        f"envkit install {stack} --with mpi4py,tutorials --prefix {prefix.root}, with the other options that it had."
    )
    assert f"Go on with it by the command that began it: {again}" in found.fix
    assert found.fix.endswith(f"envkit remove {stack} --prefix {prefix.root}.")
    assert found.begun and found.begun.extras == ("mpi4py", "tutorials")


def test_what_is_being_installed_and_by_whom(prefix: Prefix) -> None:
    stack, tree = stacks()[0].name, prefix.tree(HERE)
    receipt.begin(tree, stack, "building", prefix.logs)
    with filelocks.held(tree, f"stack-{stack}", Console(file=io.StringIO()), ""):
        found = listed(prefix)[stack]
        text = shown([found], prefix)
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert found.state == "installing" and found.begun and found.begun.running
    assert (found.begun.user, found.begun.pid, found.begun.host) == (me, os.getpid(), platform.node())
    assert datetime.fromisoformat(found.begun.since).tzinfo
    assert f"Built by {me}, process {os.getpid()} on {platform.node()}, since 2" in " ".join(text.split())
    assert listed(prefix)[stack].state == "unfinished"


def test_what_is_installed_and_built_again(prefix: Prefix, install: Install) -> None:
    install("toy", horovod="/h")
    tree = prefix.tree(HERE)
    receipt.begin(tree, "toy", "building", prefix.logs)
    with filelocks.held(tree, "stack-toy", Console(file=io.StringIO()), ""):
        [found] = [one for one in listing.entries(prefix) if one.name == "toy"]
    assert found.state == "installed" and found.begun and found.begun.running


def test_a_recipe_by_path_that_has_begun(prefix: Prefix) -> None:
    receipt.begin(prefix.tree(HERE), "toy-1.0", "building", prefix.logs)
    assert listed(prefix)["toy-1.0"].state == "unfinished"


def test_json_of_the_list(prefix: Prefix) -> None:
    told = msgspec.json.decode(listing.to_json(listing.entries(prefix)))
    assert told["version"] == 2
    assert told["environments"][0]["name"] == stacks()[0].name


def test_json_of_a_receipt_is_the_receipt(install: Install) -> None:
    made = install("toy")
    assert msgspec.json.decode(listing.receipt_json(made).encode(), type=ModuleReceipt) == made


@pytest.mark.parametrize(
    ("mpi", "said"),
    [
        (Mpi(family="Open MPI", version="4.1.4"), "Open MPI 4.1.4"),
        (Mpi(family="Open MPI", version="5.0.3", embedded=True), "Open MPI 5.0.3 (came with it)"),
        (None, "none"),
    ],
)
def test_description_for_people(mpi: Mpi | None, said: str, install: Install) -> None:
    made = install("toy", "Python/system", "Toy/1.0", mpi=mpi, load=("gcc/12",), horovod="/h")
    lines = listing.describe(made).splitlines()
    assert lines[0] == "Name:       toy"
    assert f"MPI:        {said}" in lines
    assert "Horovod:    /h" in lines
    assert f"By hand:    module use {made.tree}/modules/all && module load gcc/12 Toy/1.0" in lines
    assert lines[-2:] == ["Modules:    Python/system", "            Toy/1.0"]


def test_the_prefix_is_named(
    tmp_path: Path, prefix: Prefix, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("toy", horovod="/h")
    assert run(["list", "--installed", "--prefix", str(prefix.root)]) == 0
    assert capsys.readouterr().out.startswith(f"Prefix  {prefix.root}"[:60])
    (tmp_path / "empty").mkdir()
    for names, said in (("absent", "absent (no such folder)"), ("empty", "empty"), ("empty:absent", "empty, ")):
        where = ":".join(str(tmp_path / name) for name in names.split(":"))
        assert run(["list", "--installed", "--prefix", where]) == 0
        told = capsys.readouterr().err
        assert told.startswith("Nothing is installed in /") and said in told
        assert ("no such folder" in told) is ("absent" in names)


def test_a_folder_of_packages_is_described(install: Install, tmp_path: Path) -> None:
    made = install("toy", horovod="/h")
    (tmp_path / "mine/lib/python3.11/site-packages/own_package-1.2.dist-info").mkdir(parents=True)
    text = listing.describe(made.within(tmp_path / "mine"))
    assert text.splitlines()[:3] == [
        f"Folder:     {tmp_path}/mine",
        "Packages:   own-package 1.2",
        "On top of:  toy",
    ]


@pytest.mark.parametrize(("is_there", "state"), [(True, "installing"), (False, "unfinished")])
def test_an_installation_whose_locks_are_closed_to_this_user(
    is_there: bool, state: str, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(lock: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(lock))

    tree = prefix.tree(HERE)
    tree.unfinished.mkdir(parents=True)
    pid = os.getpid() if is_there else 2**22
    note = receipt.Unfinished(
        stack="toy-1.0", stage="building", pid=pid, node=os.uname().nodename, began="2026-11-28 01:00:00", log="/l"
    )
    (tree.unfinished / "toy-1.0.json").write_bytes(msgspec.json.encode(note))
    tree.locks.mkdir()
    (tree.locks / "stack-toy-1.0.lock").touch()
    monkeypatch.setattr(filelocks, "is_held", closed)
    assert listed(prefix)["toy-1.0"].state == state


@pytest.fixture
def twice(prefix: Prefix, install: Install, tmp_path: Path) -> Prefix:
    """Two prefixes that have an environment of one name: of Open MPI in the first, of MPICH in the second."""
    install("toy", mpi=Mpi(family="MPICH", version="4.2.1"), horovod="/h")
    second = prefix.root.rename(tmp_path / "second")
    prefix.root.mkdir(mode=0o755)
    install("toy", mpi=Mpi(family="Open MPI", version="5.0.3"), horovod="/h")
    for path in second.glob("*/environments/toy.json"):
        path.write_text(path.read_text().replace(str(prefix.root), str(second)))
    return Prefix(root=prefix.root, order=(prefix.root, second))


def test_a_name_that_two_prefixes_have(twice: Prefix) -> None:
    found = [one for one in listing.entries(twice) if one.name == "toy"]
    assert [(one.mpi, one.prefix) for one in found] == [
        ("Open MPI 5.0.3", str(twice.order[0])),
        ("MPICH 4.2.1", str(twice.order[1])),
    ]
    first, second = listing.text(found, twice, Paper(width=200)).splitlines()[1:]
    assert "Open MPI 5.0.3" in first and "--prefix" not in first
    assert "MPICH 4.2.1" in second and f"meant with --prefix {twice.order[1]}" in second


def test_what_is_built_again_is_that_of_its_own_prefix(twice: Prefix) -> None:
    tree = Prefix(root=twice.order[1]).tree(HERE)
    receipt.begin(tree, "toy", "building", tree.root)
    with filelocks.held(tree, "stack-toy", Console(file=io.StringIO()), ""):
        first, second = (one for one in listing.entries(twice) if one.name == "toy")
        receipt.path_of(tree, "toy").unlink()
        _, begun = (one for one in listing.entries(twice) if one.name == "toy")
    assert first.begun is None and second.begun and second.begun.running
    assert (begun.state, begun.prefix) == ("installing", str(twice.order[1]))


@pytest.mark.parametrize(("family", "at"), [("Open MPI", 0), ("MPICH", 1), ("Intel MPI", None)])
def test_what_a_later_prefix_has_is_not_installed_again(family: str, at: int | None, twice: Prefix) -> None:
    request = Request(prefix=twice, wanted="pytorch-2.13-cpu", method="easybuild", mpi=family)
    for root in twice.order:
        for path in root.glob("*/environments/toy.json"):
            path.with_name("pytorch-2.13-cpu.json").write_text(path.read_text().replace('"toy"', '"pytorch-2.13-cpu"'))
    existing = find_installed(request)
    assert (existing and Path(existing.tree).parent) == (None if at is None else twice.order[at])
    if existing:
        said = io.StringIO()
        say_already(existing, twice, Console(file=said, width=1000))
        assert ("the name means another one" in said.getvalue()) == (at == 1)
