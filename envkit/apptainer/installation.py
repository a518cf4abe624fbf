"""An image to install: its layers, what stops it, what it is once it is built."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgspec
from rich.console import Console

from envkit import __version__
from envkit.apptainer import cached
from envkit.apptainer.build import WHEELS, LayerBuild, temporary_folder
from envkit.apptainer.dockerfile import AGAIN, Converted
from envkit.apptainer.image_facts import ask
from envkit.apptainer.image_plan import DEBIAN, ImagePlan, Layer, note_of, place_of
from envkit.apptainer.receipt import ImageReceipt
from envkit.cache.offers import FoundBuilds, Offer, for_scripts, left_out, lines
from envkit.cache.place import NOWHERE, Caches
from envkit.environments import filelocks, receipt, replaced
from envkit.environments.environment import ContainerEnvironment, Environment
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Receipt
from envkit.errors import BuildFailed, HostProblem, Problem
from envkit.machine import host, runtime
from envkit.machine.site import find as find_site
from envkit.planning import preflight
from envkit.planning.method import Offered
from envkit.planning.plan import locked
from envkit.planning.request import Request
from envkit.planning.stack import FRAMEWORKS, Stack
from envkit.report import words
from envkit.report.progress import BuildProgress, say
from envkit.sources import signature
from envkit.sources.availability import Answers
from envkit.sources.fetch import Source
from envkit.sources.progress import fetch_all
from envkit.system import process
from envkit.system.addresses import redact
from envkit.system.files import discard, sha256

DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")


@dataclass(frozen=True, kw_only=True)
class ImageInstallation:
    """An image to build, or to take over; ``dockerfile`` is that which it is built from, if it is one.

    ``caches`` may have it; ``taken`` is what was taken from one, once it was, and ``bad`` are the builds, by their ids,
    that could not be. ``probed`` is what this machine lacks for any image, ``unbuildable`` for one that is built.
    """

    request: Request
    stack: Stack
    host: host.Host
    runtime: runtime.Runtime | None
    plan: ImagePlan
    tree: Tree
    dockerfile: Converted | None = None
    probed: tuple[Problem, ...] = ()
    unbuildable: tuple[Problem, ...] = ()
    caches: Caches = NOWHERE
    taken: list[cached.TakenImage] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)

    @property
    def is_taken(self) -> bool:
        """Whether the image is taken from a cache, and nothing is built."""
        return bool(self.left()) and self.offer is not None

    @property
    def steps(self) -> Sequence[str]:
        """The layers; the image alone if that is taken from a cache."""
        return [self.image.name] if self.is_taken else [layer.name for layer in self.plan.layers]

    @property
    def unit(self) -> str:
        """The word for its steps."""
        return "layers"

    @property
    def missing(self) -> list[str]:
        """The layers that are to be built or taken from caches, or the image that is to be taken."""
        if self.is_taken:
            return [self.image.name]
        wanted = {*self.taken_below, *(layer.name for layer in self.to_build)}
        return [layer.name for layer in self.left() if layer.name in wanted]

    @property
    def to_build(self) -> list[Layer]:
        """The layers that are to be built once those are there that caches have."""
        return self.left(self.taken_below)

    @property
    def sources(self) -> Sequence[Source]:
        """Every file that pip takes, whatever is left to be built."""
        return self.plan.sources

    @property
    def to_fetch(self) -> Sequence[Source]:
        """The files that pip takes for what is left to be built: none where no layer of it has pip take any."""
        takes = not self.is_taken and any(f"--find-links={WHEELS}" in layer.recipe for layer in self.to_build)
        return self.plan.sources if takes else ()

    @cached_property
    def found(self) -> FoundBuilds:
        """What the caches have of the image and of the layers below it that are not there, asked once."""
        layers = self.left()
        wanted = [*layers[-1:], *layers[:-1]]
        return cached.find(self.request, self.stack, wanted, self.host.machine, self.caches, self.plan.layers)

    @property
    def looked(self) -> FoundBuilds:
        """The images that the caches have of it, and what is wrong with caches."""
        return replace(self.found, offers=self.offers_of([self.image]).offers)

    @property
    def looked_below(self) -> FoundBuilds:
        """The layers that the caches have where they have no image: of each chain down to the last that fits."""
        sought = list[Layer]()
        for chain in self.chains if self.offer is None else ():
            fitting = [number for number, layer in enumerate(chain) if self.offers_of([layer]).taken]
            sought += chain[max(fitting, default=0) :]
        return self.offers_of(sought)

    def offers_of(self, layers: Sequence[Layer]) -> FoundBuilds:
        """Return the offers of some layers, but for those that have proved bad."""
        names = {cached.name_of(self.stack, layer) for layer in layers}
        offers = (offer for offer in self.found.offers if offer.entry.manifest.module in names)
        return FoundBuilds(offers=tuple(offer for offer in offers if offer.entry.id not in self.bad))

    @property
    def chains(self) -> Sequence[list[Layer]]:
        """The layers below the image that are to be built, each chain of which is built one on the other."""
        below = self.left()[:-1]
        return [layer for layer in below if layer.name == DEBIAN], [layer for layer in below if layer.name != DEBIAN]

    @property
    def taken_below(self) -> list[str]:
        """The layers that are taken from caches, by their names."""
        taken = self.looked_below.taken
        return [layer.name for layer in self.left() if cached.name_of(self.stack, layer) in taken]

    @property
    def offer(self) -> Offer | None:
        """That which is taken, if one fits."""
        return self.looked.taken.get(self.stack.name)

    @property
    def offered(self) -> Sequence[Offered]:
        """The builds that the caches have of it, for scripts."""
        called = {cached.name_of(self.stack, layer): layer.name for layer in self.plan.layers}
        offered = [*for_scripts(self.looked), *for_scripts(self.looked_below)]
        return [msgspec.structs.replace(one, step=called[one.step]) for one in offered]

    @property
    def cache_problems(self) -> Sequence[str]:
        """Why caches, keys, or builds that lack a trusted signature are passed over, each said once."""
        return [*dict.fromkeys((*self.looked.problems, *self.looked_below.problems))]

    @property
    def env(self) -> dict[str, str]:
        """The settings to enter with: the caller's."""
        return dict(os.environ)

    @property
    def image(self) -> Layer:
        """The last layer."""
        return self.plan.layers[-1]

    @property
    def made(self) -> Path:
        """The image that was built, or taken from a cache, before it is where it stays."""
        return self.taken[0].image if self.taken else self.image.image

    @property
    def origin(self) -> str:
        """The recipe, image or Dockerfile that it is made from."""
        return self.request.source or str(self.request.dockerfile or self.stack.recipe)

    @property
    def lock(self) -> Lock:
        """The lock of what it is made from: its layers by their keys, an image of a registry by its digest."""
        recipe = "" if self.request.source else Path(self.request.dockerfile or self.stack.recipe).name
        keys = {layer.name: layer.key for layer in self.plan.layers}
        if digest := DIGEST.search(self.request.source or ""):
            keys["image"] = digest[1]
        parts = [LockedPart(name=name, recipe=recipe, sha256=key) for name, key in keys.items()]
        parts[-1] = msgspec.structs.replace(parts[-1], sources=tuple(locked(self.plan.sources)))
        dated = {"Debian snapshot": self.plan.snapshot} if self.plan.snapshot else {}
        return Lock(
            name=self.stack.name,
            method=self.stack.method,
            framework=self.stack.framework,
            accelerator=self.stack.accelerator.value,
            release=self.stack.release,
            machine=LockedMachine(type=self.host.machine),
            tools={"envkit": __version__}
            | ({self.runtime.family: self.runtime.version} if self.runtime else {})
            | dated,
            parts=tuple(parts),
        )

    def left(self, taken: Sequence[str] = ()) -> list[Layer]:
        """Return the layers to build: each that is not there and that a later one stands on; none of what is there.

        What is ``taken`` from caches, by name, counts as there, and what is ``refused`` does not.
        """
        refused = {layer.name for layer in self.refused}
        there = {layer.name for layer in self.plan.layers if layer.image.exists()} - refused | {*taken}
        is_there = self.image.name in there and self.image.image.is_dir() == self.request.sandbox
        if is_there and not (self.request.sign or (self.request.signed_by and self.request.source)):
            return []
        base = [layer for layer in self.plan.layers[:-1] if layer.name == DEBIAN]
        others = self.plan.layers[len(base) : -1]
        done = max((number for number, layer in enumerate(others, start=1) if layer.name in there), default=0)
        return [*(layer for layer in base if layer.name not in there), *others[done:], self.image]

    @property
    def refused(self) -> list[Layer]:
        """The layers that are there and not used: taken from a cache as none is taken now, and what is built on one.

        What was built on a Debian of a cache that is gone does not count either: that is built anew, without its note.
        """
        refused, is_right = list[Layer](), True
        for layer in self.plan.layers:
            is_there = layer.image.exists()
            if cached.is_noted(layer.image):
                is_right = (is_there or layer.name != DEBIAN) and self.would_take(cached.noted(layer.image))
            if is_there and (not is_right or (layer is self.image and refused)):
                refused.append(layer)
        return refused

    def require_unused(self, layers: Sequence[Layer]) -> None:
        """Require that no other installation may be building on layers that are to go. Raises HostProblem."""
        if layers and filelocks.in_use(self.tree, self.stack.name):
            raise HostProblem(
                what=f"{self.stack.name} cannot be built while another installation is under way in {self.tree.root}.",
                why=f"Layers that are not used any more, and that it may be building on, have to go first: "
                f"{', '.join(layer.name for layer in layers)}.",
                fix="Wait until it has ended, then run the same command again.",
            )

    def would_take(self, origin: receipt.Cached | None) -> bool:
        """Say whether a layer that was taken from a cache would be taken as well now."""
        if origin is None or self.request.rebuild or self.request.again:
            return False
        return self.caches.unsigned or origin.key in self.caches.keys

    def problems(self) -> list[Problem]:
        """Return everything that would stop it."""
        if not self.probed and self.is_taken:  # without a program for images no cache is asked
            return self.lacking_in_any_case(self.share_to_take)
        return self.lacking() or list(preflight.refused_sources(self.answers, self.stack, self.host))

    @property
    def share_to_take(self) -> float:
        """How much there is to take of an image that a cache has, as a share of the room that a build needs."""
        if self.offer is None or cached.taken_to(self.tree.layers, self.offer).is_file():
            return 0.0  # an installation that has ended early has taken it
        return self.offer.entry.manifest.size / 1e6 / max(self.stack.disk_mb, 1)

    def lacking_in_any_case(self, remaining: float) -> list[Problem]:
        """Return what would stop it, built or taken, that this machine lacks; ``remaining`` is how much is left."""
        problems = [*self.probed, *preflight.known_problems(self.host, self.stack, force=self.request.force)]
        problems += preflight.machine_problems(self.host, self.stack)
        return [*problems, *preflight.prefix_problems(self.request.prefix, self.stack, remaining)]

    def lacking(self) -> list[Problem]:
        """Return what would stop it from being built that this machine lacks; asks no server."""
        left = self.left()
        problems = [*self.unbuildable, *self.lacking_in_any_case(len(left) / len(self.plan.layers))]
        scratch = temporary_folder()
        free_mb = shutil.disk_usage(scratch).free // 1_000_000
        if left and free_mb < self.stack.disk_mb:
            problems.append(
                Problem(
                    what=f"{scratch} has {free_mb} MB free; a build unpacks about {self.stack.disk_mb} MB there.",
                    fix="Set APPTAINER_TMPDIR to a folder with more room, on a local disk, that only you can change.",
                )
            )
        if self.request.sign is not None and process.which("openssl"):  # else what signs says it, at the end
            try:
                signature.require_signs(self.request.sign)
            except HostProblem as error:
                problems.append(Problem(what=error.what, why=error.why, fix=error.fix))
        if self.request.offline:
            problems += preflight.source_problems(self.to_fetch, self.request.prefix, self.stack, self.request.carried)
        return problems

    @property
    def mpi(self) -> None:
        """None: an image brings its own."""

    @property
    def unanswered(self) -> Sequence[Problem]:
        """The files that no place has answered about in time; none where nobody has asked."""
        return list(preflight.silent_places(self.answers, self.stack)) if "answers" in vars(self) else ()

    @cached_property
    def answers(self) -> Answers:
        """What is said of the files that pip takes where they are sought, which is asked once."""
        if self.request.offline or not self.left() or self.is_taken:
            return Answers()
        return preflight.ask(self.to_fetch, self.request.prefix, self.caches.kept)

    def heading(self) -> Iterator[str]:
        """Yield what is installed, where, and with what of the machine."""
        yield f"Stack:    {self.stack.name} ({self.origin}); {self.stack.status}"
        yield f"Prefix:   {self.request.prefix.root}"
        yield f"Machine:  {self.host.machine} ({host.cpu_target()})"
        if self.runtime:
            yield f"Runtime:  {self.runtime.family} {self.runtime.version} ({self.runtime.path})"
        if self.left():
            yield from lines(self.looked)
            yield from lines(self.looked_below)

    def listing(self) -> Iterator[str]:
        """Yield the layers, and how much there is to do."""
        if self.is_taken:
            yield f" * [c] {self.image.name}"
            yield "\nThe image is taken from a cache; nothing is built."
            return
        missing, taken = {layer.name for layer in self.to_build}, set(self.taken_below)
        for layer in self.plan.layers:
            mark = "c" if layer.name in taken else " " if layer.name in missing else "x"
            yield f" * [{mark}] {layer.name}: {layer.image}"
        sources = self.to_fetch
        gone = preflight.lacking(sources, self.request.prefix, self.request.carried)
        if not self.request.offline:  # else it is a problem
            yield from preflight.set_aside(sources, self.request.prefix)
        files = f"{len(gone)} of {len(sources)} files to fetch"
        yield f"\n{len(missing)} of {len(self.steps)} layers to build; {files}."
        if expected := sum(self.stack.seconds.get(name, 0) for name in missing):
            yield f"About {words.count(max(round(expected / 60), 1), 'minute')} on two cores."

    def build(self, folder: Path, console: Console) -> None:
        """Take the image from a cache, or fetch what pip takes and build the layers that are missing.

        Raises HostProblem where what a cache had was of no use, and this machine cannot build it.
        """
        layers = self.left()
        receipt.begin(self.tree, self.stack.name, "fetching", folder)
        if layers:
            for text in left_out(self.found):
                say(console, text)
            if self.is_taken:
                if taken := cached.take(self.looked, self.tree.layers, console):
                    self.taken.append(taken)
                    return
                self.bad.update(offer.entry.id for offer in self.looked.offers)
                preflight.require(self.lacking(), self.stack)
            self.require_unused(self.refused)
            for layer in reversed(self.refused):  # the last first: what is built on a layer never outlives its note
                discard(layer.image)
                discard(note_of(layer.image))
            self.take_layers(console)
            layers = self.left()
            fetch_all(
                self.to_fetch, self.request.prefix.sources, self.request.offline, self.stack.name, console,
                self.caches.kept,
            )  # fmt: skip
        receipt.begin(self.tree, self.stack.name, "building", folder)
        if not layers:
            return
        assert self.runtime is not None  # noqa: S101  (preflight demands one)
        building = LayerBuild(
            request=self.request, stack=self.stack, host=self.host, runtime=self.runtime, folder=self.plan.folder,
            dockerfile=self.dockerfile,
        )  # fmt: skip
        say(console, f"Building {len(layers)} of {len(self.plan.layers)} layers; logs: {folder}")
        with BuildProgress(console, [layer.name for layer in layers], dict(self.stack.seconds)) as shown:
            for layer in layers:
                building.make(layer, folder, shown, is_image=layer is self.image)

    def take_layers(self, console: Console) -> None:
        """Take from caches, of each chain, the last layer that one has as it should be."""
        for chain in self.chains:
            for layer in reversed(chain):
                if cached.take_layer(found := self.offers_of([layer]), layer, console):
                    break
                self.bad.update(offer.entry.id for offer in found.offers)

    def entered(self, environment: Receipt) -> Environment:
        """Return the way into what was built."""
        return environment.environment

    def describe(self, folder: Path) -> ImageReceipt:
        """Return the receipt of the image, asked of the image itself; it lies where it was built."""
        assert self.runtime is not None  # noqa: S101  (preflight demands one)
        image = self.made
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
            if self.request.source is not None or self.taken:
                discard(image)
            raise
        framework = next((name for name in FRAMEWORKS if facts.built_for.get(name)), self.stack.framework)
        state = image.stat()
        has_mpi = facts.built is None or any(extension.flags.get("mpi") for extension in facts.built.extensions)
        lock = msgspec.structs.replace(self.lock, system=facts.system, packages=facts.packages)
        if self.taken:  # those of whoever built it
            tools = self.taken[0].offer.entry.manifest.provenance.lock.tools
            lock = msgspec.structs.replace(lock, tools=tools)
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
            layers=tuple(self.built(layer) for layer in self.plan.layers),
            built=msgspec.Raw(msgspec.json.encode(facts.built)),
            pmix=facts.pmix,
            libc=facts.libc.rpartition(" ")[2],
            apptainer=self.runtime.version,
            binds=inside.binds,
            settings=dict(inside.settings),
            srun=inside.srun,
            lock=lock,
            cached=self.taken[0].origin if self.taken else None,
            arguments=self.shown_arguments,
        )

    @property
    def shown_arguments(self) -> dict[str, str]:
        """The arguments that were given, without passwords in URLs; none of a Dockerfile, which may be secrets."""
        return {} if self.request.dockerfile else {name: redact(value) for name, value in self.request.build_args}

    def built(self, layer: Layer) -> receipt.BuiltLayer:
        """Return what is kept of a layer; of one that an image from a cache was not built on, its key alone."""
        is_kept = not self.taken and layer is not self.image and layer.image.is_file()
        return receipt.BuiltLayer(
            name=layer.name,
            key=layer.key,
            sha256=sha256(layer.image) if is_kept else "",
            cached=cached.noted(layer.image) if is_kept else None,
        )

    def fetch_optional(self, console: Console) -> tuple[Source, ...]:  # noqa: ARG002
        """Fetch nothing: an image can do without none of its sources."""
        return ()

    @property
    def refused_in_jobs(self) -> str:
        """Why it cannot be built in a job for each layer: each stands on the one before."""
        return f"{self.stack.name} is by {self.stack.method}"

    def build_in_jobs(self, folder: Path, words: Sequence[str], cpus: int, console: Console) -> None:
        """Raise what is known before: ``refused_in_jobs``."""
        raise NotImplementedError

    def settle(self, environment: Receipt) -> Receipt:
        """Put the image where it stays, in the place of an older one."""
        final = self.tree.images / (self.stack.name if self.request.sandbox else f"{self.stack.name}.sif")
        final.parent.mkdir(exist_ok=True)
        replaced.set_aside(self.tree, self.stack.name, replaced.Aside(modules=(), files=tuple(self.superseded())))
        self.made.rename(final)
        settled = msgspec.structs.replace(environment, image=str(final), changed=final.stat().st_mtime_ns)
        if lost := settled.damage():  # hashed once more: what is written down is what was verified
            raise BuildFailed(what=f"{self.stack.name} is not installed: {lost}.", fix=AGAIN)
        return settled

    def superseded(self) -> Iterator[str]:
        """Yield what of the tree this image takes the place of: an older one, and layers that no other stands on."""
        name = self.stack.name
        yield from (f"images/{name}.sif", f"images/{name}", f"environments/{name}.json", f"kept/{name}.json")
        used = {layer.key for layer in self.plan.layers}
        parts = list(receipt.parts_in(self.tree))
        used |= {layer.key for other in parts if other.name != name for layer in other.layers}
        for layer in (layer for earlier in parts if earlier.name == name for layer in earlier.layers):
            if layer.key not in used:
                at = place_of(Path("layers"), layer.name, layer.key)
                yield from (str(at), str(note_of(at)))
