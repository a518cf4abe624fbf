"""What several tests need: programs that stand in for real ones, a machine, an installed environment."""

import gc
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filelock import FileLock

from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import BuiltLayer, Module, Mpi
from envkit.machine.host import Accelerator, Host, Interpreter, Platform, Program
from envkit.machine.modules_tool import ModulesTool
from envkit.system.files import sha256

from .integration.site import needs
from .scheduling import ByFunction
from .selection import Selection
from .stacks import Site, begin, own_folder, unverify

Fake = Callable[..., Path]
MEMORY = Path("/dev/shm")
LMOD = Path("/usr/share/lmod/lmod/libexec/lmod")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all and --record."""
    parser.addoption("--all", action="store_true", help="build and verify everything anew, also what has not changed")
    parser.addoption("--record", action="store_true", help="keep in passed.toml which subjects passed (subjects.py)")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFunction:
    """Say which tests follow each other on one worker."""
    return ByFunction(config, log)


FOLDER = pytest.StashKey[FileLock]()


def pytest_configure(config: pytest.Config) -> None:
    """Have programs that the tests start find those of this virtual environment, and heed every signal.

    The stacks have a folder that no other session on this machine uses at the same time, for all workers of this one.
    """
    if not hasattr(config, "workerinput"):
        if "not integration" in config.getoption("markexpr") and has_room_in_memory():
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
        folder, config.stash[FOLDER] = own_folder(os.environ.get("ENVKIT_TEST_PREFIX"))
        os.environ["ENVKIT_TEST_FOLDER"] = str(folder)
    config.pluginmanager.register(Selection(config))
    beside = str(Path(sys.executable).parent)
    if beside not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((beside, os.environ["PATH"]))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # pytest, in the background, still ignores it: this is not inherited


def has_room_in_memory() -> bool:
    """Say whether the small files of unit tests, some of them programs, can lie in memory, which takes less time."""
    try:
        at = os.statvfs(MEMORY)
    except OSError:
        return False
    is_of_programs = not at.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return is_of_programs and at.f_bavail * at.f_frsize > 2**30 and os.access(MEMORY, os.W_OK)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say before the tests begin which of them this machine lacks something for."""
    from .integration.site import TOOLS, missing_tool

    wanted = () if "not integration" in config.getoption("markexpr") else TOOLS
    closed = [str(place) for place in Path(__file__).parents if not place.stat().st_mode & 0o001]
    missing = [f"{place} cannot be read by other users, which some tests become" for place in closed[-1:]]
    return [f"lacking here: {reason}" for reason in (*map(missing_tool, wanted), *missing) if reason]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration a test that is skipped has failed: everything it needs must be installed."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def needs_of(item: pytest.Item) -> str:
    """What of the stacks a test needs: nothing, PyTorch, an image, TensorFlow."""
    names = set(getattr(item, "fixturenames", ()))
    if not names & {"installed", "image", "env"}:
        return ""
    if "image" in names or "image" in item.nodeid.partition("[")[2]:
        return "image"
    return "tensorflow" if "tensorflow" in item.nodeid.partition("[")[2] else "pytorch"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What builds a stack comes first, each on a worker of its own; what needs a stack comes when it may be there."""
    if not config.getoption("all"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("all")])
        items[:] = [item for item in items if not item.get_closest_marker("all")]
    order = ["", "pytorch", "tensorflow", "image"]

    def place(item: pytest.Item) -> tuple[bool, int, bool, bool]:
        mark = item.get_closest_marker("builds")
        is_first = mark is not None and not mark.kwargs
        is_unit = item.get_closest_marker("integration") is None
        return not is_first, order.index(needs_of(item)), mark is None, is_unit

    items.sort(key=place)
    after = [item for item in items if (mark := item.get_closest_marker("builds")) and mark.kwargs]
    rest = [item for item in items if item not in after]
    soon = 60  # by then what they stand on is built, and they are not what all wait for at the end
    items[:] = [*rest[:soon], *after, *rest[soon:]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to begin where tests of one group would not follow each other: pytest-xdist marks them in their ids.

    What was collected stays to the end: Python need not look again and again whether it is garbage.
    """
    gc.freeze()
    loose = [item for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
    if loose and hasattr(session.config, "workerinput"):
        raise pytest.UsageError(
            f"pytest {pytest.__version__} and its pytest-xdist do not keep groups of tests together"
        )


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """The folder of a test, without pytest's link to it: each next test would look at those of all before."""
    yield tmp_path
    tmp_path.with_name(f"{tmp_path.name[:-1]}current").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a session share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def stacks(shared: Path, pytestconfig: pytest.Config) -> Site:
    """One prefix for the whole session, so that each stack is built once.

    In $ENVKIT_TEST_PREFIX all that was built is kept for the next run, but not that it was verified.
    """
    named = os.environ.get("ENVKIT_TEST_PREFIX")
    prefix = Path(named).absolute() if named else Path(os.environ["ENVKIT_TEST_FOLDER"], "prefix")
    with FileLock(shared / "stacks.lock"):
        if not (shared / "stacks").exists():
            if named:
                unverify(prefix)
            elif pytestconfig.getoption("all"):
                shutil.rmtree(prefix, ignore_errors=True)
            if not named:
                begin(prefix)
            (shared / "stacks").touch()
    return Site(prefix)


@pytest.fixture(scope="session")
def installed(stacks: Site, shared: Path) -> Callable[[str], str]:
    """Install a stack on first use by any worker; return what the installation printed."""

    def install(stack: str) -> str:
        said = shared / f"{stack}.said"
        with FileLock(shared / f"{stack}.lock"):
            if not said.exists():
                said.write_text(stacks.install(stack))
        return said.read_text()

    return install


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Make a program: a shell script of that body in a folder of programs; return its path."""

    def make(name: str, body: str = "", folder: str = "bin") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def lmod() -> ModulesTool:
    """The real Lmod."""
    if not LMOD.is_file():
        pytest.skip("Lmod is missing")
    return ModulesTool(kind="Lmod", command=LMOD)


@pytest.fixture(scope="session")
def environment_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment Modules' modulecmd.tcl, unpacked from its Debian package where it is not installed."""
    needs("tclsh")
    usual = Path("/usr/lib/x86_64-linux-gnu/modulecmd.tcl")
    if usual.is_file():
        return usual
    needs("apt-get", "dpkg-deb")
    folder = tmp_path_factory.mktemp("environment-modules")
    got = subprocess.run(["apt-get", "download", "environment-modules"], cwd=folder, capture_output=True, text=True)
    if got.returncode:
        needs("modulecmd")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return next(folder.rglob("modulecmd.tcl"))


@pytest.fixture
def machine() -> Callable[..., Host]:
    """Make a machine that has all that is needed, but for what is given."""

    def make(**changes: Any) -> Host:
        given: dict[str, Any] = {
            "machine": "x86_64",
            "python": Interpreter(path=Path(sys.base_prefix, "bin/python3"), version="3.11.7", headers=True),
            "modules_tool": ModulesTool(kind="Lmod", command=LMOD),
            "compiler": Program(path=Path("/usr/bin/g++"), version="12.2.0"),
            "mpi": Program(path=Path("/usr/bin/mpirun"), version="4.1.4", family="Open MPI"),
            "cmake": Program(path=Path("/usr/bin/cmake"), version="3.25.1"),
            "accelerator": Accelerator.CPU,
            "load": (),
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        }
        return Host(**{**given, **changes})

    return make


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    """A prefix with nothing in it."""
    made = Prefix(root=tmp_path / "prefix")
    made.create()
    return made


@pytest.fixture
def install(prefix: Prefix) -> Callable[..., ModuleReceipt]:
    """Put an environment into the prefix: its receipt, and a file for each of its modules."""

    def make(
        name: str = "toy-cpu", *modules: str, python: str = platform.python_version(), **changes: Any
    ) -> ModuleReceipt:
        modules = modules or ("Python/system", "Toy/1.0")
        minor = python.rpartition(".")[0]
        tree = prefix.tree(Platform(machine=os.uname().machine, python=minor))
        for module in modules:
            for folder in ("all", "tools"):
                path = tree.root / "modules" / folder / f"{module}.lua"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            (tree.software / module).mkdir(parents=True, exist_ok=True)
            (tree.software / module / "file").touch()
        given: dict[str, Any] = {
            "name": name,
            "framework": "pytorch",
            "accelerator": "cpu",
            "requires": ("mpi",),
            "machine": os.uname().machine,
            "python": python,
            "tree": str(tree.root),
            "module": modules[-1],
            "modules": tuple(Module(name=m, easyconfig=f"/r/{m}.eb", sha256="0" * 64) for m in modules),
            "modules_tool": "Lmod",
            "modules_command": str(LMOD),
            "load": (),
            "mpi": Mpi(family="Open MPI", version="4.1.4"),
            "horovod": "",
            "site_packages": (),
            "library_path": (),
            "verified": "2026-01-02",
            "log": "/logs/toy",
            "created": "2026-01-02T03:04:05+00:00",
            "envkit": "0.1.0",
            "easybuild": "5.4.0",
        }
        made = ModuleReceipt(**{**given, **changes})
        receipt.write(receipt.path_of(tree, name), made)
        return made

    return make


@pytest.fixture
def install_image(prefix: Prefix) -> Callable[..., ImageReceipt]:
    """Put an image into the prefix: its receipt, its file, and a file for each of its layers (NAME=KEY)."""

    def make(name: str = "toy-image", **layers: str) -> ImageReceipt:
        tree = prefix.tree(Platform.own())
        image = tree.images / f"{name}.sif"
        digest = hashlib.sha256(name.encode()).hexdigest()
        made = tuple(
            BuiltLayer(name=layer.replace("_", "-"), key=key.ljust(64, "0"), sha256=digest if layer != "image" else "")
            for layer, key in layers.items()
        )
        for path in (image, *(tree.layers / f"{layer.name}-{layer.key[:20]}.sif" for layer in made)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        state = image.stat()
        found = ImageReceipt(
            name=name,
            framework="pytorch",
            accelerator="cpu",
            requires=("mpi",),
            machine=os.uname().machine,
            python="3.11.2",
            tree=str(tree.root),
            mpi=Mpi(family="Open MPI", version="4.1.4"),
            horovod="/h",
            site_packages=(),
            library_path=(),
            verified="2026-01-02",
            log="/logs/toy",
            created="2026-01-02T03:04:05+00:00",
            envkit="0.1.0",
            image=str(image),
            sha256=sha256(image),
            size=state.st_size,
            changed=state.st_mtime_ns,
            runtime="/bin/apptainer",
            interpreter="python",
            source="cpu.def",
            layers=made,
            built=msgspec.Raw(b"null"),
            pmix="4.2.2",
            libc="2.36",
            apptainer="1.4.5",
        )
        receipt.write(receipt.path_of(tree, name), found)
        return found

    return make
