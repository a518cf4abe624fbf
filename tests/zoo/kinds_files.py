"""Files of the environment's modules that are not as they were: by class of file, module and kind of damage."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .kinds import Kind, World

DAMAGED = "damage|chang|gone|missing|delet|empty|trunca|corrupt|invalid|unread|permission|cannot|no such|differ|broken"
Damage = Callable[[World, Path, Path], None]
UNREADABLE = "setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-dac_override,-dac_read_search"


def deleted(world: World, path: Path, other: Path) -> None:
    path.unlink()


def emptied(world: World, path: Path, other: Path) -> None:
    path.write_bytes(b"")


def truncated(world: World, path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 5)


def flipped(world: World, path: Path, other: Path) -> None:
    """One byte, with size and time as they were."""
    status, content = path.stat(), bytearray(path.read_bytes())
    if content[:4] == b"\x7fELF":
        place, bits = 18, 0x40  # which machine it is for
    elif path.suffix == ".pyc":
        place, bits = 16, 0x40  # what the first object is
    else:
        place, bits = content.find(b"\n", len(content) // 2) + 1, 0x80
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            cached.unlink()
    content[place] ^= bits
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(world: World, path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def unreadable(world: World, path: Path, other: Path) -> None:
    path.chmod(0)
    world.shell = UNREADABLE.split()


def dangling(world: World, path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/elsewhere/" + path.name)


DAMAGES: dict[str, Damage] = {
    one.__name__: one for one in (deleted, emptied, truncated, flipped, replaced, unreadable, dangling)
}
SOFTWARE = ("Horovod", "PyTorch", "TensorFlow", "Python")


def software_of(path: str) -> str:
    """The software that a file belongs to."""
    return next((name for name in SOFTWARE if f"/software/{name}/" in path), "")


def names_of(path: str) -> str:
    """What a cause may call a file: its path's end, what Python calls it; or its module, as damaged."""
    short = path.partition("/site-packages/")[2] or path.partition("/modules/all/")[2] or Path(path).name
    end = short if Path(path).name in ("__init__.py", "system.lua") else Path(short).name
    says = [re.escape(end)]
    source = re.sub(r"__pycache__/(\w+)\.cpython-\d+\.pyc$", r"\1.py", short)
    if source != short:
        says.append(re.escape(source if source.endswith("__init__.py") else Path(source).name))
    if source.endswith(".py"):
        dotted = source.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        says.append(rf"(?<![\w.]){re.escape(dotted)}(?![\w.])")
    software = path.partition("/software/")[2] or path.partition("/modules/all/")[2].removesuffix(".lua")
    module = re.escape("/".join(software.split("/")[:2]))
    says += [rf"{module}\b[^\n]*({DAMAGED})", rf"({DAMAGED})[^\n]*{module}\b"]
    return "|".join(says)


def one(path: str, other: str, label: str, how: str) -> Kind:
    """A kind for one file."""

    def do(world: World) -> None:
        DAMAGES[how](world, Path(path), Path(other))

    software = software_of(path) or "module"
    short = path.partition("/site-packages/")[2] or path.partition("/modules/all/")[2] or Path(path).name
    return Kind(
        name=f"files/{software}/{label}/{short}/{how}",
        group=f"files: {label}",
        did=f"{path}: {how}" + (f" by {other}" if how == "replaced" else ""),
        do=do,
        true=names_of(path),
    )


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Files by class, chosen by seed among those that are used."""
    dice = random.Random(seed)
    own = [path for path in used if "/software/" in path and software_of(path)]
    tree = Path(own[0].partition("/software/")[0])
    yield from module_files(tree, own)
    for software in SOFTWARE:
        ours = [path for path in own if software_of(path) == software]
        if not ours or software == "Python":
            continue
        python = sorted(path for path in ours if path.endswith(".py") and Path(path).stat().st_size > 2000)
        central = [path for path in python if is_central(path)]
        compiled = sorted(path for path in ours if re.search(r"\.so(\.\d+)*$", path))
        cached = sorted(path for path in ours if path.endswith(".pyc") and is_central(path) and Path(path).exists())
        for how in DAMAGES:
            if how == "emptied":
                continue
            path, other = dice.sample(central, 2)
            yield one(path, other, "Python file", how)
        for how in DAMAGES:
            path, other = dice.choice(compiled), dice.choice(compiled)
            while other == path:
                other = dice.choice(sorted(path for path in own if path.endswith(".so")))
            yield one(path, other, "compiled library", how)
        path = dice.choice(cached)
        yield one(path, "", "cached bytecode", "flipped")
        path = dice.choice(cached)
        yield one(path, "", "cached bytecode", "truncated")
    extension = next(path for path in own if "/mpi_lib" in path and path.endswith(".so"))
    for how in ("deleted", "emptied", "truncated", "flipped", "dangling"):
        yield one(extension, "", "the extension", how)
    for path, how in ((extension, "deleted"), (central_of(own, "torch", "tensorflow"), "truncated")):
        kind = one(path, "", "a layer of a container", how)
        yield replace(kind, did=f"{kind.did}; the prefix is in a lower layer: no folder can be renamed", renames=False)
    yield from odd(tree)


def central_of(own: Sequence[str], *packages: str) -> str:
    """A central source of one of these packages."""
    return next(
        path for path in sorted(own) if is_central(path) and path.partition("/site-packages/")[2].startswith(packages)
    )


def is_central(path: str) -> bool:
    """Whether a module's source is one that an import cannot do without."""
    short = path.partition("/site-packages/")[2]
    return bool(
        re.fullmatch(
            r"horovod/(torch|tensorflow|common)/(__init__|mpi_ops|util|basics|functions|exceptions|process_sets)\.py"
            r"|torch/(_tensor|functional|serialization|storage|random|_utils|_jit_internal|overrides|types|hub)\.py"
            r"|torch/(nn/functional|nn/modules/module|optim/optimizer|autograd/function|autograd/variable)\.py"
            r"|tensorflow/python/(framework/ops|framework/dtypes|framework/constant_op|eager/context|ops/math_ops)\.py"
            r"|numpy/(_core/numeric|_core/fromnumeric|lib/_function_base_impl|_core/multiarray|matrixlib/defmatrix)\.py"
            r"|(yaml|cloudpickle|psutil)/(__init__|cloudpickle|_common|nodes|events|tokens)\.py",
            re.sub(r"__pycache__/(\w+)\.cpython-\d+\.pyc$", r"\1.py", short),
        )
    )


def module_files(tree: Path, own: Sequence[str]) -> Iterator[Kind]:
    """The files that Lmod reads."""
    modules = tree / "modules" / "all"
    framework = "PyTorch" if any("/software/PyTorch/" in path for path in own) else "TensorFlow"
    horovod = Path(next(path for path in own if "/software/Horovod/" in path).partition("/software/")[2]).parts[1]
    files = {
        "Horovod": modules / "Horovod" / f"{horovod}.lua",
        framework: next((modules / framework).glob("*.lua")),
        "Python": modules / "Python" / "system.lua",
        "gompi": modules / "gompi" / "system.lua",
        "OpenMPI": modules / "OpenMPI" / "system.lua",
    }
    wanted = {
        "Horovod": ("deleted", "emptied", "truncated", "dangling", "replaced"),
        framework: ("deleted", "emptied", "flipped", "unreadable", "replaced"),
        "Python": ("deleted", "emptied", "truncated", "flipped"),
        "gompi": ("deleted", "flipped", "dangling"),
        "OpenMPI": ("deleted", "truncated", "unreadable"),
    }
    for name, hows in wanted.items():
        for how in hows:
            other = files[framework] if name != framework else files["gompi"]
            yield one(str(files[name]), str(other), "module file", how)


def gone(path: Path) -> Callable[[World], None]:
    def do(world: World) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    return do


def odd(tree: Path) -> Iterator[Kind]:
    """Folders, executables and receipts."""
    software = tree / "software"
    python = software / "Python" / "system"
    for label, path in (("bin", python / "bin" / "python"), ("python3.11", python / "bin" / "python3.11")):
        if path.is_symlink() or path.exists():
            yield Kind(
                name=f"files/Python/executable/{label}/deleted",
                group="files: executables, folders, receipts",
                did=f"{path} deleted",
                do=gone(path),
                true=rf"Python/system\b|{re.escape(str(path))}|bin/python",
            )

    def dead_python(world: World) -> None:
        for path in (python / "bin").glob("python*"):
            if path.resolve() == (python / "bin" / "python").resolve():
                path.unlink()
                path.symlink_to("/nonexistent/python")

    yield Kind(
        name="files/Python/executable/dangling",
        group="files: executables, folders, receipts",
        did="every python of the environment is a link to nowhere (its base Python has been removed)",
        do=dead_python,
        true=r"Python/system\b|bin/python|/nonexistent/python",
    )
    for name in ("PyTorch", "TensorFlow", "Horovod", "Python"):

        def vanish(world: World, name: str = name) -> None:
            shutil.rmtree(world.software(name))

        yield Kind(
            name=f"files/{name}/folder/deleted",
            group="files: executables, folders, receipts",
            did=f"the whole software folder of {name} deleted",
            do=vanish,
            true=rf"{name}/|No module named '?(torch|tensorflow|horovod)",
            stacks={"PyTorch": ("pytorch",), "TensorFlow": ("tensorflow",)}.get(name, ("pytorch", "tensorflow")),
        )

    def receipt_path(world: World) -> Path:
        return world.tree / "environments" / f"{world.stack}.json"

    def cut(world: World) -> None:
        _ = world.receipt
        os.truncate(receipt_path(world), 700)

    def empty(world: World) -> None:
        receipt_path(world).write_text("")

    for how, do in (("truncated", cut), ("emptied", empty)):
        yield Kind(
            name=f"files/receipt/{how}",
            group="files: executables, folders, receipts",
            did=f"the receipt of the environment {how}",
            do=do,
            true=r"environments/[\w.-]+\.json|receipt",
        )

    def kept_away(world: World) -> None:
        for path in (world.tree / "kept").glob("*.json"):
            path.unlink()

    yield Kind(
        name="harmless/kept-fingerprints-gone",
        group="harmless",
        did="the fingerprints kept of the environments deleted",
        do=kept_away,
    )
