"""Copying builds from one cache into another: what is copied, what is not, what is left when something goes wrong."""

import base64
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from envkit.cache import contents, folder, layout, place, publishing, unpack
from envkit.cache.fit import Provided
from envkit.cache.manifest import Manifest, Signed
from envkit.cache.offers import NO_OPENSSL
from envkit.cache.place import Caches, Place, SignedManifest
from envkit.cli import run
from envkit.commands import cache as commands
from envkit.commands.cache import stoppable
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Mpi
from envkit.errors import CacheBlocked, CacheInvalid, CacheSilent, DiskFull, HostProblem, Interrupted, UsageProblem
from envkit.install import cache_pull
from envkit.install.cache_pull import Pulled
from envkit.sources import answers, signature

from .integration.site import needs
from .small_disk import leave, small_disk
from .test_cache import MODULE, below, described, here, module_in, packed, pushed, serving
from .test_json_types import valid

NEW = "mirror"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A prefix with a module in it."""
    return module_in(tmp_path / "a-prefix-of-some-length")


@pytest.fixture
def new(tmp_path: Path) -> Place:
    """A folder that nothing has been copied to."""
    (tmp_path / NEW).mkdir()
    return Place(named=str(tmp_path / NEW))


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Two pairs of keys."""
    needs("openssl")
    made = {}
    for name in ("mine", "theirs"):
        own, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", own], check=True)
        subprocess.run(["openssl", "pkey", "-in", own, "-pubout", "-out", public], check=True)
        made[name] = own, str(public)
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have builds compared with another machine than this one."""

    def of(**changes: Any) -> None:
        monkeypatch.setattr(cache_pull, "here", lambda: here(recipes={}, accelerator="", **changes))

    of()
    return of


def take(origin: Place | str, to: Place, name: str | None = None, *keys: str, every: bool = True) -> Pulled:
    """Copy what a place has, also what is not signed where no key is given."""
    named = origin if isinstance(origin, str) else origin.named
    return cache_pull.pull(Caches(places=(named,), keys=keys, unsigned=not keys), to, name, every=every)


def states(done: Pulled) -> list[str]:
    """Return what became of each build."""
    return [one.state for one in done.builds]


def publish(made: Manifest, folder: Path, key: Path | None = None) -> SignedManifest:
    """Put a manifest and the object that was packed last into a place, signed."""
    folder.mkdir(exist_ok=True)
    told, signed = folder.with_name("manifest"), b""
    told.write_bytes(msgspec.json.encode(made))
    if key:
        signed = signature.signature_of(told, key)
    with folder.with_name("packed").open("rb") as stream:
        publishing.publish(Place(named=str(folder)), made, stream, signed)
    return Place(named=str(folder)).entry(f"Horovod--1.0-toy/{made.key}.json")


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files of a place."""
    return {name: (folder / name).read_bytes() for name in below(folder) - {".lock"}}


class TestCopied:
    """What is copied is the same, byte for byte."""

    @pytest.mark.parametrize("by", ["folder", "server"])
    def test_the_same_files(self, by: str, tree: Tree, tmp_path: Path, new: Place) -> None:
        entry = pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache") as url:
            done = take(url if by == "server" else entry.place, new)
            assert states(done) == ["copied"]
            assert states(take(url if by == "server" else entry.place, new)) == ["there"]
        assert files_in(tmp_path / NEW) == files_in(tmp_path / "cache")
        assert cache_pull.problem(done) is None
        assert [one.state for one in contents.verified([new], ()).builds] == ["unsigned"]

    def test_a_second_time_nothing_is_asked_for_or_written(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        asked = list[str]()

        class Noted(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

        pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache", Noted) as url:
            take(url, new)
            assert [one for one in asked if "/objects/" in one]
            before = {path: path.stat().st_mtime_ns for path in (tmp_path / NEW).rglob("*.*")}
            asked.clear()
            take(url, new)
        assert not [one for one in asked if "/objects/" in one]
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / NEW).rglob("*.*")} == before

    def test_what_another_version_has_written_keeps_its_signature(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        """A manifest with a field that is unknown here is copied as it was signed."""
        entry = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache")
        text = bytes(entry.signed.manifest)[:-1] + b',"a field of later":[1, 2]}'
        (tmp_path / "told").write_bytes(text)
        own, public = keys["mine"]
        signature_of = base64.b64encode(signature.signature_of(tmp_path / "told", own)).decode()
        signed = Signed(manifest=msgspec.Raw(text), signature=signature_of)
        [path] = (tmp_path / "cache/manifests").rglob("*.json")
        path.write_bytes(msgspec.json.encode(signed))
        assert states(take(entry.place, new, None, public)) == ["copied"]
        assert place.signer(new.entry(new.names()[0]), [public]) == public

    def test_what_is_damaged_or_half_there_is_fetched_again(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        entry = pushed(tree, tmp_path / "cache")
        take(entry.place, new)
        target = tmp_path / NEW / layout.object_of(entry.manifest.sha256)
        target.write_bytes(target.read_bytes()[:-7])
        assert states(take(entry.place, new)) == ["copied"]
        (tmp_path / NEW / "index.json").unlink()  # it was killed before the end
        assert states(take(entry.place, new)) == ["there"]
        assert files_in(tmp_path / NEW) == files_in(tmp_path / "cache")

    def test_from_the_first_that_has_it_whole(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        bad, good = pushed(tree, tmp_path / "bad"), pushed(tree, tmp_path / "good")
        (tmp_path / "bad" / layout.object_of(bad.manifest.sha256)).write_text("damaged")
        caches = Caches(places=(bad.place.named, good.place.named), keys=(), unsigned=True)
        done = cache_pull.pull(caches, new, None, every=True)
        [one] = done.builds
        assert (one.state, one.place, cache_pull.problem(done)) == ("copied", good.place.shown, None)
        [told] = one.passed_over
        assert told.startswith(f"A build in the cache {bad.place.shown} cannot be used. ") and "Its SHA-256 is" in told

    @pytest.mark.xdist_group("schemas")
    @pytest.mark.parametrize("damaged", ["manifest", "object"])
    @pytest.mark.parametrize("comes", ["first", "last"])
    def test_what_is_damaged_in_one_of_two_is_told_and_is_no_failure(
        self, damaged: str, comes: str, tree: Tree, tmp_path: Path, new: Place, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bad, good = pushed(tree, tmp_path / "bad"), pushed(tree, tmp_path / "good")
        name = f"manifests/Horovod--1.0-toy/{bad.id}.json" if damaged == "manifest" else bad.manifest.object_name
        (tmp_path / "bad" / name).write_text("damaged")
        at = [bad.place.named, good.place.named][:: 1 if comes == "first" else -1]
        words = ["cache", "pull", "--all", "--unsigned", "--from", at[0], "--from", at[1], "--to", new.named]
        assert run(words) == 0
        told = capsys.readouterr()
        is_asked = damaged == "manifest" or comes == "first"  # an object only until one is good
        said = f"A build in the cache {bad.place.shown} cannot be used. "
        assert told.out.startswith("copied ") and (said in told.out) is is_asked and told.err == ""
        assert run([*words, "--json"]) == 0
        found = valid("cache pull", capsys.readouterr().out)
        assert found["wrong"] == [] and [one["state"] for one in found["builds"]] == ["there"]
        assert bool(found["passed_over"]) is (damaged == "manifest")

    def test_what_only_the_damaged_one_may_have_is_lacking(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        """As does what may be the one that is signed, and whatever a cache has that cannot be read."""
        of = packed(tree, tmp_path / "packed")
        good, other = publish(described(of), tmp_path / "good"), publish(described(of, cpu=()), tmp_path / "bad")
        [path] = (tmp_path / "bad/manifests").rglob("*.json")
        path.write_text("damaged")
        gone = str(tmp_path / "gone")

        def ends(at: str, name: str | None) -> int:
            caches = Caches(places=(at, good.place.named), keys=(), unsigned=True)
            problem = cache_pull.problem(cache_pull.pull(caches, new, name, every=True))
            return problem.exit_code if problem else 0

        for at in (other.place.named, gone):
            assert (ends(at, None), ends(at, "toy"), ends(at, good.id[:9].upper())) == (4, 4, 0)
        path.rename(path.with_name(f"{good.id}.json"))
        assert ends(other.place.named, None) == 0
        caches = Caches(places=(other.place.named, good.place.named), keys=("none.pub",), unsigned=False)
        done = cache_pull.pull(caches, new, None, every=True)
        assert len(done.wrong) == 1 and done.passed_over == ()

    def test_one_that_a_key_of_theirs_has_signed_comes_first(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        made = described(packed(tree, tmp_path / "packed"))
        own, public = keys["mine"]
        first, second = publish(made, tmp_path / "first"), publish(made, tmp_path / "second", own)
        caches = Caches(places=(first.place.named, second.place.named), keys=(public,), unsigned=True)
        [one] = cache_pull.pull(caches, new, None, every=True).builds
        assert (one.state, one.place, one.signed_by) == ("copied", second.place.shown, public)
        assert place.signer(new.entry(new.names()[0]), [public]) == public


class TestChosen:
    """Which builds are meant."""

    def both(self, tree: Tree, tmp_path: Path) -> tuple[SignedManifest, SignedManifest]:
        """Have two builds of different names, for different CPUs."""
        of = packed(tree, tmp_path / "packed")
        first, second = described(of), described(of, cpu=("avx512f",))
        made = msgspec.structs.replace(second.provenance, environment="other")
        second = msgspec.structs.replace(second, provenance=made)
        return publish(first, tmp_path / "cache"), publish(second, tmp_path / "cache")

    def test_what_fits_this_machine(self, tree: Tree, tmp_path: Path, new: Place, machine: Callable[..., None]) -> None:
        first, second = self.both(tree, tmp_path)
        done = {one.id: one for one in take(first.place, new, every=False).builds}
        assert (done[first.id].state, done[second.id].state) == ("copied", "unfit")
        assert done[second.id].why == ("its code needs avx512f, which this CPU lacks",)
        machine(mpi=("MPICH", "4.0"))
        nothing = take(first.place, new, every=False)
        problem = cache_pull.problem(nothing)
        assert isinstance(problem, HostProblem)
        assert "here is MPICH" in problem.why
        assert states(take(first.place, new)) == ["there", "copied"]

    def test_what_a_place_cannot_have_is_told_though_others_are_copied(
        self, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = self.both(tree, tmp_path)
        monkeypatch.setattr(folder, "refuses", lambda _: "It is too long.")
        put, said = publishing.put, list[str]()

        def refusing(to: Place, build: Manifest, *words: Any) -> publishing.Sent:
            said.append(build.key)
            if len(said) == 1:
                return put(to, build, *words)
            monkeypatch.setattr(folder, "refuses", lambda _: "")
            return put(to, build, *words)

        monkeypatch.setattr(publishing, "put", refusing)
        done = take(first.place, new)
        assert sorted(states(done)) == ["copied", "refused"] and {*said} == {first.id, second.id}
        problem = cache_pull.problem(done)
        assert isinstance(problem, HostProblem) and problem.what == f"1 build cannot be put into {new.shown}."
        assert "It is too long." in problem.why

    def test_by_name_and_id(self, tree: Tree, tmp_path: Path, new: Place, machine: Callable[..., None]) -> None:
        first, second = self.both(tree, tmp_path)
        assert [one.id for one in take(first.place, new, "other").builds] == [second.id]
        assert {one.id for one in take(first.place, new, "toy").builds} == {first.id, second.id}  # of their lock
        assert len(take(first.place, new, "pytorch", every=False).builds) == 2
        for wanted in (second.id[:10], second.id[:10].upper()):
            assert states(take(first.place, new, wanted, every=False)) == ["there"]
        with pytest.raises(UsageProblem, match="no build for 'tensorflow'") as unknown:
            take(first.place, new, "tensorflow")
        assert "There are builds for toy." in unknown.value.why

    def test_no_build_is_called_like_the_id_of_another(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        first, second = self.both(tree, tmp_path)
        made = msgspec.structs.replace(second.manifest.provenance, environment=first.id[:12], host="eve")
        publish(msgspec.structs.replace(second.manifest, provenance=made), tmp_path / "eves")
        caches = Caches(places=(str(tmp_path / "eves"), first.place.named), keys=(), unsigned=True)
        assert [one.id for one in cache_pull.pull(caches, new, first.id[:12], every=True).builds] == [first.id]

    def test_more_than_one_of_an_id(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        first, _ = self.both(tree, tmp_path)
        with pytest.raises(UsageProblem, match="More than one build begins with ''"):
            take(first.place, new, "")

    def test_nothing_there_is_no_failure(self, tmp_path: Path, new: Place) -> None:
        (tmp_path / "empty").mkdir()
        done = take(str(tmp_path / "empty"), new)
        assert (done.builds, cache_pull.problem(done)) == ((), None)

    def test_onto_itself(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        with pytest.raises(UsageProblem, match="nothing to copy"):
            take(entry.place, entry.place)

    def test_this_machine_itself(self) -> None:
        there = cache_pull.here()
        assert isinstance(there, Provided)
        assert there.machine == os.uname().machine
        assert there.versions["GLIBC"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]

    @pytest.mark.parametrize("of", ["object", "manifest"])
    def test_what_stands_in_the_way_of_one_is_told_and_the_others_are_copied(
        self, of: str, tree: Tree, tmp_path: Path, new: Place
    ) -> None:
        first = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache")
        (tree.software / MODULE / "bin/horovodrun").write_text("#!/bin/sh\n")
        second = publish(described(packed(tree, tmp_path / "packed"), cpu=()), tmp_path / "cache")
        name = f"manifests/Horovod--1.0-toy/{first.id}.json" if of == "manifest" else first.manifest.object_name
        (tmp_path / NEW / name).mkdir(parents=True)
        done = take(first.place, new)
        assert {one.id: one.state for one in done.builds} == {first.id: "refused", second.id: "copied"}
        [blocked] = done.of("refused")
        assert blocked.why[0].startswith("Something else stands in the place of its file: Is a directory: ")
        assert blocked.why[0].endswith(name.rpartition("/")[2])
        problem = cache_pull.problem(done)
        assert isinstance(problem, CacheBlocked) and problem.exit_code == 4

    def test_of_no_builds(self, tmp_path: Path, new: Place) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageProblem) as told:
            take(str(tmp_path / "empty"), new, "pytorch")
        assert told.value.what == f"There is no build in {tmp_path / 'empty'}."


class TestSigned:
    """Whose signature counts is asked before anything is copied."""

    def test_none_of_my_keys(self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]) -> None:
        entry = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache", keys["theirs"][0])
        done = take(entry.place, new, None, keys["mine"][1])
        assert states(done) == ["unsigned"]
        problem = cache_pull.problem(done)
        assert isinstance(problem, CacheInvalid)
        assert "none of your keys ('cache.keys') has signed it" in problem.why
        assert problem.fix.startswith("Set 'keys'") and "--sign" not in problem.fix
        assert files_in(tmp_path / NEW) == {}
        [one] = take(entry.place, new, None, keys["mine"][1], keys["theirs"][1]).builds
        assert (one.state, one.signed_by) == ("copied", keys["theirs"][1])

    def test_what_is_left_out_is_told_though_others_are_copied(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        """As to a script that keeps a mirror."""
        of = packed(tree, tmp_path / "packed")
        mine = publish(described(of), tmp_path / "cache", keys["mine"][0])
        for number in range(cache_pull.SHOWN + 2):
            publish(described(of, cpu=(f"feature{number}",)), tmp_path / "cache")
        for state in ("copied", "there"):
            done = take(mine.place, new, None, keys["mine"][1])
            assert states(done).count("unsigned") == cache_pull.SHOWN + 2 and done.of(state)
            problem = cache_pull.problem(done)
            assert isinstance(problem, CacheInvalid) and problem.exit_code == 4
            assert problem.what == f"{cache_pull.SHOWN + 2} builds could not be copied to {new.shown}."
            assert problem.why.endswith(f"{cache_pull.UNSIGNED}\nand 2 more")
            assert (
                problem.fix == "Have whoever pushed what is not signed push it with --sign, or copy it with --unsigned."
            )
        assert new.names() == [f"Horovod--1.0-toy/{mine.id}.json"]

    def test_without_openssl_what_is_signed_is_unread(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = described(packed(tree, tmp_path / "packed"))
        entry = publish(made, tmp_path / "cache", keys["mine"][0])
        bare = publish(made, tmp_path / "bare")
        path = os.environ["PATH"]
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        done = take(entry.place, new, None, keys["mine"][1])
        problem = cache_pull.problem(done)
        assert states(done) == ["unread"] and done.builds[0].why == (NO_OPENSSL,)
        assert problem and problem.exit_code == 4
        assert problem.fix.startswith(signature.LACKING) and "'keys'" not in problem.fix
        assert states(take(bare.place, new, None, keys["mine"][1])) == ["unsigned"]
        assert files_in(tmp_path / NEW) == {}
        monkeypatch.setenv("PATH", path)
        assert states(take(entry.place, new, None, keys["mine"][1])) == ["copied"]

    def test_a_key_that_cannot_be_used_has_its_own_remedy(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        entry = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache", keys["mine"][0])
        gone = str(tmp_path / "gone.pub")
        for named in ((gone,), (gone, keys["theirs"][1])):
            done = take(entry.place, new, None, *named)
            problem = cache_pull.problem(done)
            assert states(done) == ["unread"] and problem and problem.exit_code == 4
            assert problem.why.endswith(f": {gone} cannot be read: No such file or directory")
            assert problem.fix.startswith("Mend that key, or take it out of 'keys'") and "Set 'keys'" not in problem.fix
        assert states(take(entry.place, new, None, gone, keys["mine"][1])) == ["copied"]

    def test_what_was_changed_after_it_was_signed(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        entry = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache", keys["mine"][0])
        [path] = (tmp_path / "cache/manifests").rglob("*.json")
        path.write_bytes(path.read_bytes().replace(b'"host":"builder"', b'"host":"another"'))
        assert states(take(entry.place, new, None, keys["mine"][1])) == ["unsigned"]

    def test_my_signature_takes_the_place_of_none_or_anothers_and_stays(
        self, tree: Tree, tmp_path: Path, new: Place, keys: dict[str, tuple[Path, str]]
    ) -> None:
        made = described(packed(tree, tmp_path / "packed"))
        unsigned, theirs = publish(made, tmp_path / "unsigned"), publish(made, tmp_path / "t", keys["theirs"][0])
        mine = publish(made, tmp_path / "m", keys["mine"][0])
        assert states(take(unsigned.place, new)) == ["copied"]
        assert states(take(theirs.place, new)) == ["copied"]
        assert states(take(mine.place, new, None, keys["mine"][1])) == ["copied"]
        assert states(take(unsigned.place, new)) == ["there"]
        assert states(take(theirs.place, new)) == ["there"]
        assert place.signer(new.entry(new.names()[0]), [keys["mine"][1]])


class TestBad:
    """Nothing of what is bad is copied, and one message says what is."""

    def test_an_object_that_is_damaged(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        of = packed(tree, tmp_path / "packed")
        entry = publish(described(of), tmp_path / "cache")
        (tree.software / MODULE / "more").write_text("more")
        good = publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache")
        path = tmp_path / "cache" / layout.object_of(entry.manifest.sha256)
        path.write_bytes(path.read_bytes()[:-20])
        done = take(entry.place, new)
        assert sorted(states(done)) == ["bad", "copied"]
        problem = cache_pull.problem(done)
        assert isinstance(problem, CacheInvalid)
        assert problem.what == f"1 build could not be copied to {new.shown}."
        assert "Its SHA-256 is" in problem.why
        assert "run the same command again" in problem.fix
        assert new.names() == [f"Horovod--1.0-toy/{good.id}.json"]

    @pytest.mark.parametrize("kind", ["absent", "a file", "rubbish"])
    def test_what_is_wrong_with_a_place_has_its_own_remedy(
        self, kind: str, tree: Tree, tmp_path: Path, new: Place
    ) -> None:
        entry, other = pushed(tree, tmp_path / "cache"), tmp_path / "other"
        remedy = "Check its name, and ask its owner for the right to read it."
        if kind == "a file":
            other.write_text("text")
        elif kind == "rubbish":
            path = other / f"manifests/Horovod--1.0-toy/{'0' * 64}.json"
            path.parent.mkdir(parents=True)
            path.write_text("rubbish")
            remedy = f"All that is wrong with it: envkit cache verify {other}"
        done = cache_pull.pull(
            Caches(places=(str(other), entry.place.named), keys=(), unsigned=True), new, None, every=True
        )
        assert states(done) == ["copied"]
        problem = cache_pull.problem(done)
        assert problem and problem.exit_code == 4 and remedy in problem.why
        assert problem.fix == f"Mend that. {cache_pull.AGAIN}"
        with pytest.raises(CacheInvalid) as told:
            take(str(other), new)
        assert told.value.fix.startswith(remedy)

    def test_what_had_been_copied_is_told_where_the_place_is_full(
        self, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of, put, kept = packed(tree, tmp_path / "packed"), folder.put, list[str]()
        for number in range(3):
            publish(described(of, cpu=(f"feature{number}",)), tmp_path / "cache")

        def full(named: str, name: str, stream: BinaryIO) -> None:
            kept.append(name)
            if len([one for one in kept if one.startswith("manifests/")]) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            put(named, name, stream)

        monkeypatch.setattr(folder, "put", full)
        with pytest.raises(DiskFull) as told:
            take(str(tmp_path / "cache"), new)
        assert told.value.why.endswith("\n2 of 3 builds had been copied.")
        monkeypatch.undo()
        assert sorted(states(take(str(tmp_path / "cache"), new))) == ["copied", "there", "there"]

    def test_a_server_that_ends_in_the_middle(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        class Cut(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                content = source.read()
                outputfile.write(content[: len(content) // 2] if self.path.endswith(".zst") else content)

        pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache", Cut) as url:
            done = take(url, new)
        assert states(done) == ["unread"] and len(done.wrong) == 1
        problem = cache_pull.problem(done)
        assert (
            problem
            and "peer closed" in problem.why
            and problem.fix.startswith("See that you can reach and read that cache.")
        )
        assert files_in(tmp_path / NEW) == {}
        with serving(tmp_path / "cache", Cut) as url:
            caches = Caches(places=(url, str(tmp_path / "cache")), keys=(), unsigned=True)
            done = cache_pull.pull(caches, new, None, every=True)
        assert (states(done), done.wrong, cache_pull.problem(done)) == (["copied"], (), None)
        assert "peer closed" in done.passed_over[0]
        (tmp_path / NEW).rename(tmp_path / "away")
        (tmp_path / NEW).mkdir()
        with serving(tmp_path / "cache") as url:
            assert states(take(url, new)) == ["copied"]

    def test_a_server_that_is_gone_is_asked_for_no_other_build(
        self, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of, asked, opened = packed(tree, tmp_path / "packed"), list[str](), folder.opened
        for number in range(4):
            publish(described(of, cpu=(f"feature{number}",)), tmp_path / "cache")

        @contextmanager
        def failing(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            if name.startswith("objects/") and named != new.named:
                asked.append(name)
                raise answers.UnreachableError("Connection refused")
            with opened(named, name, most) as chunks:
                yield chunks

        monkeypatch.setattr(folder, "opened", failing)
        done = take(str(tmp_path / "cache"), new)
        assert states(done) == ["unread"] * 4 and len(asked) == 1
        problem = cache_pull.problem(done)
        assert problem and problem.exit_code == 4 and problem.why.count("Connection refused") == 1
        assert problem.what == f"4 builds could not be copied to {new.shown}." and "Tell whoever" not in problem.fix

    def test_a_server_that_nothing_can_be_put_to(
        self, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That is no matter of rights, nor is the build bad."""
        pushed(tree, tmp_path / "cache")

        def failing(*_: Any) -> None:
            raise answers.UnreachableError("Connection refused")

        monkeypatch.setattr(folder, "put", failing)
        with pytest.raises(CacheSilent, match="its server does not answer") as told:
            take(str(tmp_path / "cache"), new)
        assert told.value.exit_code == 4 and "run the same command again" in told.value.fix
        assert told.value.why == "Connection refused."

    def test_no_server(self, tmp_path: Path, new: Place) -> None:
        with pytest.raises(CacheInvalid, match="Nothing can be copied from http://127"):
            take("http://127.0.0.1:9/cache", new)

    def test_a_manifest_that_tells_of_too_large_an_object(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        made = described(packed(tree, tmp_path / "packed"))
        entry = publish(msgspec.structs.replace(made, unpacked=1 << 40), tmp_path / "cache")
        [one] = take(entry.place, new).builds
        assert (one.state, "too large" in one.why[0]) == ("bad", True)

    @pytest.mark.integration
    def test_where_it_is_to_go(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        with pytest.raises(UsageProblem, match="There is no folder"):
            take(entry.place, Place(named=str(tmp_path / "absent")))
        with pytest.raises(UsageProblem, match="can only be read"):
            take(entry.place, Place(named="https://cache.example.org"))
        with pytest.raises(CacheSilent, match=r"Nothing can be put into oci://127\.0\.0\.1:9/x"):
            take(entry.place, Place(named="oci://127.0.0.1:9/x"))


class TestInterrupted:
    """What is seen is whole, whatever ends it."""

    def test_ctrl_c(self, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is to be done next is said, and what was half copied has gone."""
        entry = pushed(tree, tmp_path / "cache")

        def stopped(of: SignedManifest, stream: Any) -> None:
            stream.write(b"the beginning")
            signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as changed:
            changed.setattr(unpack, "fetch", stopped)
            with pytest.raises(Interrupted) as told, stoppable(new.named):
                take(entry.place, new)
        assert told.value.exit_code == 130
        assert told.value.why == f"What is in {new.shown} is whole."
        assert told.value.fix == "Run the same command again: what is there already is not sent again."
        assert files_in(tmp_path / NEW) == {}
        assert states(take(entry.place, new)) == ["copied"]

    @pytest.mark.parametrize("before", ["the configuration is read", "the second comes"])
    def test_ctrl_c_is_answered_alike_whenever_it_comes(
        self, before: str, tree: Tree, tmp_path: Path, new: Place, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        """With how many builds had been copied, if any."""
        fetch, asked = unpack.fetch, list[str]()
        for text in ("one", "two"):
            (tree.software / MODULE / "text").write_text(text)
            publish(described(packed(tree, tmp_path / "packed")), tmp_path / "cache")

        def stopping(entry: SignedManifest, stream: Any) -> None:
            asked.append(entry.id)
            if len(asked) == 2:
                signal.raise_signal(signal.SIGINT)
            fetch(entry, stream)

        def kept() -> tuple[str, ...]:
            if before == "the configuration is read":
                signal.raise_signal(signal.SIGINT)
            return ()

        monkeypatch.setattr(unpack, "fetch", stopping)
        monkeypatch.setattr(commands, "keys", kept)
        words = ["cache", "pull", "--all", "--unsigned", "--from", str(tmp_path / "cache"), "--to", new.named]
        assert run(words) == 130
        had = "" if before == "the configuration is read" else "\n  1 of 2 builds had been copied."
        assert capsys.readouterr().err == (
            f"envkit: Stopped by Ctrl-C.\n\n  What is in {new.shown} is whole.{had}\n\n"
            "What to do: Run the same command again: what is there already is not sent again.\n"
        )

    def test_pulls_at_the_same_time(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        of, errors = packed(tree, tmp_path / "packed"), list[BaseException]()
        for number in range(4):
            publish(described(of, cpu=(f"feature{number}",)), tmp_path / "cache")

        def copy() -> None:
            try:
                assert set(states(take(str(tmp_path / "cache"), new))) <= {"copied", "there"}
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=copy) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(json.loads((tmp_path / NEW / "index.json").read_text())["manifests"]) == 4
        assert {one.state for one in contents.verified([new], ()).builds} == {"unsigned"}
        assert not list((tmp_path / NEW).rglob(".envkit-*"))

    @pytest.mark.integration
    def test_a_process_that_is_killed(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        entry = pushed(tree, tmp_path / "cache")
        text = f"""
import os, signal, sys
from envkit.cache import folder, publishing, unpack
from envkit.cache.place import Caches, Place
from envkit.install import cache_pull
from envkit.system import files
step = sys.argv[1]
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if step == "rename": os.replace = lambda *_, **__: die()
if step == "manifest":
    put = folder.put
    folder.put = lambda named, name, stream: die() if name.startswith("manifests") else put(named, name, stream)
if step == "fetch": unpack.fetch = die
if step == "index": publishing.index = die
caches = Caches(places=({entry.place.named!r},), keys=(), unsigned=True)
cache_pull.pull(caches, Place(named={new.named!r}), None, every=True)
"""
        for step, names in (("fetch", 0), ("rename", 0), ("manifest", 0), ("index", 1)):
            done = subprocess.run([sys.executable, "-c", text, step], capture_output=True)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert len(new.names()) == names
            assert {one.state for one in contents.verified([new], ()).builds} <= {"unsigned"}
        assert states(take(entry.place, new)) == ["there"]
        left = {path.name: path for path in (tmp_path / NEW).rglob(".envkit-*")}
        assert len(left) == 1
        for path in left.values():
            os.utime(path, (1, 1))
        contents.prune(new, 0, dry_run=False)
        assert files_in(tmp_path / NEW) == files_in(tmp_path / "cache")

    @pytest.mark.integration
    def test_a_command_that_is_killed_while_an_object_comes(self, tree: Tree, tmp_path: Path, new: Place) -> None:
        begun, ended = threading.Event(), threading.Event()

        class Half(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                content = source.read()
                if not self.path.endswith(".zst"):
                    outputfile.write(content)
                    return
                outputfile.write(content[: len(content) // 2])
                outputfile.flush()
                begun.set()
                ended.wait(30)

        entry = pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache", Half) as url:
            words = ["cache", "pull", "--all", "--unsigned", "--from", url, "--to", new.named]
            running = subprocess.Popen([sys.executable, "-m", "envkit", *words], stdout=subprocess.DEVNULL)
            assert begun.wait(30)
            running.kill()
            assert running.wait(10) == -signal.SIGKILL
            ended.set()
        assert files_in(tmp_path / NEW) == {}
        assert states(take(entry.place, new)) == ["copied"]

    def test_a_full_disk(self, tree: Tree, tmp_path: Path) -> None:
        entry, full = pushed(tree, tmp_path / "cache"), 0
        with small_disk(tmp_path / "small", 40) as small:
            for free in range(20):  # pages
                leave(small, free)
                try:
                    take(entry.place, Place(named=str(small)))
                except DiskFull as error:
                    full += 1
                    assert str(small) in error.what
                    assert os.strerror(errno.ENOSPC) in error.why
                else:
                    break
                (small / "filler").unlink()
                assert {one.state for one in contents.verified([Place(named=str(small))], ()).builds} <= {"unsigned"}
            assert [one.state for one in contents.verified([Place(named=str(small))], ()).builds] == ["unsigned"]
            assert not list(small.rglob(".envkit-*"))
        assert full > 1


@pytest.mark.xdist_group("schemas")
def test_the_command(
    tree: Tree, tmp_path: Path, new: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENVKIT_CACHE_KEYS", "ENVKIT_CACHE_FROM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    there = cache_pull.here()
    of_here: dict[str, Any] = {
        "machine": there.machine, "python": there.python, "mpi_library": there.mpi_library, "versions": {}, "cpu": (),
        "mpi": Mpi(family=there.mpi[0], version=there.mpi[1], embedded=there.is_embedded), "syntax": there.syntax,
    }  # fmt: skip
    entry = pushed(tree, tmp_path / "cache", **of_here)
    words = ["cache", "pull", "--from", entry.place.named, "--to", new.named]
    assert run([*words, "--json"]) == 4
    assert [one["state"] for one in valid("cache pull", capsys.readouterr().out)["builds"]] == ["unsigned"]
    assert run(words) == 4
    said = capsys.readouterr()
    assert f"unsigned {entry.id[:12]} {MODULE}: it is not signed (--unsigned copies it all the same)" in said.out
    assert f"envkit: Nothing was copied to {new.shown}." in said.err
    assert run([*words, "--unsigned"]) == 0
    said = capsys.readouterr()
    assert f"from {entry.place.shown}; not signed by a key of yours\n" in said.out
    assert said.out.endswith(
        f"1 build for {new.shown}: 1 copied, 0 there, 0 unfit, 0 unsigned, 0 bad, 0 unread, 0 refused.\n"
    )
    assert run([*words, "--unsigned", "--json", "toy"]) == 0
    told = valid("cache pull", capsys.readouterr().out)
    assert [(one["state"], one["id"], one["object_sent"]) for one in told["builds"]] == [("there", entry.id, False)]
    (tmp_path / NEW / f"manifests/Horovod--1.0-toy/{entry.id}.json").unlink()
    assert run([*words, "--unsigned"]) == 0
    assert "; not signed by a key of yours; its object was there already\n" in capsys.readouterr().out
    assert run([*words, "--unsigned", "nothing-of-that-name"]) == 2
    assert run(["cache", "pull", "--to", new.named]) == 2
    assert run(["cache", "pull", "--from", str(tmp_path / "absent"), "--to", new.named]) == 4
    assert "There is no such folder" in capsys.readouterr().err
