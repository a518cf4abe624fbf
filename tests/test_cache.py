"""The cache of builds: what is packed, what fits, what is refused, and what is left when something goes wrong."""

import base64
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.binary import bytecode
from envkit.binary.elf import Elf
from envkit.cache import (
    binaries,
    contents,
    fit,
    folder,
    layout,
    manifest,
    offers,
    pack,
    place,
    prefixes,
    publishing,
    server,
    unpack,
)
from envkit.cache.fit import Provided
from envkit.cache.manifest import Manifest, Needs, PackedFile, Provenance
from envkit.cache.offers import FoundBuilds, by_trust_and_place, for_scripts, judged, left_out, lines, untrusted
from envkit.cache.pack import Packed
from envkit.cache.place import Caches, Looking, Place, SignedManifest
from envkit.cli import run
from envkit.easybuild import cached
from envkit.environments import manifest as manifest_of_files
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.prefix import listed as listed_in
from envkit.environments.receipt import Mpi, Receipt
from envkit.errors import (
    CacheBlocked,
    CacheInvalid,
    DiskFull,
    EnvkitError,
    HostProblem,
    NotReadable,
    NotRelocatable,
    NotWritable,
    UsageProblem,
)
from envkit.install import cache_push, install
from envkit.machine.host import Host, Platform, Program
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import Stack, select
from envkit.sources import answers, signature
from envkit.sources.answers import RefusedError
from envkit.sources.index import Candidate
from envkit.sources.pipconfig import PipSettings
from envkit.sources.source_cache import Source
from envkit.system.decompression import zstd

from .integration.site import needs
from .small_disk import leave, small_disk
from .test_json_types import valid

MODULE = "Horovod/1.0-toy"
OTHER = "another"
NOTHING = FoundBuilds()
LIBRARY = "lib/python3.11/site-packages/horovod/mpi_lib.so"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A prefix with a module in it that has each kind of file."""
    return module_in(tmp_path / "a-prefix-of-some-length")


def module_in(prefix: Path) -> Tree:
    """Make such a prefix."""
    tree = Tree(root=prefix / "x86_64-py3.11")
    top = tree.software / MODULE
    contents = {
        "bin/horovodrun": f"#!{top}/bin/python\nprint('run')\n",
        "lib/python3.11/site-packages/horovod/__init__.py": "number = 3\n",
        "lib/python3.11/site-packages/horovod/__pycache__/__init__.cpython-311.pyc": f"\0{top}",
        "lib/python3.11/site-packages/horovod-1.0.dist-info/RECORD": "../../../bin/horovodrun,sha256=old,1\nx.py,,\n",
        "easybuild/Horovod-1.0-toy.eb": "name = 'Horovod'\n",
        "easybuild/easybuild-Horovod-1.0-20260101.120000.log": f"built in {top} by somebody\n",
        "easybuild/Horovod-1.0-toy-easybuild-devel": f"PATH {prefix}\n",
    }
    for name, text in contents.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (top / "bin/horovodrun").chmod(0o755)
    (top / "lib64").symlink_to("lib")
    file = tree.modulepath / f"{MODULE}.lua"
    file.parent.mkdir(parents=True)
    file.write_text(f'local root = "{top}"\n')
    link = tree.root / "modules/ai" / f"{MODULE}.lua"
    link.parent.mkdir(parents=True)
    link.symlink_to(file)
    return tree


def packed(tree: Tree, path: Path) -> Packed:
    """Pack the module."""
    with path.open("w+b") as stream:
        return pack.pack(tree, MODULE, "x86_64", "3.11", stream, {})


def described(of: Packed, **needs: Any) -> Manifest:
    """Return the manifest of a module."""
    given: dict[str, Any] = {
        "machine": "x86_64",
        "python": "3.11",
        "suffix": ".so",
        "accelerator": "cpu",
        "mpi": Mpi(family="Open MPI", version="4.1.4"),
        "mpi_library": "libmpi.so.40",
        "versions": {"GLIBC": "2.34"},
        "cpu": ("avx",),
        "syntax": "Lua",
        "recipes": {MODULE: "1" * 64, "PyTorch/2.13.0": "2" * 64},
    }
    lock = Lock(
        name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type="x86_64"), tools={}, parts=(),
    )  # fmt: skip
    made = Provenance(
        host="builder", built="2026-01-02T03:04:05+00:00", envkit="1", easybuild="5", environment="toy", lock=lock,
        verdict=msgspec.Raw(b'{"verdict":"pass"}'),
    )  # fmt: skip
    return Manifest(
        part=LockedPart(name=MODULE, recipe="Horovod.eb", sha256="1" * 64), needs=Needs(**{**given, **needs}),
        sha256=of.sha256, size=of.size, unpacked=of.unpacked, provenance=made, files=of.files,
    )  # fmt: skip


def pushed(tree: Tree, folder: Path, signed: bytes = b"", **needs: Any) -> SignedManifest:
    """Put the module into a cache; return what is there then."""
    folder.mkdir(exist_ok=True)
    path = folder.with_name("packed")
    made = described(packed(tree, path), **needs)
    with path.open("rb") as stream:
        publishing.publish(Place(named=str(folder)), made, stream, signed)
    return Place(named=str(folder)).entry(f"Horovod--1.0-toy/{made.key}.json")


def here(**changes: Any) -> Provided:
    """Return a machine that the module goes with, but for what is given."""
    usual = Provided(
        recipes={MODULE: "1" * 64, "PyTorch/2.13.0": "2" * 64}, machine="x86_64", python="3.11", accelerator="cpu",
        mpi=("Open MPI", "5.0.7"), is_embedded=False, mpi_library="libmpi.so.40", versions={"GLIBC": "2.41"},
        cpu=frozenset({"avx", "avx2"}), syntax="Lua", load=(),
        tools={},
    )  # fmt: skip
    return replace(usual, **changes)


def put(entry: SignedManifest, prefix: Path) -> Tree:
    """Take the module into another prefix."""
    new = Tree(root=prefix / "x86_64-py3.11")
    new.root.mkdir(parents=True, exist_ok=True)
    unpack.take(entry, new, Path(sys.executable), lambda: None, {})
    return new


def below(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


@contextmanager
def serving(folder: Path, handler: type[SimpleHTTPRequestHandler] = SimpleHTTPRequestHandler) -> Iterator[str]:
    """Serve a folder; yields the URL."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class TestMoved:
    """A module under another prefix."""

    def test_it_is_the_same_but_for_the_prefix(self, tree: Tree, tmp_path: Path) -> None:
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        top = new.software / MODULE
        assert (top / "bin/horovodrun").read_text().endswith("print('run')\n")
        assert (top / "bin/horovodrun").stat().st_mode & 0o111 == 0o111
        assert (new.modulepath / f"{MODULE}.lua").read_text() == f'local root = "{top}"\n'
        assert (new.root / "modules/ai" / f"{MODULE}.lua").readlink() == new.modulepath / f"{MODULE}.lua"
        assert (top / "lib64").readlink() == Path("lib")
        assert (new.root / "ebfiles_repo/Horovod/Horovod-1.0-toy.eb").read_text() == "name = 'Horovod'\n"
        said = (top / "easybuild/envkit-cache.log").read_text()
        assert f"Taken from the cache {tmp_path / 'cache'}" in said
        assert "Built on builder, 2026-01-02" in said
        assert sorted(path.name for path in new.root.iterdir()) == ["ebfiles_repo", "modules", "software"]

    def test_the_lists_of_packages_have_the_new_digests(self, tree: Tree, tmp_path: Path) -> None:
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        site = new.software / MODULE / "lib/python3.11/site-packages"
        [line, rest] = (site / "horovod-1.0.dist-info/RECORD").read_text().splitlines()
        script = (new.software / MODULE / "bin/horovodrun").read_bytes()
        assert line.startswith("../../../bin/horovodrun,sha256=")
        assert line.endswith(f",{len(script)}")
        assert "=old" not in line
        assert rest == "x.py,,"

    def test_a_list_of_a_package_has_the_digests_of_what_is_packed(self, tree: Tree, tmp_path: Path) -> None:
        """EasyBuild changes the first line of scripts, behind which pip's digests are of the prefix before."""
        [path] = tree.root.rglob("RECORD")
        path.write_text("horovod/__init__.py,sha256=old,1\r\nx.py,,\n")
        first = packed(tree, tmp_path / "object")
        path.write_text("horovod/__init__.py,sha256=another,12\r\nx.py,,\n")
        assert packed(tree, tmp_path / "object").sha256 == first.sha256
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        content = b"number = 3\n"
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        [path] = new.root.rglob("RECORD")
        assert path.read_bytes() == b"horovod/__init__.py,sha256=%s,%d\r\nx.py,,\n" % (digest, len(content))

    @pytest.mark.parametrize("text", [b"\xff,sha256=a,1\n", b"\xff\n"])
    def test_a_list_of_a_package_that_is_no_text_is_refused(self, text: bytes, tree: Tree, tmp_path: Path) -> None:
        [path] = tree.root.rglob("RECORD")
        path.write_bytes(text)
        with pytest.raises(NotRelocatable) as told:
            packed(tree, tmp_path / "object")
        assert "dist-info/RECORD cannot be moved" in told.value.what and told.value.why == "It is no UTF-8."

    def test_compiled_python_is_taken_and_names_its_new_place(self, tree: Tree, tmp_path: Path) -> None:
        (tree.software / MODULE / LIBRARY).with_name("fails.py").write_text("def fail():\n    raise ValueError\n")
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        site = (new.software / MODULE / LIBRARY).parents[1]
        for path in site.rglob("*.pyc"):
            assert bytecode.is_taken(path, path.read_bytes()[:16])
        assert len([*site.rglob("*.pyc")]) == 2
        done = subprocess.run(
            [sys.executable, "-c", "from horovod.fails import fail; fail()"], env={"PYTHONPATH": str(site)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert f'File "{site}/horovod/fails.py", line 2, in fail' in done.stderr

    def test_python_that_has_the_prefix_in_it_is_compiled_where_it_is_taken(self, tree: Tree, tmp_path: Path) -> None:
        path = (tree.software / MODULE / LIBRARY).with_name("own.py")
        path.write_text(f"HERE = '{tree.root}'\n")
        entry = pushed(tree, tmp_path / "cache")
        assert not [name for name in entry.manifest.files if "own.cpython" in name]
        new = put(entry, tmp_path / OTHER)
        [compiled] = new.root.rglob("own.*.pyc")
        assert bytecode.is_taken(compiled, compiled.read_bytes()[:16])
        assert os.fsencode(new.root) in compiled.read_bytes()

    @pytest.mark.parametrize("folder", ["short", "x" * 120])
    def test_a_script_whose_first_line_is_too_long_begins_as_pip_writes_it(
        self, folder: str, tree: Tree, tmp_path: Path
    ) -> None:
        """The kernel would cut it; and what is packed in a long prefix is the same as in a short one."""
        entry, name = pushed(tree, tmp_path / "cache"), f"software/{MODULE}/bin/horovodrun"
        with tempfile.TemporaryDirectory() as short:
            new = put(entry, Path(short) / folder)
            script, python = new.root / name, new.software / MODULE / "bin/python"
            first = f"#!{python}\n" if folder == "short" else f"""#!/bin/sh\n'''exec' {python} "$0" "$@"\n' '''\n"""
            assert script.read_text() == f"{first}print('run')\n"
            python.symlink_to(sys.executable)
            assert subprocess.run([script], capture_output=True, text=True).stdout == "run\n"
            python.unlink()
            assert packed(new, tmp_path / "again").files[name] == entry.manifest.files[name]

    def test_nothing_of_who_built_is_packed(self, tree: Tree, tmp_path: Path) -> None:
        found = packed(tree, tmp_path / "object")
        assert not [name for name in found.files if "log" in name or "devel" in name]
        assert os.fsencode(tree.root.parent) not in zstd.decompress((tmp_path / "object").read_bytes())

    def test_the_same_files_are_the_same_object(self, tree: Tree, tmp_path: Path) -> None:
        first = packed(tree, tmp_path / "one")
        for path in tree.root.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)
        assert packed(tree, tmp_path / "two") == first

    def test_what_is_under_two_names_of_a_prefix(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "a-name").symlink_to("real")
        tree = module_in(tmp_path / "a-name")
        (tree.software / MODULE / "note").write_text(f"{(tmp_path / 'real').resolve()}/x and {tmp_path / 'a-name'}/y")
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        assert (new.software / MODULE / "note").read_text() == f"{tmp_path / OTHER}/x and {tmp_path / OTHER}/y"


class TestRefused:
    """What cannot be moved, with the file that says why."""

    def test_the_prefix_in_what_is_no_text(self, tree: Tree, tmp_path: Path) -> None:
        (tree.software / MODULE / "lib/data.bin").write_bytes(b"\0\1" + os.fsencode(tree.root) + b"\0")
        with pytest.raises(NotRelocatable, match=re.escape(f"software/{MODULE}/lib/data.bin cannot be moved")):
            packed(tree, tmp_path / "object")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../../../../x"])
    def test_a_link_that_leads_elsewhere(self, target: str, tree: Tree, tmp_path: Path) -> None:
        (tree.software / MODULE / "out").symlink_to(target)
        with pytest.raises(NotRelocatable) as refused:
            packed(tree, tmp_path / "object")
        assert f"software/{MODULE}/out" in refused.value.what

    def test_a_text_with_the_mark_in_it(self, tree: Tree, tmp_path: Path) -> None:
        (tree.software / MODULE / "odd.txt").write_bytes(b"see " + manifest.PREFIX)
        with pytest.raises(NotRelocatable, match=r"odd\.txt"):
            packed(tree, tmp_path / "object")

    def test_a_pipe(self, tree: Tree, tmp_path: Path) -> None:
        os.mkfifo(tree.software / MODULE / "pipe")
        with pytest.raises(NotRelocatable, match="pipe"):
            packed(tree, tmp_path / "object")


class TestLibraries:
    """Real ones, compiled for it."""

    @pytest.fixture
    def compiled(self, tree: Tree, tmp_path: Path) -> Callable[..., Path]:
        """Compile a library into the module."""
        needs("gcc")

        def make(*words: str, text: str = "int f(void) { return 3; }\n") -> Path:
            (tmp_path / "f.c").write_text(text)
            path = tree.software / MODULE / LIBRARY
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", tmp_path / "f.c", "-o", path, *words], check=True)
            return path

        return make

    def test_a_search_path_begins_where_the_library_lies(
        self, compiled: Callable[..., Path], tree: Tree, tmp_path: Path
    ) -> None:
        torch = tree.software / "PyTorch/2.13.0/lib/torch/lib"
        path = compiled(f"-Wl,-rpath,/usr/lib/openmpi:{torch}", "-Wl,--enable-new-dtags")
        new = put(pushed(tree, tmp_path / "cache"), tmp_path / OTHER)
        moved = new.software / MODULE / LIBRARY
        assert moved.stat().st_size == path.stat().st_size
        [text] = Elf.open(moved).search_paths
        first, second = text.split(":")
        assert first == "/usr/lib/openmpi"
        assert os.path.normpath(second.replace("$ORIGIN", str(moved.parent))) == str(
            new.software / "PyTorch/2.13.0/lib/torch/lib"
        )

    def test_a_prefix_that_is_too_short(self) -> None:
        made = prefixes.relative("/p/t/software/T/lib", Path("/p/t/software/H/1/lib/a/b/c/h.so"), (b"/p",))
        assert made == "$ORIGIN/../../../../../../T/lib"
        assert len(prefixes.padded(made, 20)) > 20

    def test_the_prefix_elsewhere_in_it(self, compiled: Callable[..., Path], tree: Tree, tmp_path: Path) -> None:
        compiled(text=f'const char *where = "{tree.root}/share";\n')
        with pytest.raises(NotRelocatable) as refused:
            packed(tree, tmp_path / "object")
        assert LIBRARY in refused.value.what
        assert "elsewhere than in its search path" in refused.value.why

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="instructions of x86_64")
    @pytest.mark.parametrize(
        ("words", "text", "features"),
        [
            ((), "int f(void) { return 3; }\n", ()),
            (("-mavx",), "void f(float *a, float *b) { for (int i = 0; i < 64; i++) a[i] += b[i]; }\n", ("avx",)),
            (
                ("-mavx2", "-mfma", "-O3"),
                "void f(int *a) { for (int i = 0; i < 64; i++) a[i] += 3; } double g(double a) { return a * a + a; }",
                ("avx", "avx2", "fma"),
            ),
            (
                ("-mavx512f", "-mprefer-vector-width=512", "-O3"),
                "void f(double *a, double *b) { for (int i = 0; i < 64; i++) a[i] += b[i]; }\n",
                ("avx", "avx512f"),
            ),
            (
                ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=256", "-O3"),
                "void f(long long *a, long long *b) { for (int i = 0; i < 64; i++) a[i] *= b[i]; }\n",
                ("avx", "avx2", "avx512f"),
            ),
            (
                ("-mmovbe", "-mbmi", "-O2"),
                "int f(int *a, int b) { return __builtin_bswap32(*a) & ~b; }\n",
                ("bmi1", "movbe"),
            ),
        ],
    )
    def test_what_its_code_needs_of_a_cpu(
        self, words: tuple[str, ...], text: str, features: tuple[str, ...], compiled: Callable[..., Path]
    ) -> None:
        needs("objdump")
        assert binaries.cpu([compiled(*words, text=text)], "x86_64") == features

    def test_a_program_that_loads_nothing(self, compiled: Callable[..., Path]) -> None:
        """It has no dynamic segment, as a program of Go; the CPU has to run it all the same."""
        path = compiled()
        source = path.with_name("p.c")
        source.write_text("void _start(void) { for (;;); }\n")
        subprocess.run(["gcc", "-static", "-nostdlib", "-no-pie", source, "-o", path], check=True)
        assert binaries.compiled([source, path]) == [path]
        assert binaries.libraries([path]) == []
        assert binaries.cpu([path], "x86_64") == ()

    def test_what_it_needs_of_libraries_and_what_this_machine_has(self, compiled: Callable[..., Path]) -> None:
        path = compiled(text="#include <stdio.h>\nvoid f(void) { puts(__func__); }\n")
        needed, there = binaries.versions([Elf.open(path)]), binaries.offered({})
        assert set(needed) == {"GLIBC"}
        assert tuple(map(int, needed["GLIBC"].split("."))) <= tuple(map(int, there["GLIBC"].split(".")))
        assert there["GLIBC"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


class TestFit:
    """Which build goes with which machine."""

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({}, ""),
            ({"versions": {"GLIBC": "2.28"}}, "it needs GLIBC 2.34, and this machine has 2.28"),
            ({"versions": {}}, "it needs GLIBC 2.34, and this machine has none"),
            ({"cpu": frozenset()}, "its code needs avx, which this CPU lacks"),
            ({"python": "3.12"}, "it is for Python 3.11, and here it is 3.12"),
            ({"machine": "aarch64"}, "it is for machine type x86_64, and here it is aarch64"),
            ({"accelerator": "cuda"}, "it is for device cpu, and here it is cuda"),
            ({"mpi": ("MPICH", "4.0")}, "it was built with Open MPI, and here is MPICH"),
            ({"is_embedded": True}, "it was built with Open MPI, and here is the Open MPI of a wheel"),
            ({"mpi_library": "libmpi.so.12"}, "it loads libmpi.so.40, and Open MPI 5.0.7 is libmpi.so.12"),
            ({"syntax": "Tcl"}, "its module file is for Lmod"),
            ({"load": ("PrgEnv-gnu",)}, "it was built with no site modules"),
            (
                {"recipes": {MODULE: "3" * 64, "PyTorch/2.13.0": "2" * 64}},
                "it was made from another recipe or other patches",
            ),
            ({"recipes": {MODULE: "1" * 64, "PyTorch/2.13.0": "3" * 64}}, "it was built for another PyTorch/2.13.0"),
        ],
    )
    def test_why_not(self, changes: dict[str, Any], why: str, tree: Tree, tmp_path: Path) -> None:
        one = described(packed(tree, tmp_path / "object"))
        assert "; ".join(fit.reasons(one, here(**changes))) == why

    def test_the_nearest(self, tree: Tree, tmp_path: Path) -> None:
        of = packed(tree, tmp_path / "object")
        same = described(of, mpi=Mpi(family="Open MPI", version="5.0.7"), versions={"GLIBC": "2.28"})
        newer, older = described(of), described(of, versions={"GLIBC": "2.28"})
        found = sorted((older, newer, same), key=lambda one: fit.nearness(one, here()), reverse=True)
        assert found == [same, newer, older]


class TestDamaged:
    """Nothing is left of an object that is not what its manifest says."""

    def refused(self, entry: SignedManifest, tmp_path: Path) -> str:
        """Return why it cannot be taken; nothing of it is there."""
        with pytest.raises(CacheInvalid) as error:
            put(entry, tmp_path / OTHER)
        assert below(tmp_path / OTHER) == set()
        return error.value.why

    def test_another_byte(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        [path] = (tmp_path / "cache/objects").iterdir()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert "Its SHA-256 is" in self.refused(entry, tmp_path)

    def test_an_end_that_is_missing(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        [path] = (tmp_path / "cache/objects").iterdir()
        path.write_bytes(path.read_bytes()[:-20])
        assert "Its SHA-256 is" in self.refused(entry, tmp_path)
        path.unlink()
        assert "this file is not there" in self.refused(entry, tmp_path)

    def test_a_manifest_of_something_else(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        [path] = (tmp_path / "cache/manifests").rglob("*.json")
        path.write_bytes(path.read_bytes().replace(b'"cpu":["avx"]', b'"cpu":[]'))
        with pytest.raises(CacheInvalid, match="cannot be used"):
            entry.place.entry(f"Horovod--1.0-toy/{path.name}")

    def forged(
        self,
        entry: SignedManifest,
        names: dict[str, bytes],
        files: dict[str, PackedFile],
        tmp_path: Path,
        before: bytes = b"",
        unpacked: int = 100,
    ) -> SignedManifest:
        """Return an entry with other files in its object and its manifest, all digests right."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name, content in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        content = zstd.compress(before + stream.getvalue())
        sha256 = hashlib.sha256(content).hexdigest()
        (tmp_path / "cache" / layout.object_of(sha256)).write_bytes(content)
        told = {"sha256": sha256, "size": len(content), "unpacked": unpacked + len(before)}
        made = msgspec.structs.replace(entry.manifest, files=files, **told)
        return replace(entry, manifest=made)

    @pytest.mark.parametrize(
        ("name", "link"),
        [
            ("../evil", ""),
            (f"software/{MODULE}/../../../evil", ""),
            ("software/Other/1/x", ""),
            ("modules/all/Other/1.lua", ""),
            (f"software/{MODULE}/x", "/etc"),
            (f"software/{MODULE}/x", "../../../.."),
            (f"software/{MODULE}/x", "@ENVKIT_PREFIX@/../y"),
            (f"software/{MODULE}/a/x", "../b/../../y"),
        ],
    )
    def test_names_that_lead_elsewhere(self, name: str, link: str, tree: Tree, tmp_path: Path) -> None:
        entry, content = pushed(tree, tmp_path / "cache"), b"evil"
        one = PackedFile(link=link) if link else PackedFile(size=4, sha256=hashlib.sha256(content).hexdigest())
        forged = self.forged(entry, {} if link else {name: content}, {name: one}, tmp_path)
        assert "Its manifest" in self.refused(forged, tmp_path)
        assert not list(tmp_path.rglob("evil"))

    @pytest.mark.parametrize(
        ("record", "times"),
        [(b"13 comment=x\n", 5000), (b"22 GNU.sparse.map=1,x\n", 1), (b"21 GNU.sparse.size=x\n", 1)],
    )
    def test_headers_that_tarfile_itself_cannot_read(
        self, record: bytes, times: int, tree: Tree, tmp_path: Path
    ) -> None:
        entry, header, name = pushed(tree, tmp_path / "cache"), tarfile.TarInfo("x"), f"software/{MODULE}/x"
        header.type, header.size = tarfile.XHDTYPE, len(record)
        before = (header.tobuf(tarfile.GNU_FORMAT) + record.ljust(tarfile.BLOCKSIZE, b"\0")) * times
        one = PackedFile(size=4, sha256=hashlib.sha256(b"evil").hexdigest())
        forged = self.forged(entry, {name: b"evil"}, {name: one}, tmp_path, before)
        assert "It cannot be unpacked" in self.refused(forged, tmp_path)

    @pytest.mark.parametrize("link", ["lib", ""])
    def test_a_name_that_is_both_a_file_and_a_folder(self, link: str, tree: Tree, tmp_path: Path) -> None:
        entry, content, top = pushed(tree, tmp_path / "cache"), b"evil", f"software/{MODULE}"
        one = PackedFile(size=4, sha256=hashlib.sha256(content).hexdigest())
        files = {f"{top}/a": PackedFile(link=link) if link else one, f"{top}/a/x": one}
        names = {name: content for name, file in files.items() if not file.link}
        assert f"Its manifest names '{top}/a'" in self.refused(self.forged(entry, names, files, tmp_path), tmp_path)

    @pytest.mark.parametrize(
        ("names", "links"),
        [
            ({"lib/x.dist-info/RECORD": b"\xff\xfe\n"}, {}),
            ({"a" * 300: b"x"}, {}),
            ({"a": b"x"}, {"easybuild": "zz"}),
            ({"a": b"x"}, {"easybuild/envkit-cache.log": "../a"}),
        ],
    )
    def test_what_cannot_be_put_into_a_prefix(
        self, names: dict[str, bytes], links: dict[str, str], tree: Tree, tmp_path: Path
    ) -> None:
        """It is named, so that the module is built in its place; nothing of it is left."""
        entry, top = pushed(tree, tmp_path / "cache"), f"software/{MODULE}"
        content = {f"{top}/{name}": text for name, text in names.items()}
        files = {
            name: PackedFile(size=len(text), sha256=hashlib.sha256(text).hexdigest(), places=int("RECORD" in name))
            for name, text in content.items()
        } | {f"{top}/{name}": PackedFile(link=link) for name, link in links.items()}
        self.refused(self.forged(entry, content, files, tmp_path, unpacked=10_000), tmp_path)
        assert below(tmp_path / OTHER) == set()

    def test_an_object_that_takes_much_memory_to_unpack(self, tree: Tree, tmp_path: Path) -> None:
        entry, name = pushed(tree, tmp_path / "cache"), f"software/{MODULE}/x"
        packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 29})
        content = packer.compress(bytes(2048)) + packer.flush()
        (tmp_path / "cache" / layout.object_of(sha256 := hashlib.sha256(content).hexdigest())).write_bytes(content)
        files = {name: PackedFile(size=4, sha256="0" * 64)}
        made = msgspec.structs.replace(entry.manifest, sha256=sha256, size=len(content), files=files, unpacked=100)
        assert "takes more than 256 MiB of memory" in self.refused(replace(entry, manifest=made), tmp_path)

    def test_what_the_manifest_does_not_name_or_the_object_lacks(self, tree: Tree, tmp_path: Path) -> None:
        entry, name = pushed(tree, tmp_path / "cache"), f"software/{MODULE}/x"
        right = PackedFile(size=4, sha256=hashlib.sha256(b"good").hexdigest())
        more = self.forged(entry, {name: b"good", f"{name}y": b"more"}, {name: right}, tmp_path)
        assert "does not name so" in self.refused(more, tmp_path)
        assert "It lacks" in self.refused(self.forged(entry, {}, {name: right}, tmp_path), tmp_path)
        other = self.forged(entry, {name: b"evil"}, {name: right}, tmp_path)
        assert "is not what its manifest says" in self.refused(other, tmp_path)

    def test_what_unpacks_to_more_than_is_said(self, tree: Tree, tmp_path: Path) -> None:
        entry, name = pushed(tree, tmp_path / "cache"), f"software/{MODULE}/x"
        content = bytes(50_000_000)
        one = PackedFile(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        assert "more comes" in self.refused(self.forged(entry, {name: content}, {name: one}, tmp_path), tmp_path)


class TestServer:
    """The same folder behind a server."""

    def test_a_build_by_a_server(self, tree: Tree, tmp_path: Path) -> None:
        pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache") as url:
            [name] = Place(named=url).names()
            new = put(Place(named=url).entry(name), tmp_path / OTHER)
        assert (new.software / MODULE / "bin/horovodrun").is_file()
        with pytest.raises(UsageProblem, match="can only be read"):
            _ = Place(named=url).writable

    def test_no_server_and_no_cache_there(self, tmp_path: Path) -> None:
        with serving(tmp_path) as url, pytest.raises(CacheInvalid) as absent:
            Place(named=url).names()
        assert "404" in absent.value.why
        with pytest.raises(CacheInvalid):
            Place(named=url).names()

    def test_a_server_that_ends_in_the_middle(self, tree: Tree, tmp_path: Path) -> None:
        class Cut(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                content = source.read()
                outputfile.write(content[: len(content) // 2] if self.path.endswith(".zst") else content)

        pushed(tree, tmp_path / "cache")
        with serving(tmp_path / "cache", Cut) as url:
            [name] = Place(named=url).names()
            with pytest.raises(CacheInvalid):
                put(Place(named=url).entry(name), tmp_path / OTHER)
        assert below(tmp_path / OTHER) == set()

    @pytest.mark.integration
    def test_a_server_that_is_slow(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                for byte in source.read():
                    outputfile.write(bytes([byte]))
                    outputfile.flush()
                    time.sleep(0.02)

        monkeypatch.setattr(answers, "PATIENCE_S", 1.0)
        pushed(tree, tmp_path / "cache")
        began = time.monotonic()
        with serving(tmp_path / "cache", Slow) as url, pytest.raises(CacheInvalid) as slow:
            Place(named=url).names()
        assert "bytes came in" in slow.value.why
        assert time.monotonic() - began < 10


def instead(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(content + b"x")


def pushed_again(tree: Tree, folder: Path) -> SignedManifest:
    """Push the module as the command does, which says what a system refuses."""
    with publishing.writing(Place(named=str(folder)), MODULE):
        return pushed(tree, folder)


class TestManyBuilds:
    """What is looked at of a cache with many builds, or one that means harm."""

    def names(self, number: int) -> list[str]:
        return [f"Horovod--1.0-toy/{digit:064x}.json" for digit in range(number)]

    def test_a_server_that_drips_is_asked_for_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    for _ in range(200):
                        self.wfile.write(b" ")
                        time.sleep(0.05)

        monkeypatch.setattr(answers, "PATIENCE_S", 0.5)
        wrong, began = list[CacheInvalid](), time.monotonic()
        with serving(tmp_path, Slow) as url:
            assert not [*Place(named=url).entries(self.names(20), wrong)]
        assert len(wrong) == 1 and "bytes came in" in wrong[0].why and place.is_of_server(wrong[0])
        assert time.monotonic() - began < 5

    def test_a_silent_server_is_not_waited_for_as_long_as_pip_would(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = threading.Event()

        class Silent(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                ended.wait(60)

        monkeypatch.setattr(server, "asked", lambda: PipSettings(timeout_s=600.0))
        monkeypatch.setattr(server, "CONNECT_S", 0.5)
        monkeypatch.setattr(answers, "PATIENCE_S", 0.5)
        wrong, began = list[CacheInvalid](), time.monotonic()
        with serving(tmp_path, Silent) as url:
            assert not [*Place(named=url).entries(self.names(20), wrong)]
            took_s = time.monotonic() - began
            ended.set()
        assert len(wrong) == 1 and place.is_of_server(wrong[0]) and took_s < 20

    def test_they_are_looked_at_for_so_long(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        entry, wrong = pushed(tree, tmp_path / "cache"), list[CacheInvalid]()
        names = [f"Horovod--1.0-toy/{entry.id}.json"] * 3
        assert len([*entry.place.entries(names, wrong)]) == 3 and not wrong
        monkeypatch.setattr(place, "MOST_IN_ALL", 1_000_000)
        monkeypatch.setattr(place, "LOOKING_S", -1.0)
        assert not [*entry.place.entries(names, wrong)]
        assert wrong[0].why == "Of 3 builds 0 were looked at: it took more than -1 s."
        monkeypatch.setattr(place, "LOOKING_S", 10.0)
        monkeypatch.setattr(place, "MOST_IN_ALL", 1)
        assert len([*entry.place.entries(names, wrong)]) == 1
        assert wrong[1].why == "Of 3 builds 1 were looked at: they have more than 0 MB."

    def test_a_build_that_does_not_fit_takes_little_memory(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        [listed], _ = contents.entries([entry.place])
        assert entry.manifest.files and not listed.manifest.files
        assert (listed.id, listed.signed) == (entry.id, entry.signed)
        for known_by in (entry.id, entry.manifest.sha256):
            assert contents.find([entry.place], known_by[:8]).manifest == entry.manifest

    @pytest.mark.parametrize("kind", [answers.SlowError, answers.UnreachableError])
    def test_a_server_that_fails_says_nothing_of_a_build(
        self, kind: type[RefusedError], tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is removed for that."""
        entry, opened = pushed(tree, tmp_path / "cache"), folder.opened

        @contextmanager
        def failing(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            if name.startswith("objects/"):
                raise kind("503")
            with opened(named, name, most) as chunks:
                yield chunks

        monkeypatch.setattr(folder, "opened", failing)
        before = below(tmp_path / "cache")
        for ask in (
            lambda: contents.prune(entry.place, 0, dry_run=False),
            lambda: contents.verified([entry.place], ()),
        ):
            with pytest.raises(CacheInvalid, match="cannot be used"):
                ask()
        assert below(tmp_path / "cache") == before

    @pytest.mark.parametrize(
        ("kind", "is_kept"),
        [
            (RefusedError, True),
            (answers.TransientError, True),
            (answers.AbsentError, False),
            (answers.DamagedError, False),
        ],
    )
    @pytest.mark.parametrize("what", ["manifests/", "objects/"])
    def test_what_cannot_be_read_now_stays(
        self, what: str, kind: type[RefusedError], is_kept: bool, tree: Tree, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """It may be another's, and good; its object stays as well, however old."""
        entry, opened = pushed(tree, tmp_path / "cache"), folder.opened

        @contextmanager
        def failing(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            if name.startswith(what):
                raise kind("Permission denied")
            with opened(named, name, most) as chunks:
                yield chunks

        monkeypatch.setattr(folder, "opened", failing)
        monkeypatch.setattr(contents, "LEFT_S", -1.0)
        gone = (
            contents.prune(entry.place, 1e-9, dry_run=False)
            if is_kept
            else contents.prune(entry.place, 0, dry_run=False)
        )
        name = f"manifests/Horovod--1.0-toy/{entry.id}.json"
        assert (gone.removed == (), gone.unread == (name,)) == (is_kept, is_kept)
        told = contents.verified([entry.place], ()).builds
        assert [(one.state, one.read) for one in told] == ([("unread", False)] if is_kept else [])

    def test_an_object_that_was_cut_is_told_with_what_it_should_be(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        path = tmp_path / "cache" / entry.manifest.object_name
        path.write_bytes(path.read_bytes()[:-20])
        [one] = contents.verified([entry.place], ()).builds
        assert f"Its object has {entry.manifest.size - 20} bytes and the SHA-256 " in one.wrong
        assert one.wrong.endswith(f"its manifest says {entry.manifest.size} bytes and {entry.manifest.sha256}.")

    @pytest.mark.parametrize("kind", ["link", "folder", "pipe", "longer"])
    def test_what_is_no_file_of_an_object_goes(self, kind: str, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        path = tmp_path / "cache" / layout.object_of(entry.manifest.sha256)
        instead(path, kind)
        name, told = layout.object_of(entry.manifest.sha256), f"manifests/Horovod--1.0-toy/{entry.id}.json"
        for dry_run in (True, False):
            gone = contents.prune(entry.place, 0, dry_run=dry_run)
            assert {*gone.removed, *gone.unread} == {told, name}
            assert gone.unread == ((name,) if kind == "folder" else ())  # it may be somebody's
        if kind == "folder":
            with pytest.raises(CacheBlocked, match="something else stands in the place of a file") as refused:
                pushed_again(tree, tmp_path / "cache")
            assert (refused.value.exit_code, refused.value.why) == (4, f"Is a directory: {name}")
            path.rmdir()
        pushed_again(tree, tmp_path / "cache")
        assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]

    @pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
    def test_what_is_no_file_of_a_manifest_goes(self, kind: str, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        name = f"manifests/Horovod--1.0-toy/{entry.id}.json"
        instead(tmp_path / "cache" / name, kind)
        assert [one.state for one in contents.verified([entry.place], ()).builds] == ["bad"]
        gone = contents.prune(entry.place, 0, dry_run=False)
        assert (gone.removed, gone.unread) == (((), (name,)) if kind == "folder" else ((name,), ()))

    @pytest.mark.parametrize("kind", ["link", "pipe"])
    def test_a_push_takes_the_place_of_what_is_no_file(self, kind: str, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        for name in (entry.manifest.object_name, f"manifests/Horovod--1.0-toy/{entry.id}.json"):
            instead(tmp_path / "cache" / name, kind)
            pushed_again(tree, tmp_path / "cache")
            assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]

    def test_a_manifest_that_tells_of_other_files_is_bad(self, tree: Tree, tmp_path: Path) -> None:
        """Also where nobody has signed it, and its object is as it says."""
        entry, at = pushed(tree, tmp_path / "cache"), tmp_path / "cache"
        name = next(name for name, file in entry.manifest.files.items() if not file.link)
        files = {**entry.manifest.files, name: msgspec.structs.replace(entry.manifest.files[name], sha256="0" * 64)}
        changed = msgspec.structs.replace(entry.manifest, files=files)
        path = at / f"manifests/Horovod--1.0-toy/{changed.key}.json"
        path.write_bytes(manifest.packed(changed, b""))
        [one] = [one for one in contents.verified([entry.place], ()).builds if one.id == changed.key]
        assert one.state == "bad" and f"The content of {name!r} is not what its manifest says" in one.wrong

    def test_a_manifest_that_cannot_be_read_now_is_not_replaced(
        self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may be a signed one."""
        entry, opened = pushed(tree, tmp_path / "cache", b"a signature"), folder.opened

        @contextmanager
        def failing(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            if name.startswith("manifests/"):
                raise answers.TransientError("503")
            with opened(named, name, most) as chunks:
                yield chunks

        before = below(tmp_path / "cache")
        monkeypatch.setattr(folder, "opened", failing)
        with (tmp_path / "packed").open("rb") as stream, pytest.raises(answers.TransientError):
            publishing.publish(entry.place, entry.manifest, stream, b"")
        monkeypatch.setattr(folder, "opened", opened)
        assert below(tmp_path / "cache") == before
        assert entry.place.entry(f"Horovod--1.0-toy/{entry.id}.json").signed.signature

    def test_a_source_that_cannot_be_read_now_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "sources" / ("0" * 64)
        path.parent.mkdir()
        path.write_text("another")
        opened, here = folder.opened, Place(named=str(tmp_path))

        @contextmanager
        def failing(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            raise RefusedError("Permission denied")
            yield []

        monkeypatch.setattr(folder, "opened", failing)
        assert contents.prune(here, 0, dry_run=False).unread == (f"sources/{path.name}",)
        monkeypatch.setattr(folder, "opened", opened)
        assert contents.prune(here, 0, dry_run=False).removed == (f"sources/{path.name}",)


class TestFolder:
    """The folder of a cache, under those who write to it."""

    def test_a_second_push_sends_nothing(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        with (tmp_path / "packed").open("rb") as stream:
            assert not publishing.publish(entry.place, entry.manifest, stream, b"")
            (tmp_path / "cache/index.json").unlink()  # whoever pushed it was killed before the end
            stream.seek(0)
            assert not publishing.publish(entry.place, entry.manifest, stream, b"")
            assert (tmp_path / "cache/index.json").is_file()
            stream.seek(0)
            assert publishing.publish(entry.place, entry.manifest, stream, b"a signature")
        assert len(entry.place.names()) == 1

    def test_a_signature_that_no_key_verifies_is_replaced(self, tree: Tree, tmp_path: Path) -> None:
        """Who may write to a cache cannot keep a build from those who trust one key."""
        for name in ("own", "other"):
            subprocess.run(
                ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(tmp_path / name)],
                check=True, capture_output=True,
            )  # fmt: skip
        public = tmp_path / "own.pub"
        public.write_bytes(signature.public_of(tmp_path / "own"))
        entry = pushed(tree, tmp_path / "cache", b"junk")
        (tmp_path / "manifest").write_bytes(msgspec.json.encode(entry.manifest))

        def push(key: str, keys: list[str]) -> publishing.Sent:
            signed = signature.signature_of(tmp_path / "manifest", tmp_path / key)
            with (tmp_path / "packed").open("rb") as stream:
                return publishing.publish(entry.place, entry.manifest, stream, signed, keys)

        push("own", [str(public)])
        there = entry.place.entry(f"Horovod--1.0-toy/{entry.id}.json")
        assert place.signer(there, [str(public)]) == str(public)
        assert not push("own", [str(public)]) and not push("other", [str(public)])
        assert place.signer(entry.place.entry(f"Horovod--1.0-toy/{entry.id}.json"), [str(public)])

    def test_pushes_at_the_same_time(self, tree: Tree, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        of, errors = packed(tree, tmp_path / "packed"), list[Exception]()
        builds = [described(of, cpu=(f"feature{number}",)) for number in range(8)]

        def push(one: Manifest) -> None:
            try:
                with (tmp_path / "packed").open("rb") as stream:
                    publishing.publish(Place(named=str(tmp_path / "cache")), one, stream, b"")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=push, args=(one,)) for one in builds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        index = json.loads((tmp_path / "cache/index.json").read_text())
        assert sorted(index["manifests"]) == sorted(f"Horovod--1.0-toy/{one.key}.json" for one in builds)
        assert len(list((tmp_path / "cache/objects").iterdir())) == 1
        assert {one.state for one in contents.verified([Place(named=str(tmp_path / "cache"))], ()).builds} == {
            "unsigned"
        }

    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    def test_a_file_system_without_locks(
        self, number: int, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where a node that has them has left the file of a lock."""

        def refused(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / ".lock").touch()
        monkeypatch.setattr(fcntl, "flock", refused)
        monkeypatch.setattr(folder, "LOCKED_S", 1.0)
        entry = pushed(tree, tmp_path / "cache")
        assert publishing.indexed(entry.place) == (f"Horovod--1.0-toy/{entry.id}.json",)

    def test_a_folder_that_everybody_may_write_to_is_refused(self, tmp_path: Path) -> None:
        """What is made in it would be for its owner alone."""
        (at := tmp_path / "open").mkdir()
        at.chmod(0o2775)
        folder.require(str(at))
        at.chmod(0o777)
        with pytest.raises(HostProblem, match="everybody may write to it") as refused:
            cache_push.require(Place(named=str(at)))
        assert f"chmod o-w {at}" in refused.value.fix and [*at.iterdir()] == []

    def test_an_address_of_another_kind_is_no_place(self) -> None:
        with pytest.raises(UsageProblem, match=r"'ftp://\*\*\*@host/x' is no place of a cache\.") as refused:
            Place(named="ftp://me:secret@host/x")
        assert refused.value.why == "Caches are not reached that way."

    def test_where_nothing_can_be_removed(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        entry = pushed(tree, tmp_path / "cache")
        (tmp_path / "cache" / entry.manifest.object_name).write_text("damaged")

        def refused(*_: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(folder, "remove", refused)
        with pytest.raises(NotWritable, match="could not be tidied up"):
            contents.prune(entry.place, 0, dry_run=False)

    def test_a_folder_of_a_module_that_may_not_be_read_hides_no_other(
        self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        entry = pushed(tree, tmp_path / "cache")
        closed = tmp_path / "cache/manifests/Horovod--0.1-closed"
        closed.mkdir()

        def refusing(at: Path) -> list[str]:
            if at == closed:
                raise NotReadable(what=f"{at} cannot be read.", why="Permission denied.")
            return listed_in(at)

        monkeypatch.setattr(folder, "listed", refusing)
        said = f"A build in the cache {entry.place.shown} cannot be used. {closed} cannot be read: Permission denied."
        looking = place.Looking([entry.place])
        assert [one.id for one in looking] == [entry.id] and looking.wrong == [said]
        assert run(["cache", "verify", entry.place.named]) == 4
        told = capsys.readouterr().out
        assert told.startswith(f"unsigned {entry.id[:12]} ") and f"\n{said} Check its name" in told
        for attempt in (  # which needs to know all that is there
            lambda: contents.prune(entry.place, 0, dry_run=False),
            lambda: publishing.index(entry.place),
        ):
            with pytest.raises((CacheInvalid, answers.RefusedError), match=r"cannot be (used|read)"):
                attempt()
        assert entry.place.entry(f"Horovod--1.0-toy/{entry.id}.json").id == entry.id

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageProblem, match="is a file, and no folder"):
            folder.require(str(tmp_path / "file"))

    def test_a_lock_that_another_holds(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder, "LOCKED_S", 0.1)
        (tmp_path / "cache").mkdir()
        with (
            folder.locked(str(tmp_path / "cache")),
            pytest.raises(EnvkitError, match=r"Another process has held .*/\.lock"),
        ):
            pushed(tree, tmp_path / "cache")
        assert pushed(tree, tmp_path / "cache").place.names()

    def test_a_lock_that_is_a_link(self, tree: Tree, tmp_path: Path) -> None:
        lock = tmp_path / "cache" / ".lock"
        lock.parent.mkdir()
        lock.symlink_to(tmp_path / "theirs")
        with pytest.raises(CacheBlocked) as refused:
            pushed_again(tree, tmp_path / "cache")
        assert refused.value.what == f"Nothing can be put into {lock.parent}: its .lock is a link."
        assert refused.value.fix == f"Look at it, then remove it: ls -ld {lock}; rm {lock}"
        assert not (tmp_path / "theirs").exists() and not publishing.is_of_build(refused.value)

    def test_what_a_system_says_without_the_name_of_a_file(self) -> None:
        assert publishing.reason(OSError(errno.EPERM, "No")) == "No"
        assert publishing.reason(OSError(errno.EPERM, "No", "/a")) == "No: /a"

    def test_a_full_disk(self, tree: Tree, tmp_path: Path) -> None:
        entry, full = pushed(tree, tmp_path / "cache"), 0
        with small_disk(tmp_path / "small", 80) as small:
            new = Tree(root=small / "x86_64-py3.11")
            for free in range(0, 60, 3):  # pages
                leave(small, free)
                try:
                    put(entry, small)
                except OSError as error:
                    full += 1
                    assert error.errno == errno.ENOSPC
                    assert not new.has(MODULE)
                    assert not list(new.root.glob("envkit-*"))
                else:
                    break
            assert new.has(MODULE)
            assert (new.software / MODULE / "bin/horovodrun").read_text().startswith(f"#!{new.software}")
        assert full > 2

    def test_a_push_to_a_full_disk(self, tree: Tree, tmp_path: Path) -> None:
        made, full = described(packed(tree, tmp_path / "packed")), 0
        with small_disk(tmp_path / "small", 40) as small:
            for free in range(20):  # pages
                leave(small, free)
                try:
                    with (tmp_path / "packed").open("rb") as stream:
                        publishing.publish(Place(named=str(small)), made, stream, b"")
                except OSError as error:
                    full += 1
                    assert error.errno == errno.ENOSPC
                else:
                    break
                (small / "filler").unlink()
                assert {one.state for one in contents.verified([Place(named=str(small))], ()).builds} <= {"unsigned"}
            assert [one.state for one in contents.verified([Place(named=str(small))], ()).builds] == ["unsigned"]
            assert not list(small.rglob(".envkit-*"))
            assert json.loads((small / "index.json").read_text())["manifests"] == [f"Horovod--1.0-toy/{made.key}.json"]
        assert full > 1

    @pytest.mark.integration
    def test_a_process_that_is_killed(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        text = f"""
import os, signal, sys
from pathlib import Path
from envkit.cache import unpack
from envkit.cache.place import Place
from envkit.environments.prefix import Tree
step, root = sys.argv[1], Path(sys.argv[2])
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
setattr(unpack.replaced if step == "move" else unpack, step, die)
[name] = Place(named={str(tmp_path / "cache")!r}).names()
entry = Place(named={str(tmp_path / "cache")!r}).entry(name)
unpack.take(entry, Tree(root=root), Path(sys.executable), lambda: None, {{}})
"""
        new = Tree(root=tmp_path / OTHER / "x86_64-py3.11")
        new.root.mkdir(parents=True)
        for step in ("unpack", "link", "note", "move_in", "move"):
            done = subprocess.run([sys.executable, "-c", text, step, new.root], capture_output=True)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert not new.has(MODULE)
        assert put(entry, tmp_path / OTHER).has(MODULE)
        assert not list(new.root.glob("envkit-*"))

    def test_what_is_removed(self, tree: Tree, tmp_path: Path) -> None:
        entry, folder = pushed(tree, tmp_path / "cache"), tmp_path / "cache"
        old, young = folder / "objects" / f"{'0' * 64}.tar.zst", folder / "objects/.envkit-1-0000abcd"
        old.write_text("of no manifest")
        young.write_text("being written")
        os.utime(old, (1, 1))
        assert contents.prune(entry.place, 0, dry_run=True).removed == (f"objects/{old.name}",)
        assert old.exists()
        contents.prune(entry.place, 0, dry_run=False)
        assert not old.exists()
        assert young.exists()
        assert len(entry.place.names()) == 1
        (folder / layout.object_of(entry.manifest.sha256)).write_text("damaged")
        gone = contents.prune(entry.place, 0, dry_run=False).removed
        assert set(gone) == {f"manifests/Horovod--1.0-toy/{entry.id}.json", layout.object_of(entry.manifest.sha256)}
        assert json.loads((folder / "index.json").read_text())["manifests"] == []

    def test_a_damaged_object_that_nothing_names_is_removed_at_once(self, tree: Tree, tmp_path: Path) -> None:
        """One that is as it should be stays for a day: somebody may be pushing it."""
        entry, folder = pushed(tree, tmp_path / "cache"), tmp_path / "cache"
        (folder / f"manifests/Horovod--1.0-toy/{entry.id}.json").unlink()
        path = folder / layout.object_of(entry.manifest.sha256)
        assert contents.prune(entry.place, 0, dry_run=False).removed == ()
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert contents.prune(entry.place, 0, dry_run=True).removed == (f"objects/{path.name}",)
        assert contents.prune(entry.place, 0, dry_run=False).size == len(content)
        assert not path.exists()

    def test_what_is_bad_is_read_to_its_end_once(
        self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody can push meanwhile, the second time."""
        entry, read, opened = pushed(tree, tmp_path / "cache"), list[str](), folder.opened
        path = tmp_path / "cache" / layout.object_of(entry.manifest.sha256)
        path.write_bytes(b"x" * path.stat().st_size)

        @contextmanager
        def counted(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
            read.append(name)
            with opened(named, name, most) as chunks:
                yield chunks

        monkeypatch.setattr(folder, "opened", counted)
        assert len(contents.prune(entry.place, 0, dry_run=False).removed) == 2
        assert read.count(entry.manifest.object_name) == 2  # as that of its build, and by its own name

    @pytest.mark.parametrize("again", ["same", "other"])
    def test_a_push_while_it_is_tidied_up_loses_no_object(
        self, again: str, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was to be removed is named anew meanwhile, by a build that is the same or needs something else."""
        entry, folder, found = pushed(tree, tmp_path / "cache"), tmp_path / "cache", contents.check_named
        (nobodys := folder / layout.object_of("0" * 64)).write_text("of no manifest")
        os.utime(nobodys, (1, 1))
        (folder / f"manifests/Horovod--1.0-toy/{entry.id}.json").unlink()
        os.utime(folder / entry.manifest.object_name, (1, 1))

        def meanwhile(*words: Any) -> contents.CheckedSource:
            pushed(tree, folder, cpu=("avx",) if again == "same" else ())
            return found(*words)

        (folder / "sources").mkdir()
        (folder / "sources" / hashlib.sha256(b"x").hexdigest()).write_bytes(b"x")
        monkeypatch.setattr(contents, "check_named", meanwhile)
        gone = contents.prune(entry.place, 0, dry_run=False).removed
        assert gone == (f"objects/{nobodys.name}",)
        assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]

    @pytest.mark.parametrize("was", ["bad", "old"])
    def test_a_build_that_is_pushed_while_it_is_tidied_up_stays(
        self, was: str, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that was damaged is mended by its object alone; one that was old is signed anew."""
        entry, folder, check = pushed(tree, tmp_path / "cache"), tmp_path / "cache", contents.check
        if was == "bad":
            (folder / entry.manifest.object_name).write_text("damaged")
        for path in (folder / entry.manifest.object_name, folder / f"manifests/Horovod--1.0-toy/{entry.id}.json"):
            os.utime(path, (1, 1))
        found = list[str]()

        def meanwhile(*words: Any) -> contents.Checked:
            result = check(*words)
            found.append(result.state)
            pushed(tree, folder, b"" if was == "bad" else b"a signature")
            return result

        monkeypatch.setattr(contents, "check", meanwhile)
        gone = contents.prune(entry.place, 0 if was == "bad" else 3600, dry_run=False)
        assert (gone.removed, gone.unread, found[0]) == ((), (), "bad" if was == "bad" else "unsigned")
        monkeypatch.setattr(contents, "check", check)
        [left] = contents.verified([entry.place], ()).builds
        assert left.state == ("unsigned" if was == "bad" else "good") and publishing.indexed(entry.place)

    def test_a_manifest_that_goes_while_its_object_is_sent_is_sent_again(
        self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry, lock, name = pushed(tree, tmp_path / "cache"), folder.locked, "manifests/Horovod--1.0-toy/{}.json"
        manifest, held = tmp_path / "cache" / name.format(entry.id), list[str]()
        (tmp_path / "cache" / entry.manifest.object_name).write_text("damaged")

        @contextmanager
        def late(named: str) -> Iterator[None]:
            if not held:  # another process had it, which tidied up
                manifest.unlink()
            held.append(named)
            with lock(named):
                yield

        monkeypatch.setattr(folder, "locked", late)
        pushed(tree, tmp_path / "cache")
        assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]

    def test_an_object_that_goes_while_its_manifest_is_written_is_sent_again(
        self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry, folder_put = pushed(tree, tmp_path / "cache"), folder.put

        def meanwhile(named: str, name: str, stream: Any) -> None:
            folder_put(named, name, stream)
            if name.startswith("manifests/"):
                (tmp_path / "cache" / entry.manifest.object_name).unlink()

        monkeypatch.setattr(folder, "put", meanwhile)
        other = pushed(tree, tmp_path / "cache", cpu=())
        assert other.manifest.object_name == entry.manifest.object_name
        assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned", "unsigned"]


class TestPlanted:
    """What another member of the group has put into a folder that both may write to."""

    OLD = 1_000_000_000

    def aside(self, tmp_path: Path) -> Path:
        """A folder of somebody's that has nothing to do with a cache, and in it what looks like a part of one."""
        folder = tmp_path / "theirs"
        folder.mkdir()
        for name in ("thesis.tex", f"{'0' * 64}.tar.zst", f"{'0' * 64}.json", ".envkit-half"):
            (folder / name).write_text("dear")
            os.utime(folder / name, (self.OLD, self.OLD))
        return folder

    @pytest.mark.parametrize("planted", ["objects", "sources", "manifests", "manifests/evil"])
    def test_nothing_behind_a_link_is_removed_or_written(self, planted: str, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        theirs, place = self.aside(tmp_path), tmp_path / "cache" / planted
        if place.exists():
            place.rename(tmp_path / "away")
        place.symlink_to(theirs)
        before = below(theirs)
        with suppress(EnvkitError):
            contents.prune(entry.place, 0, dry_run=False)
        with suppress(EnvkitError, OSError, answers.RefusedError):
            pushed(tree, tmp_path / "cache")
        assert below(theirs) == before

    def test_a_folder_that_is_swapped_for_a_link_meanwhile(self, tmp_path: Path) -> None:
        theirs = self.aside(tmp_path)
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "objects").symlink_to(theirs)
        with pytest.raises(OSError, match="Not a directory"):
            folder.remove(str(tmp_path / "cache"), f"objects/{'0' * 64}.tar.zst")
        assert (theirs / f"{'0' * 64}.tar.zst").exists()

    @pytest.mark.parametrize("planted", ["objects", f"objects/{'0' * 64}.tar.zst"])
    @pytest.mark.parametrize("step", range(1, 12))
    def test_what_is_exchanged_for_a_link_at_any_moment(
        self, step: int, planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before each look at the file system by a number of an open folder."""
        theirs, cache, name = self.aside(tmp_path), tmp_path / "cache", f"objects/{'0' * 64}.tar.zst"
        (cache / "objects").mkdir(parents=True)
        before, count = below(theirs), 0

        def exchanging(real: Any) -> Any:
            def call(*words: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    with suppress(FileNotFoundError):
                        (cache / planted).rename(tmp_path / "away")
                    (cache / planted).symlink_to(theirs if planted == "objects" else theirs / "thesis.tex")
                return real(*words, **named)

            return call

        with monkeypatch.context() as patch:
            for function in ("open", "mkdir", "replace", "unlink"):
                patch.setattr(os, function, exchanging(getattr(os, function)))
            with suppress(OSError):
                folder.put(str(cache), name, io.BytesIO(b"new"))
            with suppress(OSError):
                assert not folder.holds(str(cache), name, 4, hashlib.sha256(b"dear").hexdigest())
            with suppress(OSError):
                folder.remove(str(cache), name)
        assert below(theirs) == before

    def test_a_folder_that_is_no_cache(self, tree: Tree, tmp_path: Path) -> None:
        web = tmp_path / "web"
        (web / "objects").mkdir(parents=True)
        (web / "objects" / "scene.blend").write_text("x")
        os.utime(web / "objects" / "scene.blend", (self.OLD, self.OLD))
        assert contents.prune(Place(named=str(web)), 0, dry_run=False).removed == ()
        (web / "index.json").write_text('{"my": "site"}')
        with pytest.raises(UsageProblem, match="is no cache of builds"):
            contents.prune(Place(named=str(web)), 0, dry_run=False)
        with pytest.raises(UsageProblem, match="is no cache of builds"):
            pushed(tree, web)
        assert (web / "index.json").read_text() == '{"my": "site"}'
        assert (web / "objects" / "scene.blend").exists()

    def test_a_folder_of_something_else_is_not_said_to_be_good(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its name may be mistyped. What is empty is a cache that nothing has been put into."""
        place = tmp_path / "thesis"
        (place / "manifests").mkdir(parents=True)
        (place / ".snapshot").touch()
        for command in ("verify", "prune"):
            assert run(["cache", command, str(place)]) == 0
        (place / "thesis.tex").touch()
        capsys.readouterr()
        for command in ("verify", "prune"):
            assert run(["cache", command, str(place)]) == 4
            told = capsys.readouterr()
            assert told.out == "" and f"envkit: There is no cache in {place}.\n" in told.err
            assert run(["cache", command, str(tmp_path / "thesis.txt")]) == 4
            assert "There is no such folder." in capsys.readouterr().err
        (place / "sources").mkdir()
        (place / "sources" / hashlib.sha256(b"").hexdigest()).touch()
        assert run(["cache", "verify", str(place)]) == 0

    @pytest.mark.parametrize("name", ["index.json", ".lock"])
    def test_folders_in_the_place_of_its_files(self, name: str, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        (tmp_path / "cache" / name).unlink(missing_ok=True)
        (tmp_path / "cache" / name).mkdir()
        (tree.software / MODULE / "more").write_text("more")
        for attempt in (
            lambda: contents.prune(entry.place, 0, dry_run=False),
            lambda: pushed_again(tree, tmp_path / "cache"),
        ):
            with pytest.raises(CacheBlocked, match=f"Nothing can be put into .*: its {name} is a folder") as told:
                attempt()
            assert told.value.exit_code == 4 and told.value.fix.endswith(f"rm -r {tmp_path}/cache/{name}")

    @pytest.mark.parametrize("named", ["", " ", "http://[", "s3://[x"])
    def test_what_can_be_no_place(self, named: str) -> None:
        with pytest.raises(UsageProblem, match="is no place of a cache") as told:
            Place(named=named)
        assert "s3://BUCKET/FOLDER" in told.value.fix

    @pytest.mark.parametrize(
        "named",
        [
            "http://ada:a/s3cret@host/x", "http://ada:s3cret'x@127.0.0.1:9/x", "https://[ada:s3cret@host",
            "ada:a/s3cret@host/x", "ftp://ada:s3cret@host/x", "HTTP://ada:s3'cret@host/x", "oci://ada:s3cret@host/x",
            "http://ada:12/s3cret@127.0.0.1:9/x", "s3://ada:s3cret@host/x",
        ],
    )  # fmt: skip
    def test_no_password_in_the_name_of_one_is_told(self, named: str, capsys: pytest.CaptureFixture[str]) -> None:
        for words in (["list", named], ["verify", named], ["pull", "x", "--from", named, "--to", named]):
            assert run(["cache", *words]) in (2, 4)
            told = capsys.readouterr()
            assert "cret" not in told.out + told.err, told

    def test_a_name_that_is_no_utf_8(self, tmp_path: Path) -> None:
        assert Place(named=str(tmp_path) + "/odd\udcff").shown == f"{tmp_path}/odd\\xff"

    def test_an_index_without_end_and_one_that_repeats_itself(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        index, name = tmp_path / "cache/index.json", f"Horovod--1.0-toy/{entry.id}.json"
        with serving(tmp_path / "cache") as url:
            index.write_text(json.dumps({"manifests": [name] * 3}))
            assert Place(named=url).names() == [name]
            index.write_text(json.dumps({"manifests": [f"Toy--{n}/{n:064x}.json" for n in range(20_001)]}))
            with pytest.raises(CacheInvalid) as told:
                Place(named=url).names()
        assert "more than 20000 builds" in told.value.why

    def test_a_size_that_no_installation_takes_is_bad(self, tree: Tree, tmp_path: Path) -> None:
        of = packed(tree, tmp_path / "packed")
        huge = msgspec.structs.replace(described(of), unpacked=unpack.MOST + 1)
        (tmp_path / "cache").mkdir()
        with (tmp_path / "packed").open("rb") as stream:
            publishing.publish(Place(named=str(tmp_path / "cache")), huge, stream, b"")
        [found] = contents.verified([Place(named=str(tmp_path / "cache"))], []).builds
        assert found.state == "bad"
        assert found.wrong.endswith("It is too large.")

    @pytest.mark.parametrize("version", ["", "2.-1", "2.34\u0660x", "v2", "9" * 99, "2..1"])
    def test_a_version_that_is_none(self, version: str, tree: Tree, tmp_path: Path) -> None:
        with pytest.raises(CacheInvalid) as refused:
            pushed(tree, tmp_path / "cache", versions={"GLIBC": version})
        assert "It needs a version that is none." in refused.value.why

    @pytest.mark.parametrize("needs", [{"machine": "x\nSigned:   /k.pub"}, {"cpu": ("a\rb",)}, {"load": ("a\x1b[2J",)}])
    def test_a_text_that_forges_a_line(self, needs: dict[str, Any], tree: Tree, tmp_path: Path) -> None:
        with pytest.raises(CacheInvalid) as refused:
            pushed(tree, tmp_path / "cache", **needs)
        assert "It has text in it that a terminal would obey." in refused.value.why


class TestTrust:
    """Signatures, by real keys."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> dict[str, tuple[Path, Path]]:
        """Two pairs of keys."""
        needs("openssl")
        made = {}
        for name in ("mine", "theirs"):
            own, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", own], check=True)
            subprocess.run(["openssl", "pkey", "-in", own, "-pubout", "-out", public], check=True)
            made[name] = own, public
        return made

    def signed(self, tree: Tree, folder: Path, key: Path) -> SignedManifest:
        """Push it, signed."""
        from envkit.sources import signature

        folder.mkdir()
        path = folder.with_name("packed")
        made = described(packed(tree, path))
        (folder.with_name("manifest")).write_bytes(msgspec.json.encode(made))
        with path.open("rb") as stream:
            publishing.publish(
                Place(named=str(folder)), made, stream, signature.signature_of(folder.with_name("manifest"), key)
            )
        return Place(named=str(folder)).entry(f"Horovod--1.0-toy/{made.key}.json")

    def test_whose_signature_counts(self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path) -> None:
        entry = self.signed(tree, tmp_path / "cache", keys["mine"][0])
        mine, theirs = (str(keys[name][1]) for name in ("mine", "theirs"))
        assert place.signer(entry, [mine]) == mine
        assert place.signer(entry, [theirs]) == ""
        assert place.signer(entry, [theirs, mine]) == mine
        assert place.signer(pushed(tree, tmp_path / "unsigned"), [mine]) == ""
        bad = contents.verified([entry.place], [theirs]).builds
        assert [(one.state, one.wrong) for one in bad] == [("bad", "None of your keys has signed it.")]

    @pytest.mark.parametrize(
        ("name", "content", "why"),
        [
            ("none.pub", None, "cannot be read: No such file or directory"),
            ("folder", None, "cannot be read: Is a directory"),
            ("own.pem", "-----BEGIN PRIVATE KEY-----\n", "is a private key: name its public half"),
            ("notes.txt", "my keys\n", "is no public key"),
            ("cut.pub", "-----BEGIN PUBLIC KEY-----\nMCow\n", "holds a public key that is cut off or damaged"),
            ("x.pub", "x25519", "holds a key of a kind that signs nothing"),
        ],
    )
    def test_a_key_that_can_verify_nothing_is_named(
        self, name: str, content: str | None, why: str, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        """What none of the others has signed may be good, and is not checked."""
        entry, path, theirs = self.signed(tree, tmp_path / "cache", keys["mine"][0]), tmp_path / name, keys["theirs"][1]
        if content == "x25519":
            subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", tmp_path / "x.pem"], check=True)
            subprocess.run(["openssl", "pkey", "-in", tmp_path / "x.pem", "-pubout", "-out", path], check=True)
        elif content is not None:
            path.write_text(content)
        elif name == "folder":
            path.mkdir()
        assert place.signer(entry, [str(path)]) == ""
        said = f"its signature cannot be checked by all of your keys ('cache.keys'): {path} {why}"
        assert untrusted(entry, [str(theirs), str(path)]) == said
        assert untrusted(entry, [str(theirs)]) == "none of your keys ('cache.keys') has signed it"
        [one] = contents.verified([entry.place], [str(theirs), str(path)]).builds
        assert (one.state, one.read, one.wrong) == ("unread", False, f"I{said[1:]}.")
        [one] = contents.verified([entry.place], [str(path), str(keys["mine"][1])]).builds
        assert (one.state, one.wrong) == ("good", "")
        monkeypatch.setenv("ENVKIT_CACHE_KEYS", str(path))
        assert run(["cache", "list", entry.place.named]) == 0
        assert "not checked" in capsys.readouterr().out

    def test_a_public_key_beside_the_private_one_verifies_and_signs(
        self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path
    ) -> None:
        own, public = (path.read_text() for path in keys["mine"])
        for content in (own + public, public + own):
            both = tmp_path / "both.pem"
            both.write_text(content)
            entry = self.signed(tree, tmp_path / str(content.index(own)), both)
            assert place.signer(entry, [str(both)]) == str(both)
            assert offers.of_keys([str(both)]) == []
            cache_push.require_private(both)
            assert signature.public_of(both).decode() == public

    def test_what_a_key_of_theirs_has_signed_is_taken_first(
        self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path
    ) -> None:
        first, second = pushed(tree, tmp_path / "first"), self.signed(tree, tmp_path / "second", keys["mine"][0])
        mine, places = str(keys["mine"][1]), (first.place.named, second.place.named)
        caches = place.Caches(places=places, keys=(mine,), unsigned=True)
        unfit = judged(first, ["it is for another"], caches)
        offers = [unfit, *(judged(entry, (), caches) for entry in (first, second))]
        assert [offer.key for offer in by_trust_and_place(offers, caches)] == [mine, "", ""]
        assert by_trust_and_place(offers, caches)[-1] is unfit
        nobody = replace(caches, keys=())
        offers = [judged(entry, (), nobody) for entry in (second, first)]
        assert [offer.entry.place for offer in by_trust_and_place(offers, nobody)] == [first.place, second.place]

    @pytest.mark.parametrize("name", ["none.pub", "cut.pub"])
    def test_keys_are_looked_at_before_anything_is_built_whatever_caches_have(
        self, name: str, keys: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        (tmp_path / "cache").mkdir()
        (tmp_path / "cut.pub").write_text("-----BEGIN PUBLIC KEY-----\n")
        broken, whole = str(tmp_path / name), str(keys["mine"][1])
        caches = place.Caches(places=(str(tmp_path / "cache"),), keys=(whole, broken))
        found = FoundBuilds.of((), place.Looking(caches.kept), caches)
        [said] = left_out(found)
        assert said.startswith(f"A key of your configuration ('cache.keys') verifies nothing: {broken} ")
        assert f"Cache:    {said}" in [*lines(found)]
        monkeypatch.setenv("ENVKIT_CACHE_KEYS", f"{whole},{broken}")
        assert run(["cache", "list", str(tmp_path / "cache")]) == 0
        assert capsys.readouterr().err == f"{said}\n"

    def test_without_openssl_nothing_signed_is_taken_and_nothing_stops(
        self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        entry, mine = self.signed(tree, tmp_path / "cache", keys["mine"][0]), str(keys["mine"][1])
        unsigned = pushed(tree, tmp_path / "unsigned")
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.setenv("ENVKIT_CACHE_KEYS", mine)
        why = "its signature cannot be checked: there is no program openssl on PATH"
        caches = place.Caches(places=(), keys=(mine,))
        assert judged(entry, (), caches).why_not == (why,)
        assert judged(unsigned, (), caches).why_not == ("it is not signed (--unsigned-cache takes it all the same)",)
        assert judged(entry, (), replace(caches, unsigned=True)).why_not == ()
        assert run(["cache", "list", entry.place.named]) == 0
        assert "not checked" in capsys.readouterr().out
        assert run(["cache", "verify", entry.place.named]) == 4
        told = capsys.readouterr().out
        assert f"I{why[1:]}." in told and told.startswith("unread ") and "1 unread" in told
        assert run(["cache", "verify", "--json", entry.place.named]) == 4
        [one] = json.loads(capsys.readouterr().out)["builds"]
        assert (one["state"], one["read"], one["wrong"]) == ("unread", False, f"I{why[1:]}.")

    def test_of_several_caches_the_others_are_verified_where_one_is_not_there(
        self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        entry, gone = self.signed(tree, tmp_path / "cache", keys["mine"][0]), str(tmp_path / "gone")
        for places in ([gone, entry.place.named], [entry.place.named, gone]):
            assert run(["cache", "verify", *places]) == 4
            told = capsys.readouterr()
            assert told.out.startswith(f"good     {entry.id[:12]} ") and told.err == ""
            *_, unchecked, wrong = told.out.splitlines()
            assert unchecked == "No signature was checked: you have no keys ('cache.keys' in your configuration)."
            assert wrong.startswith(f"The cache {gone} cannot be used. There is no such folder.")
            assert run(["cache", "verify", "--json", *places]) == 4
            found = json.loads(capsys.readouterr().out)
            assert ([one["state"] for one in found["builds"]], len(found["wrong"])) == (["good"], 1)
            assert found["signatures"] is False
        assert run(["cache", "verify", gone]) == 4
        told = capsys.readouterr()
        assert told.out == "" and f"The cache {gone} cannot be used." in told.err

    def test_a_cache_that_is_named_twice_counts_once(
        self, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = pushed(tree, tmp_path / "cache")
        (tmp_path / "link").symlink_to("cache")
        monkeypatch.chdir(tmp_path)
        for command in ("verify", "list"):
            assert run(["cache", command, "cache/", "./cache", str(tmp_path / "link")]) == 0
            assert capsys.readouterr().out.count(entry.id[:12]) == 1

    def test_an_id_in_capitals(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path / "cache")
        for wanted in (entry.id.upper(), entry.id[:9].upper()):
            assert contents.find([entry.place], wanted).id == entry.id

    def test_a_manifest_that_was_changed(
        self, keys: dict[str, tuple[Path, Path]], tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        entry = self.signed(tree, tmp_path / "cache", keys["mine"][0])
        [path] = (tmp_path / "cache/manifests").rglob("*.json")
        path.write_bytes(path.read_bytes().replace(b'"host":"builder"', b'"host":"another"'))
        changed = entry.place.entry(f"Horovod--1.0-toy/{path.name}")
        assert changed.manifest.provenance.host == "another"
        assert place.signer(changed, [str(keys["mine"][1])]) == ""
        monkeypatch.setenv("ENVKIT_CACHE_KEYS", str(keys["mine"][1]))
        assert run(["cache", "show", entry.id[:8], entry.place.named]) == 0
        said = capsys.readouterr().out
        assert "Signed:   by none of your keys, or changed since\n" in said and "No key of yours verifies this" in said
        path.write_bytes(b"{" + path.read_bytes())
        assert run(["cache", "show", entry.id[:8], entry.place.named]) == 4
        assert f"The manifest Horovod--1.0-toy/{path.name} cannot be read" in capsys.readouterr().err


@pytest.mark.integration
def test_commands_on_a_cache(tree: Tree, tmp_path: Path) -> None:
    entry = pushed(tree, tmp_path / "cache")
    envkit = shutil.which("envkit") or "envkit"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        return subprocess.run([envkit, "cache", *words], env=env, capture_output=True, text=True)

    folder = str(tmp_path / "cache")
    [listed] = valid("cache list", run("list", folder, "--json").stdout)["builds"]
    assert (listed["id"], listed["module"], listed["signed"]) == (entry.id, MODULE, False)
    assert entry.id[:12] in run("list", folder).stdout
    shown = run("show", entry.id[:8], folder)
    assert "Built:    on builder, 2026-01-02T03:04:05+00:00, as toy" in shown.stdout
    assert "Verdict:  PASS" in shown.stdout
    told = valid("cache show", run("show", entry.id, folder, "--json").stdout)
    assert told["provenance"]["verdict"] == {"verdict": "pass"}
    assert run("show", "ff" * 32, folder).returncode == 2
    assert run("verify", folder).stdout.splitlines()[-1] == "1 build, none bad."
    (tmp_path / "cache" / layout.object_of(entry.manifest.sha256)).write_text("damaged")
    bad = run("verify", folder, "--json")
    assert (bad.returncode, valid("cache verify", bad.stdout)["builds"][0]["state"]) == (4, "bad")
    assert run("show", "ff" * 32, str(tmp_path / "none")).returncode == 4
    assert "Check its name, and ask its owner for the right to read it." in run("list", str(tmp_path / "none")).stderr
    assert valid("cache prune", run("prune", folder, "--dry-run", "--json").stdout)["size"] > 0
    assert "Removed 2 files" in run("prune", folder).stdout
    assert run("list", folder).stdout == "There is no build.\n"
    entry = pushed(tree, tmp_path / "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    listed = [line for line in run("list", folder, str(tmp_path / "copy")).stdout.splitlines() if entry.id[:12] in line]
    assert len(listed) == 2
    assert "  IN" in run("list", folder, str(tmp_path / "copy")).stdout.splitlines()[0]
    assert "  IN" not in run("list", folder).stdout.splitlines()[0]
    with serving(tmp_path / "cache", Broken) as url:
        unread = run("verify", url)
    assert unread.returncode == 4 and unread.stdout.endswith("1 build, none bad, 1 unread.\n")
    assert unread.stdout.startswith(f"unread   {entry.id[:12]} {MODULE} in {url}")
    assert run("list").returncode == 2
    assert run("verify", str(tmp_path / "none")).returncode == 4
    assert run("prune", "https://example.org/cache").returncode == 2


class Broken(SimpleHTTPRequestHandler):
    """A server that refuses objects."""

    def do_GET(self) -> None:
        if "/objects/" in self.path:
            self.send_error(403)
        else:
            super().do_GET()


class TestTaken:
    """What an installation does with what caches have."""

    @dataclass(kw_only=True)
    class Work:
        """An installation of the toy."""

        request: Request
        stack: Stack
        host: Host
        plan: Plan
        tree: Tree
        caches: place.Caches
        missing: list[str]
        again: list[str]
        lock: Lock
        looked: FoundBuilds = NOTHING
        known: Mapping[Source, Candidate] = field(default_factory=dict)

        def asked(self, folder: Path) -> Receipt:
            """Nobody asks."""
            raise AssertionError

    @pytest.fixture
    def work(self, tmp_path: Path, machine: Callable[..., Host]) -> Callable[..., Any]:
        """Make one that may take builds from some folders."""
        recipe = tmp_path / "Horovod.eb"
        recipe.write_text("name = 'Horovod'\n")
        prefix = Prefix(root=tmp_path / OTHER)
        parts = (
            LockedPart(name="PyTorch/2.13.0", recipe="PyTorch.eb", sha256="2" * 64),
            LockedPart(name=MODULE, recipe="Horovod.eb", sha256="1" * 64),
        )

        def make(*places: Path, unsigned: bool = True, **changes: Any) -> TestTaken.Work:
            made = TestTaken.Work(
                request=Request(prefix=prefix, **changes),
                stack=msgspec.structs.replace(select("pytorch-2.13-cpu", platform=Platform.own()), module=MODULE),
                host=machine(),
                plan=Plan(stack="toy", steps=(Step(module=MODULE, easyconfig=str(recipe)),), robot=()),
                tree=Tree(root=prefix.root / "x86_64-py3.11"),
                caches=place.Caches(places=tuple(map(str, places)), keys=(), unsigned=unsigned),
                missing=[MODULE],
                again=[],
                lock=Lock(
                    name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
                    machine=LockedMachine(type="x86_64"), tools={}, parts=parts,
                ),
            )  # fmt: skip
            made.looked = cached.find_builds(made)
            return made

        return make

    def entries(self, tree: Tree, *folders: Path) -> list[SignedManifest]:
        """Push the module into each of some folders, for this machine."""
        return [pushed(tree, one, cpu=(), mpi_library="libmpi.so.40", python=Platform.own().python) for one in folders]

    def test_what_another_folder_of_that_name_is_for_is_not_looked_at(
        self, work: Callable[..., Any], tree: Tree, tmp_path: Path
    ) -> None:
        """Names of modules become names of folders, of which those of two may be the same."""
        [good] = self.entries(tree, tmp_path / "cache")
        file = PackedFile(size=good.manifest.size, sha256=good.manifest.sha256, is_program=True)
        part = LockedPart(name=MODULE.replace("/", "--"), recipe="", sha256="0" * 64)
        image = msgspec.structs.replace(good.manifest, part=part, files={f"{part.name}.sif": file}, wheels={})
        at = tmp_path / "cache" / "manifests" / part.name / f"{image.key}.json"
        at.write_bytes(manifest.packed(image, b""))
        offers = work(tmp_path / "cache").looked.offers
        assert [offer.entry.id for offer in offers] == [good.id]

    def test_a_prefix_on_a_full_disk(self, work: Callable[..., Any], tree: Tree, tmp_path: Path) -> None:
        """It is told once, and what is seen of a module is whole: at most the list of its files is still to be made."""
        self.entries(tree, tmp_path / "cache")
        taken, full, entire = list[str](), 0, 0
        with small_disk(tmp_path / OTHER, 120) as small:
            for free in range(0, 60, 2):  # pages
                leave(small, free)
                one, said = work(tmp_path / "cache"), io.StringIO()
                try:
                    with install.storage_explained(one.request.prefix):
                        taken = cached.take(one, Console(file=said))
                except DiskFull as error:
                    full += 1
                    assert (error.exit_code, error.what) == (7, f"{small} could not be written to the end.")
                    assert "Then run the same command again: it resumes." in error.fix
                    assert not said.getvalue() and not [*one.tree.root.glob("envkit-*")]
                    entire = entire or len(below(one.tree.software / MODULE) if one.tree.has(MODULE) else ())
                else:
                    break
            assert taken == [MODULE] or one.tree.has(MODULE)
            assert entire in (0, len(below(one.tree.software / MODULE)))
        assert full > 2

    def test_a_bad_one_is_said_and_the_next_is_taken(
        self, work: Callable[..., Any], tree: Tree, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        [bad, good] = self.entries(tree, first, second)
        (first / layout.object_of(bad.manifest.sha256)).write_text("damaged")
        one, said = work(tmp_path / "none", first, second), io.StringIO()
        assert [(each.place, each.taken) for each in for_scripts(one.looked)] == [
            (str(first), True),
            (str(second), False),
        ]
        assert cached.take(one, Console(file=said, width=400))
        lines = said.getvalue().splitlines()
        assert "There is no such folder. It is left out." in lines[0]
        assert f"object {bad.id[:12]}: Its SHA-256 is" in lines[1]
        assert lines[1].startswith(f"A build in the cache {first} cannot be used. ")
        advice = f"'envkit cache verify {first}' names all that is wrong there."
        assert lines[1].endswith(f"{MODULE} is not taken from there. {advice}")
        assert lines[2] == f"Taken from {second}: {MODULE}, built on builder, 2026-01-02T03:04:05+00:00; not signed."
        assert one.tree.has(MODULE)
        record = receipt.built(one.tree, MODULE)
        assert record is not None and record.cached is not None
        assert (record.cached.place, record.cached.id) == (str(second), good.id)
        assert manifest_of_files.damage(one.tree, [MODULE], every=True) == []

    def test_a_server_that_fails_is_asked_for_nothing_more(
        self, work: Callable[..., Any], tree: Tree, tmp_path: Path
    ) -> None:
        """Nor for the other builds that it has offered."""
        self.entries(tree, tmp_path / "cache")
        fits: dict[str, Any] = {"cpu": (), "mpi_library": "libmpi.so.40", "python": Platform.own().python}
        pushed(tree, tmp_path / "cache", **fits, versions={"GLIBC": "2.17"})
        with serving(tmp_path / "cache") as url:
            one, said = work(Path("/nonexistent")), io.StringIO()
            one.caches = place.Caches(places=(url,), keys=(), unsigned=True)
            one.looked = cached.find_builds(one)
            assert len([offer for offer in one.looked.offers if not offer.why_not]) == 2
        assert not cached.take(one, Console(file=said, width=400))
        assert said.getvalue().count("is not taken from there") == 1

    def test_where_none_is_good_it_is_built(self, work: Callable[..., Any], tree: Tree, tmp_path: Path) -> None:
        [bad] = self.entries(tree, tmp_path / "cache")
        (tmp_path / "cache" / layout.object_of(bad.manifest.sha256)).unlink()
        one, said = work(tmp_path / "cache"), io.StringIO()
        assert not cached.take(one, Console(file=said, width=400))
        assert f"{MODULE} is not taken from there." in said.getvalue()
        assert not one.tree.has(MODULE)

    def test_a_build_with_another_mpi_is_named(
        self, work: Callable[..., Any], machine: Callable[..., Host], tree: Tree, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """Its module has another name, so that it is nothing that this plan could take."""
        assert "Horovod/1-gompi-system-x" in cached.by_other_mpi("Horovod/1-gmpich-system-x")
        assert cached.by_other_mpi("Horovod/1-foss-2023a") == set()
        self.entries(tree, tmp_path / "cache")
        monkeypatch.setattr(cached, "by_other_mpi", lambda _: {MODULE})
        made, other = work(tmp_path / "cache"), "Horovod/1.0-other"
        steps = (Step(module=other, easyconfig=made.plan.steps[0].easyconfig),)
        own = replace(
            made, plan=msgspec.structs.replace(made.plan, steps=steps), missing=[other],
            stack=msgspec.structs.replace(made.stack, module=other),
            host=machine(mpi=Program(path=Path("/usr/bin/mpirun"), version="4.0", family="MPICH")),
            lock=msgspec.structs.replace(made.lock, parts=(LockedPart(name=other, recipe="x.eb", sha256="1" * 64),)),
        )  # fmt: skip
        found = cached.find_builds(own)
        assert not found.taken
        [line] = lines(found)
        assert line.endswith(f"{tmp_path / 'cache'}, {MODULE}: it was built with Open MPI, and here is MPICH")
        monkeypatch.undo()
        assert not cached.find_builds(own).offers

    def test_when_none_is_looked_for(self, work: Callable[..., Any], tree: Tree, tmp_path: Path) -> None:
        self.entries(tree, tmp_path / "cache")
        (tmp_path / "empty").mkdir()
        assert [*lines(work(tmp_path / "empty").looked)] == [f"Cache:    {tmp_path / 'empty'} has no build of this"]
        assert work(tmp_path / "cache").looked.taken != {}
        assert work(tmp_path / "cache", offline=True).looked.taken != {}
        assert work(tmp_path / "cache", rebuild=True).looked == FoundBuilds()
        assert cached.find_builds(replace(work(tmp_path / "cache"), missing=[])) == FoundBuilds()
        with serving(tmp_path / "cache") as url:
            assert cached.find_builds(replace(work(tmp_path), caches=place.Caches(places=(url,), keys=()))).offers
            far = replace(work(tmp_path, offline=True), caches=place.Caches(places=(url,), keys=()))
            assert cached.find_builds(far) == FoundBuilds()

    def test_what_is_the_same_of_several_builds_is_said_once(self, tree: Tree, tmp_path: Path) -> None:
        [entry] = self.entries(tree, tmp_path / "cache")
        caches = Caches(places=(entry.place.named,), keys=(), unsigned=False)
        parts = [msgspec.structs.replace(entry.manifest.part, name=name) for name in ("A/1", "B/1", "C/1")]
        made = [replace(entry, manifest=msgspec.structs.replace(entry.manifest, part=part)) for part in parts]
        found = FoundBuilds.of([judged(one, [], caches) for one in made], Looking([]), caches)
        why = "it is not signed (--unsigned-cache takes it all the same)"
        [told] = found.untrusted
        assert told == f"A/1 of {entry.place.shown}, object {made[0].id[:12]}, and 2 other builds: {why}."
        [line] = lines(found)
        assert line == f"Cache:    not {made[0].id[:12]} of {entry.place.shown}, A/1 and 2 others: {why}"

    def test_one_that_is_not_taken_for_its_signature_is_said(
        self, work: Callable[..., Any], tree: Tree, tmp_path: Path
    ) -> None:
        """Whoever has mistyped the name of a key would wait for the whole build."""
        [entry] = self.entries(tree, tmp_path / "cache")
        one, said = work(tmp_path / "cache", unsigned=False), io.StringIO()
        assert cached.take(one, Console(file=said, width=400)) == []
        named, why = entry.id[:12], "it is not signed (--unsigned-cache takes it all the same)"
        assert said.getvalue() == f"{MODULE} of {tmp_path / 'cache'}, object {named}: {why}. It is left out.\n"
        assert [*lines(one.looked)] == [f"Cache:    not {named} of {tmp_path / 'cache'}, {MODULE}: {why}"]

    def test_what_is_not_signed(self, work: Callable[..., Any], tree: Tree, tmp_path: Path) -> None:
        self.entries(tree, tmp_path / "cache")
        one = work(tmp_path / "cache", unsigned=False)
        assert one.looked.taken == {}
        [line] = lines(one.looked)
        assert line.endswith("it is not signed (--unsigned-cache takes it all the same)")
        assert any("; not signed" in line for line in lines(work(tmp_path / "cache").looked))
