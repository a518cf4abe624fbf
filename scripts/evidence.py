#!/usr/bin/env python3
"""Write envkit/compat/recipes.json: which versions recipes, images and upstream's CI have with Horovod.

    scripts/evidence.py [--easyconfigs GIT] [--horovod GIT] [--feedstock GIT]

EasyBuild's own recipes are read from the installed collection. The others are of earlier years and do not change: they
are read from clones of easybuilders/easybuild-easyconfigs, horovod/horovod and conda-forge/horovod-feedstock where
those are given, and else stay as they are in the file. Recipes are parsed, never run.
"""

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from envkit.system.resources import data, easybuild_collection

Parts = dict[str, str]
Rows = list[dict[str, Any]]
Read = Callable[[str], str | None]  # the text of the recipe of a file name

PARTS = {
    "PyTorch": "torch",
    "TensorFlow": "tensorflow",
    "Python": "python",
    "GCC": "gcc",
    "CMake": "cmake",
    "OpenMPI": "openmpi",
    "impi": "impi",
    "flatbuffers": "flatbuffers",
    "CUDA": "cuda",
    "cuDNN": "cudnn",
    "NCCL": "nccl",
}
ORDER = ["horovod", "torch", "tensorflow", "mxnet", "keras", "python", "numpy", "gcc", "cmake", "openmpi", "mpich"]
OLDEST = Version("0.19")  # of Horovod
TOOLCHAINS = ("foss", "gompi", "intel", "iimpi")
ADDRESS = "https://github.com/easybuilders/easybuild-easyconfigs/blob"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("easyconfigs", "horovod", "feedstock"):
        parser.add_argument(f"--{name}", type=Path, metavar="GIT")
    given = parser.parse_args()
    path = data("compat/recipes.json")
    old = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(written(of_collection(), old, given.easyconfigs, given.horovod, given.feedstock))


def written(
    now: tuple[Rows, dict[str, Parts]],
    old: dict[str, Any],
    easyconfigs: Path | None = None,
    horovod: Path | None = None,
    feedstock: Path | None = None,
) -> str:
    """Return the text of recipes.json; what no clone is given of is taken from ``old``."""
    rows, toolchains = now
    history: tuple[Rows, dict[str, Parts]] = (kept(old, "easybuild-earlier"), old.get("toolchain", {}))
    if easyconfigs:
        history = of_history(easyconfigs, {row["source"].split()[-1] for row in rows})
    ci = list(of_ci(horovod)) if horovod else kept(old, "ci")
    conda = list(of_feedstock(feedstock)) if feedstock else kept(old, "conda-forge")
    images = list(of_images(horovod)) if horovod else kept(old, "image")
    found = (*rows, *history[0], *telling(ci), *images, *telling(conda))
    lines = ",\n".join(json.dumps(row | {"parts": in_order(row["parts"])}) for row in found)
    named = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(in_order(parts))}"
        for name, parts in sorted((history[1] | toolchains).items())
    )
    return f'{{"toolchain": {{\n{named}\n}},\n"recipe": [\n{lines}\n]}}\n'


def telling(rows: Rows) -> Rows:
    """Return the rows without those that tell less than another one."""
    return [row for row in rows if not any(row["parts"].items() < other["parts"].items() for other in rows)]


def kept(old: dict[str, Any], group: str) -> Rows:
    """Return the rows of a group as they are."""
    return [row for row in old.get("recipe", []) if row["of"] == group]


def in_order(parts: Parts) -> Parts:
    """Return versions in one order."""
    names = sorted(parts, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: parts[name] for name in names}


# EasyBuild


def of_collection() -> tuple[Rows, dict[str, Parts]]:
    """Return the recipes of Horovod and the toolchains of the installed collection."""
    root = easybuild_collection()

    def read(name: str) -> str | None:
        own = re.split(r"-(?=\d)", name)[0]
        path = root / own[0].lower() / own / name
        return path.read_text() if path.is_file() else None

    pythons = python_by_compiler(path.name for path in (root / "p" / "Python").glob("*.eb"))
    found = [path.stem for name in TOOLCHAINS for path in (root / name[0] / name).glob("*.eb")]
    toolchains = {name: parts for name in found if (parts := of_toolchain(name, read, pythons))}
    files = sorted(path.name for path in (root / "h" / "Horovod").glob("Horovod-*.eb"))
    return [
        {"of": "easybuild", "evidence": "recipe", "source": f"envkit install {file}"}
        | ({"measures": ["flatbuffers"]} if "flatbuffers" in (read(file) or "") else {})
        | {"parts": parts}
        for file in files
        if (parts := of_recipe(file, read))
    ], toolchains


def of_history(git: Path, current: set[str]) -> tuple[Rows, dict[str, Parts]]:
    """Return the recipes that earlier releases had, by the commit before each was removed, and their toolchains."""
    rows, toolchains, seen = Rows(), dict[str, Parts](), set(current)
    folders = [f"easybuild/easyconfigs/{folder}h/Horovod/*.eb" for folder in ("", "__archive__/")]
    gone = [
        "log",
        "--first-parent",
        "-m",
        "--no-renames",
        "--diff-filter=D",
        "--format=commit %H",
        "--name-only",
        "--",
        *folders,
    ]
    for block in run(git, *gone).split("commit ")[1:]:
        commit, *paths = block.split()
        before = run(git, "rev-parse", f"{commit}^").strip()
        tree = {Path(path).name: path for path in run(git, "ls-tree", "-r", "--name-only", before).splitlines()}

        def read(name: str, before: str = before, tree: dict[str, str] = tree) -> str | None:
            return run(git, "show", f"{before}:{tree[name]}") if name in tree else None

        pythons = python_by_compiler(tree)
        for path in sorted(path for path in paths if "$" not in path):
            file = Path(path).name
            if file in seen or file not in tree or not (parts := of_recipe(file, read)):
                continue
            seen.add(file)
            source = f"{ADDRESS}/{before}/{path}"
            measures = {"measures": ["flatbuffers"]} if "flatbuffers" in (read(file) or "") else {}
            row = {"of": "easybuild-earlier", "evidence": "recipe", "source": source}
            rows.append(row | measures | {"parts": parts})
            for toolchain in re.findall(r"-((?:foss|fosscuda|intel)-\d{4}[ab])", file):
                if brought := of_toolchain(toolchain, read, pythons):
                    toolchains[toolchain] = brought
    return rows, toolchains


def of_recipe(file: str, read: Read) -> Parts:
    """Return the versions of a recipe of Horovod, its framework's and its toolchain's; none without a framework."""
    names = assigned(read(file) or "")
    toolchain = "{name}-{version}".format(**names["toolchain"])
    parts = {"horovod": names["version"], "machine": "x86_64"} | of_toolchain(toolchain, read, {})
    own = [*dependencies(names, parts)]
    parts |= {PARTS[one]: version for one, version, _ in own if one in PARTS}
    for one, version, suffix in own:
        if one in ("PyTorch", "TensorFlow"):
            theirs = assigned(read(f"{one}-{version}-{toolchain}{suffix}.eb") or "")
            theirs_own = [*dependencies(theirs, parts)]
            parts |= {PARTS[name]: told for name, told, _ in theirs_own if name in ("cuDNN", "flatbuffers")}
            bundle = [f"{name}-{told}-{toolchain}{end}.eb" for name, told, end in theirs_own if name == "SciPy-bundle"]
            extensions = assigned((bundle and read(bundle[0])) or "").get("exts_list") or ()
            numpy = [one[1] for one in extensions if isinstance(one, tuple) and one[0] == "numpy"]
            parts |= {"numpy": numpy[0]} if numpy else {}
    python = re.search(r"-Python-(3[\d.]*\d)", file)
    parts |= {"python": python[1]} if python else {}
    return parts if parts.keys() & {"torch", "tensorflow"} and Version(parts["horovod"]) >= OLDEST else {}


def of_toolchain(name: str, read: Read, pythons: Parts) -> Parts:
    """Return the compiler, the MPI, the CUDA and the Python of a toolchain; ``pythons`` by version of GCCcore."""
    parts = Parts()
    for one, version, _ in dependencies(assigned(read(f"{name}.eb") or ""), parts):
        if one in ("GCC", "OpenMPI", "impi", "CUDA"):
            parts[PARTS[one]] = version.partition("-")[0]
        elif one in ("gompi", "gompic", "gcccuda", "iimpi"):
            parts |= of_toolchain(f"{one}-{version}", read, pythons)
        elif one == "intel-compilers":
            compilers = dependencies(assigned(read(f"{one}-{version}.eb") or ""), {})
            told = next((version for name, version, _ in compilers if name == "GCCcore"), "")
            parts |= {"python": pythons[told]} if told in pythons else {}
    return parts | ({"python": pythons[parts["gcc"]]} if parts.get("gcc") in pythons else {})


def python_by_compiler(files: Iterable[str]) -> Parts:
    """Return the newest whole Python 3 for each version of GCCcore, from the names of recipes."""
    found = [re.fullmatch(r"Python-(3\.(\d+)\.(\d+))-GCCcore-([\d.]+)\.eb", file) for file in files]
    matches = sorted((one for one in found if one), key=lambda one: (int(one[2]), int(one[3])))
    return {one[4]: one[1] for one in matches}


def assigned(text: str) -> dict[str, Any]:
    """Return the values that a recipe assigns: constants, and what is made of them."""
    names = dict[str, Any]()
    for line in ast.parse(text).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)]):
                names[name] = value(line.value, names)
    return names


def value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of an expression in a recipe, None where it is none of these."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id=name):
            return names.get(name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(value(item, names) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {value(key, names): value(one, names) for key, one in zip(keys, values, strict=True) if key}
        case ast.BinOp(left=left, op=op, right=right):
            first, second = value(left, names), value(right, names)
            if isinstance(first, str) and second is not None:
                return first % second if isinstance(op, ast.Mod) else first + second
    return None


def dependencies(names: dict[str, Any], known: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and suffix of what a recipe depends on."""
    own = [
        one for key in ("builddependencies", "dependencies") for one in names.get(key) or () if isinstance(one, tuple)
    ]
    versions = {
        "cuda": known.get("cuda"),
        "python": known.get("python"),
        **{str(one[0]).lower(): one[1] for one in own},
    }
    for one in own:
        suffix = str(one[2] or "") if len(one) > 2 else ""
        suffix = suffix.replace("%(cudaver)s", versions["cuda"] or "").replace("%(pyver)s", versions["python"] or "")
        if isinstance(one[1], str):
            yield one[0], one[1].replace("%(version)s", str(names.get("version"))), suffix


# Horovod's own CI and images

BASES = re.compile(r"cuda:(\d+\.\d+)(?:\.\d+)?-devel|cudnn(\d+)")
FRAMEWORKS = {"TENSORFLOW": "tensorflow", "KERAS": "keras", "PYTORCH": "torch", "MXNET": "mxnet", "PYSPARK": "spark"}
PLAIN = re.compile(r"\d+(\.\d+)*(\.post\d+)?")
OPENMPI = re.compile(r"openmpi-(\d+\.\d+\.\d+)|v\d+\.\d+/openmpi-([\d.]+\d)")


def of_ci(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what each release of Horovod was tested with (docker-compose.test.yml, but for heads and minima)."""
    import yaml

    for tag in run(git, "tag", "--list", "v0.[12]*", "--sort=-v:refname").split():
        if not re.fullmatch(r"v0\.\d+\.\d+", tag) or Version(tag) < OLDEST:
            continue
        services = yaml.safe_load(run(git, "show", f"{tag}:docker-compose.test.yml"))["services"]
        mpi = OPENMPI.search(run(git, "show", f"{tag}:Dockerfile.test.cpu"))
        seen = list[Parts]()
        for name in services:
            if name.endswith("-base") or "head" in name or "min" in name or "mixed" in name:
                continue
            parts = {"horovod": tag[1:]} | of_service(arguments(services, name), mpi)
            if parts.keys() & {"torch", "tensorflow"} and parts not in seen:
                seen.append(parts)
                source = f"https://github.com/horovod/horovod/blob/{tag}/docker-compose.test.yml"
                yield {"of": "ci", "evidence": "ci", "source": source, "parts": parts}


def of_images(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what Horovod's own image of each release is made of (docker/horovod/Dockerfile)."""
    for tag in run(git, "tag", "--list", "v0.2*", "--sort=-v:refname").split():
        path = "docker/horovod/Dockerfile"
        if not re.fullmatch(r"v0\.\d+\.\d+", tag) or not run(git, "ls-tree", "--name-only", tag, path):
            continue
        text = run(git, "show", f"{tag}:{path}")
        told = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
        told |= {f"{name}_PACKAGE": f"=={told[f'{name}_VERSION']}" for name in FRAMEWORKS if f"{name}_VERSION" in told}
        told["NCCL_VERSION_OVERRIDE"] = told.get("NCCL_VERSION", "")
        parts = {"horovod": tag[1:]} | of_service(told | {"MPI_KIND": "OpenMPI"}, OPENMPI.search(text))
        if parts.keys() & {"torch", "tensorflow"}:
            source = f"https://github.com/horovod/horovod/blob/{tag}/{path}"
            yield {"of": "image", "evidence": "recipe", "source": source, "parts": parts}


def arguments(services: dict[str, Any], name: str) -> Parts:
    """Return the build arguments of a service, with those of what it extends."""
    one = services[name]
    extended = one.get("extends")
    base = extended["service"] if isinstance(extended, dict) else extended
    mine = (one.get("build") or {}).get("args") or {}
    return (arguments(services, base) if base else {}) | {key: str(told) for key, told in mine.items()}


def of_service(told: Parts, mpi: re.Match[str] | None) -> Parts:
    """Return the versions that build arguments name."""
    parts = {"machine": "x86_64"}
    for key, name in FRAMEWORKS.items():
        version = told.get(f"{key}_PACKAGE", "").partition("==")[2].split("+")[0]
        parts |= {name: version} if PLAIN.fullmatch(version) else {}
    for key, name in (("PYTHON_VERSION", "python"), ("GPP_VERSION", "gcc")):
        parts |= {name: told[key]} if PLAIN.fullmatch(told.get(key, "")) else {}
    if mpi and told.get("MPI_KIND") == "OpenMPI":
        parts["openmpi"] = mpi[1] or mpi[2]
    cuda = re.search(r"cuda:(\d+\.\d+)", told.get("CUDA_DOCKER_VERSION", "")) or re.match(
        r"(\d+\.\d+)", told.get("CUDA_DOCKER_VERSION", "")
    )
    parts |= {"cuda": cuda[1]} if cuda else {}
    for key, name in (("CUDNN_VERSION", "cudnn"), ("NCCL_VERSION_OVERRIDE", "nccl")):
        match = re.match(r"\d+\.\d+(\.\d+)?", told.get(key, ""))
        parts |= {name: match[0]} if match else {}
    return parts


# conda-forge

MEASURES = {  # by what a recipe of conda-forge says; its build makes the headers of flatbuffers anew
    r"3957\.patch": "missing-includes",
    r"3998\.patch": "cxx17",
    r"4313\.patch": "nvcc-standard",
    r"4314\.patch": "xla-headers",
    r"tf21_gpu_stream\.patch": "private-stream",
    r"flatbuffers": "flatbuffers",
    r"(?s)\n  run:\n(?:    [^\n]*\n)*?    - setuptools": "setuptools",
    r"HOROVOD_WITHOUT_GLOO=1": "without-gloo",
    r"TF_USE_LEGACY_KERAS=1 python": "legacy-keras",
}


def of_feedstock(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what conda-forge's builds of 0.28 and later were made with, by the merge that built them."""
    import yaml

    seen = list[Parts]()
    for commit in run(git, "log", "--first-parent", "--format=%H").split():
        recipe = run(git, "show", f"{commit}:recipe/meta.yaml")
        version = re.search(r'set version = "([\d.]+)"', recipe)
        if version is None or Version(version[1]) < Version("0.28"):
            continue
        recipe += run(git, "show", f"{commit}:recipe/build.sh")
        said = [measure for pattern, measure in MEASURES.items() if re.search(pattern, recipe)]
        for file in run(git, "ls-tree", "--name-only", commit, ".ci_support/").splitlines():
            if not re.search(r"/linux_64_.*\.yaml$", file):
                continue
            variant = yaml.safe_load(run(git, "show", f"{commit}:{file}"))
            told = {key: str(one[0]) for key, one in variant.items() if isinstance(one, list)}
            parts = {"horovod": version[1], "machine": "x86_64"} | of_variant(told)
            # where it was CUDA 11, the recipe names other frameworks than the variant does
            if {"torch", "tensorflow", "python"} <= parts.keys() and not parts.get("cuda", "").startswith("11"):
                measures = [one for one in said if one != "legacy-keras" or minor(parts["tensorflow"]) >= 16]
                needed = {"legacy-keras": minor(parts["tensorflow"]) >= 16, "setuptools": minor(parts["python"]) >= 12}
                besides = [one for one, is_needed in needed.items() if is_needed and one not in said]
                source = f"https://github.com/conda-forge/horovod-feedstock/blob/{commit}/{file}"
                taken: dict[str, Any] = {"measures": measures} | ({"besides": besides} if besides else {})
                row = {"of": "conda-forge", "evidence": "recipe", "source": source, **taken, "parts": parts}
                if parts not in seen:
                    seen.append(parts)
                    yield row


def minor(version: str) -> int:
    """Return 16 of 2.16."""
    return int(version.split(".")[1])


def of_variant(told: Parts) -> Parts:
    """Return the versions of a variant of conda-forge's build."""
    names = {
        "pytorch": "torch",
        "tensorflow": "tensorflow",
        "cxx_compiler_version": "gcc",
        "cuda_compiler_version": "cuda",
    }
    names |= {told["mpi"]: told["mpi"]} if told.get("mpi") in ("openmpi", "mpich") else {}
    found = {name: re.match(r"\d+(\.\d+)*", told.get(key, "")) for key, name in (*names.items(), ("python", "python"))}
    return {name: match[0] for name, match in found.items() if match}


def run(git: Path, *words: str) -> str:
    """Return what git says."""
    done = subprocess.run(["git", "-C", str(git), *words], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
