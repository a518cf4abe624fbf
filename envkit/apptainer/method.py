"""Installing by Apptainer: an image from a recipe, layer by layer, or an image that is taken over."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rich.console import Console

from envkit.apptainer import image_plan
from envkit.apptainer.build import WHEELS
from envkit.apptainer.dockerfile import Converted, converted
from envkit.apptainer.image_plan import IMAGE, Base, ImagePlan, Layer, note_of
from envkit.apptainer.installation import DIGEST, ImageInstallation
from envkit.apptainer.receipt import ImageReceipt
from envkit.cache.place import configured
from envkit.environments.discard import discarded, say_left
from envkit.environments.environment import require_sources
from envkit.environments.name_syntax import is_name
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Parts, Receipt
from envkit.errors import EnvironmentDamaged, Problem, UsageProblem
from envkit.machine import host, runtime
from envkit.machine.host import Accelerator
from envkit.machine.site import find as find_site
from envkit.planning import preflight
from envkit.planning.request import Request
from envkit.planning.stack import FRAMEWORKS, Stack, is_stack
from envkit.report.progress import say
from envkit.system import process
from envkit.system.resources import data


def prepare(request: Request, machine: host.Host, stack: Stack) -> ImageInstallation:
    """Resolve a stack to layers; changes nothing. Raises RecipeInvalid, UsageProblem."""
    tree, definition = request.prefix.tree(machine.platform), None
    program = runtime.find()
    require_sources([*(find_site(request.site).binds if request.site else ()), *request.binds])
    missing = Problem(what="There is neither apptainer nor singularity on PATH.", fix=runtime.INSTALL)
    unbuildable = list[Problem]()
    if request.source is not None:
        plan = taken_over(stack.name, request.source, tree.layers)
    elif request.dockerfile is not None:
        definition = converted(request.dockerfile.absolute())
        plan = from_dockerfile(stack.name, request.dockerfile, definition, tree.layers)
    else:
        base, lacking = base_of(request, machine)
        unbuildable = [*lacking, *runtime.build_problems()]
        own = {"PIP": f"--no-index --find-links={WHEELS}", "JOBS": str(request.jobs or host.cores())}
        plan = image_plan.plan(wanted(request, stack, base, machine.machine, own), tree.layers)
    return ImageInstallation(
        request=request, stack=stack, host=machine, runtime=program, plan=plan, tree=tree, dockerfile=definition,
        probed=() if program else (missing,), unbuildable=tuple(unbuildable),
        caches=configured(unsigned=request.unsigned_cache),
    )  # fmt: skip


def is_other(request: Request, stack: Stack, environment: Receipt) -> bool:
    """Say whether what is asked for is another image than the one that a receipt describes; quick where no recipe is.

    Raises RecipeInvalid, UsageProblem, HostProblem.
    """
    if not isinstance(environment, ImageReceipt):
        return True
    site = find_site(request.site) if request.site else None
    binds = (*(site.binds if site else ()), *request.binds)
    if (
        (binds, request.sandbox) != (environment.binds, not environment.sha256)
        or request.sign
        or (request.signed_by and request.source)
    ):
        return True
    if not (request.build_args or request.base != "auto" or request.source or request.dockerfile):
        return False
    plan = prepare(request, host.detect(request.load), stack).plan
    return [layer.key for layer in plan.layers] != [layer.key for layer in environment.layers]


def request_of(prefix: Prefix, environment: Receipt) -> Request:
    """Return the request that installs what a receipt describes. Raises EnvironmentDamaged where it cannot be told."""
    assert isinstance(environment, ImageReceipt)  # noqa: S101  (the registry says so)
    request = Request(prefix=prefix, wanted=environment.name, method=environment.method, binds=environment.binds)
    request = replace(request, sandbox=not environment.sha256)
    origin = environment.source
    if (
        environment.settings
        or environment.srun
        or not (is_stack(environment.name) or "://" in origin or Path(origin).is_absolute())
    ):
        raise EnvironmentDamaged(
            what=f"{environment.name} is to be built again by the command that it was installed with.",
            why="Its receipt does not say which site or file that named.",
            fix=f"Run that again: envkit install {environment.name} --method apptainer --prefix {prefix.root}, "
            "with the options that it had.",
        )
    if is_stack(environment.name):
        return request
    framework = environment.framework if environment.framework in FRAMEWORKS else None
    request = replace(request, framework=framework, accelerator=environment.accelerator)
    if "://" in origin or Path(origin).suffix == ".sif" or Path(origin).is_dir():
        return replace(request, source=origin)
    return replace(request, dockerfile=Path(origin))


def unfit(request: Request, machine: host.Host, stack: Stack) -> Iterator[Problem]:  # noqa: ARG001
    """Yield nothing: what an image lacks, its plan tells quickly."""
    yield from ()


def lacking(request: Request, machine: host.Host, stack: Stack) -> list[Problem]:
    """Return what is lacking for an image; its plan is quickly made, and no server is asked."""
    return prepare(request, machine, stack).lacking()


def own_layers(tree: Tree, receipt: ImageReceipt, others: Sequence[Parts]) -> list[Path]:
    """Return the layers that no other image was made of."""
    used = {layer.key for other in others for layer in other.layers}
    own = [layer for layer in receipt.layers if layer.key not in used]
    files = {f"{name}-{layer.key[:20]}.sif" for layer in own for name in (layer.name, receipt.name)}
    return [path for path in tree.layers.glob("*.sif") if path.name in files]


def removable(tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool) -> list[str]:
    """Return an image; with ``dependencies`` the layers, too, that no other image was made of."""
    assert isinstance(environment, ImageReceipt)  # noqa: S101  (the registry says so)
    return [environment.image, *(str(path) for path in own_layers(tree, environment, others) if dependencies)]


def remove(tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool, console: Console) -> None:
    """Remove what ``removable`` names."""
    assert isinstance(environment, ImageReceipt)  # noqa: S101  (the registry says so)
    say_left(tree, [] if discarded(tree, Path(environment.image)) else [Path(environment.image)], console)
    layers = own_layers(tree, environment, others)
    say(console, f"Removed {environment.name}: {environment.image}.")
    files = [file for path in layers for file in (path, note_of(path))] if dependencies else []
    say_left(tree, [path for path in files if not discarded(tree, path)], console)
    if layers:
        names = ", ".join(path.name for path in layers)
        say(console, f"{'Removed' if dependencies else 'Kept for the next installation'}: {names}.")


def wanted(request: Request, stack: Stack, base: Base, machine: str, own: dict[str, str]) -> image_plan.ImageRecipe:
    """Return the recipe of a stack with the arguments that were asked for."""
    return image_plan.ImageRecipe(
        name=stack.name,
        recipe=stack.recipe,
        arguments={**stack.arguments, **dict(request.build_args)},
        own={**own, "PROBE": str(data("inside/probe"))},
        base=base,
        machine=machine,
    )


def rendered(request: Request, stack: Stack, machine: host.Host) -> str:
    """Return the recipe of a stack for plain Apptainer. Raises RecipeInvalid, UsageProblem, HostProblem."""
    if not stack.recipe:
        raise UsageProblem(what=f"{stack.name} is no image.", fix="Name one whose METHOD is apptainer: 'envkit list'.")
    base, lacking = base_of(request, machine)
    preflight.require([problem for problem in lacking if "debootstrap" not in problem.what], stack)
    return image_plan.rendered(wanted(request, stack, base, machine.machine, {}))


def base_of(request: Request, machine: host.Host) -> tuple[Base, list[Problem]]:
    """Return what the image starts from, and what is lacking for it. Raises UsageProblem."""
    is_named = re.fullmatch(f"{image_plan.MIRROR}/?", request.base) is not None
    if request.base.startswith(("http://", "https://")) and not is_named:
        raise UsageProblem(
            what=f"--base {request.base.rpartition('@')[2]} is no mirror of Debian that can be taken.",
            why="Its URL ends in /debian, or in /debian/DATE where it is a snapshot, and has no password: it gets into "
            "the image.",
            fix="Write it as http://HOST/debian, or http://HOST/archive/debian/20260101T000000Z.",
        )
    mirror = request.base.rstrip("/") if is_named else image_plan.mirror()
    debootstrap = process.which("debootstrap", path=machine.env["PATH"] + ":/usr/sbin:/sbin")
    if is_named or request.base == "mirror" or (request.base == "auto" and mirror and debootstrap):
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
    require_digest(reference, "--base")
    return Base(bootstrap="docker", reference=reference), []


def require_digest(reference: str, option: str) -> None:
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
            what=f"{option} needs a name.", fix=f"envkit install NAME --method apptainer {option} {quote(source)}"
        )
    if not is_name(request.wanted):
        fix = "Use letters, digits and . _ + - only, not more than 150, and begin with a letter or a digit."
        raise UsageProblem(what=f"{request.wanted!r} cannot be a name.", fix=fix)
    if "://" in source:
        require_digest(source, option)
    elif not Path(source).exists():
        fix = "Give a .sif file, or docker://IMAGE@sha256:DIGEST." if request.source else ""
        raise UsageProblem(what=f"{option}: there is no file {source}.", fix=fix)
    accelerator = "cpu" if request.accelerator == "auto" else request.accelerator
    return Stack(
        name=request.wanted,
        method="apptainer",
        framework=request.framework or "none",
        accelerator=Accelerator(accelerator),
        note=f"taken over from {source}",
    )


def from_dockerfile(name: str, path: Path, result: Converted, layers: Path) -> ImagePlan:
    """Return the plan of an image that a Dockerfile describes. Raises UsageProblem."""
    base = re.search(r"^From: (\S+)$", result.recipe, re.MULTILINE)
    require_digest(base[1] if base else "", f"{path}: FROM")
    layer = Layer(name=IMAGE, recipe=result.recipe, key=result.key, image=layers / f"{name}-{result.key[:20]}.sif")
    return ImagePlan(layers=(layer,), sources=(), folder=path.absolute().parent)


def taken_over(name: str, source: str, layers: Path) -> ImagePlan:
    """Return the plan of an image that is not built here. Raises RecipeInvalid for one that cannot be read."""
    local = "://" not in source
    key = image_plan.content(Path(source)) if local else hashlib.sha256(source.encode()).hexdigest()
    bootstrap, _, reference = ("localimage", "", str(Path(source).resolve())) if local else source.partition("://")
    recipe = f"Bootstrap: {bootstrap}\nFrom: {reference}\n"
    layer = Layer(name=IMAGE, recipe=recipe, key=key, image=layers / f"{name}-{key[:20]}.sif")
    return ImagePlan(layers=(layer,), sources=(), folder=Path.cwd())
