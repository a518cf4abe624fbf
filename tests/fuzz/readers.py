"""What reads files: for each reader the real files that it begins from, and how it is called."""

import contextlib
import hashlib
import io
import json
import marshal
import os
import py_compile
import re
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import msgspec

from envkit.apptainer import definition_file, dockerfile
from envkit.binary import bytecode
from envkit.binary.build_block import check_build_block
from envkit.binary.build_flags import read_extensions
from envkit.binary.elf import Elf, ElfError
from envkit.binary.loader import loading, read_loader_cache
from envkit.binary.machine_code import AARCH64, X86_64, returned_constant
from envkit.cache import manifest, place, unpack
from envkit.cache.layout import object_of
from envkit.compat.wanted import judge_asked, of_file, parse
from envkit.config import configuration as config
from envkit.config.keys import KEYS
from envkit.diagnose import first_cause, words
from envkit.eessi import repositories
from envkit.environments import lockfile, venv
from envkit.environments import manifest as file_manifest
from envkit.environments.name_syntax import is_name
from envkit.environments.prefix import Tree
from envkit.inside.probe import started
from envkit.inside.probe.shared_object import shared_object
from envkit.install.listing import describe, receipt_json
from envkit.machine import site
from envkit.methods import installed
from envkit.planning.stack import stacks
from envkit.report.words import plain
from envkit.sources.bundle import read_bundle
from envkit.sources.source_cache import STAMPS, SourceCache
from envkit.system.decompression import zstd
from envkit.system.resources import data as resource
from envkit.system.resources import recipes
from envkit.ticket.private import Redactor
from envkit.training import timeline
from envkit.verify import baseline, facts, last, progress_line
from envkit.verify.report import render
from envkit.verify.report.timeline_page import html

from ..verify import recorded
from .mutants import damaged, other


@dataclass(kw_only=True)
class Reader:
    """A reader: its real files, how one is changed, how it is called; what it may raise besides an EnvkitError."""

    seeds: Callable[[Path], list[bytes]]
    call: Callable[[bytes, Path], object]
    change: Callable[..., bytes] = damaged
    allowed: tuple[type[Exception], ...] = ()
    begins: list[bytes] = field(default_factory=list)


FLAGS = "".join(f"_Bool horovod_{name}_built(void) {{ return 1; }}\n" for name in ("mpi", "gloo", "cuda", "nccl"))


def compiled(folder: Path) -> list[bytes]:
    """Return a small shared object, compiled here with both tables of symbols, and one of the machine's own."""
    from ..verify.compile_c import shared_object

    options = (("-Wl,--hash-style=gnu", "-lm"), ("-Wl,--hash-style=sysv", "-nostdlib"))
    made = [shared_object(folder / f"{n}.so", FLAGS, words).read_bytes() for n, words in enumerate(options)]
    own = [path for name in ("libdl.so.2", "libutil.so.1") if (path := Path("/lib/x86_64-linux-gnu", name)).exists()]
    return [*made, *(path.read_bytes() for path in own[:1])]


DOCKERFILE = b"""# syntax=docker/dockerfile:1
FROM debian:12@sha256:%b AS base
ARG A=1
ENV B=$A C="x y"
COPY --link train.py ["with blank", "/opt/"]
RUN <<EOF
pip install x
EOF
RUN ["echo", "a"] \
    && true
WORKDIR /opt
ENTRYPOINT ["python", "train.py"]
""" % (b"0" * 64)
STAMPED = b'{"x-1.tar.gz": [[1, 2, 3, 4], "%b"]}' % (b"0" * 64)
LISTED = b'{"module": "X/1", "files": {"software/X/1/a": {"size": 1, "changed": 2, "sha256": "%b"}}}' % (b"0" * 64)


def definitions(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(recipes("containers").glob("*.def"))[:3]]


def elf(data: bytes, folder: Path) -> None:
    path = folder / "x.so"
    path.write_bytes(data)
    found = Elf.open(path)
    for ask in ("needed", "soname", "rpath", "runpath", "defined_versions", "needed_versions"):
        with contextlib.suppress(ElfError):
            getattr(found, ask)
    with contextlib.suppress(ElfError):
        list(found.undefined())
    loading(found, [folder], [])


def probed(data: bytes, folder: Path) -> None:
    path = folder / "x.so"
    path.write_bytes(data)
    shared_object(str(path))


def dockerfile_of(data: bytes, folder: Path) -> None:
    path = folder / "Dockerfile"
    path.write_bytes(data)
    (folder / "train.py").touch()
    dockerfile.converted(path)


def definition_of(data: bytes, folder: Path) -> None:
    path = folder / "x.def"
    path.write_bytes(data)
    definition_file.read(path)


def stamps_of(data: bytes, folder: Path) -> None:
    (folder / STAMPS).write_bytes(data)
    (folder / STAMPS).chmod(0o600)
    here = SourceCache(folder)
    (folder / "x-1.tar.gz").write_bytes(b"x")
    here.sha256("x-1.tar.gz")
    here.save_stamps()


def file_manifest_of(data: bytes, folder: Path) -> None:
    tree = Tree(root=folder)
    path = file_manifest.path_of(tree, "X/1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with contextlib.suppress(ValueError):
        file_manifest.read(tree, "X/1")


def extension(data: bytes, folder: Path) -> None:
    horovod = folder / "horovod"
    (horovod / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "lib").mkdir(parents=True, exist_ok=True)
    for path in (horovod / "torch" / "mpi_lib_v2.so", folder / "torch" / "lib" / "libtorch_python.so"):
        path.write_bytes(data)
    plain(check_build_block(read_extensions(horovod, [folder], [folder], suffix=".so")))


def loader_cache(data: bytes, folder: Path) -> None:
    with contextlib.suppress(struct.error, ValueError):  # as the loader's words for it are
        read_loader_cache(data)


def machine_code(data: bytes, folder: Path) -> None:
    for machine in (X86_64, AARCH64):
        for bits in (8, 32):
            value = returned_constant(machine, data[:48], bits=bits)
            assert value is None or -(1 << 31) <= value < 1 << 32


def pyc(folder: Path) -> list[bytes]:
    source = Path(contextlib.__file__)
    made = Path(str(py_compile.compile(str(source), cfile=str(folder / "x.pyc"), doraise=True))).read_bytes()
    return [made, made[:16] + marshal.dumps(compile("a = {1: (2, 3.5, 'x'), None: [frozenset({4})]}", "x", "exec"))]


def code(data: bytes, folder: Path) -> None:
    assert bytecode.is_whole(data) in (True, False)
    bytecode.is_taken(folder / "__pycache__" / "x.cpython-311.pyc", data[:16])


def events(folder: Path) -> list[bytes]:
    from ..test_timeline import EVENTS, TEXT

    return [json.dumps(EVENTS).encode(), TEXT.encode()]


def timeline_of(data: bytes, folder: Path) -> None:
    path = folder / "timeline.json"
    path.write_bytes(data)
    found, said = timeline.read(path, None)
    plain(said)
    if found is not None:
        html(found, path.name)


def node_files(folder: Path) -> list[bytes]:
    made = []
    for name in ("pytorch-2ranks", "gpu-2nodes", "library-missing"):
        ranks = [msgspec.to_builtins(one) for one in recorded.case(name).facts][:2]
        file = {"version": facts.VERSION, "node": "n", "written": 1.0, "complete": True, "common": {}, "ranks": ranks}
        made.append(json.dumps(file).encode())
    return made


def facts_of(data: bytes, folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    (shared / "n.json").write_bytes(data)
    progress_line.how_far(shared, 2)
    for one in facts.load(shared):
        assert (one.label and one.rank is None) or isinstance(one.rank, int)


def locks(folder: Path) -> list[bytes]:
    from ..test_lock import made

    return [lockfile.text(made()).encode()]


def lock_of(data: bytes, folder: Path) -> None:
    from ..test_lock import made

    path = folder / "x.lock"
    path.write_bytes(data)
    found = lockfile.read(path)
    [*lockfile.refusals(found, made()), *lockfile.differences(found, made())]
    lockfile.text(found)


def receipt_of(data: bytes, folder: Path) -> None:
    tree = Tree(root=folder / "tree")
    path = tree.root / "environments" / "toy-cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = installed.read(path)
    found.damage()
    found.broken()
    plain(describe(found))
    receipt_json(found)


def bundles(folder: Path) -> list[bytes]:
    files = [{"filename": "a.whl", "sha256": hashlib.sha256(b"x" * 600).hexdigest(), "needed_by": "x.eb"}]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        listing = json.dumps({"version": 1, "stack": "s", "files": files}).encode()
        for name, content in (("manifest.json", listing), ("a.whl", b"x" * 600)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.pax_headers = {"comment": "é" * 9}
            tar.addfile(member, io.BytesIO(content))
    return [stream.getvalue()]


def bundle_of(data: bytes, folder: Path) -> None:
    path = folder / "x.tar"
    path.write_bytes(data)
    read_bundle(path, folder / "cache")


def logs(folder: Path) -> list[bytes]:
    from envkit.diagnose import rules

    examples = [rule.example for rule in rules()]
    return ["\n".join(examples[at : at + 8]).encode() for at in range(0, len(examples), 8)]


def log_of(data: bytes, folder: Path) -> None:
    found = first_cause([data])
    said = plain(words.text("log", found, 80))
    assert "\x1b" not in said and "\x9b" not in said
    json.loads(words.to_json("log", found, whole=True))


def variables(folder: Path) -> list[bytes]:
    rows = json.loads(Path(started.LAUNCHERS).read_text())
    made = []
    for row in rows:
        keys = ("rank", "size", "local_rank", "local_size", "local_sizes", "node")
        names = [row[key] for key in keys if key in row] + row.get("needs", []) + row["job"]
        made.append(json.dumps(dict.fromkeys(names, "1") | {row.get("size", "x"): "2", "PMIX_RANK": "0"}).encode())
    return made


def variables_of(data: bytes, folder: Path) -> None:
    try:
        read = json.loads(data)
    except (ValueError, RecursionError):
        return
    env = {str(k): str(v) for k, v in read.items()} if isinstance(read, dict) else {}
    found, left = started.recognise(env)
    assert all(name in env for name in left)
    if found is not None:
        assert found.rank >= 0 and set(started.variables_of(found, env)) <= env.keys()


def sites(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(resource("machine/sites").glob("*.toml"))]


def site_of(data: bytes, folder: Path) -> None:
    path = folder / "x.toml"
    path.write_bytes(data)
    site.find(str(path))


OFFERS = b"""["pytorch-2.13-ours"]
easyconfig = "Horovod-1-CUDA.eb"
framework = "pytorch"
requires = ["mpi", "nccl"]
default = true
note = "for us"
[eessi-1]
easyconfig = "Horovod-1-CUDA.eb"
framework = "tensorflow"
accelerator = "cpu"
method = "eessi"
release = "2023.06"
machines = ["x86_64"]
disk_mb = 5
"""


def offers_of(data: bytes, folder: Path) -> None:
    (folder / "Horovod-1-CUDA.eb").touch()
    (folder / "x.toml").write_bytes(data)
    with patch.dict(os.environ, ENVKIT_STACKS=str(folder / "x.toml")):
        for one in stacks():
            assert is_name(one.name) and one.status and (not one.of_site or Path(one.easyconfig).is_file())


def repositories_of(data: bytes, folder: Path) -> None:
    for one in repositories.parsed(data, folder / "repositories.toml"):
        assert one.name.replace(".", "").replace("-", "").isalnum() and one.release.isprintable()


REPOSITORIES = (
    b'["software.example.org"]\nrelease = "2024.05"\nservers = ["http://a.example.org:8000/cvmfs/@fqrn@"]\n'
    b'key = "/etc/x.pub"\ncopy = "/mirror"\nwhat = "ours"\n["b.example.org"]\nrelease = "2025.06-001"\n'
)


def configurations(folder: Path) -> list[bytes]:
    return [b'prefix = "/x:~/y"\ntrust = ["a", "@b"]\n[job]\nnodes = 2\ntime = "1:00:00"\n', b"job.time = 3\n"]


def configuration_of(data: bytes, folder: Path) -> None:
    path = folder / "envkit.toml"
    values, wrong = config.parsed(data, "user", path)
    assert all(line.startswith(str(path)) for line in wrong)
    assert set(values) <= set(KEYS)


def baselines(folder: Path) -> list[bytes]:
    row = {"where": "cpu", "when": "2026-01-01", "ranks": 2, "rows": [], "bandwidth": [], "models": {}}
    return [json.dumps(row).encode()]


def baseline_of(data: bytes, folder: Path) -> None:
    path = folder / "baseline.json"
    path.write_bytes(data)
    baseline.read(path)


VERSIONS = (
    b"numpy==1.26.4\nnvidia_nccl_cu12==2.18.1\ntorch>=2.1,<2.3\npython 3.11.7 h955ad1f_0\n",
    b"  1) GCCcore/12.3.0   2) foss/2023a   3) PyTorch/2.1.2-foss-2023a-CUDA-12.1.1\n",
    b"torch @ https://example.org/torch-2.1.2%2Bcu121-cp311-cp311-linux_x86_64.whl#sha256=00\ntensorflow~=2.15\n",
)


def versions_of(data: bytes, folder: Path) -> None:
    path = folder / "freeze.txt"
    path.write_bytes(data)
    assert judge_asked(parse(of_file(path))).parts


def venvs(folder: Path) -> list[bytes]:
    made = venv.Venv(
        folder=str(folder / "own"), name="toy", tree="/tree", fixed={"numpy": "2.0"}, absent=("mpi4py",), envkit="0"
    )
    return [msgspec.json.encode(made)]


def venv_of(data: bytes, folder: Path) -> None:
    own = folder / "own"
    (own / "bin").mkdir(parents=True, exist_ok=True)
    (own / "bin" / "python").touch()
    (own / venv.RECORD).write_bytes(data)
    made = venv.read(own)
    venv.shadowing(own)
    assert made.tree.startswith("/") and venv.tree_of(made)


def verdicts(folder: Path) -> list[bytes]:
    from ..verify.test_report import report

    return [msgspec.json.encode(last.LastReport(at=1.0, name="e", tree="/t", report=report("rank-killed")))]


def verdict_of(data: bytes, folder: Path) -> None:
    path = folder / "x.json.z"
    path.write_bytes(zlib.compress(data))
    found = last.read(path)
    if found is not None:
        render(found.report)
        Redactor({"USER": "annamiller"}).out_of_all(msgspec.to_builtins(found.report))
    path.write_bytes(data)
    last.read(path)


def build(folder: Path) -> tuple[Tree, manifest.Manifest]:
    """Return a prefix with a module in it, and the manifest of that, whose object lies in ``packed``."""
    from ..test_cache import described, module_in, packed

    tree = module_in(folder / "from" / "a-prefix-of-some-length")
    return tree, described(packed(tree, folder / "packed"))


def build_manifests(folder: Path) -> list[bytes]:
    return [msgspec.json.encode(build(folder)[1])]


def build_manifest_of(data: bytes, folder: Path) -> None:
    try:
        found, signed = manifest.read(b'{"manifest":' + data + b"}")
    except ValueError:
        return
    taken(found, signed, (folder / "packed").read_bytes(), folder)


def build_objects(folder: Path) -> list[bytes]:
    build(folder)
    return [zstd.decompress((folder / "packed").read_bytes())]


def build_object_of(data: bytes, folder: Path) -> None:
    from ..test_cache import described, packed

    of = packed(Tree(root=folder / "from/a-prefix-of-some-length/x86_64-py3.11"), folder / "again")
    content = zstd.compress(data)
    made = msgspec.structs.replace(
        described(of), sha256=hashlib.sha256(content).hexdigest(), size=len(content), unpacked=len(data)
    )
    taken(made, manifest.Signed(manifest=msgspec.Raw(b"")), content, folder)


def taken(found: manifest.Manifest, signed: manifest.Signed, content: bytes, folder: Path) -> None:
    """Take an object out of a cache: nothing appears but files of its module."""
    cache, tree = folder / "cache", Tree(root=folder / "to" / "x86_64-py3.11")
    path = cache / object_of(found.sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    entry = place.SignedManifest(place=place.Place(named=str(cache)), manifest=found, signed=signed)
    root = tree.root / "new"
    try:
        unpack.require_own(entry, tree)
        with io.BytesIO() as stream:
            unpack.fetch(entry, stream)
        unpack.unpack(entry, path, root, tree, 1)
        unpack.link(found, root, tree)
        assert not [one for one in (folder / "to").rglob("*") if one.is_file() and not one.is_relative_to(root)]
    finally:
        path.unlink()
        shutil.rmtree(folder / "to", ignore_errors=True)


SECRET = "xK9mPq7ZtR44vB"


def texts(folder: Path) -> list[bytes]:
    from ..ticket.made_up_logs import MadeUpLog
    from ..ticket.test_private import SHAPES

    shapes = [shape.format(SECRET, SECRET) for shape in SHAPES]
    return [MadeUpLog(0).text.encode(), *("\n".join(shapes[at : at + 9]).encode() for at in range(0, len(shapes), 9))]


def text_of(data: bytes, folder: Path) -> None:
    text, private = data.decode(errors="replace"), Redactor({"USER": "annamiller", "A_TOKEN": SECRET})
    private.learn(text)
    told = private.out_of(text)
    assert SECRET not in told and "annamiller" not in re.split("[^A-Za-z0-9]", told)


READERS: Mapping[str, Reader] = {
    "elf": Reader(seeds=compiled, call=elf, allowed=(ElfError,)),
    "extension": Reader(seeds=compiled, call=extension),
    "shared-object": Reader(seeds=compiled, call=probed, allowed=(ValueError, OSError)),
    "dockerfile": Reader(seeds=lambda _: [DOCKERFILE], call=dockerfile_of),
    "definition": Reader(seeds=definitions, call=definition_of),
    "stamps": Reader(seeds=lambda _: [STAMPED], call=stamps_of, change=other),
    "file-manifest": Reader(seeds=lambda _: [LISTED], call=file_manifest_of, change=other),
    "loader-cache": Reader(seeds=lambda _: [Path("/etc/ld.so.cache").read_bytes()[:4096]], call=loader_cache),
    "machine-code": Reader(
        seeds=lambda _: [b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\xb8\1\0\0\0\x5d\xc3"], call=machine_code
    ),
    "bytecode": Reader(seeds=pyc, call=code),
    "timeline": Reader(seeds=events, call=timeline_of, change=other),
    "facts": Reader(seeds=node_files, call=facts_of, change=other),
    "lock": Reader(seeds=locks, call=lock_of, change=other),
    "bundle": Reader(seeds=bundles, call=bundle_of),
    "versions": Reader(seeds=lambda _: list(VERSIONS), call=versions_of),
    "log": Reader(seeds=logs, call=log_of),
    "variables": Reader(seeds=variables, call=variables_of, change=other),
    "site": Reader(seeds=sites, call=site_of),
    "offers": Reader(seeds=lambda _: [OFFERS], call=offers_of),
    "repositories": Reader(seeds=lambda _: [REPOSITORIES], call=repositories_of),
    "configuration": Reader(seeds=configurations, call=configuration_of),
    "baseline": Reader(seeds=baselines, call=baseline_of, change=other),
    "venv": Reader(seeds=venvs, call=venv_of, change=other),
    "verdict": Reader(seeds=verdicts, call=verdict_of, change=other),
    "build-manifest": Reader(seeds=build_manifests, call=build_manifest_of, change=other),
    "build-object": Reader(seeds=build_objects, call=build_object_of),
    "text": Reader(seeds=texts, call=text_of),
    "receipt": Reader(seeds=lambda _: [], call=receipt_of, change=other),
}
