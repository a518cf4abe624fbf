"""A build of Horovod from one prefix into another, by a cache: a folder, and the same behind a server."""

import filecmp
import hashlib
import json
import marshal
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from envkit.binary import bytecode, compile_python
from envkit.easybuild.eb_command import as_root
from envkit.environments.prefix import Tree
from envkit.machine.host import Platform
from envkit.system.decompression import zstd
from envkit.system.files import discard

from ..checkout import ROOT, checkout
from ..conftest import LMOD
from ..people import open_folder, people
from ..stacks import BUILD_S, ENVKIT, Site
from .conftest import Handler
from .site import needs
from .test_debian_13 import PREFIX, Machine, bare

pytestmark = pytest.mark.integration

STACK = "pytorch-2.13-cpu"
MODULE, PYTORCH = "Horovod/0.28.1-gompi-system-PyTorch-2.13.0", "PyTorch/2.13.0"
TOOLS = ["CMake/system", "GCC/system", "OpenMPI/system", "Python/system", "gompi/system"]
SOON_S = 90  # a build takes minutes more
PACKAGES = (  # those of Debian 13 that the stack needs there, and those of another Python
    *("lmod", "g++", "make", "cmake", "patch", "libopenmpi-dev", "openmpi-bin", "git", "python3-venv"),
    *("libssl3", "libffi8", "libsqlite3-0", "libreadline8"),
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key and its public half."""
    needs("openssl")
    folder = tmp_path_factory.mktemp("keys")
    own, public = folder / "cache.pem", folder / "cache.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", own], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", own, "-pubout", "-out", public], check=True, capture_output=True)
    return own, public


@pytest.fixture(scope="module")
def passed(stacks: Site, installed: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where it is kept that the stack has passed, apart from what other tests have it fail by just now."""
    installed(STACK)
    state = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    done = stacks.envkit("verify", STACK, "-n", "2", env=state)
    assert done.returncode == 0, done.stdout + done.stderr
    return state


@pytest.fixture(scope="module")
def cache(
    stacks: Site, passed: dict[str, str], keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A cache that the stack has been pushed into."""
    folder = tmp_path_factory.mktemp("cache")
    words = ("cache", "push", STACK, "--to", str(folder), "--sign", str(keys[0]), "--json")
    done = stacks.envkit(*words, env=passed)
    assert done.returncode == 0, done.stderr
    told = [(one["module"], one["sent"], one["signed"]) for one in json.loads(done.stdout)["builds"]]
    assert told[:2] == [(MODULE, True, True), (PYTORCH, True, True)]
    assert sorted(told[2:]) == [(module, True, True) for module in TOOLS]
    return folder


@pytest.fixture
def served(cache: Path) -> Iterator[str]:
    """The same behind a server."""
    handler = partial(Handler, directory=str(cache))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def test_tensorflow_is_pushed_and_taken(
    stacks: Site, installed: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stack, folder = "tensorflow-2.21-cpu", tmp_path_factory.mktemp("tensorflow")
    installed(stack)
    state, cache, prefix = {"XDG_STATE_HOME": str(folder / "state")}, folder / "cache", folder / "prefix"
    cache.mkdir()
    verified = stacks.envkit("verify", stack, "-n", "2", env=state)
    assert verified.returncode == 0, verified.stdout
    pushed = stacks.envkit("cache", "push", stack, "--to", str(cache), "--unsigned", "--json", env=state)
    assert pushed.returncode == 0, pushed.stderr
    modules = {build["module"] for build in json.loads(pushed.stdout)["builds"]}
    assert modules >= {"TensorFlow/2.21.0", *TOOLS} and len(modules) == len(TOOLS) + 2
    taking = {**state, "ENVKIT_CACHE_FROM": str(cache)}
    done = stacks.envkit("install", stack, "--unsigned-cache", "--prefix", str(prefix), env=taking)
    assert done.returncode == 0 and f"\nPASS  {stack}: 2 ranks" in done.stdout, done.stdout + done.stderr
    assert f"Taken from {cache}: TensorFlow/2.21.0, " in done.stdout
    discard(prefix)


@pytest.mark.parametrize("module", [MODULE, PYTORCH, "Python/system"])
def test_python_is_compiled_as_it_is_built(stacks: Site, installed: Callable[[str], str], module: str) -> None:
    """So that a push compiles nothing: it names its sources without the prefix, and Python takes it."""
    installed(STACK)
    root = Path(stacks.prefix) / str(Platform.own())
    sources = compile_python.sources(str(root), module)
    compiled = {name: root / place for name in sources if (place := compile_python.compiled_name(name))}
    there = {name: path.read_bytes() for name, path in compiled.items() if path.exists()}
    assert len(there) > 20 and len(there) > len(sources) * 0.99
    assert all(bytecode.is_taken(compiled[name], content) for name, content in there.items())
    names = {name: marshal.loads(content[bytecode.HEADER :]).co_filename for name, content in there.items()}
    assert {name: told for name, told in names.items() if name != told} == {}


def test_a_second_push_sends_nothing(
    stacks: Site, passed: dict[str, str], cache: Path, keys: tuple[Path, Path]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    done = stacks.envkit("cache", "push", STACK, "--to", str(cache), "--sign", str(keys[0]), env=passed)
    assert done.returncode == 0
    said = [line for line in done.stdout.splitlines() if line.startswith("There already: ")]
    assert said == [f"There already: {module} in {cache}" for module in (MODULE, PYTORCH)]
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == before


def test_nothing_of_the_prefix_and_of_who_built_is_in_an_object(stacks: Site, cache: Path) -> None:
    sizes = dict[str, int]()
    for packed in (cache / "objects").iterdir():
        text = zstd.decompress(packed.read_bytes())
        assert os.fsencode(stacks.prefix) not in text
        assert b"easybuild-devel\0" not in text
        first = os.fsdecode(text[: text.index(b"\0")])  # its module file
        sizes[first.removeprefix("modules/all/").removesuffix(".lua")] = packed.stat().st_size
    assert sizes.keys() == {*TOOLS, MODULE, PYTORCH}
    assert sizes[MODULE] < 4_000_000
    assert sizes[PYTORCH] < 50_000_000  # of some 1,000 MB: the rest is in its wheels
    assert sum(sizes[module] for module in TOOLS) < 4_000_000


@dataclass(frozen=True, kw_only=True)
class Another:
    """A prefix that has the stack from the cache; ``said`` is what its installation printed."""

    site: Site
    tree: Tree
    said: str


def taking(place: str, keys: tuple[Path, Path]) -> dict[str, str]:
    """Return the settings that have builds taken from some caches."""
    return {"ENVKIT_CACHE_FROM": place, "ENVKIT_CACHE_KEYS": str(keys[1])}


@pytest.fixture(scope="module")
def another(stacks: Site, cache: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Another:
    """Install the stack into another prefix, without Horovod's source."""
    site = Site(tmp_path_factory.mktemp("another") / "prefix")
    sources = site.prefix / "sources"
    shutil.copytree(stacks.prefix / "sources", sources, copy_function=os.link)
    for path in (sources / "horovod-0.28.1.tar.gz", sources / ".verified.json"):
        path.unlink(missing_ok=True)
    plan = json.loads(site.envkit("install", STACK, "--dry-run", "--json", env=taking(str(cache), keys)).stdout)
    assert all(one["taken"] and not one["why_not"] for one in plan["cached"])
    assert sorted(one["step"] for one in plan["cached"]) == sorted([*TOOLS, MODULE, PYTORCH])
    unknown = site.envkit("install", STACK, "--dry-run", env={"ENVKIT_CACHE_FROM": str(cache)}).stdout
    assert "you have no keys to check its signature by" in unknown
    assert "7 of 7 modules to build;" in unknown
    done = site.envkit("install", STACK, "--offline", env=taking(str(cache), keys), timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    [tree] = stacks.prefix.glob("*-py3.*")
    return Another(site=site, tree=Tree(root=site.prefix / tree.name), said=done.stdout)


def test_another_prefix_has_it_without_building(tmp_path: Path, another: Another, stacks: Site, cache: Path) -> None:
    site, tree = another.site, another.tree
    assert "Building" not in another.said and "eb.log" not in another.said
    [tools] = [line for line in another.said.splitlines() if f"Taken from {cache}, where the same tools were:" in line]
    assert all(module in tools for module in TOOLS)
    for module in (MODULE, PYTORCH, *TOOLS):
        assert module in TOOLS or f"Taken from {cache}: {module}" in another.said
        places = tree.software / module, tree.modulepath / module.partition("/")[0]
        mentioning = subprocess.run(
            ["grep", "-rlF", "--", f"{stacks.prefix}/", *places], capture_output=True, text=True
        )
        assert mentioning.stdout == ""
    assert f"PASS  {STACK}: 2 ranks in one world" in another.said
    (tmp_path / "nothing").mkdir()
    hidden = {stacks.prefix: tmp_path / "nothing"}  # where it was built is out of sight
    verdict = json.loads(site.envkit("verify", STACK, "--json", instead=hidden).stdout)
    assert verdict["verdict"] == "pass"
    assert verdict["origin"].startswith(f"{MODULE} from the cache {cache}, object ")
    assert f"; {PYTORCH} from the cache {cache}, object " in verdict["origin"]
    assert "from the cache" in site.envkit("show", STACK).stdout
    assert json.loads(site.envkit("show", STACK, "--json").stdout)["modules"][-1]["cached"]["place"] == str(cache)
    assert f"from the cache {cache}" in site.envkit("show", STACK, "--sbom").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.xdist_group("users")
def test_another_user_takes_it(stacks: Site, passed: dict[str, str], keys: tuple[Path, Path]) -> None:
    """One user builds and pushes, another installs into a prefix of their own, and nothing is compiled."""
    with people("ada") as persons, open_folder() as folder:
        ada, place = persons["ada"], folder / "cache"
        place.mkdir()
        words = ("cache", "push", STACK, "--to", str(place), "--sign", str(keys[0]))
        assert stacks.envkit(*words, env=passed).returncode == 0
        subprocess.run(["chmod", "-R", "a+rX", place], check=True)  # whatever root's umask is
        shutil.copy(keys[1], folder / "cache.pub")
        prefix = ada.home / "prefix"
        shutil.copytree(stacks.prefix / "sources", prefix / "sources")
        for path in ("horovod-0.28.1.tar.gz", ".verified.json"):
            (prefix / "sources" / path).unlink(missing_ok=True)
        ada.owns(prefix)
        settings: dict[str, Any] = {
            "ENVKIT_PREFIX": prefix, "ENVKIT_CACHE_FROM": place, "ENVKIT_CACHE_KEYS": folder / "cache.pub",
            "LMOD_CMD": LMOD,
        }  # fmt: skip
        place.chmod(0o700)
        private = ada.envkit("install", STACK, "--offline", "--dry-run", **settings)
        said = f"The cache {place} cannot be used. {place}/manifests cannot be read: Permission denied."
        assert said in private.stdout, private.stdout
        place.chmod(0o755)
        done = ada.envkit("install", STACK, "--offline", limit_s=BUILD_S, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Taken from {place}: {MODULE}" in done.stdout and f"] {MODULE}" not in done.stdout
        assert f"PASS  {STACK}: 2 ranks in one world" in done.stdout
        report = json.loads(ada.envkit("verify", STACK, "--json", **settings).stdout)
        assert report["verdict"] == "pass"
        assert report["origin"].startswith(f"{MODULE} from the cache {place}, object ")
        owners = {path.lstat().st_uid for path in (prefix, *prefix.rglob("*"))}
        assert owners == {ada.uid}


def test_what_is_from_wheels_is_as_pip_made_it(another: Another, stacks: Site) -> None:
    """The same files, but for what has the prefix in it, and all that pip has compiled, which Python takes."""
    [tree] = stacks.prefix.glob("*-py3.*")
    own, new = (each / "software" / PYTORCH for each in (tree, another.tree.root))

    def files(top: Path) -> dict[str, tuple[int, bool]]:
        paths = [path for path in top.rglob("*") if path.is_file() and f"{top}/easybuild/" not in str(path)]
        return {str(path.relative_to(top)): (path.stat().st_size, os.access(path, os.X_OK)) for path in paths}

    before, after = files(own), files(new)
    assert before.keys() == after.keys()
    differing = [name for name in before if before[name] != after[name]]
    assert all(name.endswith((".pyc", "RECORD", "direct_url.json")) for name in differing)
    compiled = [name for name in after if name.endswith(".pyc")]
    assert len(compiled) > 4000
    stale = [name for name in compiled if not bytecode.is_taken(new / name, (new / name).read_bytes()[:16])]
    assert stale == []
    [one], [two] = own.rglob("libtorch_cpu.so"), new.rglob("libtorch_cpu.so")
    assert filecmp.cmp(one, two, shallow=False)


@pytest.mark.parametrize("module", TOOLS)
def test_what_stands_for_a_tool_is_as_eb_made_it(module: str, another: Another, stacks: Site) -> None:
    """All but what eb notes of the build, and what it wrote into the Python by compiling."""
    [tree] = stacks.prefix.glob("*-py3.*")

    def contents(root: Path) -> dict[str, str]:
        found = dict[str, str]()
        for top in (root / "software" / module, root / f"modules/all/{module}.lua"):
            for path in (top, *top.rglob("*")):
                name = str(path.relative_to(root))
                if path.is_symlink():
                    found[name] = str(path.readlink())
                elif path.is_file() and not name.endswith((".pyc", "RECORD")) and "/easybuild/" not in name:
                    text = path.read_bytes().replace(os.fsencode(stacks.prefix), os.fsencode(another.site.prefix))
                    found[name] = hashlib.sha256(text).hexdigest()
        return found

    assert contents(another.tree.root) == contents(tree)


@pytest.mark.parametrize("module", [MODULE, PYTORCH, *TOOLS])
def test_eb_sees_it_as_installed(module: str, tmp_path: Path, another: Another) -> None:
    [recipe] = (another.tree.software / module / "easybuild").glob("*.eb")
    told = subprocess.run(
        ["eb", f"--installpath={another.tree.root}", "--modules-tool=Lmod", "--module-syntax=Lua", recipe],
        env={**os.environ, **as_root(), "LMOD_CMD": str(LMOD), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert f"{module} is already installed (module found), skipping" in " ".join(told.stdout.split()), told.stdout


def test_what_was_taken_is_not_pushed_on(another: Another, cache: Path) -> None:
    refused = another.site.envkit("cache", "push", STACK, "--to", str(cache), "--unsigned")
    assert refused.returncode == 3
    assert f"{PYTORCH} was taken from the cache" in refused.stderr


def test_by_a_server_in_seconds_where_what_it_stands_on_is_there(
    tmp_path: Path, another: Another, served: str, keys: tuple[Path, Path]
) -> None:
    assert another.site.envkit("remove", STACK).returncode == 0
    began = time.monotonic()
    again = another.site.envkit("install", STACK, env=taking(f"{tmp_path}/none,{served}", keys))
    took = time.monotonic() - began
    assert again.returncode == 0, again.stdout + again.stderr
    assert "There is no such folder. It is left out." in again.stdout
    assert f"Taken from {served}: {MODULE}" in again.stdout
    assert took < SOON_S
    assert another.site.envkit("repair", STACK, "--dry-run").returncode == 0


def test_what_has_not_passed_or_was_changed_is_not_pushed(
    tmp_path: Path, stacks: Site, installed: Callable[[str], str]
) -> None:
    installed(STACK)
    state = {"XDG_STATE_HOME": str(tmp_path)}  # where no verdict is kept
    refused = stacks.envkit("cache", "push", STACK, "--to", str(tmp_path), "--unsigned", env=state)
    assert refused.returncode == 1
    assert "only what has passed is shared" in refused.stderr
    assert stacks.envkit("cache", "push", STACK, "--to", str(tmp_path)).returncode == 2
    [module] = stacks.prefix.glob(f"*/modules/all/{MODULE}*")
    changed = tmp_path / module.name
    changed.write_text(module.read_text() + "\n-- another line\n")
    own = {"XDG_STATE_HOME": str(tmp_path / "state")}  # tests beside this one have verdicts of their own
    assert stacks.envkit("verify", STACK, "--quick", env=own).returncode == 0
    words = ("cache", "push", STACK, "--to", str(tmp_path), "--unsigned")
    damaged = stacks.envkit(*words, instead={module: changed}, env=own)
    assert damaged.returncode == 6
    assert str(module) in damaged.stderr
    assert not list(tmp_path.glob("objects/*"))


@pytest.fixture
def debian_13(tmp_path: Path, stacks: Site, cache: Path, keys: tuple[Path, Path]) -> Iterator[Machine]:
    """A Debian 13 with its own compiler and Open MPI, which sees the cache and this machine's envkit and Python."""
    with bare(tmp_path) as machine:
        machine.shown += [ROOT, *map(Path, {sys.prefix, sys.base_prefix}), cache]
        machine.env |= {"LMOD_CMD": "/usr/share/lmod/lmod/libexec/lmod", "PYTHONDONTWRITEBYTECODE": "1"}
        for name, value in taking(str(cache), keys).items():
            machine.env[name] = value.replace(str(keys[1]), "/root/cache.pub")
        machine.put("/root/cache.pub", keys[1].read_text())
        sources = machine.root / PREFIX / "sources"
        shutil.copytree(stacks.prefix / "sources", sources)
        for name in ("horovod-0.28.1.tar.gz", ".verified.json"):
            (sources / name).unlink(missing_ok=True)
        machine.said("apt-get", "-q", "update")
        machine.said("apt-get", "-qy", "--no-install-recommends", "install", *PACKAGES)
        yield machine


@pytest.mark.all
@checkout
def test_debian_13_takes_what_another_distribution_has_built(debian_13: Machine, cache: Path) -> None:
    """With the same Python, where glibc, libstdc++ and Open MPI are newer; another Python refuses, and says why."""
    done = debian_13.run(str(ENVKIT), "install", STACK, "--offline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Taken from {cache}: {MODULE}" in done.stdout and f"] {MODULE}" not in done.stdout
    assert f"PASS  {STACK}: 2 ranks in one world" in done.stdout
    shown = json.loads(debian_13.said(str(ENVKIT), "show", STACK, "--json"))
    assert shown["mpi"]["version"].startswith("5.0.")
    assert shown["modules"][-1]["cached"]["place"] == str(cache)
    debian_13.said("scripts/prepare.sh")
    plan = json.loads(debian_13.run(".venv/bin/envkit", "install", STACK, "--dry-run", "--json").stdout)
    told = [(one["step"], one["taken"], one["why_not"]) for one in plan["cached"] if one["step"] not in TOOLS]
    another, pinned = "it is for Python 3.11, and here it is 3.13", "it takes wheels that its recipe does not"
    assert told == [(PYTORCH, False, [another, pinned]), (MODULE, False, [another])]
