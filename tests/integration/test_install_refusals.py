"""What install refuses before it starts, and what it says then."""

import os
import re
import shutil
from pathlib import Path

import pytest

from envkit.sources.fetch import Source, write_bundle

from .site import TOYS, Site, needs, sha256

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "words, what, remedy",
    [
        (["pytorch-2.13-cpux"], "There is no stack named 'pytorch-2.13-cpux'", "Nearest: pytorch-2.13-cpu"),
        (
            ["Horovod-0.28.1-foss-2022a-PyTorch-1.12.9.eb"],
            "There is no recipe",
            "Nearest in EasyBuild's own collection",
        ),
        (["/nowhere/toy-1.0.eb"], "There is no recipe /nowhere/toy-1.0.eb", "Give the path of a recipe of your own"),
    ],
    ids=["stack", "recipe", "path"],
)
def test_unknown_name(site: Site, words: list[str], what: str, remedy: str) -> None:
    refused = site.run("install", *words, status=2)
    assert what in refused.err
    assert remedy in refused.err
    assert "What to do: " in refused.err
    assert not site.prefix.exists()


def unprivileged() -> list[str]:
    """Return a program that takes from root the right to write anywhere."""
    if os.geteuid():
        return []
    needs("setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all"]


def test_prefix_that_cannot_be_written_to(site: Site) -> None:
    parent = site.folder / "others"
    parent.mkdir(mode=0o555)
    refused = site.install("toy-top", prefix=parent / "deep" / "prefix", before=unprivileged()).expect(7)
    assert f"{parent} cannot be written to." in refused.err
    assert "Choose another folder with --prefix." in refused.err
    assert "Nothing has been changed." in refused.err
    assert list(parent.iterdir()) == []


def test_prefix_with_a_colon(site: Site) -> None:
    refused = site.install("toy-top", prefix=site.folder / "a:b" / "prefix").expect(3)
    assert "name one prefix without a colon" in refused.err


@pytest.mark.parametrize("name", ["with space", "it's", 'say "x"', "a$b", "new\nline"])
def test_prefix_with_an_odd_name(site: Site, name: str) -> None:
    refused = site.install("toy-top", prefix=site.folder / name / "prefix").expect(3)
    assert "cannot be used: it has" in refused.err
    assert "Shebang lines, make and search paths" in refused.err
    assert "Choose another with --prefix" in refused.err
    assert not (site.folder / name).exists()


def test_prefix_below_a_file(site: Site) -> None:
    (site.folder / "file").touch()
    refused = site.install("toy-top", prefix=site.folder / "file" / "prefix").expect(3)
    assert f"{site.folder / 'file'} is a file, not a folder." in refused.err


def hidden(*paths: str) -> list[str]:
    """Return a program that lays nothing over files and folders for what it becomes."""
    needs("mount")
    script = 'for path in "$@"; do shift; [ "$path" != -- ] || break; '
    script += 'if [ -d "$path" ]; then mount -t tmpfs none "$path"; else mount --bind /dev/null "$path"; fi; done; '
    return ["unshare", "--mount", "sh", "-ec", script + 'exec "$@"', "sh", *paths, "--"]


def place(program: str) -> str:
    """Return the file that a program is."""
    found = shutil.which(program, path="/usr/local/bin:/usr/bin:/bin")
    assert found is not None
    return str(Path(found).resolve())


def test_no_compiler_and_no_modules_tool(site: Site) -> None:
    before = hidden("/usr/share/lmod", place("gcc"), place("g++"), place("make"), place("patch"))
    refused = site.install("toy-top", before=before).expect(3)
    problems = re.findall(r"^  \d\. (.*)\n     -> (.*)$", refused.err, re.MULTILINE)
    assert [what for what, _ in problems] == [
        "Neither Lmod nor Environment Modules was found.",
        "There is no gcc and g++ that compile C++17.",
        "The program make is missing.",
        "The program patch is missing.",
    ]
    remedies = " ".join(remedy for _, remedy in problems)
    assert "apt install lmod" in remedies
    assert "apt install g++" in remedies
    assert "Do what the arrows say, and run the same command again. Nothing has been changed." in refused.err
    assert not site.prefix.exists()


def test_modules_tool_in_an_unusual_place(site: Site) -> None:
    lmod = site.folder / "lmod"
    shutil.copytree("/usr/share/lmod/lmod", lmod)
    env = {"LMOD_CMD": str(lmod / "libexec" / "lmod")}
    site.installed("toy-base", env=env)
    assert str(lmod) in (site.tree / "environments" / "toy-base-1.0.json").read_text()


def test_source_with_the_wrong_content(site: Site) -> None:
    site = site.own_recipes(source="tampered")
    pinned = sha256(TOYS / "toy.c")
    found = sha256(site.recipes / "toy.c")
    refused = site.install("toy-top").expect(4)
    assert "The content of 1 of 1 sources is not what the recipe pins." in refused.err
    assert f"its SHA-256 is {found}, but the recipe pins {pinned}" in refused.err
    assert "toy.c (for toy-base-1.0.eb)" in refused.err
    assert "What to do: " in refused.err
    assert site.begun() == []
    assert not site.is_offered("toy-top")


def test_damaged_source_in_the_cache(site: Site) -> None:
    sources = site.prefix / "sources"
    sources.mkdir(parents=True)
    (sources / "toy.c").write_text("damaged")
    actual, right = sha256(sources / "toy.c"), sha256(TOYS / "toy.c")
    wrong = f"sources/ has it with SHA-256 {actual} instead of {right}"
    for words, status in ((["--offline"], 4), (["--offline", "--dry-run"], 4), (["--dry-run"], 0)):
        told = site.install("toy-top", *words).expect(status)
        assert wrong in " ".join((told.out + told.err).split()), words
        assert (sources / "toy.c").read_text() == "damaged", words
        assert {path.name for path in site.prefix.rglob("*")} == {"sources", "toy.c"}, words  # nothing has changed
    assert f"Damaged: toy.c: {wrong}; it would be set aside and fetched again" in " ".join(told.out.split())
    assert site.begun() == []
    bad = sources / f"toy.c.bad-{actual[:8]}"
    mended = site.installed("toy-top")
    assert f"toy.c: set aside, sources/ had it with SHA-256 {actual} instead of {right}; now {bad.name}" in mended.out
    assert bad.read_text() == "damaged"
    assert "Fetched 1 sources" in mended.out
    assert sha256(sources / "toy.c") == sha256(TOYS / "toy.c")


def test_fetch_says_what_it_replaces(site: Site) -> None:
    sources = site.prefix / "sources"
    sources.mkdir(parents=True)
    (sources / "toy.c").write_text("damaged")
    actual = sha256(sources / "toy.c")
    told = site.run("fetch", site.recipe("toy-top")).out
    assert f"toy.c: set aside, sources/ had it with SHA-256 {actual} instead of {sha256(TOYS / 'toy.c')}" in told
    assert "are in" in told and "checked" in told
    assert "set aside" not in site.run("fetch", site.recipe("toy-top")).out


def test_a_plan_with_a_bundle(site: Site) -> None:
    """It says what would be taken, and what lacks; nothing is unpacked."""
    bundle = site.folder / "toys.tar"
    site.run("fetch", site.recipe("toy-top"), "--bundle", bundle, prefix=site.folder / "other")
    plan = ("toy-top", "--dry-run", "--bundle", str(bundle))
    told = " ".join(site.install(*plan).expect(0).out.split())
    taken = r"Bundle: {} of its [12] files, which the prefix lacks, would be taken"  # with a config.guess, or without
    assert re.search(f"{taken.format(1)} toy.c", told)
    assert "0 of 3 sources to fetch." in told
    assert not site.prefix.exists()
    site.installed("toy-base")
    told = " ".join(site.install(*plan).expect(0).out.split())
    assert re.search(taken.format(0), told)
    other = site.folder / "other.tar"
    write_bundle([Source(filename="toy.c", sha256=None, needed_by="x")], changed(site), other, stack="x")
    fresh = site.install("toy-top", "--dry-run", "--bundle", str(other), prefix=site.folder / "new").expect(4)
    assert "1 of 1 sources missing from " in " ".join(fresh.out.split())
    assert "The bundle: toy.c: toy-base-1.0.eb pins" in " ".join(fresh.out.split())
    assert "0 of its 1 files, which the prefix lacks, would be taken" in " ".join(fresh.out.split())
    assert not (site.folder / "new").exists()
    bundle.write_bytes(bundle.read_bytes()[:700])
    refused = site.install(*plan).expect(4)
    assert "cannot be used as a bundle" in refused.err


def changed(site: Site) -> Path:
    """A cache with another toy.c than is pinned."""
    cache = site.folder / "cache"
    cache.mkdir()
    (cache / "toy.c").write_text("other")
    return cache


def test_no_network(site: Site) -> None:
    site = site.own_recipes(source="http://127.0.0.1:9")
    refused = site.install("toy-top").expect(4)
    assert "1 of 1 sources cannot be fetched from any place where they are sought:" in refused.err
    planned = site.install("toy-top", "--dry-run").expect(4)
    for said in (refused.err, planned.out):
        assert "toy.c (for toy-base-1.0.eb)" in said
        assert "http://127.0.0.1:9/toy.c" in said and "Connection refused" in said
        assert "Check the network, the proxy and pip's configuration" in said
        assert "envkit fetch toy-top-1.0 --bundle FILE.tar" in said
        assert "envkit install toy-top-1.0 --bundle FILE.tar" in said
    assert "Nothing has been changed." in refused.err
    assert not site.prefix.exists()

    offline = site.install("toy-top", "--offline").expect(4)
    assert "1 of 1 sources missing from " in offline.err
    assert "envkit fetch toy-top-1.0" in offline.err
    assert "--bundle" in offline.err
    assert site.begun() == []


def test_source_without_a_checksum(site: Site) -> None:
    site = site.own_recipes()
    recipe = site.recipe("toy-base")
    recipe.write_text(re.sub(r"^checksums = .*$", "", recipe.read_text(), flags=re.MULTILINE))
    refused = site.install("toy-base").expect(3)
    assert "toy-base-1.0.eb pins no SHA-256 for toy.c." in refused.err
    assert "eb --inject-checksums" in refused.err


def test_recipe_that_cannot_be_resolved(site: Site) -> None:
    site = site.own_recipes()
    recipe = site.recipe("toy-middle")
    recipe.write_text(recipe.read_text().replace("('toy-base', '1.0')", "('toy-absent', '9.9')"))
    refused = site.install("toy-top").expect(3)
    assert "EasyBuild cannot resolve" in refused.err
    assert "toy-absent" in refused.err
    assert not site.prefix.exists()


def test_recipe_that_does_not_build(site: Site) -> None:
    site = site.own_recipes()
    recipe = site.recipe("toy-middle")
    recipe.write_text(recipe.read_text().replace("env -0 > settings", "echo int x = @ > bad.c && gcc -c bad.c"))
    broken = site.install("toy-top").expect(5)
    assert "Building toy-middle/1.0 failed in step build." in broken.err
    assert "bad.c:1:9: error: " in broken.err
    assert "Log: " in broken.err
    log = re.search(r"^Log: (.+)$", broken.err, re.MULTILINE)
    assert log is not None and Path(log[1]).is_file()
    assert not site.is_offered("toy-top")
    assert site.built() == {"toy-base"}
    shutil.copy(site.toys / recipe.name, recipe)
    mended = site.installed("toy-top")
    assert "1 of 3 modules are in place; left: toy-middle/1.0, toy-top/1.0." in mended.out
    assert site.begun().count("toy-base/1.0") == 1


def test_versions_that_are_known_to_fail(site: Site) -> None:
    """Refused by the rules of 'envkit compat' before anything is built; --force goes on, and says of what."""
    site = site.own_recipes()
    recipe = site.recipes / "Horovod-0.28.1-system-PyTorch-2.3.0.eb"
    recipe.write_text(site.recipe("toy-base").read_text())
    known = "Known to fail: Horovod 0.28.1 with PyTorch 2.3.0"
    shown = site.run("install", recipe, "--dry-run", status=3)
    assert f"Problem: {known}" in shown.out
    refused = site.run("install", recipe, status=3)
    assert known in refused.err and "https://github.com/horovod/horovod/issues/3996" in refused.err
    assert "envkit compat horovod=VERSION torch=VERSION" in refused.err and "--force" in refused.err
    assert site.begun() == [] and not site.prefix.exists()
    forced = site.run("install", recipe, "--dry-run", "--force")
    assert "Problem: " not in forced.out
    assert known in forced.out and "It is tried all the same (--force)." in forced.out
