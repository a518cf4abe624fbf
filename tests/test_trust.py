"""Whose a prefix is: nothing is run that somebody else can change, as real users try it."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import manifest, receipt, trust
from envkit.environments.prefix import Prefix, Tree, locate
from envkit.errors import HostProblem
from envkit.machine.host import Platform
from envkit.system import owners
from envkit.system.umask import fitting

from .people import REPOSITORY, Person, open_folder, people, shown

pytestmark = pytest.mark.integration
Install = Callable[..., ModuleReceipt]
MACHINE = os.uname().machine
GROUP = "envkit-p7"
USERS = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users"),
         pytest.mark.xdist_group("users")]  # fmt: skip


@pytest.fixture(scope="module")
def persons() -> Iterator[dict[str, Person]]:
    """Ada and Ben, who are in one project, and Mallory."""
    with people("ada", "ben", "mal", group=GROUP, members=("ada", "ben")) as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


@pytest.fixture
def prefix(folder: Path) -> Prefix:
    """A prefix of root's that others can read."""
    made = Prefix(root=folder / "prefix")
    made.create()
    made.root.chmod(0o755)
    return made


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform(machine=MACHINE, python="3.11"))


def refused(done: CompletedProcess[str], why: str) -> str:
    """Check that a command was refused because others can change what it would run; return what it says to do."""
    assert done.returncode == 3, done.stdout + done.stderr
    assert "others can change it." in done.stderr and why in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.partition("What to do: ")[2]


COMMANDS = (["run", "toy-cpu", "--", "true"], ["shell", "toy-cpu"], ["verify", "toy-cpu"], ["check-build", "toy-cpu"],
            ["show", "toy-cpu"], ["repair", "toy-cpu"], ["install", "pytorch", "--dry-run"], ["fetch", "pytorch"],
            ["job", "slurm", "toy-cpu", "--nodes", "1", "--ranks-per-node", "1", "--", "true"])  # fmt: skip


class TestSomebodyElse:
    pytestmark = USERS

    @pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
    def test_what_another_user_made_is_not_run(
        self, install: Install, prefix: Prefix, persons: dict[str, Person], words: list[str]
    ) -> None:
        install("toy-cpu")
        persons["mal"].owns(prefix.root)
        done = persons["ada"].envkit(*words, ENVKIT_PREFIX=prefix.root)
        fix = refused(done, f"{prefix.root}: It belongs to envkit-mal.")
        assert "If you trust them: export ENVKIT_TRUST=envkit-mal" in fix

    def test_the_list_says_so(self, install: Install, prefix: Prefix, persons: dict[str, Person]) -> None:
        install("toy-cpu")
        persons["mal"].owns(prefix.root)
        done = persons["ada"].envkit("list", "--json", ENVKIT_PREFIX=prefix.root)
        listed = next(one for one in json.loads(done.stdout)["environments"] if one["name"] == "toy-cpu")
        assert listed["state"] == "refused" and "It belongs to envkit-mal." in listed["why"]

    def test_ones_own_and_roots_are_used(
        self, install: Install, prefix: Prefix, persons: dict[str, Person], folder: Path
    ) -> None:
        install("toy-cpu")
        assert persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0
        persons["ada"].owns(prefix.root)
        prefix.root.chmod(0o700)
        assert persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0

    def test_who_is_trusted_is_used(self, install: Install, prefix: Prefix, persons: dict[str, Person]) -> None:
        install("toy-cpu")
        persons["mal"].owns(prefix.root)
        for word in ("envkit-mal", "nobody,envkit-mal", str(persons["mal"].uid), "unknown envkit-mal"):
            done = persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=word)
            assert done.returncode == 0, done.stderr
        other = persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST="envkit-ben")
        assert "export ENVKIT_TRUST=envkit-ben,envkit-mal" in refused(other, "It belongs to envkit-mal.")

    PLACES = ("environments", "environments/toy-cpu.json", "modules", "modules/all", "software", "", "../sources")

    @pytest.mark.parametrize("place", PLACES)
    def test_what_was_planted_in_ones_own_prefix(
        self, install: Install, prefix: Prefix, tree: Tree, persons: dict[str, Person], place: str
    ) -> None:
        install("toy-cpu")
        persons["ada"].owns(prefix.root)
        planted = Path(os.path.normpath(tree.root / place))
        os.chown(planted, persons["mal"].uid, -1)
        refused(persons["ada"].envkit("run", "toy-cpu", "--", "true", ENVKIT_PREFIX=prefix.root),
                f"{planted}: It belongs to envkit-mal.")  # fmt: skip

    @pytest.mark.parametrize("place", [*PLACES[:2], *PLACES[3:6], ".."])
    def test_what_everybody_or_a_group_may_write_to(
        self, install: Install, prefix: Prefix, tree: Tree, persons: dict[str, Person], place: str
    ) -> None:
        install("toy-cpu")
        ada = persons["ada"]
        ada.owns(prefix.root)
        path = Path(os.path.normpath(tree.root / place))
        path.chmod(path.stat().st_mode | stat.S_IWOTH)
        fix = refused(ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root), f"{path}: Everybody may write to it.")
        assert f"chmod o-w {path}" in fix and "ENVKIT_TRUST" not in fix
        path.chmod(path.stat().st_mode & ~stat.S_IWOTH | stat.S_IWGRP)
        assert ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0  # a group of her own alone
        os.chown(path, ada.uid, persons["mal"].gid)
        fix = refused(ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root), "The group envkit-mal may write to it.")
        assert f"chmod g-w {path}" in fix and "export ENVKIT_TRUST=@envkit-mal" in fix
        done = ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST="@envkit-mal")
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("place", ["lib/libtoy.so", "lib", "lib/data.json", "lib/link.so"])
    def test_each_file_of_a_module_is_looked_at(
        self, install: Install, prefix: Prefix, tree: Tree, persons: dict[str, Person], place: str
    ) -> None:
        """Whose it is by verify, before anything is run, by list what is loaded, by repair all, which mends it."""
        ada, mal, settings = persons["ada"], persons["mal"], dict[str, Any](ENVKIT_PREFIX=prefix.root)
        install("toy-cpu", horovod="/h")
        (tree.software / "Toy/1.0/lib").mkdir()
        for name in ("libtoy.so", "data.json"):
            (tree.software / "Toy/1.0/lib" / name).write_text("built")
        (tree.software / "Toy/1.0/lib/link.so").symlink_to("libtoy.so")
        manifest.write(tree, "Toy/1.0")
        ada.owns(prefix.root)
        assert "Nothing of toy-cpu is damaged" in ada.envkit("repair", "toy-cpu", **settings).stdout
        path = tree.software / "Toy/1.0" / place
        os.chown(path, mal.uid, -1, follow_symlinks=False)
        fix = refused(ada.envkit("verify", "toy-cpu", **settings), f"{path}: It belongs to envkit-mal.")
        assert fix.startswith(
            f"Have what others can change built again: envkit repair toy-cpu --prefix {prefix.root}\n"
        )
        assert "If you trust them: export ENVKIT_TRUST=envkit-mal" in fix
        done = ada.envkit("repair", "toy-cpu", "--dry-run", **settings)
        assert done.returncode == 6 and f"open to others {path}" in done.stdout, done.stdout
        said = ("damaged", f"{path} can be changed by others", f"envkit repair toy-cpu --prefix {prefix.root}")
        told = ada.envkit("list", "--json", **settings)
        assert told.returncode == 0, told.stderr
        listed = json.loads(told.stdout)["environments"]
        state = next((one["state"], one["why"], one["fix"]) for one in listed if one["name"] == "toy-cpu")
        assert (state == said) == place.endswith(".so"), state
        trusting = ada.envkit("repair", "toy-cpu", ENVKIT_TRUST="envkit-mal", **settings)
        assert "Nothing of toy-cpu is damaged" in trusting.stdout
        mal.owns(path)
        os.chown(path, ada.uid, -1, follow_symlinks=False)
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWGRP)
            prefix.root.chmod(0o755)
            refused(ada.envkit("verify", "toy-cpu", **settings), f"{path}: The group envkit-mal may write to it.")
            prefix.root.chmod(0o700)
            assert "Nothing of toy-cpu is damaged" in ada.envkit("repair", "toy-cpu", **settings).stdout

    def test_behind_a_closed_door_modes_do_not_count(
        self, install: Install, prefix: Prefix, tree: Tree, persons: dict[str, Person]
    ) -> None:
        install("toy-cpu")
        persons["ada"].owns(prefix.root)
        tree.root.chmod(0o777)
        prefix.root.chmod(0o700)
        assert persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0

    def test_a_group_is_who_is_in_it(self, install: Install, prefix: Prefix, persons: dict[str, Person]) -> None:
        install("toy-cpu")
        persons["ben"].owns(prefix.root)
        settings: dict[str, Any] = {"ENVKIT_PREFIX": prefix.root, "ENVKIT_TRUST": f"@{GROUP}"}
        assert persons["ada"].envkit("show", "toy-cpu", **settings).returncode == 0
        persons["mal"].owns(prefix.root)
        refused(persons["ada"].envkit("show", "toy-cpu", **settings), "It belongs to envkit-mal.")

    def test_root_runs_no_users_prefix(
        self, install: Install, prefix: Prefix, persons: dict[str, Person], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = install("toy-cpu")
        persons["ada"].owns(prefix.root)
        monkeypatch.delenv(trust.TRUST, raising=False)
        with pytest.raises(HostProblem, match="others can change it"):
            trust.require(prefix.root, Tree(root=Path(made.tree)))

    def test_a_receipt_that_only_its_owner_can_read(
        self, install: Install, prefix: Prefix, tree: Tree, persons: dict[str, Person]
    ) -> None:
        install("toy-cpu")
        install("good-cpu", "Python/system", "Good/1.0")
        receipt.path_of(tree, "toy-cpu").chmod(0o600)
        done = persons["ada"].envkit("list", "--json", ENVKIT_PREFIX=prefix.root)
        listed = {one["name"]: one for one in json.loads(done.stdout)["environments"]}
        assert listed["good-cpu"]["state"] == "installed"
        assert listed["toy-cpu"]["why"].endswith("toy-cpu.json cannot be read. Permission denied")
        assert persons["ada"].envkit("show", "good-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0
        done = persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root)
        assert done.returncode == 6 and "Traceback" not in done.stderr

    def test_root_uses_no_folder_that_a_user_has_moved(self, persons: dict[str, Person]) -> None:
        """As sudo -E with HOME set: a cache of hers, be it not there yet."""
        ada, own = persons["ada"], Path(pwd.getpwuid(0).pw_dir)
        env = {"HOME": str(own), "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
        env |= {"XDG_CACHE_HOME": f"{ada.home}/cache/new", "XDG_DATA_HOME": f"{own}/.local/share"}
        argv = [*shown(own), sys.executable, "-m", "envkit", "config", "--path"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stderr == "envkit: XDG_CACHE_HOME is another user's folder, so it is not used\n"

    @pytest.mark.parametrize("moved", [False, True])
    def test_root_leaves_nothing_in_a_users_home(self, persons: dict[str, Person], moved: bool) -> None:
        """As with sudo -E."""
        ada = persons["ada"]
        before = sorted(ada.home.rglob("*"))
        env = {"HOME": str(ada.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
        env |= {"XDG_DATA_HOME": f"{ada.home}/data"} if moved else {}
        own = Path(pwd.getpwuid(0).pw_dir)
        argv = [*shown(own), sys.executable, "-m", "envkit", "data", "mnist", "--generated"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{own}/.local/share/envkit/data/")
        assert f"envkit: {ada.home} is another user's home, so that of root is used: {own}\n" in done.stderr
        assert sorted(ada.home.rglob("*")) == before


class TestAbove:
    """Who can write to a folder above a prefix can put another one in its place."""

    pytestmark = USERS

    @pytest.fixture
    def above(self, install: Install, prefix: Prefix, persons: dict[str, Person]) -> Path:
        """A folder of root's, with Ada's prefix in it."""
        install("toy-cpu")
        above = prefix.root.parent / "above"
        above.mkdir(mode=0o755)
        (above / "own").mkdir(mode=0o755)
        shutil.copytree(prefix.root, above / "own/prefix")
        for path in (above / "own/prefix").rglob("*.json"):
            path.write_text(path.read_text().replace(str(prefix.root), str(above / "own/prefix")))
        persons["ada"].owns(above / "own")
        return above

    def show(self, persons: dict[str, Person], above: Path, **settings: Any) -> CompletedProcess[str]:
        return persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=above / "own/prefix", **settings)

    def test_of_somebody_else(self, above: Path, persons: dict[str, Person]) -> None:
        os.chown(above, persons["mal"].uid, -1)
        done = self.show(persons, above)
        fix = refused(done, f"{above}: It belongs to envkit-mal. Another folder could be put in the prefix's place")
        assert "export ENVKIT_TRUST=envkit-mal" in fix
        assert self.show(persons, above, ENVKIT_TRUST="envkit-mal").returncode == 0
        above.chmod(0o1755)  # its owner can all the same
        refused(self.show(persons, above), f"{above}: It belongs to envkit-mal.")

    def test_open_to_all(self, above: Path, persons: dict[str, Person]) -> None:
        above.chmod(0o777)
        fix = refused(self.show(persons, above), f"{above}: Everybody may write to it.")
        assert f"chmod o-w {above}; or chmod +t {above}" in fix
        above.chmod(0o1777)
        assert self.show(persons, above).returncode == 0
        os.chown(above / "own", persons["mal"].uid, -1)
        refused(self.show(persons, above), f"{above}/own: It belongs to envkit-mal.")

    def test_of_a_project(self, above: Path, persons: dict[str, Person]) -> None:
        shutil.chown(above, group=GROUP)
        for mode in (0o2775, 0o2770):
            above.chmod(mode)
            done = self.show(persons, above)
            assert f"export ENVKIT_TRUST=@{GROUP}" in refused(done, f"{above}: The group {GROUP} may write to it.")
            assert self.show(persons, above, ENVKIT_TRUST=f"@{GROUP}").returncode == 0
        shutil.chown(above, user=persons["ben"].name)
        assert self.show(persons, above, ENVKIT_TRUST=f"@{GROUP}").returncode == 0
        above.chmod(0o3775)
        assert self.show(persons, above, ENVKIT_TRUST=persons["ben"].name).returncode == 0

    def test_where_others_do_not_get(self, above: Path, persons: dict[str, Person]) -> None:
        (above / "own").chmod(0o777)
        refused(self.show(persons, above), f"{above}/own: Everybody may write to it.")
        persons["ada"].owns(above)
        above.chmod(0o700)
        assert self.show(persons, above).returncode == 0

    def test_where_a_link_lies_and_where_it_leads(self, above: Path, persons: dict[str, Person]) -> None:
        links = above.parent / "links"
        links.mkdir(mode=0o777)
        links.chmod(0o777)
        (links / "to").symlink_to(above / "own")
        done = persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=links / "to/prefix")
        refused(done, f"{links}: Everybody may write to it.")
        links.chmod(0o755)
        assert persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=links / "to/prefix").returncode == 0
        above.chmod(0o777)
        refused(persons["ada"].envkit("show", "toy-cpu", ENVKIT_PREFIX=links / "to/prefix"), f"{above}: Everybody")

    def test_each_link_of_a_chain(self, above: Path, persons: dict[str, Person]) -> None:
        open_one, closed = above.parent / "open", above.parent / "closed"
        for folder in (open_one, closed):
            folder.mkdir(mode=0o755)
        (closed / "first").symlink_to("../open/second/prefix")
        (open_one / "second").symlink_to(above / "own")
        ada = persons["ada"]
        assert ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=closed / "first").returncode == 0
        open_one.chmod(0o777)
        refused(
            ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=closed / "first"), f"{open_one}: Everybody may write to it."
        )
        open_one.chmod(0o1777)
        assert ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=closed / "first").returncode == 0
        os.chown(open_one / "second", persons["mal"].uid, -1, follow_symlinks=False)
        done = ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=closed / "first")
        refused(done, f"{open_one}/second: It belongs to envkit-mal.")

    def test_links_that_lead_nowhere_or_in_a_circle(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        assert len(owners.above(tmp_path / "a/prefix")) < 100

    def test_nothing_is_made_in_such_a_place(self, above: Path, persons: dict[str, Person]) -> None:
        above.chmod(0o777)
        for words in (["install", "pytorch"], ["fetch", "pytorch"]):
            refused(persons["ada"].envkit(*words, ENVKIT_PREFIX=above / "new/prefix"), f"{above}: Everybody")
        assert not (above / "new").exists()

    def test_in_a_container_that_does_not_map_root(self, above: Path, persons: dict[str, Person]) -> None:
        """There / is nobody's, and so is what others own."""
        inside = ("unshare", "--user", "--map-current-user", "env", f"PYTHONPATH={REPOSITORY}")
        words = (sys.executable, "-m", "envkit", "show", "toy-cpu", "--prefix", above / "own/prefix")
        done = persons["ada"].run(*inside, *words)
        assert done.returncode == 0, done.stderr
        above.chmod(0o777)
        refused(persons["ada"].run(*inside, *words), f"{above}: Everybody may write to it.")


class TestClosed:
    """A prefix below a folder that this user cannot get into."""

    pytestmark = USERS

    @pytest.mark.parametrize("words", [["list"], ["doctor"], ["show", "x"], ["install", "pytorch", "--dry-run"]])
    def test_is_said(self, words: list[str], tmp_path: Path, persons: dict[str, Person]) -> None:
        (tmp_path / "closed").mkdir(mode=0o700)
        done = persons["ada"].envkit(*words, ENVKIT_PREFIX=tmp_path / "closed/prefix")
        assert "Traceback" not in done.stderr
        assert done.returncode in ((0, 3) if words == ["doctor"] else (7,)), done.stdout + done.stderr
        assert str(tmp_path / "closed") in "".join((done.stdout + done.stderr).split())  # lines are broken at 80


class TestSeveral:
    """A site's prefix and one's own, and one that cannot be read."""

    pytestmark = USERS

    @pytest.fixture
    def settings(self, install: Install, prefix: Prefix, persons: dict[str, Person]) -> dict[str, Any]:
        """The site has toy-cpu and site-cpu, Ada toy-cpu, too, and own-cpu."""
        ada = persons["ada"]
        install("toy-cpu", verified="2001-01-01", horovod="/h")
        install("own-cpu", "Python/system", "Own/1.0")
        own = ada.home / "own"
        shutil.rmtree(own, ignore_errors=True)
        shutil.move(prefix.root, own)
        for path in own.rglob("*.json"):
            path.write_text(path.read_text().replace(str(prefix.root), str(own)))
        ada.owns(own)
        prefix.create()
        prefix.root.chmod(0o755)
        install("toy-cpu", verified="2002-02-02", horovod="/h")
        install("site-cpu", "Python/system", "Site/1.0")
        return {"ENVKIT_PREFIX": f"{prefix.root}:{own}"}

    def test_all_are_seen_and_the_first_wins(
        self, settings: dict[str, Any], persons: dict[str, Person], prefix: Prefix
    ) -> None:
        ada = persons["ada"]
        done = ada.envkit("list", "--json", **settings)
        assert done.returncode == 0, done.stderr
        every = json.loads(done.stdout)["environments"]
        listed = {one["name"]: one for one in reversed(every)}  # of one name the first is meant
        assert [one["prefix"] for one in every if one["name"] == "toy-cpu"] == [str(prefix.root), str(ada.home / "own")]
        assert {one["state"] for one in listed.values() if one["prefix"]} == {"installed"}
        assert (listed["toy-cpu"]["prefix"], listed["toy-cpu"]["verified"]) == (str(prefix.root), "2002-02-02")
        assert (listed["site-cpu"]["prefix"], listed["site-cpu"]["verified"]) == (str(prefix.root), None)
        assert listed["own-cpu"]["prefix"] == str(ada.home / "own")
        for name, root in (("toy-cpu", prefix.root), ("site-cpu", prefix.root), ("own-cpu", ada.home / "own")):
            shown = ada.envkit("show", name, **settings)
            assert f"{root}/{MACHINE}-py3.11" in shown.stdout, shown.stderr
        turned: dict[str, Any] = {"ENVKIT_PREFIX": ":".join(reversed(settings["ENVKIT_PREFIX"].split(":")))}
        assert "2001-01-01" in ada.envkit("show", "toy-cpu", **turned).stdout
        assert "2001-01-01" in ada.envkit("show", "toy-cpu", "--prefix", turned["ENVKIT_PREFIX"]).stdout

    def test_a_job_looks_there_too(self, settings: dict[str, Any], persons: dict[str, Person]) -> None:
        words = ("--nodes", "1", "--ranks-per-node", "1", "--", "true")
        done = persons["ada"].envkit("job", "slurm", "site-cpu", *words, ENVKIT_TRUST="@envkit-p7", **settings)
        assert f"export ENVKIT_PREFIX={settings['ENVKIT_PREFIX']}\n" in done.stdout, done.stderr
        assert "export ENVKIT_TRUST=@envkit-p7\n" in done.stdout

    def test_what_is_made_goes_into_the_first_that_can_be_written(
        self, settings: dict[str, Any], persons: dict[str, Person]
    ) -> None:
        ada = persons["ada"]
        done = ada.envkit("data", "mnist", "--generated", **settings)
        assert done.returncode == 0 and done.stdout.startswith(f"{ada.home}/own/data/"), done.stderr

    def test_what_the_site_has_is_not_removed(
        self, settings: dict[str, Any], persons: dict[str, Person], prefix: Prefix
    ) -> None:
        ada = persons["ada"]
        done = ada.envkit("remove", "site-cpu", **settings)
        assert done.returncode == 7 and "cannot be written to" in done.stderr, done.stderr
        assert ada.envkit("remove", "own-cpu", **settings).returncode == 0
        assert "own-cpu" not in ada.envkit("list", **settings).stdout
        assert "toy-cpu" in ada.envkit("list", **settings).stdout

    def test_one_that_cannot_be_read_is_named_and_the_others_count(
        self, settings: dict[str, Any], persons: dict[str, Person], prefix: Prefix
    ) -> None:
        prefix.root.chmod(0o700)
        done = persons["ada"].envkit("list", "--json", **settings)
        assert f"{prefix.root} cannot be read. Permission denied." in done.stderr
        assert "own-cpu" in done.stdout and done.returncode == 0
        assert persons["ada"].envkit("show", "own-cpu", **settings).returncode == 0

    def test_one_of_somebody_else_harms_the_others_not(
        self, settings: dict[str, Any], persons: dict[str, Person], prefix: Prefix
    ) -> None:
        persons["mal"].owns(prefix.root)
        assert persons["ada"].envkit("show", "own-cpu", **settings).returncode == 0
        refused(persons["ada"].envkit("show", "site-cpu", **settings), "It belongs to envkit-mal.")


@pytest.mark.parametrize(
    ("named", "own", "order"),
    [
        ("/nowhere/a:/nowhere/b", "/nowhere/a", ("/nowhere/a", "/nowhere/b")),
        ("/nowhere/x:HERE/b::HERE/b:", "HERE/b", ("/nowhere/x", "HERE/b")),
        ("HERE/a:HERE/b", "HERE/a", ("HERE/a", "HERE/b")),
        ("HERE/b", "HERE/b", ()),
    ],
)
def test_where_several_prefixes_are(
    named: str, own: str, order: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in ("/", "/nowhere") and writable(path, mode))
    found = locate(named.replace("HERE", str(tmp_path)), {})
    assert str(found.root) == own.replace("HERE", str(tmp_path))
    assert [str(root) for root in found.order] == [root.replace("HERE", str(tmp_path)) for root in order]
    assert str(found) == ":".join(map(str, found.order or (found.root,)))


@pytest.mark.parametrize(
    ("mode", "is_root", "expected"),
    [
        (0o700, False, 0o077),
        (0o700, True, 0o022),
        (0o755, False, 0o022),
        (0o2770, False, 0o007),
        (0o2770, True, 0o007),
        (0o2775, False, 0o002),
        (0o2777, False, 0o077),
        (0o1777, True, 0o077),
    ],
)
def test_what_is_made_is_as_open_as_the_prefix(mode: int, is_root: bool, expected: int) -> None:
    assert oct(fitting(mode, is_root=is_root)) == oct(expected)


def test_who_is_trusted_by_number_and_unknown_names_are_nobody() -> None:
    known = trust.trusted({"ENVKIT_TRUST": "4711,@4712 no-such-user @no-such-group"})
    assert known.users == {0, os.geteuid(), 4711} and known.groups == {0, 4712}


def test_no_receipt_is_looked_at_that_is_not_there(tree: Tree) -> None:
    trust.require(tree.root.parent, tree, receipt.path_of(tree, "none"))


def test_module_files_and_folders_of_modules_are_looked_at(tree: Tree) -> None:
    """An environment is entered by running its module files."""
    places = (
        tree.modulepath / "Toy/1.0.lua",
        tree.modulepath / "Toy",
        tree.software / "Toy/1.0",
        tree.software / "Toy",
    )
    for place in places:
        (tree.modulepath / "Toy").mkdir(parents=True, exist_ok=True)
        (tree.software / "Toy/1.0").mkdir(parents=True, exist_ok=True)
        (tree.modulepath / "Toy/1.0.lua").touch()
        tree.root.parent.chmod(0o755)
        trust.require(tree.root.parent, tree, modules=["Toy/1.0"])
        mode = place.stat().st_mode
        place.chmod(mode | stat.S_IWOTH)
        trust.require(tree.root.parent, tree)
        with pytest.raises(HostProblem) as caught:
            trust.require(tree.root.parent, tree, modules=["Toy/1.0"])
        assert f"{place}: Everybody may write to it" in caught.value.why
        place.chmod(mode)


def test_a_name_that_is_nobodys_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_TRUST", "no-such-user,@no-such-group,root")
    told = trust.refused(tmp_path, tmp_path, "The group p7 may write to it", "@p7").fix
    assert "Nobody here is called no-such-user, @no-such-group, as ENVKIT_TRUST says." in told
    assert "export ENVKIT_TRUST=root,@p7" in told


@pytest.mark.parametrize("named", ["/a:b/prefix", "a:/b", "a:b"])
def test_a_colon_in_the_name_of_one_prefix_is_refused(named: str) -> None:
    with pytest.raises(HostProblem, match="it has ':' in it"):
        locate(named, {})


def test_a_number_without_end_is_nobody() -> None:
    words = ["9" * 5000, "@" + "9" * 5000]
    assert owners.known(words) == owners.known([])
    assert [one[:17] for one in owners.absent(words)] == ["there is no user ", "there is no group"]
