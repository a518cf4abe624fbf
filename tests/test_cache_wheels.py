"""A module that is made of wheels, in a cache: what of it is in its object, and what comes from the wheels again."""

import base64
import csv
import errno
import hashlib
import io
import json
import marshal
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from envkit.binary import bytecode, compile_python
from envkit.cache import fit, manifest, offers, pack, place, publishing, unpack, unpack_wheels, wheel_members, wheels
from envkit.cache.manifest import Manifest, WheelFiles
from envkit.cache.place import Place, SignedManifest
from envkit.cli import run
from envkit.easybuild import build, cached
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import manifest as lists
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedFile, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Cached, Mpi
from envkit.errors import CacheInvalid, ChecksumMismatch, HostProblem, NotRelocatable, SourcesMissing
from envkit.machine.host import Host, Platform
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import select
from envkit.sources.source_cache import Source
from envkit.system import files, process
from envkit.verify import last

from . import test_cache
from .integration.site import needs, until
from .test_cache import MODULE as HOROVOD
from .test_cache import below, described
from .test_cache_ci import passed
from .test_json_types import valid

MODULE = "Toy/2.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{PYTHON}/site-packages"
TOP = f"software/{MODULE}"
ODD = re.compile(re.escape(manifest.PREFIX) + rb"|^\x7fELF|\0")  # what is refused, or would be with the prefix in it
pytestmark = pytest.mark.xdist_group("wheels")  # one worker has pip install them

PREFIX = "a-prefix-of-some-length"
ODD_NAMES = "a,b", 'q"q', "plain"
DEFLATING = zlib.compressobj(wbits=-zlib.MAX_WBITS)
UNFINISHED = DEFLATING.compress(b"text\n" * 100) + DEFLATING.flush(zlib.Z_SYNC_FLUSH)
FINISHED = UNFINISHED + DEFLATING.flush()
PROGRAMS = "alpha/run.sh", "alpha-1.0.data/scripts/alpha-run"


def wheel(folder: Path, name: str, files: Mapping[str, str | bytes], programs: tuple[str, ...] = ()) -> Path:
    """Write a wheel as pip takes it; ``programs`` are those of its files that can be executed."""
    folder.mkdir(exist_ok=True)
    notes = f"{name}-1.0.dist-info"
    told = {
        f"{notes}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{notes}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{notes}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    content = {**files, **told}
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in {**content, f"{notes}/RECORD": "".join(f"{one},,\n" for one in content)}.items():
            info = zipfile.ZipInfo(file)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if file in programs else 0o100644) << 16
            archive.writestr(info, text)
    return path


def pip_install(tree: Tree, path: Path) -> None:
    """Have the real pip install a wheel into the module."""
    words = ("install", "--no-index", "--no-deps", "--ignore-installed", "--prefix", tree.root / TOP)
    subprocess.run([sys.executable, "-m", "pip", *words, path], check=True, capture_output=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_record(path: Path) -> str:
    """Return the SHA-256 of a file as a list of files has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")


def by_digest(*paths: Path) -> dict[str, Path]:
    """Return wheels by their SHA-256."""
    return {digest(path): path for path in paths}


def tree_in(prefix: Path) -> Tree:
    """Make a prefix with a module that has a module file, and nothing else yet."""
    tree = Tree(root=prefix / "x86_64-py3.11")
    (tree.root / TOP / SITE).mkdir(parents=True)
    file = tree.modulepath / f"{MODULE}.lua"
    file.parent.mkdir(parents=True)
    file.write_text(f'local root = "{tree.root / TOP}"\n')
    return tree


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A module that pip has made of two wheels."""

    tree: Tree
    wheels: dict[str, Path]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder in which the real pip has installed two wheels into a module, as EasyBuild does, and a copy of it."""
    folder = tmp_path_factory.mktemp("pip")
    first: dict[str, str | bytes] = {
        "alpha/__init__.py": "def main():\n    return __file__\n\nclass Nested:\n    def where(self):\n        pass\n",
        "alpha/data.bin": bytes(range(256)) * 500,
        "alpha/run.sh": "#!/bin/sh\n",
        "alpha-1.0.data/scripts/alpha-run": "#!python\nprint('alpha')\n",
        "shared/one.py": "number = 1\n",
        "shared/same.py": "number = 3\n",
    }
    second = {"beta.py": "from alpha import main\n", "shared/two.py": "number = 2\n", "shared/same.py": "number = 3\n"}
    made = wheel(folder / "wheels", "alpha", first, PROGRAMS), wheel(folder / "wheels", "beta", second)
    tree = tree_in(folder / PREFIX)
    for one in made:
        pip_install(tree, one)
    return folder, Path(shutil.copytree(folder, f"{folder}-as-it-was", symlinks=True))


@pytest.fixture
def installed(template: tuple[Path, Path]) -> Installed:
    """Put back what pip has installed: Python that is compiled knows the place."""
    folder, kept = template
    shutil.rmtree(folder)
    shutil.copytree(kept, folder, symlinks=True)
    return Installed(
        tree=Tree(root=folder / PREFIX / "x86_64-py3.11"), wheels=by_digest(*sorted((folder / "wheels").iterdir()))
    )


def packed(tree: Tree, used: Mapping[str, Path], path: Path) -> Manifest:
    """Pack the module; return its manifest."""
    with path.open("w+b") as stream:
        of = pack.pack(tree, MODULE, "x86_64", PYTHON, stream, used)
    part = LockedPart(name=MODULE, recipe="Toy.eb", sha256="3" * 64)
    made = described(
        of, mpi=Mpi(family="", version=""), mpi_library="", versions={}, cpu=(), recipes={MODULE: "3" * 64}
    )
    return msgspec.structs.replace(made, part=part, wheels=of.wheels)


def pushed(tree: Tree, used: Mapping[str, Path], folder: Path, **changes: Any) -> SignedManifest:
    """Put the module into a cache; return what is there then."""
    folder.mkdir(exist_ok=True)
    path = folder.with_name("packed")
    made = msgspec.structs.replace(packed(tree, used, path), **changes)
    with path.open("rb") as stream:
        publishing.publish(Place(named=str(folder)), made, stream, b"")
    return Place(named=str(folder)).entry(f"Toy--2.0/{made.key}.json")


def put(entry: SignedManifest, prefix: Path, used: Mapping[str, Path]) -> Tree:
    """Take the module into another prefix."""
    new = Tree(root=prefix / "x86_64-py3.11")
    new.root.mkdir(parents=True, exist_ok=True)
    unpack.take(entry, new, Path(sys.executable), lambda: None, used)
    return new


def compile_as_the_build(tree: Tree) -> None:
    """Compile the Python of the module in its place."""
    words = ["-I", "-S", compile_python.__file__, str(tree.root), MODULE, str(tree.root)]
    subprocess.run([sys.executable, *words], check=True)


def contents(tree: Tree) -> dict[str, tuple[bytes, bool]]:
    """Return the files of the module but for what is compiled: content, without the prefix, and if executable."""
    prefix = os.fsencode(tree.root.parent)
    return {
        name: ((tree.root / name).read_bytes().replace(prefix, b"PREFIX"), os.access(tree.root / name, os.X_OK))
        for name in below(tree.root)
        if not name.endswith((".pyc", "envkit-cache.log"))
    }


def task_of(entry: SignedManifest, used: Mapping[str, Path], root: Path) -> unpack_wheels.Task:
    """Return what is to be unpacked of the wheels of an object."""
    return unpack_wheels.Task(
        wheels={sha256: str(path) for sha256, path in used.items()}, used=entry.manifest.wheels, module=MODULE,
        root=str(root), changed=1,
    )  # fmt: skip


def instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have another program run in the place of the one that unpacks wheels."""
    supervise = process.supervise
    monkeypatch.setattr(process, "supervise", lambda _, **words: supervise([sys.executable, "-c", program], **words))


def refused(entry: SignedManifest, used: Mapping[str, Path], tmp_path: Path) -> str:
    """Return why an object is not taken; nothing of it is left."""
    with pytest.raises(CacheInvalid) as told:
        put(entry, tmp_path / "another", used)
    assert below(tmp_path / "another") == set()
    return told.value.why


def changed(entry: SignedManifest, used: Mapping[str, Path], wheel: Path, tmp_path: Path) -> None:
    """Have a wheel refused that is not what it was; nothing of the object is left."""
    with pytest.raises(ChecksumMismatch, match=re.escape(f"{wheel} is not what the recipe pins")):
        put(entry, tmp_path / "another", used)
    assert below(tmp_path / "another") == set()


def test_what_compiles_ends_with_the_push_that_started_it(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    source = f"{TOP}/lib/x.py"
    (tmp_path / source).parent.mkdir(parents=True)
    (tmp_path / source).touch()
    program = (
        "import sys\nfrom pathlib import Path\nfrom envkit.binary import compile_python\n"
        "from envkit.cache import wheels\nfrom envkit.environments.prefix import Tree\n"
        "compile_python.__file__ = sys.argv[2]\n"
        f"list(wheels.compiled(Tree(root=Path(sys.argv[1])), {MODULE!r}, {[source]!r}, {{}}))\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program, tmp_path, slow], env=env) as running:
        said = until(lambda: [path for path in tmp_path.glob("*/said") if path.read_text()], "it to have begun")
        running.kill()
    until(lambda: not Path(f"/proc/{said[0].read_text().strip()}").exists(), "it to end", 10)


@pytest.mark.integration
def test_each_step_of_packing_is_told(installed: Installed, tmp_path: Path) -> None:
    told = list[str]()
    with (tmp_path / "packed").open("w+b") as stream:
        pack.pack(installed.tree, MODULE, "x86_64", PYTHON, stream, installed.wheels, told.append)
    assert told == [
        "comparing it with its wheels",
        "compressing its files",
        "adding its compiled Python",
        "looking at what its libraries need",
    ]


class TestMoved:
    """What pip has installed, under another prefix."""

    @pytest.mark.integration
    def test_it_is_the_same(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        new = put(entry, tmp_path / "another", installed.wheels)
        own = contents(installed.tree)
        assert contents(new) == own
        assert own[f"{TOP}/{SITE}/alpha/run.sh"][1] and own[f"{TOP}/bin/alpha-run"][1]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(new.root / TOP / SITE)}
        said = subprocess.run(
            [sys.executable, "-c", "import beta, shared.one, shared.two; print(beta.main())"],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.strip() == str(new.root / TOP / SITE / "alpha/__init__.py")

    @pytest.mark.integration
    def test_what_pip_moves_into_site_packages_is_of_its_wheel(self, tmp_path: Path) -> None:
        """As libclang, of 64 MB, which TensorFlow needs."""
        tree = tree_in(tmp_path / PREFIX)
        native, script = "gamma-1.0.data/platlib/gamma/native.bin", "gamma-1.0.data/scripts/gamma-run"
        inside: dict[str, str | bytes] = {
            "gamma-1.0.data/purelib/gamma/__init__.py": "number = 1\n", native: b"x" * 9, script: "#!python\n",
            "gamma-1.0.data/purelib/both.py": "number = 2\n", "both.py": "number = 2\n",
        }  # fmt: skip
        used = wheel(tmp_path / "wheels", "gamma", inside, (native, script))
        pip_install(tree, used)
        entry = pushed(tree, by_digest(used), tmp_path / "cache")
        of_object = {Path(name).name for name in entry.manifest.files}
        assert not of_object & {"native.bin", "__init__.py"} and of_object >= {"both.py", "gamma-run"}
        new = put(entry, tmp_path / "another", by_digest(used))
        assert contents(new) == contents(tree)
        assert os.access(new.root / TOP / SITE / "gamma/native.bin", os.X_OK)

    @pytest.mark.parametrize("has_process", [True, False])
    def test_wheels_are_unpacked_by_a_process_beside_the_object(
        self, has_process: bool, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By this one where no other can be started, as at the limit of a user's processes."""
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        supervise, started = process.supervise, list[Sequence[str]]()

        def told(argv: Sequence[str], **words: Any) -> int:
            started.append(argv)
            if not has_process:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return supervise(argv, **words)

        monkeypatch.setattr(process, "supervise", told)
        assert contents(put(entry, tmp_path / "another", installed.wheels)) == contents(installed.tree)
        assert len(started) == 1

    @pytest.mark.parametrize("has_thread", [True, False])
    def test_large_files_are_unpacked_beside_the_rest(
        self, has_thread: bool, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At once where no thread can be started."""

        def refuse(_: object) -> None:
            raise RuntimeError("can't start new thread")

        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        task = task_of(entry, installed.wheels, tmp_path / "together")
        expected = unpack_wheels.unpacked(task)
        if not has_thread:
            monkeypatch.setattr(threading.Thread, "start", refuse)
        monkeypatch.setattr(unpack_wheels, "LARGE", 0)
        assert unpack_wheels.unpacked(msgspec.structs.replace(task, root=str(tmp_path / "apart"))) == expected
        assert below(tmp_path / "apart") == below(tmp_path / "together") == expected.keys()

    def test_nothing_of_the_wheels_is_in_the_object(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        sources = [name for name in entry.manifest.files if name.endswith((".py", ".bin", ".sh", "METADATA"))]
        assert not sources
        assert f"{TOP}/{SITE}/alpha-1.0.dist-info/RECORD" in entry.manifest.files  # pip has written it anew
        assert f"{TOP}/bin/alpha" in entry.manifest.files
        assert {of.folder for of in entry.manifest.wheels.values()} == {f"{TOP}/{SITE}"}

    def test_compiled_python_is_taken_and_is_of_the_new_place(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        names = [name for name in entry.manifest.files if name.endswith(".pyc")]
        assert len(names) == 5
        new = put(entry, tmp_path / "another", installed.wheels)
        before = {name: (new.root / name).read_bytes() for name in names}
        for name, content in before.items():
            assert bytecode.is_taken(new.root / name, content[: bytecode.HEADER])
            assert os.fsencode(installed.tree.root.parent) not in content
        text = "import alpha, beta; print(alpha.main.__code__.co_filename, alpha.Nested.where.__code__.co_filename)"
        said = subprocess.run(
            [sys.executable, "-v", "-c", text],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(new.root / TOP / SITE)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.split() == [str(new.root / TOP / SITE / "alpha/__init__.py")] * 2
        assert f"# code object from {new.root}" not in said.stderr  # it would be compiled anew
        assert said.stderr.count(f"matches {new.root / TOP / SITE}") == 2
        assert {name: (new.root / name).read_bytes() for name in names} == before

    def test_the_same_files_are_the_same_object(self, installed: Installed, tmp_path: Path) -> None:
        first = packed(installed.tree, installed.wheels, tmp_path / "one")
        new = put(pushed(installed.tree, installed.wheels, tmp_path / "cache"), tmp_path / "another", installed.wheels)
        for path in (new.root / TOP / "easybuild").iterdir():
            path.unlink()
        (new.root / TOP / "easybuild").rmdir()
        second = packed(new, installed.wheels, tmp_path / "two")
        assert any(file.places for file in first.files.values())  # whose digests are in the lists of packages
        assert (second.wheels, second.files, second.key) == (first.wheels, first.files, first.key)

    def test_what_else_a_process_holds_does_not_count(self, installed: Installed) -> None:
        """Python marks a string that somebody else refers to, too, which is another byte."""
        names = {f"{TOP}/{SITE}/alpha/__init__.py"}
        [(_, before)] = wheels.compiled(installed.tree, MODULE, names, {})
        held = [*marshal.loads(before[bytecode.HEADER :]).co_names]
        [(_, after)] = wheels.compiled(installed.tree, MODULE, names, {})
        text = files.read(installed.tree.root / next(iter(names)))
        here = marshal.dumps(compile(text, next(iter(names)), "exec", dont_inherit=True, optimize=0))
        assert held and before == after
        assert len(before) == bytecode.HEADER + len(here)  # the same code, whatever is marked

    def test_what_the_build_has_compiled_is_not_compiled_again(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the same bytes as if it were; and as the build has listed it."""
        anew = packed(installed.tree, installed.wheels, tmp_path / "anew")
        compile_as_the_build(installed.tree)
        lists.write(installed.tree, MODULE)
        monkeypatch.setattr(compile_python, "__file__", "/nonexistent")
        assert packed(installed.tree, installed.wheels, tmp_path / "built").files == anew.files

    @pytest.mark.parametrize("change", ["of pip", "another", "of another time", "gone", "unlisted", "list damaged"])
    def test_what_is_not_as_the_build_has_compiled_it_is_compiled_again(
        self, change: str, installed: Installed, tmp_path: Path
    ) -> None:
        anew = packed(installed.tree, installed.wheels, tmp_path / "anew")
        site = installed.tree.root / TOP / SITE
        [one] = (site / "alpha/__pycache__").iterdir()
        if change != "of pip":
            compile_as_the_build(installed.tree)
        if change == "of another time":
            os.utime(site / "alpha/__init__.py", (1, 1))
        if change != "unlisted":
            lists.write(installed.tree, MODULE)
        if change == "another":
            one.write_bytes(one.read_bytes().replace(b"Nested", b"Vested"))
        elif change == "gone":
            one.unlink()
        elif change == "list damaged":
            lists.path_of(installed.tree, MODULE).write_text("{")
        assert packed(installed.tree, installed.wheels, tmp_path / "built").files == anew.files

    def test_a_compiler_that_fails_is_said(self, installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compile_python, "__file__", "/nonexistent")
        with pytest.raises(HostProblem, match="could not be compiled") as told:
            [*wheels.compiled(installed.tree, MODULE, {f"{TOP}/{SITE}/alpha/__init__.py"}, {})]
        assert "can't open file '/nonexistent'" in told.value.why

    @pytest.mark.parametrize(
        ("change", "is_claimed"),
        [("", True), ("content", True), ("content and time", False), ("list of the wheel", False), ("no list", False)],
    )
    def test_what_is_listed_of_a_file_is_compared_with_the_list_of_its_wheel(
        self, change: str, is_claimed: bool, tmp_path: Path
    ) -> None:
        """Without reading it; whoever takes the module has it from the wheel. What may be other is read."""
        tree, name = tree_in(tmp_path / PREFIX), f"{TOP}/{SITE}/bad.bin"
        path, content = tree.root / name, b"right"
        path.write_bytes(content)
        lists.write(tree, MODULE)
        listed = lists.read(tree, MODULE)
        assert listed is not None
        known = {} if change == "no list" else listed.files
        told = hashlib.sha256(b"other" if change == "list of the wheel" else content).digest()
        line = f"bad.bin,sha256={base64.urlsafe_b64encode(told).decode().rstrip('=')},5\n"
        used = tmp_path / "bad-1.0-py3-none-any.whl"
        with zipfile.ZipFile(used, "w") as archive:
            archive.writestr("bad.bin", content)
            archive.writestr("bad-1.0.dist-info/RECORD", line)
        state = path.stat()
        path.write_bytes(b"right" if not change else b"wrong")
        if change != "content and time":
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        _, claimed = wheels.described(by_digest(used), tree, {name}, known)
        assert (name in claimed) == is_claimed

    @pytest.mark.parametrize("text", ["", "x,sha256=*,1", "\xff", '"', "bad.bin,sha256=AAAA,5", "a\0b,sha256=AAAA,1"])
    def test_a_list_of_a_wheel_that_is_none(self, text: str, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "bad.whl", "w") as archive:
            archive.writestr("bad-1.0.dist-info/RECORD", text.encode("latin-1"))
            assert all(len(told) == 64 for told in wheel_members.recorded(archive).values())

    def test_what_was_changed_after_pip_is_as_it_was_changed(self, installed: Installed, tmp_path: Path) -> None:
        site = installed.tree.root / TOP / SITE
        (site / "shared/one.py").write_text("number = 9\n")  # of the same size
        (site / "alpha/data.bin").chmod(0o755)
        (site / "shared/two.py").unlink()
        (site / "beta.py").unlink()
        (site / "beta.py").symlink_to("shared/one.py")
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        new = put(entry, tmp_path / "another", installed.wheels)
        assert contents(new) == contents(installed.tree)
        assert (new.root / TOP / SITE / "beta.py").readlink() == Path("shared/one.py")
        assert (new.root / TOP / SITE / "alpha/data.bin").stat().st_mode & 0o111

    @pytest.mark.integration
    def test_a_source_with_the_path_of_the_prefix_in_it(self, tmp_path: Path) -> None:
        """It stays as the wheel has it, and what is compiled of it is compiled anew."""
        tree = tree_in(tmp_path / "sw")
        prefix = str(tmp_path / "sw")
        text = f"where = '{prefix}/lib', '{prefix[:5]}' '{prefix[5:]}/share', '{prefix[1:].ljust(47, '_')}'\n"
        one = wheel(tmp_path / "wheels", "odd", {"odd.py": text})
        pip_install(tree, one)
        entry = pushed(tree, by_digest(one), tmp_path / "cache")
        new = put(entry, tmp_path / "another", by_digest(one))
        assert (new.root / TOP / SITE / "odd.py").read_text() == text
        [compiled] = (new.root / TOP / SITE / "__pycache__").iterdir()
        assert bytecode.is_taken(compiled, compiled.read_bytes()[: bytecode.HEADER])
        said = subprocess.run(
            [sys.executable, "-B", "-c", "import odd; print(*odd.where)"],
            env={"PYTHONPATH": str(new.root / TOP / SITE)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.split() == [f"{prefix}/lib", f"{prefix}/share", prefix[1:].ljust(47, "_")]

    def test_compiled_python_that_was_changed_is_not_packed(self, installed: Installed, tmp_path: Path) -> None:
        site = installed.tree.root / TOP / SITE
        [compiled] = (site / "shared/__pycache__").glob("one.*.pyc")
        content = compiled.read_bytes()
        code = marshal.dumps(compile("number = 666", "one.py", "exec"))
        compiled.write_bytes(content[: bytecode.HEADER] + code)
        new = put(pushed(installed.tree, installed.wheels, tmp_path / "cache"), tmp_path / "another", installed.wheels)
        said = subprocess.run(
            [sys.executable, "-c", "import shared.one; print(shared.one.number)"],
            env={"PYTHONPATH": str(new.root / TOP / SITE)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.strip() == "1"

    @pytest.mark.integration
    def test_what_an_object_leaves_out_is_taken_of_a_wheel(self, tmp_path: Path) -> None:
        names = (
            "odd/hidden.pyc", "odd/__pycache__/none.cpython-311.pyc", "odd/__pycache__/data.txt",
            "odd/easybuild/build.log", "odd/easybuild/reprod/code.py", "odd/easybuild/x_test_report.md",
            "odd/it-easybuild-devel",
        )  # fmt: skip
        tree = tree_in(tmp_path / PREFIX)
        one = wheel(tmp_path / "wheels", "odd", {"odd/__init__.py": "", **dict.fromkeys(names, "own content\n")})
        pip_install(tree, one)
        new = put(pushed(tree, by_digest(one), tmp_path / "cache"), tmp_path / "another", by_digest(one))
        for name in names:
            assert (new.root / TOP / SITE / name).read_text() == "own content\n", name

    @pytest.mark.parametrize("is_listed", [True, False])
    def test_a_wheel_that_tells_another_digest_of_a_file(self, is_listed: bool, tmp_path: Path) -> None:
        """That file is in the object: of the others, the digests are taken from the wheel."""
        tree, texts = tree_in(tmp_path / PREFIX), {"right.py": "x = 1\n", "wrong.py": "x = 2\n", "short.py": "x = 3\n"}
        one = wheel(tmp_path / "wheels", "odd", texts)
        with zipfile.ZipFile(one) as archive:
            members = {info: archive.read(info) for info in archive.infolist()}
        digests = {name: hashlib.sha256(text.encode()).digest() for name, text in texts.items()}
        digests |= {"wrong.py": bytes(32), "short.py": digests["short.py"][:-2]}
        told = {name: base64.urlsafe_b64encode(made).decode().rstrip("=") for name, made in digests.items()}
        lines = "".join(f"{name},sha256={told[name]},6\n" for name in told).encode()
        with zipfile.ZipFile(one, "w") as archive:
            for info, content in members.items():
                archive.writestr(info, lines if info.filename.endswith("/RECORD") else content)
        pip_install(tree, one)
        if is_listed:
            lists.write(tree, MODULE)
        entry = pushed(tree, by_digest(one), tmp_path / "cache")
        packed_of_it = {name.rpartition("/")[2] for name in entry.manifest.files if name.endswith(".py")}
        assert packed_of_it == {"wrong.py"}
        new = Tree(root=tmp_path / "another" / "x86_64-py3.11")
        new.root.mkdir(parents=True)
        made = unpack.take(entry, new, Path(sys.executable), lambda: None, by_digest(one))
        assert {name: digest(new.root / name) for name in made} == made
        assert {name: (new.root / TOP / SITE / name).read_text() for name in texts} == texts
        assert len(made) > 5

    def test_what_stands_for_the_prefix_in_the_python_of_a_wheel(self, tmp_path: Path) -> None:
        tree, mark = tree_in(tmp_path / PREFIX), manifest.PREFIX.decode()
        one = wheel(tmp_path / "wheels", "odd", {"odd.py": f"MARK = {mark!r}\n", "even.py": "x = 1\n"})
        pip_install(tree, one)
        entry = pushed(tree, by_digest(one), tmp_path / "cache")
        new = put(entry, tmp_path / "another", by_digest(one))
        assert contents(new) == contents(tree)
        assert [name.rpartition("/")[2].partition(".")[0] for name in entry.manifest.files if name.endswith("pyc")] == [
            "even"
        ]

    def test_scripts_whose_names_are_quoted_in_the_list(self, tmp_path: Path) -> None:
        tree, scripts = tree_in(tmp_path / PREFIX), {f"odd-1.0.data/scripts/{name}": "#!python\n" for name in ODD_NAMES}
        one = wheel(tmp_path / "wheels", "odd", {"odd.py": "", **scripts})
        pip_install(tree, one)
        for name in ODD_NAMES:
            path = tree.root / TOP / "bin" / name
            path.write_text(f"#!{tree.root}/bin/python\n")
        rows = [[f"../../../bin/{name}", "sha256=x", "1"] for name in ODD_NAMES]
        record = tree.root / TOP / SITE / "odd-1.0.dist-info/RECORD"
        with record.open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
        new = put(pushed(tree, by_digest(one), tmp_path / "cache"), tmp_path / "another", by_digest(one))
        with (new.root / record.relative_to(tree.root)).open(newline="") as stream:
            told = {name: digest_of for name, digest_of, _ in csv.reader(stream)}
        assert told == {
            f"../../../bin/{name}": f"sha256={of_record(new.root / TOP / 'bin' / name)}" for name in ODD_NAMES
        }

    @pytest.mark.parametrize(
        ("raw", "size"), [(b"", 0), (b"\3\0", 0), (UNFINISHED, 500), (FINISHED, 500), (FINISHED, 0)]
    )
    def test_members_that_few_programs_write(self, raw: bytes, size: int, tmp_path: Path) -> None:
        """They are read as zipfile, and so pip, reads them: without a last block, or with more than there should be."""
        path, crc = tmp_path / "odd.zip", zlib.crc32(b"text\n" * (size // 5))
        facts = (20, 0, zipfile.ZIP_DEFLATED, 0, 0x21, crc, len(raw), size, 1)
        local = struct.pack("<4s5H3I2H", b"PK\3\4", *facts, 0) + b"x" + raw
        central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, *facts, *[0] * 6) + b"x"
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local), 0)
        path.write_bytes(local + central + end)
        with zipfile.ZipFile(path) as archive:
            [member] = archive.infolist()
            assert b"".join(wheel_members.content(archive, member)) == archive.read(member) == b"text\n" * (size // 5)

    def test_a_source_that_has_an_odd_name_or_is_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("c.d.py", ".py", ".hidden.py", f"{'l' * 242}.py", f"{'l' * 238}.py")
        tree = tree_in(tmp_path / PREFIX)
        texts: dict[str, str | bytes] = {"odd.py": "", **dict.fromkeys(names, "x = 1\n"), "big.py": "x = 1\n" * 100}
        one = wheel(tmp_path / "wheels", "odd", texts)
        with zipfile.ZipFile(one) as archive:
            archive.extractall(tree.root / TOP / SITE)
        monkeypatch.setattr(files, "MOST", 500)
        entry = pushed(tree, by_digest(one), tmp_path / "cache")
        monkeypatch.undo()
        new = put(entry, tmp_path / "another", by_digest(one))
        assert contents(new) == contents(tree)

    def test_a_place_for_compiled_python_that_the_user_has_set(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = packed(installed.tree, installed.wheels, tmp_path / "one")
        monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
        assert packed(installed.tree, installed.wheels, tmp_path / "two") == before

    def test_a_file_that_is_in_a_wheel_twice(self, tmp_path: Path) -> None:
        tree, path = tree_in(tmp_path / PREFIX), tmp_path / "twice-1.0-py3-none-any.whl"
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore")
            for text in ("first", "second"):
                archive.writestr("twice.txt", text)
            archive.writestr("once.txt", "x")
        (tree.root / TOP / SITE / "twice.txt").write_text("second")
        (tree.root / TOP / SITE / "once.txt").write_text("x")
        new = put(pushed(tree, by_digest(path), tmp_path / "cache"), tmp_path / "another", by_digest(path))
        assert contents(new) == contents(tree)

    def test_what_is_left_out_of_a_wheel_makes_another_build(self, installed: Installed, tmp_path: Path) -> None:
        first = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        (installed.tree.root / TOP / SITE / "alpha/data.bin").unlink()
        second = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        (installed.tree.root / TOP / "more").symlink_to("lib")
        third = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        assert first.manifest.sha256 == second.manifest.sha256 == third.manifest.sha256
        assert len({first.id, second.id, third.id}) == 3


NAMES = st.text("abc", min_size=1, max_size=2)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENT = st.binary(max_size=40).filter(lambda content: not ODD.search(content))
FILES = st.dictionaries(PATHS.map("{}.x".format), CONTENT, max_size=8)


@pytest.mark.integration
@settings(max_examples=60, deadline=None)
@given(first=FILES, second=FILES, programs=st.sets(PATHS.map("{}.x".format)), data=st.data())
def test_any_wheels_and_any_changes(
    first: dict[str, bytes],
    second: dict[str, bytes],
    programs: set[str],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever wheels have, and whatever was changed, removed or added since: the module is the same elsewhere."""
    tmp_path = tmp_path_factory.mktemp("any")
    made = (
        wheel(tmp_path / "wheels", "alpha", first, tuple(programs)),
        wheel(tmp_path / "wheels", "beta", second, tuple(programs)),
    )
    tree = tree_in(tmp_path / PREFIX)
    site = tree.root / TOP / SITE
    for one in made:
        with zipfile.ZipFile(one) as archive:
            for member in archive.infolist():
                path = site / member.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))
                path.chmod(0o755 if wheel_members.is_program(member) else 0o644)
    own = sorted(path for path in site.rglob("*") if path.is_file())
    for path in own:
        change = data.draw(st.sampled_from(["", "", "text", "mode", "gone", "bytes"]))
        content = path.read_bytes()
        if change == "text":
            path.write_bytes(content + os.fsencode(tree.root))
        elif change == "bytes":
            path.write_bytes(content[::-1])
        elif change == "mode":
            path.chmod(path.stat().st_mode ^ 0o111)
        elif change == "gone":
            path.unlink()
    (site / "added.y").write_bytes(data.draw(CONTENT))
    entry = pushed(tree, by_digest(*made), tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpack, "compile_all", lambda *_: None)
        new = put(entry, tmp_path / "another", by_digest(*made))
    assert contents(new) == contents(tree)


class TestRefused:
    """What is not as the recipe, or the manifest, says."""

    def test_a_wheel_that_the_recipe_does_not_pin(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        [first, second] = installed.wheels
        assert f"It takes a wheel that its recipe does not: {second}." in refused(
            entry, {first: installed.wheels[first]}, tmp_path
        )

    def test_a_wheel_that_was_replaced_by_one_of_the_same_layout(self, installed: Installed, tmp_path: Path) -> None:
        entry, used = pushed(installed.tree, installed.wheels, tmp_path / "cache"), dict(installed.wheels)
        path = list(used.values())[1]
        with zipfile.ZipFile(path) as archive:
            content = {member: archive.read(member) for member in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in content.items():
                archive.writestr(member, text.replace(b"number = 2", b"number = 6"))
        changed(entry, used, path, tmp_path)

    @pytest.mark.parametrize("link", ["nowhere.eb", "z.eb"])
    def test_a_recipe_that_is_a_link_to_nothing(self, link: str, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        changed = {**entry.manifest.files, f"{TOP}/easybuild/z.eb": manifest.PackedFile(link=link)}
        forged = replace(entry, manifest=msgspec.structs.replace(entry.manifest, files=changed))
        new = put(forged, tmp_path / "another", installed.wheels)
        assert (new.root / TOP / "easybuild/z.eb").readlink() == Path(link)
        assert not (new.root / "ebfiles_repo").exists()

    def test_compiled_python_that_is_a_link_to_another_file(self, installed: Installed, tmp_path: Path) -> None:
        entry, folder = pushed(installed.tree, installed.wheels, tmp_path / "cache"), f"{TOP}/{SITE}/alpha"
        links = {
            f"{folder}/__pycache__/d.{sys.implementation.cache_tag}.pyc": manifest.PackedFile(link="../data.bin"),
            f"{folder}/d.py": manifest.PackedFile(link="data.bin"),
        }
        changed = {**entry.manifest.files, **links}
        forged = replace(entry, manifest=msgspec.structs.replace(entry.manifest, files=changed))
        new = put(forged, tmp_path / "another", installed.wheels)
        assert (new.root / folder / "data.bin").read_bytes() == bytes(range(256)) * 500

    def test_a_list_that_nobody_could_read(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(manifest, "MOST", 1000)
        with pytest.raises(HostProblem, match="cannot be put into a cache") as told:
            pushed(installed.tree, installed.wheels, tmp_path / "cache")
        assert "The list of its" in told.value.why
        assert below(tmp_path / "cache") <= {".lock"}

    def test_a_name_that_is_no_text(self, installed: Installed, tmp_path: Path) -> None:
        Path(os.fsdecode(os.fsencode(installed.tree.root / TOP) + b"/odd\xff")).write_text("x")
        with pytest.raises(NotRelocatable, match="cannot be moved") as told:
            packed(installed.tree, installed.wheels, tmp_path / "packed")
        assert "no UTF-8" in told.value.why

    @pytest.mark.integration
    @pytest.mark.parametrize("large", [0, 1_000_000])
    @pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
    def test_any_damage_of_a_wheel_that_a_recipe_pins_so(
        self, kind: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unpack_wheels, "LARGE", large)
        path, dice = tmp_path / "odd.whl", random.Random(kind)
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("odd.txt", bytes(range(256)) * 20)
        content = path.read_bytes()
        for number in range(200):
            data = bytearray(content)
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            path.write_bytes(data)
            sha256, root = digest(path), str(tmp_path / str(number))
            used = {sha256: WheelFiles(folder=f"{TOP}/x")}
            task = unpack_wheels.Task(wheels={sha256: str(path)}, used=used, module=MODULE, root=root, changed=1)
            with suppress(ValueError, OSError):
                unpack_wheels.unpacked(task)

    @pytest.mark.parametrize("how", ["cut", "another", "damaged", "gone"])
    def test_a_wheel_that_is_not_what_it_was(self, how: str, installed: Installed, tmp_path: Path) -> None:
        entry, used = pushed(installed.tree, installed.wheels, tmp_path / "cache"), dict(installed.wheels)
        path = next(iter(used.values()))
        content = path.read_bytes()
        if how == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif how == "another":
            path.write_text("no zip at all")
        elif how == "damaged":
            with zipfile.ZipFile(path) as archive:
                member = archive.getinfo("alpha/data.bin")
            at = member.header_offset + 40
            path.write_bytes(content[:at] + bytes(len(content[at : at + 60])) + content[at + 60 :])
        else:
            path.unlink()
        changed(entry, used, path, tmp_path)

    def test_compiled_python_whose_source_is_not_there(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        without = {sha256: msgspec.structs.replace(of, without=(*of.without, "alpha/__init__.py"))
                   for sha256, of in entry.manifest.wheels.items()}  # fmt: skip
        forged = replace(entry, manifest=msgspec.structs.replace(entry.manifest, wheels=without))
        assert "alpha/__pycache__/__init__" in refused(forged, installed.wheels, tmp_path)

    def test_a_program_that_is_killed(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where memory is short: that is no fault of the cache, and nothing is left."""
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        instead(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(HostProblem, match=r"The wheels of Toy/2\.0 could not be unpacked") as told:
            put(entry, tmp_path / "another", installed.wheels)
        assert "SIGKILL" in told.value.why
        assert below(tmp_path / "another") == set()

    def test_a_full_disk_is_said_to_be_full(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        task = task_of(entry, installed.wheels, tmp_path / "unpacked")
        (tmp_path / "task").write_text(json.dumps(msgspec.to_builtins(task)))
        argv = [sys.executable, "-m", unpack_wheels.__name__, str(tmp_path / "task"), "/dev/full"]
        assert subprocess.run(argv, check=False).returncode == errno.ENOSPC
        monkeypatch.setattr(process, "supervise", lambda *_, **__: errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            put(entry, tmp_path / "another", installed.wheels)
        assert below(tmp_path / "another") == set()

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
    def test_what_is_no_fault_of_a_cache(
        self, number: int, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: object) -> dict[str, str]:
            raise OSError(number, os.strerror(number))

        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        monkeypatch.setattr(unpack, "unpack", failing)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            put(entry, tmp_path / "another", installed.wheels)

    def test_the_program_has_envkit_from_where_this_process_has_it(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a checkout, by 'python -m envkit': its folder is not in that of Python's packages."""
        told, supervise = list[Mapping[str, str]](), process.supervise

        def noted(argv: Sequence[str], *, env: Mapping[str, str], **more: Any) -> int:
            told.append(env)
            return supervise(argv, env=env, **more)

        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        monkeypatch.setattr(process, "supervise", noted)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        put(entry, tmp_path / "another", installed.wheels)
        assert told[0]["PYTHONPATH"].split(":") == [os.getcwd(), *sys.path[1:]]  # noqa: PTH109

    def test_what_unpacks_wheels_ends_with_a_bad_object(
        self, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry, began = pushed(installed.tree, installed.wheels, tmp_path / "cache"), tmp_path / "began"
        instead(monkeypatch, f"import os, time; open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(300)")
        take = unpack.unpack

        def later(*words: Any) -> dict[str, str]:
            until(lambda: began.is_file() and began.read_text(), "it to have begun")
            return take(*words)

        monkeypatch.setattr(unpack, "unpack", later)
        some = {name: file for name, file in entry.manifest.files.items() if not name.endswith(".pyc")}
        forged = replace(entry, manifest=msgspec.structs.replace(entry.manifest, files=some))
        assert "which its manifest does not name so" in refused(forged, installed.wheels, tmp_path)
        assert not Path(f"/proc/{began.read_text()}").exists()

    @pytest.mark.parametrize("folder", ["", "/etc", f"{TOP}/../../x", "software/Other/1/lib", "modules/all", TOP[:-1]])
    def test_a_folder_that_is_another(self, folder: str, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        changed = {sha256: WheelFiles(folder=folder) for sha256 in entry.manifest.wheels}
        forged = replace(entry, manifest=msgspec.structs.replace(entry.manifest, wheels=changed))
        assert "Its manifest names" in refused(forged, installed.wheels, tmp_path)

    @pytest.mark.parametrize("name", ["../../../../../../evil.py", "/evil.py", "x/../../../../../evil.py"])
    def test_a_name_that_leads_elsewhere(self, name: str, tmp_path: Path) -> None:
        tree = tree_in(tmp_path / PREFIX)
        bad = wheel(tmp_path / "wheels", "bad", {"bad.py": "x = 1\n", name: "evil\n"})
        (tree.root / TOP / SITE / "bad.py").write_text("x = 1\n")
        entry = pushed(tree, by_digest(bad), tmp_path / "cache")
        assert entry.manifest.wheels[digest(bad)].without
        forged = msgspec.structs.replace(entry.manifest, wheels={digest(bad): WheelFiles(folder=f"{TOP}/{SITE}")})
        assert "'" in refused(replace(entry, manifest=forged), by_digest(bad), tmp_path)
        assert not [*tmp_path.rglob("evil.py")]

    def test_a_file_that_is_in_both(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        all_of_it = {sha256: WheelFiles(folder=f"{TOP}/{SITE}") for sha256 in entry.manifest.wheels}
        forged = msgspec.structs.replace(entry.manifest, wheels=all_of_it)
        assert "File exists" in refused(replace(entry, manifest=forged), installed.wheels, tmp_path)

    @pytest.mark.parametrize("large", [0, 1_000_000])
    def test_a_file_that_is_in_two_wheels(
        self, large: int, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unpack_wheels, "LARGE", large)
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        task = task_of(entry, installed.wheels, tmp_path / "unpacked")
        both = {sha256: WheelFiles(folder=of.folder) for sha256, of in task.used.items()}
        with pytest.raises(FileExistsError, match=r"shared/same\.py"):
            unpack_wheels.unpacked(msgspec.structs.replace(task, used=both))

    def test_an_image_with_wheels_is_none(self, installed: Installed, tmp_path: Path) -> None:
        entry = pushed(installed.tree, installed.wheels, tmp_path / "cache")
        file = manifest.PackedFile(size=entry.manifest.size, sha256=entry.manifest.sha256, is_program=True)
        part = msgspec.structs.replace(entry.manifest.part, name="toy-image")
        lock = msgspec.structs.replace(entry.manifest.provenance.lock, name="toy-image")
        provenance = msgspec.structs.replace(entry.manifest.provenance, lock=lock)
        of_image = {"part": part, "provenance": provenance, "files": {"toy-image.sif": file}}
        for used in ({}, entry.manifest.wheels):
            made = msgspec.structs.replace(entry.manifest, **of_image, wheels=used)
            if not used:
                assert manifest.read(manifest.packed(made, b""))[0].is_image
                continue
            with pytest.raises(ValueError, match="no manifest of a module or an image"):
                manifest.read(manifest.packed(made, b""))


class TestFit:
    """Which plan takes it."""

    def test_no_mpi_and_no_other_recipe_counts(self, installed: Installed, tmp_path: Path) -> None:
        from .test_cache import here

        made = pushed(installed.tree, installed.wheels, tmp_path / "cache").manifest
        for changes in ({}, {"mpi": ("MPICH", "4.0"), "mpi_library": "libmpi.so.12"}, {"is_embedded": True}):
            own = fit.of_module(here(**changes), MODULE, "3" * 64)
            assert [*fit.reasons(made, own)] == []
        own = fit.of_module(here(), MODULE, "5" * 64)
        assert "it was made from another recipe or other patches" in [*fit.reasons(made, own)]
        assert [*fit.reasons(made, fit.of_module(here(python="3.12"), MODULE, "3" * 64))] == [
            "it is for Python 3.11, and here it is 3.12"
        ]


def work_of(
    tmp_path: Path, machine: Callable[..., Host], cache: Path, used: Mapping[str, Path], *, offline: bool = True
) -> Any:
    """Return an installation of the toy that may take it from a cache."""
    recipe, prefix = tmp_path / "Toy.eb", Prefix(root=tmp_path / "another")
    recipe.write_text("name = 'Toy'\n")
    sources = tuple(Source(filename=path.name, sha256=sha256, needed_by="Toy.eb") for sha256, path in used.items())
    steps = (
        Step(module=MODULE, easyconfig=str(recipe), sources=sources),
        Step(module=HOROVOD, easyconfig=str(recipe)),
    )
    parts = (
        LockedPart(name=MODULE, recipe="Toy.eb", sha256="3" * 64),
        LockedPart(name=HOROVOD, recipe="Horovod.eb", sha256="1" * 64),
    )
    return test_cache.TestTaken.Work(
        request=Request(prefix=prefix, offline=offline),
        stack=msgspec.structs.replace(select("pytorch-2.13-cpu", platform=Platform.own()), module=HOROVOD),
        host=machine(),
        plan=Plan(stack="toy", steps=steps, robot=()),
        tree=Tree(root=prefix.root / "x86_64-py3.11"),
        caches=place.Caches(places=(str(cache),), keys=(), unsigned=True),
        missing=[MODULE, HOROVOD],
        again=[],
        lock=Lock(
            name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
            machine=LockedMachine(type="x86_64"), tools={}, parts=parts,
        ),
    )  # fmt: skip


class TestInstalled:
    """An installation that takes it."""

    @pytest.fixture
    def work(self, installed: Installed, tmp_path: Path, machine: Callable[..., Host]) -> Any:
        """One whose wheels are in its prefix."""
        python = Platform.own().python
        made = packed(installed.tree, installed.wheels, tmp_path / "packed")
        pushed(
            installed.tree, installed.wheels, tmp_path / "cache",
            needs=msgspec.structs.replace(made.needs, python=python),
        )  # fmt: skip
        one = work_of(tmp_path, machine, tmp_path / "cache", installed.wheels)
        kept = tmp_path / "another/sources"
        kept.mkdir(parents=True)
        for path in installed.wheels.values():
            (kept / path.name).write_bytes(path.read_bytes())
        one.looked = cached.find_builds(one)
        return one

    def test_it_is_taken_and_recorded(self, work: Any, installed: Installed, tmp_path: Path) -> None:
        said = io.StringIO()
        lines = [*offers.lines(work.looked)]
        assert lines[0] == f"Cache:    {MODULE} is taken from {tmp_path / 'cache'}, not built here:"
        assert lines[2].strip() == "plus 2 wheels of its recipe"
        assert cached.take(work, Console(file=said, width=400)) == [MODULE]
        assert said.getvalue().startswith(f"Taken from {tmp_path / 'cache'}: {MODULE}, built on builder")
        record = receipt.built(work.tree, MODULE)
        assert record is not None and record.cached is not None
        assert lists.damage(work.tree, [MODULE], every=True) == []
        assert contents(work.tree).keys() >= contents(installed.tree).keys()
        assert build.outdated(replace_steps(work.plan, MODULE), work.tree) == [MODULE]  # --rebuild builds it here

    def test_a_wheel_that_cannot_be_had(self, work: Any, tmp_path: Path) -> None:
        for path in (tmp_path / "another/sources").iterdir():
            path.unlink()
        with pytest.raises(SourcesMissing, match="2 of 2 sources missing"):
            cached.take(work, Console(file=io.StringIO()))
        assert not work.tree.has(MODULE)

    def test_when_it_is_not_sought(self, work: Any) -> None:
        step = msgspec.structs.replace(work.plan.steps[0], eula="Toy")
        licensed = replace(work, plan=Plan(stack="toy", steps=(step, work.plan.steps[1]), robot=()))
        assert cached.find_builds(licensed).offers == ()
        assert cached.find_builds(replace(work, again=[MODULE])).offers == ()
        assert cached.find_builds(replace(work, missing=[HOROVOD])).offers == ()


def replace_steps(plan: Plan, module: str) -> Plan:
    """Return a plan of one of its modules."""
    return msgspec.structs.replace(plan, steps=tuple(step for step in plan.steps if step.module == module))


class TestPushed:
    """``envkit cache push`` of an environment that has it."""

    @pytest.fixture
    def there(
        self, installed: Installed, install: Callable[..., ModuleReceipt], prefix: Prefix, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> ModuleReceipt:  # fmt: skip
        """An environment of a Horovod and the module, which has passed."""
        needs("objdump")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        root = prefix.root
        made = install("toy-ci", HOROVOD, horovod="/h", lock=None)
        tree = Tree(root=Path(made.tree))
        for one in (installed.tree.root / "software/Toy", installed.tree.modulepath / "Toy"):
            target = tree.root / one.relative_to(installed.tree.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            one.rename(target)
        kept = Prefix(root=tree.root.parent).sources
        kept.mkdir(parents=True, exist_ok=True)
        for path in installed.wheels.values():
            (kept / path.name).write_bytes(path.read_bytes())
        sources = tuple(LockedFile(filename=path.name, sha256=sha256) for sha256, path in installed.wheels.items())
        lock = Lock(
            name="toy-ci", method="easybuild", framework="pytorch", accelerator="cpu", release="",
            machine=LockedMachine(type="x86_64"), tools={},
            parts=(
                LockedPart(name=MODULE, recipe="Toy.eb", sha256="3" * 64, sources=sources),
                LockedPart(name=HOROVOD, recipe="Horovod.eb", sha256="1" * 64),
            ),
        )  # fmt: skip
        modules = (receipt.Module(name=MODULE, easyconfig="Toy.eb", sha256="3" * 64), *made.modules)
        made = msgspec.structs.replace(made, lock=lock, modules=modules)
        receipt.write(receipt.path_of(tree, made.name), made)
        for module in (MODULE, HOROVOD):
            lists.write(tree, module)
        passed(made)
        monkeypatch.setenv("ENVKIT_PREFIX", str(root))
        return made

    def push(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """Push it; return what was told."""
        folder.mkdir(exist_ok=True)
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(folder), "--json"]) == 0
        told: dict[str, Any] = valid("cache push", capsys.readouterr().out)
        return told

    def test_both_are_pushed(self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        told = self.push(tmp_path / "cache", capsys)
        assert [(one["module"], one["sent"]) for one in told["builds"]] == [(HOROVOD, True), (MODULE, True)]
        assert told.get("left_out", {}) == {}
        again = self.push(tmp_path / "cache", capsys)
        assert [(one["module"], one["sent"]) for one in again["builds"]] == [(HOROVOD, False), (MODULE, False)]
        by_module = {one["module"]: one["id"] for one in told["builds"]}
        made = Place(named=str(tmp_path / "cache")).entry(f"Toy--2.0/{by_module[MODULE]}.json").manifest
        assert (made.needs.mpi_library, made.needs.recipes, len(made.wheels)) == ("", {MODULE: "3" * 64}, 2)
        assert run(["cache", "list", str(tmp_path / "cache")]) == 0
        assert "Toy/2.0" in capsys.readouterr().out
        assert run(["cache", "show", by_module[MODULE][:9], str(tmp_path / "cache")]) == 0
        assert "Wheels:   2, whose files are not in it" in capsys.readouterr().out

    def test_a_file_that_was_changed_and_has_its_time_still(
        self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What would be packed of it is read, and nothing is sent before all is packed."""
        path = Path(there.tree) / TOP / "bin/alpha"
        state = path.stat()
        path.write_bytes(path.read_bytes()[::-1])
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        (tmp_path / "cache").mkdir()
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(tmp_path / "cache")]) == 6
        assert f"it is not what was installed.\n\n  {path}\n" in capsys.readouterr().err
        assert not below(tmp_path / "cache")

    @pytest.mark.parametrize(
        ("number", "code", "told"),
        [
            (errno.ENOSPC, 7, "could not be packed, and nothing was pushed.\n\n  No space left on device: {folder}"),
            (errno.EMFILE, 3, "Too many files are open (ulimit -n is "),
        ],
    )
    def test_what_fails_where_it_is_packed(
        self, number: int, code: int, told: str, there: ModuleReceipt, tmp_path: Path,
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """It is not said of the cache."""

        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(pack, "pack", fail)
        (tmp_path / "cache").mkdir()
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(tmp_path / "cache")]) == code
        assert told.format(folder=tempfile.gettempdir()) in capsys.readouterr().err

    @pytest.mark.integration
    def test_what_is_there_already_is_not_packed_again(
        self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unless its object, its line in the index or its signature is not as it should be, or the module changed."""
        packing, cache = list[str](), tmp_path / "cache"

        def counted(tree: Tree, module: str, *rest: Any, pack_it: Callable[..., Any] = pack.pack) -> Any:
            packing.append(module)
            return pack_it(tree, module, *rest)

        monkeypatch.setattr(pack, "pack", counted)
        key, other = (tmp_path / name for name in ("own.pem", "other.pem"))
        for path in (key, other):
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)

        def push(*how: str) -> list[str]:
            packing.clear()
            assert run(["cache", "push", "toy-ci", *how, "--to", str(cache), "--json"]) == 0
            assert len(valid("cache push", capsys.readouterr().out)["builds"]) == 2
            return packing

        both, signed = [HOROVOD, MODULE], ("--sign", str(key))
        cache.mkdir()
        assert push("--unsigned") == both and push("--unsigned") == []
        assert push(*signed) == both and push(*signed) == push("--unsigned") == []
        assert push("--sign", str(other)) == both and push("--sign", str(other)) == [] and push(*signed) == both
        (cache / "index.json").unlink()
        assert push(*signed) == both and push(*signed) == []  # with which all are listed again
        smallest = min((cache / "objects").iterdir(), key=lambda path: path.stat().st_size)
        smallest.unlink()
        assert len(push(*signed)) == 1 and smallest.exists() and push(*signed) == []
        tree = Tree(root=Path(there.tree))
        (tree.software / HOROVOD / "notes.txt").write_text("added")
        assert push(*signed) == [HOROVOD] and push(*signed) == []
        cache = tmp_path / "elsewhere"
        cache.mkdir()
        assert push(*signed) == both and push(*signed) == []
        receipt.write(receipt.path_of(tree, there.name), msgspec.structs.replace(there, created="2026-12-01"))
        assert push(*signed) == []  # what is made from it is the same
        for path in (tmp_path / "state" / "envkit" / "packed").iterdir():
            path.write_text("0" * 64)
        assert push(*signed) == both and push(*signed) == []

    def test_without_its_wheels_the_rest_is_pushed(
        self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        kept = Prefix(root=Path(there.tree).parent).sources
        next(kept.glob("beta*.whl")).unlink()
        told = self.push(tmp_path / "cache", capsys)
        assert [one["module"] for one in told["builds"]] == [HOROVOD]
        why = f"Its wheels have gone. To fetch them: envkit fetch toy-ci --prefix {Path(there.tree).parent}"
        assert told["left_out"] == {MODULE: why}
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(tmp_path / "cache")]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"Not pushed: {MODULE}. Its wheels have gone")

    def test_what_was_taken_from_a_cache_is_left_out(
        self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        origin = Cached(place="/c", id="0" * 64, host="x", built="y", key="")
        tree, changed = Tree(root=Path(there.tree)), there.modules
        for count in (1, 2):
            changed = tuple(
                msgspec.structs.replace(one, cached=origin if number < count else None)
                for number, one in enumerate(there.modules)
            )
            made = msgspec.structs.replace(there, modules=changed)
            receipt.write(receipt.path_of(tree, there.name), made)
            passed(made)
            if count == 1:
                told = self.push(tmp_path / "cache", capsys)
                assert [one["module"] for one in told["builds"]] == [HOROVOD]
                assert told["left_out"][MODULE].startswith("It was taken from the cache /c")
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(tmp_path / "cache")]) == 3
        said = capsys.readouterr().err
        assert f"{MODULE} was taken from the cache /c" in said and f"{HOROVOD} was taken from the cache /c" in said
        assert f"envkit cache pull toy-ci --from /c --to {tmp_path / 'cache'} --unsigned" in said

    def test_what_has_changed_is_not_pushed(
        self, there: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert last.last(there.name, there.tree) is not None
        path = Path(there.tree) / TOP / SITE / "shared/one.py"
        path.write_text("number = 9\n")
        (tmp_path / "cache").mkdir()
        assert run(["cache", "push", "toy-ci", "--unsigned", "--to", str(tmp_path / "cache")]) == 6
        assert str(path) in capsys.readouterr().err
        assert json.dumps(sorted(below(tmp_path / "cache"))) == "[]"
