"""Repairing: what is damaged is found, named and built again, and nothing else is; what was there stays until then."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .site import Site, sha256
from .test_install_rebuild import WORKS, edit
from .test_install_rebuild import state as everything

pytestmark = pytest.mark.integration

TOYS = ("toy-base", "toy-middle", "toy-top")


@pytest.fixture
def there(site: Site) -> Site:
    """A site where toy-top is installed, with recipes of its own."""
    site = site.own_recipes()
    site.installed("toy-top")
    return site


def state(site: Site) -> dict[str, str]:
    """What of a tree counts, but for what eb notes of a build, under names that have the time in them."""
    return {path: found for path, found in everything(site).items() if "/easybuild/" not in path}


def program(site: Site, toy: str) -> Path:
    return site.tree / "software" / toy / "1.0" / "bin" / toy


def module_file(site: Site, toy: str) -> Path:
    [found] = (site.tree / "modules" / "all" / toy).iterdir()
    return found


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_one_byte(path: Path) -> None:
    """Another content, of the same size and time."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def is_mended(site: Site, damaged: dict[str, str], *modules: str) -> None:
    """Check that these modules alone are built again, that all else is left alone, and that it works."""
    before, begun = state(site), site.begun()
    said = site.run("repair", "toy-top-1.0")
    assert site.begun()[len(begun) :] == [f"{module}/1.0" for module in modules]
    assert all(f"  {module}/1.0: " in said.out for module in modules)
    site.run(*WORKS)
    after = state(site)
    assert set(after) == set(damaged)
    others = [path for path in damaged if not any(module in path for module in (*modules, "toy-top-1.0"))]
    assert {path: after[path] for path in others} == {path: before[path] for path in others}
    assert "Nothing of toy-top-1.0 is damaged" in site.run("repair", "toy-top-1.0").out
    assert not list((site.tree / "replaced").glob("*.json"))


@pytest.mark.parametrize("harm", ["file", "folder", "of nobody"])
def test_what_others_can_change_is_built_again(there: Site, harm: str) -> None:
    """What it is now does not count, nor whether it can be removed but by its folder."""
    damaged = state(there)
    there.prefix.chmod(0o755)
    path = program(there, "toy-middle")
    if harm == "of nobody":
        if os.geteuid():
            pytest.skip("needs root, to give a file away")
        os.chown(path.parent, 65534, -1)
    elif harm == "folder":
        path.parent.chmod(0o777)
    else:
        path.chmod(0o777)
    told = there.start("repair", "toy-top-1.0", "--dry-run").expect(6)
    assert f"open to others {path.parent if harm != 'file' else path}" in told.out
    is_mended(there, damaged, "toy-middle")


@pytest.mark.parametrize("harm", [delete, empty, change_one_byte])
@pytest.mark.parametrize("toy", TOYS)
def test_a_damaged_file_of_any_module(there: Site, toy: str, harm: Callable[[Path], None]) -> None:
    whole = state(there)
    harm(program(there, toy))
    damaged = state(there)
    told = there.run("repair", "toy-top-1.0", "--dry-run", status=6)
    how = "gone    " if harm is delete else "changed "
    assert f"  {toy}/1.0: 1 file\n    {how} {program(there, toy)}\n" in told.out.replace("\n/", " /")
    assert state(there) == damaged
    if harm is not change_one_byte and toy != "toy-middle":  # that is no program: only a comparison of all finds it
        assert there.states()["toy-top-1.0"] == "damaged"
        assert "envkit repair toy-top-1.0" in there.run("show", "toy-top-1.0").out
    is_mended(there, whole, toy)


def test_nothing_damaged(there: Site) -> None:
    before = state(there)
    for words in ((), ("--dry-run",)):
        told = there.run("repair", "toy-top-1.0", *words)
        assert "Nothing of toy-top-1.0 is damaged: " in told.out
        assert "MB) as built." in " ".join(told.out.split())
    assert state(there) == before
    assert there.states()["toy-top-1.0"].startswith("installed")


def test_a_module_file_that_has_gone(there: Site) -> None:
    whole = state(there)
    module_file(there, "toy-top").unlink()
    refused = there.run(*WORKS, status=6)
    assert "Put it back with 'envkit repair toy-top-1.0 --prefix " in refused.err
    is_mended(there, whole, "toy-top")


def test_a_module_file_of_each_of_two_modules(there: Site) -> None:
    whole = state(there)
    for toy in ("toy-base", "toy-top"):
        with module_file(there, toy).open("a") as stream:
            stream.write("-- by hand\n")
    is_mended(there, whole, "toy-base", "toy-top")


def test_a_folder_of_software_that_has_gone(there: Site) -> None:
    whole = state(there)
    shutil.rmtree(there.tree / "software" / "toy-middle")
    is_mended(there, whole, "toy-middle")


@pytest.mark.parametrize("also", [(), ("built",), ("built", "modules")])
def test_all_software_has_gone(there: Site, also: tuple[str, ...]) -> None:
    """What says how its files were may have gone with it."""
    for name in ("software", *also):
        shutil.rmtree(there.tree / name)
    assert there.states()["toy-top-1.0"] == "damaged"
    there.run(*WORKS, status=6)
    told = there.run("repair", "toy-top-1.0", "--dry-run", status=6)
    assert "has gone" in told.out and "envkit repair toy-top-1.0" in " ".join(told.out.split())
    begun = there.begun()
    said = there.run("repair", "toy-top-1.0")
    assert "toy-top-1.0 is damaged: " in said.out
    assert there.begun()[len(begun) :] == [f"{toy}/1.0" for toy in TOYS]
    there.run(*WORKS)
    assert "Nothing of toy-top-1.0 is damaged" in there.run("repair", "toy-top-1.0").out


def test_what_was_added_and_shadows(there: Site) -> None:
    whole = state(there)
    for number, name in enumerate(("lib/libtoy.so.1", "lib/python/site-packages/torch.py")):
        path = there.tree / "software" / "toy-base" / "1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    (there.tree / "software/toy-base/1.0/lib/notes.log").touch()
    told = there.run("repair", "toy-top-1.0", "--dry-run", status=6)
    assert told.out.count("    added    ") == 2
    is_mended(there, whole, "toy-base")


@pytest.mark.parametrize("way", ["install", "install NAME"])
def test_an_installation_mends_it_and_says_so(there: Site, way: str) -> None:
    begun = there.begun()
    empty(program(there, "toy-middle"))
    if way == "install":
        said = there.installed("toy-top")
        assert "toy-top-1.0 is installed and damaged; what is damaged is built again:" in said.out
    else:  # with another module gone, as any other command would say it
        module_file(there, "toy-base").unlink()
        said = there.installed("toy-top")
        assert "Building 2 of 3 modules" in said.out
    assert "toy-middle/1.0" in there.begun()[len(begun) :]
    assert "Nothing of toy-top-1.0 is damaged" in there.run("repair", "toy-top-1.0").out
    assert "is installed already" in there.installed("toy-top").out


@pytest.mark.parametrize("harm", [delete, empty])
def test_a_receipt_that_cannot_be_read(there: Site, harm: Callable[[Path], None]) -> None:
    """What is said to be done is done, and mends what is damaged besides."""
    harm(there.tree / "environments" / "toy-top-1.0.json")
    empty(program(there, "toy-base"))
    refused = there.run("repair", "toy-top-1.0", status=6)
    recipe = there.recipe("toy-top")
    assert f"envkit install {recipe} --prefix {there.prefix}" in " ".join(refused.err.split())
    begun = there.begun()
    there.run("install", recipe, "--prefix", there.prefix)
    assert there.begun()[len(begun) :] == ["toy-base/1.0"]
    there.run(*WORKS)
    assert "Nothing of toy-top-1.0 is damaged" in there.run("repair", "toy-top-1.0").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_repair_that_is_stopped_leaves_what_was_there(there: Site, number: signal.Signals) -> None:
    whole = state(there)
    empty(program(there, "toy-middle"))
    empty(program(there, "toy-top"))
    damaged = state(there)
    there.hold("top")
    (there.home / "at-top").unlink()
    running = there.start("repair", "toy-top-1.0")
    there.wait_for(running, "top")
    assert running.stop(number) in (128 + number, -number)
    assert there.is_quiet()
    there.let_go()
    assert there.states()["toy-top-1.0"] == "damaged"
    assert state(there) == damaged
    begun = there.begun()
    said = there.run("repair", "toy-top-1.0")
    assert there.begun()[len(begun) :] == ["toy-top/1.0"]
    assert "Installed toy-top-1.0" in said.out
    assert set(state(there)) == set(whole)
    assert "Nothing of toy-top-1.0 is damaged" in there.run("repair", "toy-top-1.0").out


def test_a_repair_that_fails_leaves_what_was_there(there: Site) -> None:
    empty(program(there, "toy-middle"))
    edit(there, "toy-middle", "env -0 > settings", "exit 3")
    damaged = state(there)
    broken = there.run("repair", "toy-top-1.0", status=5)
    assert "Made from another recipe than before, as it is planned now: toy-middle/1.0." in " ".join(broken.out.split())
    assert state(there) == damaged
    there.run(*WORKS)


def test_a_list_of_files_that_is_damaged_itself(there: Site) -> None:
    whole = state(there)
    [files] = (there.tree / "built").glob("toy-base--*.files")
    files.write_text('{"module": "toy-base/1.0", "files": {"../../../etc/passwd": [1, 1, "", "", false]}}')
    assert there.states()["toy-top-1.0"] == "damaged"
    is_mended(there, whole, "toy-base")


def test_modules_of_an_earlier_envkit(there: Site) -> None:
    """They have no list of files, until something of the environment has been built again and has passed."""
    for path in (there.tree / "built").glob("*.files"):
        path.unlink()
    empty(program(there, "toy-base"))
    told = " ".join(there.run("repair", "toy-top-1.0").out.split())
    assert "Not compared, since nothing says what its files were: toy-base/1.0, toy-middle/1.0, toy-top/1.0." in told
    assert "is installed already" in there.installed("toy-top").out
    there.installed("toy-top", "--rebuild")
    assert len(list((there.tree / "built").glob("*.files"))) == len(TOYS)


def test_a_module_that_another_environment_uses_too(there: Site) -> None:
    there.installed("toy-other")
    change_one_byte(program(there, "toy-base"))
    told = there.run("repair", "toy-other-1.0")
    assert "until that has passed, toy-other-1.0, toy-top-1.0 cannot be used." in " ".join(told.out.split())
    assert "Nothing of toy-top-1.0 is damaged" in there.run("repair", "toy-top-1.0").out
    there.run(*WORKS)


def test_nothing_behind_a_link_is_compared(there: Site, tmp_path: Path) -> None:
    (there.tree / "software").rename(tmp_path / "elsewhere")
    (there.tree / "software").symlink_to(tmp_path / "elsewhere")
    told = " ".join(there.run("repair", "toy-top-1.0").out.split())
    assert "Not compared, since it lies behind a link: toy-base/1.0, toy-middle/1.0, toy-top/1.0." in told


def test_removing_leaves_no_list(there: Site) -> None:
    assert list((there.tree / "built").glob("*.files"))
    there.run("remove", "toy-top-1.0", "--dependencies")
    assert not list((there.tree / "built").iterdir())


def test_a_source_that_is_damaged_in_the_cache_is_fetched_again(there: Site) -> None:
    """A repair builds from sources whose checksums hold, whatever their times say."""
    source = there.prefix / "sources" / "toy.c"
    good = sha256(source)
    change_one_byte(source)
    empty(program(there, "toy-base"))
    there.run("repair", "toy-top-1.0")
    assert sha256(source) == good
    there.run(*WORKS)
