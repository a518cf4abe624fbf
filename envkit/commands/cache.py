"""``envkit cache``: builds that have passed, shared."""

from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import complete, options
from envkit.commands.clean import SECONDS, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envkit.cache.contents import Checked, CheckedSource
    from envkit.cache.manifest import Manifest, Needs
    from envkit.cache.place import Place

PLACES = click.argument("places", metavar="[PLACE]...", nargs=-1)
TO = click.option(
    "--to",
    metavar="PLACE",
    required=True,
    shell_complete=complete.folders,
    help="The cache to put it into: a folder, s3://BUCKET/FOLDER, or oci://HOST/NAME.",
)
COLLECTED = (
    "A registry keeps a blob until its own garbage collection has run. Until then a push finds it there and does not "
    "send it again, also where it is damaged."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def cache() -> None:
    """Share modules and images that have passed, and look at what is shared.

    A cache is a folder that others can read, the same folder behind a web server, a bucket of S3, or a registry of
    images. 'envkit install' takes a build from the caches that your configuration names ('cache.from') where one fits,
    and then verifies it as always.
    """


@cache.command(short_help="Put the modules or the image of an environment into a cache.")
@options.name
@options.prefix
@TO
@click.option(
    "--sign",
    metavar="KEY.pem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign it with this private key.",
)
@click.option("--unsigned", is_flag=True, help="Push it without a signature.")
@click.option(
    "--from-ci",
    "from_ci",
    is_flag=True,
    help="For a job of GitHub or GitLab: push what was installed last, and note repository, commit and run.",
)
@click.option("--layers", "has_layers", is_flag=True, help="With an image: also the layers that it was built on.")
@JSON
def push(
    name: str | None, prefix: str | None, to: str, sign: Path | None, unsigned: bool, from_ci: bool, has_layers: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Put the modules of the environment NAME, or its image, into a cache.

    The modules are its Horovod, what is made of wheels alone, such as PyTorch: of that, what is not in the wheels; and
    those that stand for tools of this machine, such as GCC/system, for machines that have the same.
    Only what was built here from a recipe, whose last verdict is PASS and of which nothing has changed since, is taken.
    Its manifest says who built it: host, date, versions, lock and the verdict's report. What is there already is
    not sent again. With --from-ci it also says which job of a CI pushed it, by the job's own variables (no token is
    among them), and the verdict has to be of this machine. With --layers those go with an image that it was built on,
    for whoever builds it with another recipe of Horovod or other patches.
    """
    if bool(sign) == unsigned:
        usage("Give one of --sign KEY.pem and --unsigned.")
    with stoppable(to):
        import os

        from envkit.cache import ci
        from envkit.cache.place import Place
        from envkit.environments import prefix as place
        from envkit.install import cache_push as pushing
        from envkit.report import words
        from envkit.report.progress import console

        job = ci.job(os.environ) if from_ci else None
        shown = console(err=True, tells=True)
        done = pushing.push(place.locate(prefix), name, Place(named=to), sign, job, shown, has_layers=has_layers)
    if as_json:
        from envkit.commands import json_types

        echo_json(json_types.text(done))
        return
    of_machine = [build for build in done.builds if build.module.endswith("/system")]
    for build in (one for one in done.builds if one not in of_machine):
        echo(
            f"{'Pushed' if build.sent else 'There already:'} {build.module} {'to' if build.sent else 'in'} {done.place}"
        )
        echo(f"Object {build.id[:12]}, {words.size(build.size)}, {'signed' if build.signed else 'not signed'}.")
        if build.sent and not build.object_sent:
            echo(f"Its object was there already, and was not sent. 'envkit cache verify {quote(to)}' reads it.")
        if not build.sent:
            more = f"'envkit cache show {build.id[:12]} {quote(to)}' says more."
            echo(f"It was built on {build.host}, {build.built}. {more}")
        if build.ci:
            echo(f"Pushed by {build.ci.run}")
        if job and build.ci != job:
            echo(
                f"Nothing was added to it: it does not name this job, {job.run}, since a build stays as it was pushed."
            )
    if of_machine:
        sizes = words.size(sum(build.size for build in of_machine))
        there = "" if any(build.sent for build in of_machine) else ", there already"
        echo(f"For machines with the same tools: {', '.join(build.module for build in of_machine)}, {sizes}{there}.")
    for module, why in done.left_out.items():
        echo(f"Not pushed: {module}. {why}")


@cache.command(short_help="Copy builds from a cache into another.")
@click.argument("name", required=False, metavar="[NAME|ID]", shell_complete=complete.stacks)
@click.option(
    "--from",
    "sources",
    metavar="PLACE",
    multiple=True,
    shell_complete=complete.folders,
    help="The cache to copy from. May be repeated. Default: those of your configuration.",
)
@TO
@click.option("--all", "every", is_flag=True, help="Also those that do not fit this machine.")
@click.option("--unsigned", is_flag=True, help="Also what none of your keys ('cache.keys') has signed.")
@JSON
def pull(name: str | None, sources: tuple[str, ...], to: str, every: bool, unsigned: bool, as_json: bool) -> int:
    """Copy the builds that fit this machine from a cache into another, such as a folder for nodes without a network.

    NAME is that of a stack, an environment or a framework: only its builds are meant. The one build whose ID begins so
    is copied whatever machine it is for. Signatures and SHA-256 are checked as 'envkit install' does, and what is there
    already is not fetched again. Ends with 4 where a build is bad, cannot be read, or is signed by none of your keys,
    unless another of the caches has it whole, or where a folder stands in the place of its file; with 3 where one
    cannot be put there for its name or size. The others are copied.
    """
    with stoppable(to):
        from typing import get_args

        from envkit.cache.place import Caches, Place
        from envkit.commands import json_types
        from envkit.install import cache_pull as work
        from envkit.report import words
        from envkit.report.progress import console

        caches = Caches(places=tuple(place.named for place in named(sources)), keys=keys(), unsigned=unsigned)
        done = work.pull(caches, Place(named=to), name, every=every, console=console(err=True, tells=True))
    problem = work.problem(done)
    if as_json:
        echo_json(json_types.text(done))
        return problem.exit_code if problem else 0
    for build in done.builds:
        by = f"signed with {build.signed_by}" if build.signed_by else "not signed by a key of yours"
        had = "; its object was there already" if build.state == "copied" and not build.object_sent else ""
        why = "; ".join(build.why) or f"{words.size(build.size)}, from {build.place}; {by}{had}"
        echo(f"{build.state:<8} {build.id[:12]} {build.module}: {why}")
        for text in build.passed_over:
            echo(f"         {text}")
    for text in done.passed_over:
        echo(text)
    counted = ", ".join(f"{len(done.of(state))} {state}" for state in get_args(work.State))
    echo(f"{words.count(len(done.builds), 'build')} for {done.to}: {counted}.")
    if problem:
        raise problem
    return 0


@cache.command(name="list", short_help="List the builds in caches.")
@PLACES
@JSON
def list_(places: tuple[str, ...], as_json: bool) -> int:
    """List the builds in each PLACE: a folder, a bucket, a registry or a URL. Default: those of your configuration.

    Ends with 4 where something cannot be read.
    """
    import sys

    from envkit.cache import contents
    from envkit.commands import json_types
    from envkit.report import words
    from envkit.report.paper import Paper

    listing = contents.listing(named(places), keys())
    tell_of_keys()
    if as_json:
        echo_json(json_types.text(listing))
    else:
        is_several, by_none = len({item.place for item in listing.builds}) > 1, signed_by_none()
        rows = [
            (
                item.id[:12], words.size(item.size), item.built[:10], item.host, item.module,
                ", ".join(
                    [
                        item.needs.machine,
                        *([] if item.layer else filter(None, (f"Python {item.needs.python}", mpi_of(item.needs)))),
                        *given(item.arguments),
                    ]
                ),
                item.signed_by or (by_none if item.signed else "no"), *([item.place] if is_several else []),
            )
            for item in listing.builds
        ]  # fmt: skip
        heads = ("ID", "SIZE", "BUILT", "ON", "WHAT", "FOR", "SIGNED", *(["IN"] if is_several else []))
        if rows or not listing.wrong:
            paper = Paper.of(sys.stdout) if sys.stdout.isatty() else Paper(width=1000)  # for grep: a build, a line
            echo("\n".join(paper.table(heads, rows)) if rows else "There is no build.")
        for text in listing.wrong:
            echo(text, err=True)
    return 4 if listing.wrong else 0


@cache.command(short_help="Show a build: what it needs, who built it, and its verdict.")
@click.argument("id", metavar="ID")
@PLACES
@JSON
def show(id: str, places: tuple[str, ...], as_json: bool) -> None:  # noqa: A002
    """Show the build whose ID begins so, in each PLACE, or in the caches of your configuration.

    With --json its manifest is printed: with its files, the lock, and the report of the verification that it passed.
    """
    from envkit.cache import contents, place
    from envkit.report import words

    build = contents.find(named(places), id)
    if as_json:
        echo_json(bytes(build.signed.manifest).decode())
        return
    origin, needs, manifest = build.manifest.provenance, build.manifest.needs, build.manifest
    key, unpacked = place.signer(build, keys()), f"; {words.size(manifest.unpacked)} unpacked"
    lines = {
        "Id": build.id,
        "Layer" if manifest.is_layer else "Image" if manifest.is_image else "Module": manifest.module,
        "Cache": build.place.shown,
        "Signed": key or (signed_by_none() if build.signed.signature else "no"),
        "Size": words.size(manifest.size) + ("" if manifest.is_image else f"{unpacked}, {len(manifest.files)} files"),
        **({"Wheels": f"{len(manifest.wheels)}, whose files are not in it"} if manifest.wheels else {}),
        "SHA-256": manifest.sha256,
        "Built": f"on {origin.host}, {origin.built}, as {origin.environment}",
        "By": ", ".join(f"{name} {version}" for name, version in origin.lock.tools.items())
        if manifest.is_image
        else f"envkit {origin.envkit}, EasyBuild {origin.easybuild}",
        "Verdict": verdict_of(bytes(origin.verdict)),
        **(
            {"CI": f"{origin.ci.kind}, {origin.ci.repository}, commit {origin.ci.commit[:12]}, {origin.ci.run}"}
            if origin.ci
            else {}
        ),
        **(of_image(manifest) if manifest.is_image else of_module(needs)),
    }
    echo("\n".join(f"{key + ':':<9} {value}" for key, value in lines.items()))
    if keys() and not key:
        echo("\nNo key of yours verifies this: whoever can write to the cache may have written all of it.")


@cache.command(short_help="Check every build in caches: contents and signatures.")
@PLACES
@JSON
def verify(places: tuple[str, ...], as_json: bool) -> int:
    """Read every build in each PLACE, or in the caches of your configuration, and hold it against its manifest.

    With keys in your configuration ('cache.keys') signatures are checked as well, and sources by their names, but for
    those behind a web server, which lists none. The index of a folder or a bucket has to name what is there. Ends
    with 4 where one is bad, or could not be read, and for a folder of something else.
    """
    from envkit.cache import contents
    from envkit.cache.place import Place
    from envkit.commands import json_types

    verified = contents.verified(named(places), keys())
    tell_of_keys()
    bad = [entry for entry in verified.builds if entry.state in ("bad", "unread")]
    wrong = [entry for entry in verified.sources if entry.wrong]
    if as_json:
        echo_json(json_types.text(verified))
    else:
        for item in verified.builds:
            why = f": {item.wrong}" if item.wrong else ""
            echo(f"{item.state:<8} {item.id[:12]} {item.module} in {item.place}{why}")
        echo(counted("build", len(verified.builds), bad))
        checked: list[contents.Checked | contents.CheckedSource] = [*bad, *wrong]
        if any(contents.is_damaged(item) and Place(named=item.place).is_registry for item in checked):
            echo(f"{COLLECTED} Remove what is bad by 'envkit cache prune', have that run, then push again.")
        for source in wrong:
            state = "bad" if source.read else "unread"
            echo(f"{state:<8} source {source.sha256[:12]} in {source.place}: {source.wrong}")
        if verified.sources:
            echo(counted("source", len(verified.sources), wrong))
        if not verified.signatures and any(item.state == "good" for item in verified.builds):
            echo("No signature was checked: you have no keys ('cache.keys' in your configuration).")
        for text in verified.wrong:
            echo(text)
    return 4 if bad or wrong or verified.wrong else 0


@cache.command(short_help="Remove what is damaged, half written or old from a cache.")
@click.argument("place", metavar="PLACE")
@click.option(
    "--older-than", metavar="AGE", callback=measure(SECONDS, "90d"), help="Builds that are older as well: 90d."
)
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@JSON
def prune(place: str, older_than: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove damaged builds and sources from a folder, a bucket or a registry.

    Also removed are objects without a manifest, and what killed processes have left.

    What is half written, or has no manifest yet, stays for a day: somebody may be pushing it. A damaged object goes at
    once, so that the next push sends it. What could not be read stays and is named.
    """
    from envkit.cache import contents
    from envkit.cache.place import Place
    from envkit.commands import json_types
    from envkit.report import words

    if older_than == 0:
        usage("--older-than 0 would remove every build. Name an age, such as 90d.")
    done = contents.prune(Place(named=place), older_than or 0, dry_run=dry_run)
    if as_json:
        echo_json(json_types.text(done))
        return
    files = words.count(len(done.removed), "file")
    echo(f"{'Would remove' if dry_run else 'Removed'} {files}, {words.size(done.size)}.")
    if done.index:
        echo(f"Its index {'would be' if dry_run else 'was'} written anew. {done.index}")
    for name in done.removed:
        echo(f"  {name}")
    if done.removed and Place(named=place).is_registry:
        echo(COLLECTED)
    if done.unread:
        besides = ", with all objects" if any(name.startswith("manifests/") for name in done.unread) else ""
        echo(f"{words.count(len(done.unread), 'file')} could not be read, and stayed{besides}:")
        for name in done.unread:
            echo(f"  {name}")


@contextmanager
def stoppable(to: str) -> "Iterator[None]":
    """Say on Ctrl-C what is to be done to go on with what writes to a place. Raises Interrupted.

    Imports that take time belong in it as well, so that it is said whenever that comes.
    """
    from envkit.errors import Interrupted
    from envkit.system import process

    try:
        with process.interruptible():
            yield
    except Interrupted as stopped:
        from envkit.cache.place import Place
        from envkit.cache.publishing import AGAIN

        stopped.why = "\n".join(filter(None, (f"What is in {Place(named=to).shown} is whole.", stopped.why)))
        stopped.fix = AGAIN
        raise


def named(places: tuple[str, ...]) -> "list[Place]":
    """Return the places that are named, each once, else those of the configuration.

    Ends with a usage error without any.
    """
    from envkit.cache.place import Place
    from envkit.config import configuration

    words = places or configuration.read().get("cache.from")
    if not words:
        usage("Name a PLACE, or set 'from' in [cache] of your configuration ('envkit config --path').")
    once = dict[str, Place]()
    for word in words:
        place = Place(named=word)
        once.setdefault(place.itself, place)
    return list(once.values())


def of_module(needs: "Needs") -> dict[str, str]:
    """Return what there is to say of the needs of a module, by title."""
    return {
        "Needs": f"{needs.machine}, Python {needs.python}"
        + (f", {needs.mpi.family} ({needs.mpi_library})" if needs.mpi_library else ""),
        "Versions": ", ".join(f"{kind} {version}" for kind, version in needs.versions.items()) or "any",
        "CPU": ", ".join(needs.cpu) or "any",
        **({"Tools": "\n          ".join(map(": ".join, needs.tools.items()))} if needs.tools else {}),
        "Recipes": "\n          ".join(f"{name} {sha256[:12]}" for name, sha256 in needs.recipes.items()),
    }


def mpi_of(needs: "Needs") -> str:
    """Return the MPI of a build in words; nothing where it has none."""
    return f"{needs.mpi.family} {needs.mpi.version}".strip()


def of_image(manifest: "Manifest") -> dict[str, str]:
    """Return what there is to say of an image, or of a layer, by title."""
    needs, part = manifest.needs, manifest.part
    inside = {} if manifest.is_layer else {"Inside": f"Python {needs.python}, {needs.mpi.family} {needs.mpi.version}"}
    return {
        "Needs": needs.machine,
        "CPU": ", ".join(needs.cpu) or "any",
        **inside,
        "Made of": ", ".join([f"layer {part.sha256[:20]}", part.recipe, *given(manifest.provenance.arguments)]),
    }


def given(arguments: "Mapping[str, str]") -> list[str]:
    """Return the arguments that the recipe of an image was given, in words."""
    return [f"{name}={value}" for name, value in arguments.items()]


def verdict_of(report: bytes) -> str:
    """Return the verdict that the report of a build says."""
    from envkit.system import record

    try:
        verdict = record.decode(report, dict[str, Any])["verdict"]
    except (record.RecordInvalid, KeyError):
        return "none that can be read"
    return verdict.upper() if verdict in ("pass", "fail") else "none that can be read"


def signed_by_none() -> str:
    """Return what there is to say of a signature that no key verifies."""
    from envkit.cache import offers

    return "by none of your keys, or changed since" if keys() and not offers.unchecked(keys()) else "not checked"


def counted(what: str, number: int, wrong: "Sequence[Checked | CheckedSource]") -> str:
    """Return how many there are, how many of them are bad, and how many could not be read."""
    from envkit.report import words

    unread = len([item for item in wrong if not item.read])
    bad = len(wrong) - unread
    return f"{words.count(number, what)}, {bad or 'none'} bad{f', {unread} unread' if unread else ''}."


def tell_of_keys() -> None:
    """Say which public keys of the configuration can verify nothing."""
    from envkit.cache import offers

    for text in offers.of_keys(keys()):
        echo(text, err=True)


def keys() -> tuple[str, ...]:
    """Return the public keys of the configuration."""
    from envkit.config import configuration

    return tuple(configuration.read().get("cache.keys") or ())
