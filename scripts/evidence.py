#!/usr/bin/env python3
"""Write envkit/compat/recipes.json: which versions recipes, images and upstream's CI have with Horovod.

    scripts/evidence.py [--easyconfigs GIT] [--horovod GIT] [--feedstock GIT] [--determined GIT]
        [--sagemaker GIT] [--open-ce GIT --open-ce-feedstock GIT]

EasyBuild's own recipes are read from the installed collection. The others are of earlier years and do not change: they
are read from clones of easybuilders/easybuild-easyconfigs, horovod/horovod, conda-forge/horovod-feedstock,
determined-ai/environments, aws/sagemaker-tensorflow-training-toolkit, open-ce/open-ce and open-ce/horovod-feedstock
where those are given, and else stay as they are in the file. Recipes are parsed, never run.
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
OLDEST = Version("0.19")  # of Horovod in recipes
OLDEST_CI = Version("0.16.2")
TOOLCHAINS = ("foss", "gompi", "intel", "iimpi")
ADDRESS = "https://github.com/easybuilders/easybuild-easyconfigs/blob"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in (
        "easyconfigs",
        "horovod",
        "feedstock",
        "determined",
        "sagemaker",
        "open-ce",
        "open-ce-feedstock",
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="GIT")
    given = parser.parse_args()
    path = data("compat/recipes.json")
    old = json.loads(path.read_text()) if path.is_file() else {}
    images = Rows()
    if given.determined:
        images += of_determined(given.determined)
    if given.sagemaker:
        images += of_sagemaker(given.sagemaker)
    if given.open_ce and given.open_ce_feedstock:
        images += of_open_ce(given.open_ce, given.open_ce_feedstock)
    path.write_text(written(of_collection(), old, given.easyconfigs, given.horovod, given.feedstock, images))


def written(
    now: tuple[Rows, dict[str, Parts]],
    old: dict[str, Any],
    easyconfigs: Path | None = None,
    horovod: Path | None = None,
    feedstock: Path | None = None,
    others: Iterable[dict[str, Any]] = (),
) -> str:
    """Return the text of recipes.json; what no clone is given of is taken from ``old``."""
    rows, toolchains = now
    history: tuple[Rows, dict[str, Parts]] = (kept(old, "easybuild-earlier"), old.get("toolchain", {}))
    if easyconfigs:
        history = of_history(easyconfigs, {row["source"].split()[-1] for row in rows})
    ci = list(of_ci(horovod)) if horovod else kept(old, "ci")
    conda = list(of_feedstock(feedstock)) if feedstock else kept(old, "conda-forge")
    images = list(of_images(horovod)) if horovod else kept(old, "image")
    read = [*others]
    for group in OTHERS:
        images += telling([row for row in read if row["of"] == group]) or kept(old, group)
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
OTHERS = ("determined", "sagemaker", "open-ce")
PLAIN = re.compile(r"\d+(\.\d+)*(\.post\d+)?")
OPENMPI = re.compile(r"openmpi-(\d+\.\d+\.\d+)|v\d+\.\d+/openmpi-([\d.]+\d)")


def of_ci(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what each release of Horovod was tested with (docker-compose.test.yml, but for heads and minima)."""
    import yaml

    for tag in run(git, "tag", "--list", "v0.[12]*", "--sort=-v:refname").split():
        if not re.fullmatch(r"v0\.\d+\.\d+", tag) or Version(tag) < OLDEST_CI:
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
    """Yield what Horovod's own image of each release is made of (Dockerfile, wherever it was)."""
    for tag in run(git, "tag", "--list", "v0.[12]*", "--sort=-v:refname").split():
        paths = ("docker/horovod/Dockerfile", "Dockerfile.gpu", "Dockerfile")
        path = next((one for one in paths if run(git, "ls-tree", "--name-only", tag, one)), "")
        if not re.fullmatch(r"v0\.\d+\.\d+", tag) or Version(tag) < OLDEST_CI or not path:
            continue
        text = run(git, "show", f"{tag}:{path}")
        told = dict(re.findall(r"^(?:ARG|ENV) (\w+)=(\S+)", text, re.MULTILINE))
        told["PYTHON_VERSION"] = told.get("python", told.get("PYTHON_VERSION", ""))
        told.setdefault("CUDA_DOCKER_VERSION", "".join(re.findall(r"^FROM nvidia/cuda:(\S+)", text, re.MULTILINE)))
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


# Images and builds that others maintain

BUILT_FOR = re.compile(r"rocm(\d+\.\d+)_\S*py(\d+\.\d+)_pytorch_([\d.]+\d)")


def of_determined(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what the images of Determined were made of, by the last commit whose Makefile built them so.

    What a single commit alone had, and the next one took back, is left out.
    """
    had = list[tuple[str, Parts]]()
    for commit in run(git, "log", "--format=%H", "--", "Makefile").split():
        text = run(git, "show", f"{commit}:Makefile")
        names = dict(re.findall(r"^(?:export )?(\w+) *:?= *(.+)$", text, re.MULTILINE))
        steps = [filled(one, names) for one in re.split(r"docker build(?:x build)?", text)[1:]]
        pythons = dict[str, str]()
        for step in steps:
            if python := re.search(r'PYTHON_VERSION="([\d.]+)"', step):
                pythons |= dict.fromkeys(re.findall(r"-t /?(\S+?)-?(?:\$|\s)", step), python[1])
        for step in steps:
            base = re.search(r'BASE_IMAGE="/?([^"$]+?)-?["$]', step)
            parts = of_arguments(step, base[1] if base else "")
            if base and base[1] in pythons:
                parts.setdefault("python", pythons[base[1]])
            if "horovod" in parts and parts.keys() & {"torch", "tensorflow"} and (commit, parts) not in had:
                had.append((commit, parts))
    whole = [parts for _, parts in had]
    for number, (commit, parts) in enumerate(had):
        if parts not in whole[:number] and whole.count(parts) > 1:
            source = f"https://github.com/determined-ai/environments/blob/{commit}/Makefile"
            yield {"of": "determined", "evidence": "recipe", "source": source, "parts": parts}


def filled(text: str, names: dict[str, str]) -> str:
    """Return text of a Makefile with the values of its variables."""
    for _ in range(6):
        text = re.sub(r"\$\((\w+)\)", lambda match: names.get(match[1], ""), text)
    return text


def of_arguments(step: str, base: str) -> Parts:
    """Return the versions that a step of Determined's Makefile names, and its base image."""
    parts = {"machine": "x86_64"}
    frameworks = r"tensorflow(?:-cpu|-gpu|-rocm)?==|\S*/tensorflow_gpu-"
    for name, key, what in (
        ("horovod", "HOROVOD", "horovod=="),
        ("tensorflow", "TENSORFLOW", frameworks),
        ("torch", "TORCH", "torch=="),
    ):
        told = re.search(rf'{key}_PIP="(?:{what})(\d+\.\d+(?:\.\d+)?)', step)
        parts |= {name: told[1]} if told else {}
    if cuda := re.search(r"cuda[:-](\d+\.\d+)", base):
        parts["cuda"] = cuda[1]
    if rocm := BUILT_FOR.search(base):
        parts |= {"rocm": rocm[1], "python": rocm[2], "torch": rocm[3]}
    return parts


def of_sagemaker(git: Path) -> Iterator[dict[str, Any]]:
    """Yield what the images of SageMaker's toolkit for TensorFlow are made of."""
    for path in run(git, "ls-tree", "-r", "--name-only", "HEAD", "docker/").splitlines():
        text = run(git, "show", f"HEAD:{path}") if "Dockerfile" in path else ""
        horovod = re.search(r"horovod==([\d.]+\d)", text)
        if not horovod:
            continue
        wheels = re.findall(r"tensorflow(?:_gpu)?-([\d.]+\d)-cp(\d)(\d)-", text)
        version = path.split("/")[1]
        parts = {"horovod": horovod[1], "tensorflow": version, "machine": "x86_64"}
        for name, pattern in (
            ("openmpi", r"openmpi-(\d+\.\d+\.\d+)"),
            ("numpy", r"numpy==([\d.]+\d)"),
            ("cuda", r"FROM nvidia/cuda:(\d+\.\d+)"),
            ("cudnn", r"libcudnn7=(\d+\.\d+\.\d+)"),
            ("nccl", r"libnccl2=(\d+\.\d+\.\d+)"),
        ):
            match = re.search(pattern, text)
            parts |= {name: match[1]} if match else {}
        pythons = [f"{major}.{minor}" for told, major, minor in wheels if told == version]
        parts |= {"python": pythons[0]} if pythons else {}
        source = "https://github.com/aws/sagemaker-tensorflow-training-toolkit/blob/master/" + path
        yield {"of": "sagemaker", "evidence": "recipe", "source": source, "parts": parts}


OPEN_CE = ("tensorflow", "torch", "python", "numpy", "gcc", "cmake", "openmpi", "nccl")
HANGS = "3.1.3"  # of Open MPI, by Horovod's documentation: nobody is told that it works


def of_open_ce(git: Path, feedstock: Path) -> Iterator[dict[str, Any]]:
    """Yield what the builds of Open-CE were made with: of each release the versions that it has for every device."""
    seen = list[Parts]()
    for tag in run(feedstock, "tag", "--list", "open-ce-v*", "--sort=-v:refname").split():
        path = "envs/conda_build_config.yaml"
        if not run(git, "tag", "--list", tag) or not run(git, "ls-tree", "--name-only", tag, path):
            continue
        version = re.search(r'set version = "([\d.]+)"', run(feedstock, "show", f"{tag}:recipe/meta.yaml"))
        config = run(git, "show", f"{tag}:{path}")
        for machine in ("x86_64", "ppc64le") if version else ():
            told = {name: variants(config, name, machine) for name in OPEN_CE}
            own = {name: found[0] for name, found in told.items() if len(found) == 1 and name != "python"}
            own |= {"horovod": version[1], "machine": machine} if version else {}
            if own.get("openmpi") == HANGS:
                del own["openmpi"]
            for python in told["python"]:
                parts = own | {"python": python}
                # what the list of Pythons has without TensorFlow, which is for 3.7 and later from 2.7 on
                is_listed_only = python == "3.6" and minor(own.get("tensorflow", "2.0")) > 6
                if {"tensorflow", "torch"} <= parts.keys() and parts not in seen and not is_listed_only:
                    seen.append(parts)
                    source = f"https://github.com/open-ce/open-ce/blob/{tag}/{path}"
                    yield {"of": "open-ce", "evidence": "recipe", "source": source, "parts": parts}


def variants(config: str, name: str, machine: str) -> list[str]:
    """Return the versions that Open-CE has of a part on a machine, but for those of one device only."""
    key = {"torch": "pytorch", "gcc": "cxx_compiler_version"}.get(name, name)
    block = re.search(rf"^{key}:.*\n((?:  - .*\n)+)", config, re.MULTILINE)
    lines = (
        re.findall(r"  - '?([\d.]+\d)(?:\.\*)?'?[ \t]*(?:#[ \t]*\[(.*)\])?[ \t]*$", block[1], re.MULTILINE)
        if block
        else []
    )
    whole = len(lines) == block[1].count("\n") if block else False
    return [version for version, when in lines if when in ("", "not s390x", machine)] if whole else []


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
