"""Installing by Apptainer: an image from a recipe, layer by layer, or an image that is taken over."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from envkit import __version__, build, diagnose, host, preflight, process, receipt, runtime
from envkit.dockerfile import converted
from envkit.environment import ContainerEnvironment, Environment, demand_sources
from envkit.errors import (
    BuildFailed,
    DiskFull,
    HostProblem,
    Interrupted,
    Problem,
    SignatureInvalid,
    UsageProblem,
)
from envkit.fetch import Source
from envkit.fetch import missing as absent
from envkit.files import discard, replace, sha256
from envkit.host import Accelerator
from envkit.lock import Lock, Machine, Part
from envkit.methods import apptainer
from envkit.methods.apptainer import Base, ImagePlan, Layer
from envkit.plan import locked
from envkit.prefix import Tree
from envkit.progress import BuildProgress, LogTail, fetch_all, say
from envkit.receipt import ImageReceipt, Installed, Mpi
from envkit.request import Request
from envkit.resources import PACKAGE, data
from envkit.site import find as find_site
from envkit.stack import FRAMEWORKS, Stack
from envkit.verify.build_flags import BuildFlags

SQUASHFS = "-comp zstd -Xcompression-level {}"
FINAL_LEVEL, LAYER_LEVEL = 9, 1
WHEELS, CCACHE = "/mnt", "/srv"  # folders that a Debian has, for what is bound while building
DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")
STEP = re.compile(r"^INFO: +(?! |To see|Non-gzip|Build complete)(.+?)\.*$")
FATAL = re.compile(r"^(?:FATAL|ERROR):\s+(.+)$")


@dataclass(frozen=True, kw_only=True)
class ImageWork:
    """An image to build, or to take over."""

    request: Request
    stack: Stack
    host: host.Host
    runtime: runtime.Runtime | None
    plan: ImagePlan
    tree: Tree
    probed: tuple[Problem, ...] = ()

    @property
    def steps(self) -> Sequence[str]:
        """The layers."""
        return [layer.name for layer in self.plan.layers]

    @property
    def missing(self) -> list[str]:
        """The layers that are to be built: each that is not there and that a later one stands on."""
        return [layer.name for layer in self.left()]

    @property
    def sources(self) -> Sequence[Source]:
        """What pip takes."""
        return self.plan.sources

    @property
    def env(self) -> dict[str, str]:
        """The settings to enter with: the caller's."""
        return dict(os.environ)

    @property
    def image(self) -> Layer:
        """The last layer."""
        return self.plan.layers[-1]

    @property
    def origin(self) -> str:
        """What it is made from: a recipe, an image, a Dockerfile."""
        return self.request.source or str(self.request.dockerfile or self.stack.recipe)

    @property
    def lock(self) -> Lock:
        """What it is made from: its layers by their keys, an image of a registry by its digest."""
        recipe = "" if self.request.source else Path(self.request.dockerfile or self.stack.recipe).name
        keys = {layer.name: layer.key for layer in self.plan.layers}
        if digest := DIGEST.search(self.request.source or ""):
            keys["image"] = digest[1]
        parts = [Part(name=name, recipe=recipe, sha256=key) for name, key in keys.items()]
        parts[-1] = msgspec.structs.replace(parts[-1], sources=tuple(locked(self.sources)))
        return Lock(
            name=self.stack.name,
            method=self.stack.method,
            framework=self.stack.framework,
            accelerator=self.stack.accelerator.value,
            release=self.stack.release,
            machine=Machine(type=self.host.machine),
            tools={"envkit": __version__} | ({self.runtime.family: self.runtime.version} if self.runtime else {}),
            parts=tuple(parts),
        )

    def left(self) -> list[Layer]:
        """Return the layers to build: what the image and the layers before it stand on, unless it is there."""
        if self.image.image.exists() and not (self.request.sign or self.request.signed_by):
            return []
        base = [layer for layer in self.plan.layers[:-1] if layer.name == "debian"]
        others = self.plan.layers[len(base) : -1]
        done = max((number for number, layer in enumerate(others, start=1) if layer.image.exists()), default=0)
        return [*(layer for layer in base if not layer.image.exists()), *others[done:], self.image]

    def problems(self) -> list[Problem]:
        """Return everything that would stop it."""
        found = [*self.probed, *preflight.known_problems(self.host, self.stack, force=self.request.force)]
        found += preflight.machine_problems(self.host, self.stack)
        remaining = len(self.missing) / len(self.plan.layers)
        found += preflight.prefix_problems(self.request.prefix, self.stack, remaining)
        scratch = temporary_folder()
        free_mb = shutil.disk_usage(scratch).free // 1_000_000
        if self.missing and free_mb < self.stack.disk_mb:
            found.append(
                Problem(
                    what=f"{scratch} has {free_mb} MB free; a build unpacks about {self.stack.disk_mb} MB there.",
                    fix="Set APPTAINER_TMPDIR to a folder with more room, on a local disk.",
                )
            )
        if self.request.offline:
            found += preflight.source_problems(self.sources, self.request.prefix, self.stack)
        return found

    def heading(self) -> Iterator[str]:
        """Yield what is installed, where, and with what of the machine."""
        yield f"Stack:    {self.stack.name} ({self.origin}); {self.stack.status}"
        yield f"Prefix:   {self.request.prefix.root}"
        yield f"Machine:  {self.host.machine} ({host.cpu_target()})"
        if self.runtime:
            yield f"Runtime:  {self.runtime.family} {self.runtime.version} ({self.runtime.path})"

    def listing(self) -> Iterator[str]:
        """Yield the layers, and how much there is to do."""
        missing = set(self.missing)
        for layer in self.plan.layers:
            yield f" * [{' ' if layer.name in missing else 'x'}] {layer.name}: {layer.image}"
        cache = self.request.prefix.sources
        gone = absent(self.sources, cache) if cache.is_dir() else self.sources
        files = f"{len(gone)} of {len(self.sources)} files to fetch"
        yield f"\n{len(missing)} of {len(self.steps)} layers to build; {files}."
        if expected := sum(self.stack.seconds.get(name, 0) for name in missing):
            yield f"About {expected / 60:.0f} minutes on two cores."

    def build(self, folder: Path, console: Console) -> None:
        """Fetch what pip takes, and build the layers that are missing."""
        left = self.left()
        receipt.begin(self.tree, self.stack.name, "fetching", folder)
        if left:
            fetch_all(self.sources, self.request.prefix.sources, self.request.offline, self.stack.name, console)
        receipt.begin(self.tree, self.stack.name, "building", folder)
        if not left:
            return
        say(console, f"Building {len(left)} of {len(self.steps)} layers; logs: {folder}")
        with BuildProgress(console, [layer.name for layer in left], dict(self.stack.seconds)) as shown:
            for layer in left:
                self.build_layer(layer, folder, shown)

    def build_layer(self, layer: Layer, folder: Path, shown: BuildProgress) -> None:
        """Build one layer, which appears complete or not at all. Raises BuildFailed, DiskFull, Interrupted."""
        assert self.runtime is not None  # noqa: S101  (preflight demands one)
        layer.image.parent.mkdir(parents=True, exist_ok=True)
        log = folder / f"{layer.name}.log"
        partial = layer.image.with_name(f".{layer.image.name}.{os.getpid()}")
        tail = LogTail(log)
        shown.on({"event": "begin", "module": layer.name})

        def watch() -> None:
            for line in tail.new():
                if match := STEP.match(line):
                    shown.on({"event": "step", "step": match[1]})
            shown.tick()

        is_image = layer is self.image
        scratch = Path(tempfile.mkdtemp(prefix="envkit-build-", dir=temporary_folder()))
        try:
            if is_file(self.request.source) and not self.request.sandbox:
                status = self.copy(partial, log)
            else:
                status = apptainer.build(
                    self.runtime.path,
                    self.words(is_image),
                    layer,
                    folder=self.plan.folder,
                    target=partial,
                    log=log,
                    env=self.building(scratch),
                    binds=self.binds(),
                    watch=watch,
                )
            if status:
                raise self.failed(layer, log, status)
            if is_image:
                self.seal(partial)
            replace(partial, layer.image)
        except Interrupted as stopped:
            stopped.why = f"The layer {layer.name} was being built; nothing of the build goes on."
            stopped.fix = f"Run the same command again: it resumes. Log: {log}"
            raise
        finally:
            discard(partial)
            discard(scratch)
        shown.on({"event": "module", "module": layer.name})

    def copy(self, target: Path, log: Path) -> int:
        """Copy the file that is taken over, byte for byte, if it is an image; return what Apptainer says of it."""
        assert self.runtime is not None and self.request.source  # noqa: S101
        with process.interruptible():
            shutil.copyfile(self.request.source, target)
        target.chmod(0o755)
        told = process.capture([str(self.runtime.path), "inspect", str(target)], timeout_s=300)
        log.write_text(told.stdout + told.stderr)
        return told.status

    def seal(self, image: Path) -> None:
        """Check the signature of an image, and sign it, where that is asked for.

        Raises SignatureInvalid, HostProblem for a key that is none.
        """
        assert self.runtime is not None  # noqa: S101  (preflight demands one)
        for verb, key in (("verify", self.request.signed_by), ("sign", self.request.sign)):
            if key is None:
                continue
            told = process.capture([str(self.runtime.path), verb, "--key", str(key), str(image)], timeout_s=300)
            said = "\n".join(match[1] for line in told.stderr.splitlines() if (match := FATAL.match(strip(line))))
            if told.status and verb == "verify":
                raise SignatureInvalid(
                    what=f"{self.request.source} is not signed with the private half of {key}.",
                    why=said,
                    fix="Ask who made the image for the right key, or leave out --signed-by to take it over all the "
                    "same.",
                )
            if told.status:
                raise HostProblem(
                    what=f"The image could not be signed with {key}.",
                    why=said,
                    fix="Give a private key in PEM without a passphrase, such as 'openssl genpkey -algorithm ed25519' "
                    "makes.",
                )

    def words(self, is_image: bool) -> list[str]:
        """Return what the build is told besides recipe and target."""
        level = FINAL_LEVEL if is_image else LAYER_LEVEL
        kind = ["--sandbox"] if is_image and self.request.sandbox else ["--mksquashfs-args", SQUASHFS.format(level)]
        return [*runtime.build_words(), *kind]

    def binds(self) -> list[tuple[Path, str]]:
        """Return what a build sees of the prefix."""
        if not self.stack.recipe:
            return []
        ccache = self.request.prefix.root / "ccache"
        ccache.mkdir(exist_ok=True)
        return [(self.request.prefix.sources, WHEELS), (ccache, CCACHE)]

    def building(self, scratch: Path) -> dict[str, str]:
        """Return the settings of a build: room for what is unpacked, and nothing that changes what is built."""
        env = {key: value for key, value in self.host.env.items() if not key.startswith(("APPTAINER", "SINGULARITY"))}
        kept = {key: value for key, value in os.environ.items() if KEPT.fullmatch(key)}
        for family in ("APPTAINER", "SINGULARITY"):
            env[f"{family}_TMPDIR"] = str(scratch)
        return env | kept

    def failed(self, layer: Layer, log: Path, status: int) -> BuildFailed | DiskFull:
        """Say why a layer was not built, in a few lines."""
        lines = log.read_text(errors="replace").splitlines()
        said = [match[1] for line in lines if (match := FATAL.match(strip(line)))]
        found = diagnose.first_cause(lines)
        why, fix = "\n".join(said[-2:]) or f"{self.runtime and self.runtime.family} ended with {status}.", ""
        if found is not None:
            why = f"{found.cause}\n{log}:{found.number}: {found.line}" + (f"\n{said[-1]}" if said else "")
            fix = found.fix
        full = (found is not None and found.rule.id == "disk-full") or shutil.disk_usage(
            self.request.prefix.root
        ).free < build.ALMOST_NOTHING
        kind = DiskFull if full else BuildFailed
        fix = fix or "Look into the log, mend the cause, and run the same command again: it resumes."
        return kind(what=f"Building {layer.name} of {self.stack.name} failed.", why=why, fix=f"{fix}\nLog: {log}")

    def entered(self, made: Installed) -> Environment:
        """Return the way into what was built."""
        return made.environment

    def describe(self, folder: Path) -> ImageReceipt:
        """Return the receipt of the image, asked of the image itself; it lies where it was built."""
        assert self.runtime is not None  # noqa: S101  (preflight demands one)
        image = self.image.image
        accelerator = self.stack.accelerator
        site = find_site(self.request.site) if self.request.site else None
        inside = ContainerEnvironment(
            name=self.stack.name,
            runtime=self.runtime.path,
            image=image,
            accelerator=accelerator.value,
            binds=(*(site.binds if site else ()), *self.request.binds),
            settings=tuple(site.settings.items()) if site else (),
            srun=site.srun if site else (),
        )
        try:
            facts = ask(inside)
        except BuildFailed:
            if self.request.source is not None:
                discard(image)
            raise
        framework = next((name for name in FRAMEWORKS if facts.built_for.get(name)), self.stack.framework)
        state = image.stat()
        has_mpi = facts.built is None or any(one.flags.get("mpi") for one in facts.built.extensions)
        return ImageReceipt(
            name=self.stack.name,
            framework=framework,
            accelerator=accelerator.value,
            requires=self.stack.requires,
            machine=facts.machine,
            python=facts.python,
            tree=str(self.tree.root),
            mpi=facts.mpi if has_mpi else None,
            horovod=facts.horovod,
            site_packages=facts.site_packages,
            library_path=facts.library_path,
            verified=time.strftime("%Y-%m-%d"),
            log=str(folder),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            envkit=__version__,
            image=str(image),
            sha256=sha256(image) if image.is_file() else "",
            size=state.st_size if image.is_file() else 0,
            changed=state.st_mtime_ns,
            runtime=str(self.runtime.path),
            interpreter=facts.interpreter,
            source=self.origin,
            layers=tuple(receipt.Layer(name=layer.name, key=layer.key) for layer in self.plan.layers),
            built=msgspec.Raw(msgspec.json.encode(facts.built)),
            pmix=facts.pmix,
            libc=facts.libc.rpartition(" ")[2],
            apptainer=self.runtime.version,
            binds=inside.binds,
            settings=dict(inside.settings),
            srun=inside.srun,
        )

    def settle(self, made: Installed) -> Installed:
        """Put the image where it stays, in the place of an older one."""
        self.discard_superseded()
        final = self.tree.images / (self.stack.name if self.request.sandbox else f"{self.stack.name}.sif")
        final.parent.mkdir(exist_ok=True)
        other = final.with_name(f".{final.name}.old")
        discard(other)
        if final.is_dir():
            final.rename(other)
        self.image.image.rename(final)
        discard(other)
        state = final.stat()
        return msgspec.structs.replace(made, image=str(final), changed=state.st_mtime_ns)

    def discard_superseded(self) -> None:
        """Discard the layers of the image that this one takes the place of, but for those that others stand on."""
        path = receipt.path_of(self.tree, self.stack.name)
        if not path.is_file():
            return
        used = {layer.key for layer in self.plan.layers}
        for other in receipt.installed(self.request.prefix):
            if isinstance(other, ImageReceipt) and other.name != self.stack.name:
                used |= {layer.key for layer in other.layers}
        for layer in getattr(receipt.read(path), "layers", ()):
            if layer.key not in used:
                (self.tree.layers / f"{layer.name}-{layer.key[:20]}.sif").unlink(missing_ok=True)


KEPT = re.compile(
    r"(APPTAINER|SINGULARITY)_(CACHEDIR|NOHTTPS|DOCKER_USERNAME|DOCKER_PASSWORD|CONFIGDIR)|XDG_RUNTIME_DIR"
)


def prepare(request: Request, machine: host.Host, stack: Stack) -> ImageWork:
    """Resolve a stack to layers; changes nothing. Raises RecipeInvalid, UsageProblem."""
    tree = request.prefix.tree(machine.platform)
    found = runtime.find()
    demand_sources([*(find_site(request.site).binds if request.site else ()), *request.binds])
    problems = (
        [] if found else [Problem(what="There is neither apptainer nor singularity on PATH.", fix=runtime.INSTALL)]
    )
    if request.source is not None:
        plan = taken_over(stack.name, request.source, tree.layers)
    elif request.dockerfile is not None:
        plan = from_dockerfile(stack.name, request.dockerfile, tree.layers)
    else:
        base, lacking = base_of(request, machine)
        problems += [*lacking, *runtime.build_problems()]
        own = {"PIP": f"--no-index --find-links={WHEELS}", "JOBS": str(build.jobs(request.jobs))}
        plan = apptainer.plan(wanted(request, stack, base, machine.machine, own), tree.layers)
    return ImageWork(
        request=request, stack=stack, host=machine, runtime=found, plan=plan, tree=tree, probed=tuple(problems)
    )


def is_other(request: Request, stack: Stack, found: Installed) -> bool:
    """Say whether what is asked for is another image than the one that a receipt describes; quick where no recipe is.

    Raises RecipeInvalid, UsageProblem, HostProblem.
    """
    if not isinstance(found, ImageReceipt):
        return True
    site = find_site(request.site) if request.site else None
    binds = (*(site.binds if site else ()), *request.binds)
    if (binds, request.sandbox) != (found.binds, not found.sha256) or request.sign or request.signed_by:
        return True
    if not (request.build_args or request.base != "auto" or request.source or request.dockerfile):
        return False
    plan = prepare(request, host.look(request.load), stack).plan
    return [layer.key for layer in plan.layers] != [layer.key for layer in found.layers]


def wanted(request: Request, stack: Stack, base: Base, machine: str, own: dict[str, str]) -> apptainer.Wanted:
    """Return the recipe of a stack with the arguments that were asked for."""
    return apptainer.Wanted(
        name=stack.name,
        recipe=stack.recipe,
        arguments={**stack.arguments, **dict(request.build_args)},
        own={**own, "PROBE": str(data("verify/probe"))},
        base=base,
        machine=machine,
    )


def rendered(request: Request, stack: Stack, machine: host.Host) -> str:
    """Return the recipe of a stack for plain Apptainer. Raises RecipeInvalid, UsageProblem, HostProblem."""
    if not stack.recipe:
        raise UsageProblem(what=f"{stack.name} is no image.", fix="Name one whose METHOD is apptainer: 'envkit list'.")
    base, lacking = base_of(request, machine)
    preflight.demand([problem for problem in lacking if "debootstrap" not in problem.what], stack)
    return apptainer.rendered(wanted(request, stack, base, machine.machine, {}))


def base_of(request: Request, machine: host.Host) -> tuple[Base, list[Problem]]:
    """Return what the image starts from, and what is lacking for it. Raises UsageProblem."""
    mirror = apptainer.mirror()
    debootstrap = shutil.which("debootstrap", path=machine.env["PATH"] + ":/usr/sbin:/sbin")
    if request.base == "mirror" or (request.base == "auto" and mirror and debootstrap):
        lacking = []
        if not mirror:
            fix = "Use --base registry, or on Debian: apt install debootstrap."
            lacking.append(Problem(what="This host's apt names no mirror of Debian.", fix=fix))
        if not debootstrap:
            lacking.append(Problem(what="debootstrap is missing.", fix="Install it, or use --base registry."))
        return Base(bootstrap="debootstrap", reference=mirror or ""), lacking
    if request.base in ("auto", "registry"):
        return Base(bootstrap="docker", reference=""), []
    if Path(request.base).exists():
        return Base(bootstrap="localimage", reference=str(Path(request.base).resolve())), []
    reference = request.base.removeprefix("docker://")
    demand_digest(reference, "--base")
    return Base(bootstrap="docker", reference=reference), []


def demand_digest(reference: str, option: str) -> None:
    """Refuse an image of a registry that is not named by digest. Raises UsageProblem."""
    if not DIGEST.search(reference):
        raise UsageProblem(
            what=f"{option} {reference} names no digest.",
            why="What a tag means changes; what a digest means does not.",
            fix=f"Write it as {reference.partition('@')[0].rpartition(':')[0] or reference}@sha256:DIGEST",
        )


def adopted(request: Request) -> Stack:
    """Return the stack that somebody else's image or Dockerfile is. Raises UsageProblem."""
    option, source = ("--from", request.source) if request.source else ("--from-dockerfile", str(request.dockerfile))
    assert source  # noqa: S101  (one of the two is given)
    if not request.wanted or request.wanted in FRAMEWORKS:
        raise UsageProblem(
            what=f"{option} needs a name.", fix=f"envkit install NAME --method apptainer {option} {source}"
        )
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", request.wanted):
        raise UsageProblem(what=f"{request.wanted!r} cannot be a name.", fix="Use letters, digits and . _ - only.")
    if "://" in source:
        demand_digest(source, option)
    elif not Path(source).exists():
        fix = "Give a .sif file, or docker://IMAGE@sha256:DIGEST." if request.source else ""
        raise UsageProblem(what=f"{option}: there is no file {source}.", fix=fix)
    accelerator = "cpu" if request.accelerator == "auto" else request.accelerator
    return Stack(
        name=request.wanted,
        method="apptainer",
        framework=request.framework or "none",
        accelerator=Accelerator(accelerator),
        status=f"taken over from {source}",
    )


def from_dockerfile(name: str, path: Path, layers: Path) -> ImagePlan:
    """Return the plan of an image that a Dockerfile describes. Raises RecipeInvalid, UsageProblem."""
    recipe = converted(path.absolute())
    base = re.search(r"^From: (\S+)$", recipe, re.MULTILINE)
    demand_digest(base[1] if base else "", f"{path}: FROM")
    key = hashlib.sha256(recipe.encode()).hexdigest()
    layer = Layer(name="image", recipe=recipe, key=key, image=layers / f"{name}-{key[:20]}.sif")
    return ImagePlan(layers=(layer,), sources=(), folder=path.absolute().parent)


def taken_over(name: str, source: str, layers: Path) -> ImagePlan:
    """Return the plan of an image that is not built here."""
    local = "://" not in source
    key = sha256(Path(source)) if is_file(source) else hashlib.sha256(source.encode()).hexdigest()
    bootstrap, _, reference = ("localimage", "", str(Path(source).resolve())) if local else source.partition("://")
    recipe = f"Bootstrap: {bootstrap}\nFrom: {reference}\n"
    layer = Layer(name="image", recipe=recipe, key=key, image=layers / f"{name}-{key[:20]}.sif")
    return ImagePlan(layers=(layer,), sources=(), folder=Path.cwd())


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What image_facts.py says."""

    interpreter: str
    python: str
    machine: str
    libc: str
    horovod: str
    built_for: dict[str, str]
    site_packages: tuple[str, ...]
    library_path: tuple[str, ...]
    built: BuildFlags | None
    mpi: Mpi | None
    pmix: str


def is_file(source: str | None) -> bool:
    """Say whether what is taken over is an image in a file, and not one of a registry, nor a folder."""
    return source is not None and "://" not in source and Path(source).is_file()


def ask(inside: ContainerEnvironment) -> ImageFacts:
    """Ask an image what it has. Raises BuildFailed, HostProblem."""
    script = str(data("verify/image_facts.py"))
    said = ""
    for python in ("python", "python3"):
        argv = inside.command([python, script], visible=[PACKAGE])
        told = process.capture(argv, env=inside.variables(os.environ), timeout_s=300)
        said = said or told.stderr.strip()
        if told.status == 0:
            found = msgspec.json.decode(told.stdout.splitlines()[-1], type=ImageFacts)
            if found.horovod or python == "python3":
                return found
    raise BuildFailed(
        what=f"The image {inside.image} cannot be entered, or has no Python.",
        why=said[-600:],
        fix="Try it by hand: apptainer exec IMAGE python3 --version",
    )


def temporary_folder() -> Path:
    """Return where images are unpacked while they are built."""
    for name in ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    return Path(tempfile.gettempdir())


def strip(line: str) -> str:
    """Return a line without the colours of a terminal."""
    return re.sub(r"\x1b\[\d*m", "", line)
