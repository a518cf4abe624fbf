"""Pushing builds that have passed, and sources, into a cache."""

import os
import platform
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import BinaryIO

import msgspec
from rich.console import Console

from envkit.apptainer.image_plan import DEBIAN, MIRROR_OF, place_of, shared_key
from envkit.apptainer.receipt import ImageReceipt
from envkit.cache import binaries, fit, layout, pack, packed_before, place, publishing, wheels
from envkit.cache.manifest import Ci, Manifest, Needs, PackedFile, Provenance, folder_of, layer_name, rules, tools_in
from envkit.cache.place import Place
from envkit.easybuild.receipt import ModuleReceipt, shareable
from envkit.environments import manifest
from envkit.environments import receipt as receipts
from envkit.environments.lockfile import LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import BuiltLayer, Cached, Mpi, Receipt
from envkit.errors import (
    CacheInvalid,
    EnvironmentDamaged,
    HostProblem,
    NotProven,
    NotRelocatable,
    OpensslMissing,
    UsageProblem,
    of_storage,
)
from envkit.inside.probe.node import name_of_node
from envkit.methods import installed
from envkit.planning.stack import stacks
from envkit.report import words
from envkit.report.progress import SILENT, LiveLine, say, steps, transfer
from envkit.sources import signature
from envkit.sources.source_cache import Source, SourceCache, distinct
from envkit.system import files, process, temporary
from envkit.verify import target


class PushedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build that is in the place now; ``sent``: it was not there before; ``ci``: the job that pushed it.

    ``object_sent``: nor was its object, which a registry keeps for a while after its manifest was removed.
    Of what was there before, all is told as it is there: ``host`` built it at ``built``, somebody else may have signed.
    """

    module: str
    id: str
    sha256: str
    size: int
    sent: bool
    signed: bool
    host: str
    built: str
    ci: Ci | None = None
    object_sent: bool = False


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``envkit cache push`` tells: the builds of an environment, and why other modules of it are ``left_out``."""

    version: int = 1
    name: str
    place: str
    builds: tuple[PushedBuild, ...]
    left_out: dict[str, str] = {}


Made = ModuleReceipt | ImageReceipt


def push(
    prefix: Prefix, name: str | None, to: Place, key: Path | None, ci: Ci | None = None, console: Console = SILENT,
    *, has_layers: bool = False,
) -> Pushed:  # fmt: skip
    """Put the modules of an environment, or its image, into a cache, signed with a private key if one is given.

    Of modules these are its Horovod, what is made of wheels alone, and those that stand for tools of this machine. From
    the job of a CI it is that environment which was installed last, where none is named, and has to have passed on this
    host. The ``console`` shows what takes time.
    With ``has_layers`` the layers that an image was built on go with it.

    Raises NotProven, EnvironmentDamaged, NotRelocatable, HostProblem, UsageProblem, and DiskFull where it is full.
    """
    receipt = installed.find(prefix, name or (newest(prefix) if ci else None))
    made = shared(receipt)
    if made is None:
        is_folder = isinstance(receipt, ImageReceipt) and not receipt.sha256
        own = "It is a folder, which can be changed (--sandbox). " if is_folder else ""
        raise UsageProblem(
            what=f"{receipt.called} cannot be pushed.",
            why=own
            + ("" if receipt.horovod else "It has no Horovod. ")
            + "A cache holds Horovod modules that EasyBuild has made, and images built from envkit's own recipes.",
            fix="Name an environment that 'envkit install' made of a stack, by --method easybuild or apptainer"
            + (", without --sandbox." if is_folder else "."),
        )
    if key is not None:
        require_private(key)
        tell_of_open(key, console)
        tell_of_unknown(key, console)
    verdict = proven(made, is_here=ci is not None)
    if isinstance(made, ModuleReceipt):
        if has_layers:
            why = "It is made of modules; only an image has layers."
            raise UsageProblem(what=f"{made.name} has no layers.", why=why, fix="Push it without --layers.")
        return pushed_modules(made, verdict, to, key, ci, console)
    for name in (made.name, *(layer_name(made.name, layer.name) for layer in made.layers[:-1] if has_layers)):
        publishing.require_name(to, name)
    there = taken_from(to, made.name, made.cached) if ci else None
    part = None if there else image_part(made)
    cpu = cpu_of(made) if part else ()
    builds, left_out = [there] if there else list[PushedBuild](), dict[str, str]()
    if part:
        builds.append(pushed_file(made, Path(made.image), made.sha256, part, cpu, verdict, to, key, ci, console))
    for layer in made.layers[:-1] if has_layers else ():
        if made.cached:
            left_out[layer.name] = f"The image itself was taken {made.cached.shown}, and not built on it."
        elif why := not_there(made, layer):
            left_out[layer.name] = why
        elif (mirror := mirror_of(made, layer)) is None:
            left_out[layer.name] = f"Which mirror it is from cannot be read in {file_of(made, layer)}."
        else:
            below, of_horovod = layer_part(made, layer, mirror), cpu if layer is made.layers[-2] else ()
            try:
                builds.append(
                    pushed_file(
                        made, file_of(made, layer), layer.sha256, below, of_horovod, verdict, to, key, ci, console
                    )
                )
            except EnvironmentDamaged:
                left_out[layer.name] = f"It is not what {made.name} was built on: it was built anew, or is damaged."
    return Pushed(name=made.name, place=to.shown, builds=tuple(builds), left_out=left_out)


def file_of(made: ImageReceipt, layer: BuiltLayer) -> Path:
    """Return where a layer that an image was built on lies, as long as it is kept."""
    return place_of(Tree(root=Path(made.tree)).layers, layer.name, layer.key)


def not_there(made: ImageReceipt, layer: BuiltLayer) -> str:
    """Say why a layer that an image was built on cannot be pushed; nothing if it lies there."""
    again = f"envkit install {made.name} --rebuild --prefix {Path(made.tree).parent}"
    if layer.cached:
        return f"It was taken {layer.cached.shown}."
    if file_of(made, layer).is_file():
        return "" if layer.sha256 else f"The receipt does not say which file it was. To build on it again: {again}"
    chain = [other for other in made.layers[:-1] if other.name != DEBIAN]
    after = chain[chain.index(layer) + 1 :] if layer in chain else ()
    if standing := [other.name for other in after if file_of(made, other).is_file()]:
        return f"It has gone; {standing[-1]}, which was built on it, takes its place."
    return f"It has gone. To build it again: {again}"


def pushed_file(
    made: ImageReceipt, file: Path, sha256: str, part: LockedPart, cpu: tuple[str, ...], verdict: msgspec.Raw,
    to: Place, key: Path | None, ci: Ci | None, console: Console,
) -> PushedBuild:  # fmt: skip
    """Put an image, or a layer that it was built on, into a cache; ``cpu`` is what its Horovod needs.

    Raises what ``push`` does.
    """
    with publishing.writing(to, made.name):
        publishing.require_place(to)
        with files.open_plain(file) as stream:  # what is hashed is what is sent
            if pack.digest_of(stream) != sha256:
                raise changed_since(made, [str(file)])
            size = stream.seek(0, os.SEEK_END)
            return sent(described_image(made, part, cpu, sha256, size, verdict, ci), stream, to, key, console)


def require_private(key: Path) -> None:
    """Require that a file is a private key that can sign. Raises UsageProblem, OpensslMissing."""
    try:
        signature.require_signs(key)
    except OpensslMissing:
        raise
    except HostProblem as error:  # as of a key that is not there
        raise UsageProblem(what=error.what, why=error.why, fix=error.fix) from error


def tell_of_open(key: Path, console: Console) -> None:
    """Say that others can read or write a private key, where they can."""
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        remedy = f"chmod 600 {quote(str(key))}"
        say(console, f"Others can read or change {key} (mode {mode:03o}), and so sign as you. Close it: {remedy}")


def tell_of_unknown(key: Path, console: Console) -> None:
    """Say that none of the keys of the configuration verifies what a private key signs, where there are any."""
    keys = place.configured().keys
    read = map(files.at_home, keys)
    known = {path.read_bytes().strip() for path in read if os.access(path, os.R_OK) and path.is_file()}
    if keys and signature.public_of(key).strip() not in known:
        why = "whoever has only these does not take it, and 'envkit cache verify' calls it bad"
        say(console, f"None of the keys of your configuration (cache.keys) verifies what {key} signs: {why}.")


def copying(name: str, origin: Cached, to: Place) -> str:
    """Return the command that copies the builds of an environment from where one of them was taken."""
    unsigned = "" if origin.key else " --unsigned"
    return f"envkit cache pull {name} --from {quote(origin.place)} --to {quote(to.shown)}{unsigned}"


def pushed_modules(
    made: ModuleReceipt, verdict: msgspec.Raw, to: Place, key: Path | None, ci: Ci | None, console: Console
) -> Pushed:
    """Put the modules of an environment into a cache, its Horovod first. Raises what ``push`` does.

    What is there already, where a job of a CI took it from, is told as it is there.
    """
    origins = {module.name: module.cached for module in made.modules}
    left_out, parts = dict[str, str](), parts_of(made)
    for part in parts:
        publishing.require_name(to, part.name)
    require_compared(made)
    there = {part.name: taken_from(to, part.name, origins[part.name]) if ci else None for part in parts}
    own_tools = [*of_machine(made)]
    if all(origins[part.name] and not there[part.name] for part in parts) and not own_tools:
        taken = "\n".join(f"{name} was taken {origin.shown}." for name, origin in origins.items() if origin)
        others = [one for one in map(origins.get, (part.name for part in parts)) if one and one.place != to.shown]
        copies = "\n".join(dict.fromkeys(copying(made.name, origin, to) for origin in others))
        fix = f"Copy it from there:\n{copies}" if copies else "It is there already: nothing has to be pushed."
        raise not_pushed(made, taken, fix)
    packed = list[Callable[[], PushedBuild]]()
    with publishing.writing(to, made.name), ExitStack() as streams:
        publishing.require_place(to)
        for part in parts:
            origin, build, used = origins[part.name], there[part.name], wheels_of(made, part)
            if build:
                packed.append(partial(told, build))
            elif origin:
                left_out[part.name] = f"It was taken {origin.shown}."
            elif used is None:
                fetch = f"envkit fetch {made.name} --prefix {Path(made.tree).parent}"
                left_out[part.name] = f"Its wheels have gone. To fetch them: {fetch}"
            else:
                packed.append(packed_module(made, part, used, {}, verdict, to, key, ci, console, streams))
        for part, tools in own_tools:
            used = wheels_of(made, part)
            if used is not None:
                try:
                    packed.append(packed_module(made, part, used, tools, verdict, to, key, ci, SILENT, streams))
                except NotRelocatable as error:
                    left_out[part.name] = f"{error.what} {error.why}"
        builds = [push_it() for push_it in packed]  # nothing of it is seen unless all could be packed
    return Pushed(name=made.name, place=to.shown, builds=tuple(builds), left_out=left_out)


def of_machine(made: ModuleReceipt) -> Iterator[tuple[LockedPart, dict[str, str]]]:
    """Yield the modules of an environment that stand for tools of this machine, each with those; none from a cache."""
    tree, locked = Tree(root=Path(made.tree)), installed.lock_of(made)
    for part in locked.parts:
        built = receipts.built(tree, part.name) if part.name in rules()["compared"] else None
        if built is not None and built.tools is not None and built.cached is None and built.sha256 == part.sha256:
            yield part, built.tools


def packed_module(
    made: ModuleReceipt, part: LockedPart, used: Mapping[str, Path], tools: Mapping[str, str], verdict: msgspec.Raw,
    to: Place, key: Path | None, ci: Ci | None, console: Console, streams: ExitStack,
) -> Callable[[], PushedBuild]:  # fmt: skip
    """Pack a module, unless that was done before, and the place has it; return what puts it there. Raises OSError."""
    mark = packed_before.fingerprint(made, part, used)
    if (own := packed_before.known(mark)) and (build := there_already(to, part.name, own, key)):
        return partial(told, build)
    say(console, f"Packing {part.name}")
    reached, stream = ["beginning"], streams.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (it does)
    try:
        with steps(console, f"Packing {part.name}", lambda: reached[-1]):
            described = described_module(made, part, used, tools, verdict, ci, stream, reached.append)
    except OSError as error:  # of the folder that it is packed in, if it names none
        at_fault = OSError(error.errno, error.strerror, str(error.filename or tempfile.gettempdir()))
        problem = of_storage(at_fault, f"{part.name} could not be packed, and nothing was pushed.")
        if problem is None:
            raise
        problem.fix += " TMPDIR names the folder in which it is packed."
        raise problem from error
    if packed_before.fingerprint(made, part, used) == mark:
        packed_before.keep(mark, described.key)
    return partial(sent, described, stream, to, key, console)


def told(build: PushedBuild) -> PushedBuild:
    """Return what is told of a build that a place has already."""
    return build


def shared(receipt: Receipt) -> Made | None:
    """Return the receipt of what a cache can hold: a Horovod that eb made here, an image of one of envkit's recipes."""
    if isinstance(receipt, ImageReceipt):
        of = next((stack for stack in stacks() if stack.name == receipt.name), None)
        is_own = of is not None and bool(of.recipe) and receipt.source == of.recipe
        return receipt if is_own and receipt.sha256 and len(receipt.layers) > 1 else None
    return shareable(receipt)


def taken_from(to: Place, name: str, origin: Cached | None) -> PushedBuild | None:
    """Return what is told of what was itself taken from a place, and is still there; None of anything else."""
    if origin is None or origin.place != to.shown:
        return None
    with suppress(CacheInvalid):
        found = to.entry(f"{folder_of(name)}/{origin.id}.json")
        return pushed(found.manifest, sent=False, signed=bool(found.signed.signature))
    return None


def pushed(build: Manifest, *, sent: bool, signed: bool, object_sent: bool = False) -> PushedBuild:
    """Return what is told of a build that is in a place now."""
    return PushedBuild(
        module=build.module,
        id=build.key,
        sha256=build.sha256,
        size=build.size,
        sent=sent,
        signed=signed,
        host=build.provenance.host,
        built=build.provenance.built,
        ci=build.provenance.ci,
        object_sent=object_sent,
    )


def newest(prefix: Prefix) -> str | None:
    """Return the name of the environment that was installed last of those that can be shared; None without one."""
    built = [receipt for receipt in map(shared, installed.installed(prefix)) if receipt and receipt.horovod]
    return max(built, key=lambda receipt: receipt.created).name if built else None


def described_module(
    receipt: ModuleReceipt, part: LockedPart, used: Mapping[str, Path], tools: Mapping[str, str], verdict: msgspec.Raw,
    ci: Ci | None, stream: BinaryIO, tell: Callable[[str], None],
) -> Manifest:  # fmt: skip
    """Pack a module of an environment into a file; return its manifest. ``used`` are its wheels, by their SHA-256.

    ``tools`` are those of this machine that it stands for.

    Raises NotRelocatable, EnvironmentDamaged, OSError.
    """
    tree, is_horovod = Tree(root=Path(receipt.tree)), part.name == receipt.module
    assert receipt.lock is not None and receipt.mpi is not None  # noqa: S101  (proven)
    packed = pack.pack(tree, part.name, receipt.machine, minor(receipt.python), stream, used, tell, tools_in(tools))
    if packed.changed:
        raise changed_since(receipt, [str(tree.root / name) for name in packed.changed])
    recipes = fit.recipes_of(receipt.lock, rules()["compared"])
    needs = Needs(
        machine=receipt.machine,
        python=minor(receipt.python),
        suffix=receipt.suffix,
        accelerator=receipt.accelerator,
        mpi=receipt.mpi if is_horovod else Mpi(family="", version=""),
        mpi_library=packed.mpi_library,
        versions=packed.versions,
        cpu=packed.cpu,
        syntax=packed.syntax,
        recipes=recipes if is_horovod else {part.name: part.sha256},
        load=receipt.load,
        tools=dict(tools),
    )
    return Manifest(
        part=part,
        needs=needs,
        sha256=packed.sha256,
        size=packed.size,
        unpacked=packed.unpacked,
        provenance=provenance(receipt, receipt.easybuild, verdict, ci),
        files=packed.files,
        wheels=packed.wheels,
    )


def described_image(
    receipt: ImageReceipt, part: LockedPart, cpu: tuple[str, ...], sha256: str, size: int, verdict: msgspec.Raw,
    ci: Ci | None,
) -> Manifest:  # fmt: skip
    """Return the manifest of an image, or of a layer that it was built on."""
    needs = Needs(
        machine=receipt.machine,
        python=minor(receipt.python),
        suffix="",
        accelerator=receipt.accelerator,
        mpi=receipt.mpi or Mpi(family="", version=""),
        mpi_library="",
        versions={},
        cpu=cpu,
        syntax="",
        recipes={},
    )
    return Manifest(
        part=part,
        needs=needs,
        sha256=sha256,
        size=size,
        unpacked=size,
        provenance=provenance(receipt, "", verdict, ci),
        files={f"{part.name}.sif": PackedFile(size=size, sha256=sha256, is_program=True)},
    )


def cpu_of(receipt: ImageReceipt) -> tuple[str, ...]:
    """Return the features of the CPU that the Horovod in an image was compiled for. Raises HostProblem."""
    flags, inside = target.read_built(receipt.flags or b"null"), receipt.environment
    extensions = [each.path for each in flags.extensions if each.path and each.exists] if flags else []
    with temporary.folder("push") as folder:
        for path in extensions:
            copying = inside.command(["cp", path, str(folder)], visible=[folder])
            answer = process.capture(copying, env=inside.variables(os.environ), timeout_s=300)
            if answer.status:
                raise HostProblem(what=f"{path} cannot be read in {receipt.image}.", why=answer.stderr.strip()[-600:])
        return binaries.cpu(binaries.compiled(sorted(folder.iterdir())), receipt.machine)


def provenance(receipt: Made, easybuild: str, verdict: msgspec.Raw, ci: Ci | None) -> Provenance:
    """Return who built it and from what."""
    assert receipt.lock is not None  # noqa: S101  (proven)
    return Provenance(
        host=platform.node(),
        built=receipt.created,
        envkit=receipt.envkit,
        easybuild=easybuild,
        environment=receipt.name,
        lock=receipt.lock,
        verdict=verdict,
        ci=ci,
        arguments=receipt.arguments if isinstance(receipt, ImageReceipt) else {},
    )


def minor(version: str) -> str:
    """Return 3.11 of 3.11.7."""
    return ".".join(version.split(".")[:2])


def sent(described: Manifest, stream: BinaryIO, to: Place, key: Path | None, console: Console) -> PushedBuild:
    """Sign a manifest, and put it and its object into a place. Raises OSError."""
    began = list[float]()

    def shown() -> LiveLine:
        say(console, f"Pushing {described.module}, {words.size(described.size)}")
        began.append(time.monotonic())
        return transfer(console, f"Pushing {described.module}", described.size, stream.tell)

    with temporary.folder("push") as folder:
        signed, keys = b"", public_keys(key, folder)
        if key is not None:
            path = folder / "manifest"
            path.write_bytes(msgspec.json.encode(described))
            signed = signature.signature_of(path, key)
        stream.seek(0)
        new = publishing.publish(to, described, stream, signed, keys, shown)
        if began:
            say(console, f"{described.module} is there after {time.monotonic() - began[0]:.0f} s")
        if new:
            return pushed(described, sent=True, signed=bool(signed), object_sent="object" in new)
    before = to.entry(f"{folder_of(described.module)}/{described.key}.json")
    return pushed(before.manifest, sent=False, signed=bool(before.signed.signature))


def public_keys(key: Path | None, folder: Path) -> list[str]:
    """Return the keys by which what is there is signed well enough: the public half of ``key``, and those configured.

    That half is put into a folder. There are none where nothing is to be signed.
    """
    if key is None:
        return []
    files.write(folder / "public", signature.public_of(key), mode=0o600)
    return [str(folder / "public"), *place.configured().keys]


def there_already(to: Place, module: str, own: str, key: Path | None) -> PushedBuild | None:
    """Return what is told of a build, by its id, if a place has it whole, listed, and signed well enough; else None.

    Raises OSError, RefusedError.
    """
    name = f"{folder_of(module)}/{own}.json"
    with temporary.folder("push") as folder, suppress(CacheInvalid):
        entry, keys = to.entry(name), public_keys(key, folder)
        made = entry.manifest
        is_listed = to.is_registry or name in publishing.indexed(to)
        if (
            is_listed
            and to.writable.holds(to.named, made.object_name, made.size, made.sha256)
            and (key is None or place.signer(entry, keys))
        ):
            return pushed(made, sent=False, signed=bool(entry.signed.signature))
    return None


def require(to: Place) -> None:
    """Require that a place is there and can be written to.

    Raises what its kind does, NotWritable, CacheBlocked, CacheSilent.
    """
    with publishing.writing(to, "Nothing"):
        publishing.require_place(to)


def push_sources(to: Place, sources: Sequence[Source], kept_in: Path) -> int:
    """Put sources that are in the cache of a prefix into a place, by their SHA-256; return how many were not there.

    Raises UsageProblem, NotWritable, CacheBlocked, DiskFull.
    """
    store, sent = to.writable, 0
    for one in distinct(sources):
        sha256, path = one.sha256 or files.sha256(kept_in / one.place), kept_in / one.place
        name = layout.source_of(sha256)
        with publishing.writing(to, one.filename), files.open_plain(path) as stream:
            if not store.holds(to.named, name, path.stat().st_size, sha256):
                store.put(to.named, name, stream)
                sent += 1
    return sent


def proven(receipt: Made, *, is_here: bool) -> msgspec.Raw:
    """Return the report of the last verification of an environment, which ``is_here`` has to be of this host.

    Raises NotProven, EnvironmentDamaged.
    """
    from envkit.verify import last

    kept, again = (
        last.last(receipt.name, receipt.tree),
        f"envkit verify {receipt.name} --prefix {Path(receipt.tree).parent}",
    )
    if kept is None or kept.report.verdict != "pass":
        why = "Its last verdict is FAIL." if kept else "No verdict on it of yours is kept."
    elif is_here and (elsewhere := sorted({one.name for one in kept.report.hosts} - {name_of_node()})):
        why = f"Its last verdict is of {', '.join(elsewhere)}, not of this host ({name_of_node()})."
    else:
        why = ""
    if kept is None or why:
        raise NotProven(
            what=f"{receipt.name} is not pushed: only what has passed is shared.",
            why=why,
            fix=f"Verify it, then push again: {again}",
        )
    changed = [one.path for one in target.installed(receipt, receipt.environment).drift or ()]
    if isinstance(receipt, ImageReceipt):
        found = receipt.damaged()
    else:
        modules = [part.name for part in (*parts_of(receipt), *(part for part, _ in of_machine(receipt)))]
        found = manifest.damage(Tree(root=Path(receipt.tree)), modules)  # what is packed is read then
    if wrong := list(dict.fromkeys((*(one.path for one in found), *changed))):
        raise changed_since(receipt, wrong)
    return msgspec.Raw(msgspec.json.encode(kept.report))


def changed_since(receipt: Made, wrong: Sequence[str]) -> EnvironmentDamaged:
    """Say that files of an environment are not what was installed."""
    return EnvironmentDamaged(
        what=f"{receipt.name} is not pushed: it is not what was installed.",
        why="\n".join(wrong[:5]),
        fix=f"Put it back with 'envkit repair {receipt.name} --prefix {Path(receipt.tree).parent}', then push again.",
    )


def parts_of(receipt: ModuleReceipt) -> list[LockedPart]:
    """Return what a cache can hold of an environment: its Horovod, and Python that is made of wheels alone."""
    locked, software = installed.lock_of(receipt), Tree(root=Path(receipt.tree)).software
    of_wheels = [
        part
        for part in locked.parts
        if part.name not in (receipt.module, *rules()["compared"])
        and wheels.is_all(part.sources)
        and any((software / part.name).glob("lib/python*/site-packages"))
    ]
    return [*(part for part in locked.parts if part.name == receipt.module), *of_wheels]


def require_compared(receipt: ModuleReceipt) -> None:
    """Require that a cache can compare what an environment takes of its machine. Raises HostProblem."""
    compared, locked = rules()["compared"], installed.lock_of(receipt)
    unknown = [part.name for part in locked.parts if part.name.endswith("/system") and part.name not in compared]
    if unknown or receipt.mpi is None:
        why = f"It takes {', '.join(unknown)} from this machine, which is not compared with others."
        raise not_pushed(receipt, why if unknown else "It has no MPI.")


def not_pushed(receipt: Made, why: str, fix: str = "Push one that was built without that.") -> HostProblem:
    """Say that nothing of an environment can be pushed."""
    return HostProblem(what=f"{receipt.name} is not pushed.", why=why, fix=fix)


def wheels_of(receipt: ModuleReceipt, part: LockedPart) -> dict[str, Path] | None:
    """Return the wheels that a module was made of, by their SHA-256, as they are now; None where one has gone."""
    if not wheels.is_all(part.sources):
        return {}
    kept = Prefix(root=Path(receipt.tree).parent).sources
    here, used = SourceCache(kept), dict[str, Path]()
    for source in part.sources:
        if source.sha256 is None or here.sha256(source.filename) != source.sha256:
            return None
        used[source.sha256] = kept / source.filename
    return used


def image_part(receipt: ImageReceipt) -> LockedPart:
    """Return what an image was made from, by the key of its last layer. Raises HostProblem, EnvironmentMissing."""
    locked = installed.lock_of(receipt)
    if receipt.cached is not None:
        raise HostProblem(
            what=f"{receipt.name} is not pushed.",
            why=f"It was taken {receipt.cached.shown}.",
            fix=f"Push one that was built here: envkit install {receipt.name} --rebuild "
            f"--prefix {Path(receipt.tree).parent}",
        )
    return msgspec.structs.replace(locked.parts[-1], name=receipt.name, sha256=receipt.layers[-1].key)


def mirror_of(receipt: ImageReceipt, layer: BuiltLayer) -> str | None:
    """Return the mirror that a Debian was made from, None if it does not say that; nothing of other layers."""
    if layer.name != DEBIAN:
        return ""
    said = process.capture([receipt.runtime, "inspect", "--deffile", str(file_of(receipt, layer))], timeout_s=300)
    match = MIRROR_OF.search(said.stdout)
    return match[1] if match else None


def layer_part(receipt: ImageReceipt, layer: BuiltLayer, mirror: str) -> LockedPart:
    """Return what a layer below an image was made from, as a cache calls it. Raises EnvironmentMissing."""
    part = next(part for part in installed.lock_of(receipt).parts if part.name == layer.name)
    name, key = layer_name(receipt.name, layer.name), shared_key(layer.key, mirror)
    return msgspec.structs.replace(part, name=name, sha256=key)
