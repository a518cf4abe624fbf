"""Python files that stand before the environment's own, and what Python is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .kinds import Do, Kind, World

RAISING = "raise RuntimeError('the licence server of the site does not answer')\n"
PRINTING = "print('Welcome to the cluster. Quota: 93 %')\n"
STUBS = {
    "torch-empty": ("torch.py", "", "torch", "pytorch"),
    "torch-old": ("torch/__init__.py", "__version__ = '1.4.0'\n", "torch", "pytorch"),
    "horovod-empty": ("horovod/__init__.py", "__version__ = '0.19.0'\n", "horovod", ""),
    "horovod-torch": ("horovod/torch/__init__.py", "def init(): pass\n", "horovod", "pytorch"),
    "numpy-empty": ("numpy/__init__.py", "__version__ = '1.11.0'\n", "numpy", ""),
    "numpy-raising": ("numpy.py", "raise ImportError('numpy is not for this Python')\n", "numpy", ""),
    "yaml-empty": ("yaml.py", "", "yaml", ""),
    "psutil-raising": ("psutil.py", "raise ImportError('psutil: wrong architecture')\n", "psutil", ""),
    "cloudpickle-empty": ("cloudpickle/__init__.py", "", "cloudpickle", ""),
    "typing-extensions-empty": ("typing_extensions.py", "", "typing_extensions", "pytorch"),
    "packaging-empty": ("packaging/__init__.py", "", "packaging", ""),
    "six-raising": ("six.py", "raise ImportError('no six here')\n", "six", "tensorflow"),
    "google-protobuf-empty": ("google/protobuf/__init__.py", "__version__ = '2.6'\n", "google|protobuf", "tensorflow"),
}
STANDARD = {
    "random": "def seed(): pass\n",
    "logging": "def log(): pass\n",
    "socket": "print('my own socket tests')\n",
    "json": "def load(): pass\n",
    "types": "kinds = []\n",
    "queue": "jobs = []\n",
    "select": "chosen = None\n",
    "signal": "x = 1\n",
    "tempfile": "x = 1\n",
    "copy": "x = 1\n",
}


def stub(file: str, text: str, where: str) -> Do:
    """Put a file where Python looks first."""

    def do(world: World) -> None:
        folder = world.cwd if where == "cwd" else world.folder / "mine"
        world.write(folder / file, text)
        if where == "PYTHONPATH":
            world.python_path(folder)
        elif where == "cwd":
            world.env["PYTHONPATH"] = ""

    return do


def site(file: str, text: str) -> Do:
    """Put a file into the environment's own site-packages."""

    def do(world: World) -> None:
        world.write(world.site("Python") / file, text)

    return do


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Stubs on PYTHONPATH, customisations that raise or print."""
    for name, (file, text, package, framework) in STUBS.items():
        yield Kind(
            name=f"shadows/PYTHONPATH/{name}",
            group="Python shadowing",
            did=f"PYTHONPATH has a folder 'mine' with {file}: {text!r}",
            do=stub(file, text, "PYTHONPATH"),
            true=rf"PYTHONPATH|mine/({package})",
            stacks=(framework,) if framework else ("pytorch", "tensorflow"),
        )
    for name, text in STANDARD.items():
        yield Kind(
            name=f"shadows/PYTHONPATH/standard-{name}",
            group="Python shadowing",
            did=f"PYTHONPATH has a folder 'mine' with {name}.py: {text!r}, in place of the standard library's",
            do=stub(f"{name}.py", text, "PYTHONPATH"),
            true=rf"PYTHONPATH|mine/{name}\.py",
        )
    for name, file, text in (
        (
            "sitecustomize-raises",
            "sitecustomize.py",
            "import sys\nif 'probe' in ' '.join(sys.orig_argv):\n    sys.exit(7)\n",
        ),
        ("sitecustomize-exits", "sitecustomize.py", "import os\nos._exit(9)\n"),
        ("sitecustomize-kills-import", "sitecustomize.py", "import sys\nsys.modules['ctypes'] = None\n"),
        ("sitecustomize-no-fork", "sitecustomize.py", "import os\ndel os.fork\n"),
    ):
        yield Kind(
            name=f"shadows/PYTHONPATH/{name}",
            group="Python shadowing",
            did=f"PYTHONPATH has a folder 'mine' with {file}: {text!r}",
            do=stub(file, text, "PYTHONPATH"),
            true=r"PYTHONPATH|mine/sitecustomize",
        )
    for name, file, text in (
        ("pth-exits", "zz-site.pth", "import sys; 'probe' in ' '.join(sys.orig_argv) and sys.exit('no licence')\n"),
        (
            "pth-hides-torch",
            "zz-site.pth",
            "import sys; sys.modules['torch'] = None; sys.modules['tensorflow'] = None\n",
        ),
        ("site-packages-numpy", "numpy.py", "raise ImportError('old numpy')\n"),
        ("site-packages-horovod", "horovod.py", "raise ImportError('old horovod')\n"),
    ):
        if name in ("site-packages-numpy", "site-packages-horovod"):
            continue  # the folder is searched after those of the framework and of Horovod
        yield Kind(
            name=f"shadows/site-packages/{name}",
            group="Python shadowing",
            did=f"{file} added to the site-packages of the environment's Python module: {text!r}",
            do=site(file, text),
            true=r"zz-site\.pth|Python/system\b[^\n]*(chang|added|damage)|(chang|added|damage)[^\n]*Python/system",
        )
    yield from oddities()


def oddities() -> Iterator[Kind]:
    """What looks odd and breaks nothing."""
    for name, where, file, text in (
        ("cwd-torch", "cwd", "torch.py", "raise ImportError\n"),
        ("cwd-horovod", "cwd", "horovod/__init__.py", ""),
        ("cwd-numpy", "cwd", "numpy.py", "raise ImportError\n"),
        ("cwd-random", "cwd", "random.py", "raise ImportError\n"),
        ("cwd-sitecustomize", "cwd", "sitecustomize.py", RAISING),
        ("cwd-envkit", "cwd", "envkit/__init__.py", RAISING),
        ("pythonpath-other", "PYTHONPATH", "toolbox.py", RAISING),
        ("pythonpath-usercustomize", "PYTHONPATH", "usercustomize.py", PRINTING),
        ("sitecustomize-prints", "PYTHONPATH", "sitecustomize.py", PRINTING),
        ("pythonpath-click", "PYTHONPATH", "click.py", "__version__ = '3.0'\n"),
        ("pythonpath-msgspec", "PYTHONPATH", "msgspec/__init__.py", "__version__ = '0.1'\n"),
        ("pythonpath-envkit", "PYTHONPATH", "envkit/__init__.py", RAISING),
        ("sitecustomize-raises", "PYTHONPATH", "sitecustomize.py", RAISING),
    ):
        yield Kind(
            name=f"harmless/{name}",
            group="harmless",
            did=f"{where} has {file}: {text!r}",
            do=stub(file, text, where),
        )
    yield Kind(
        name="harmless/base-sitecustomize-prints",
        group="harmless",
        did="the host's Python has a sitecustomize that prints a greeting in each rank",
        do=lambda world: world.in_ranks(PRINTING),
    )
    yield Kind(
        name="harmless/pythonpath-gone",
        group="harmless",
        did="PYTHONPATH names a folder that is not there, and an empty part",
        do=lambda world: world.env.update(PYTHONPATH="/nonexistent::"),
    )
