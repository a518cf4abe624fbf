"""``envkit eessi``: what a release has, and the sessions."""

import click

from envkit.cli import echo, echo_json
from envkit.commands import complete, options


@click.group()
def eessi() -> None:
    """List what a release of EESSI has; fill a cache; list and remove sessions.

    'envkit shell eessi' and 'envkit run eessi' enter.
    """


@eessi.command(short_help="List the modules that a release has.")
@click.argument("pattern", required=False)
@click.option("--release", "version", metavar="RELEASE", help="The release. Default: 2023.06, or the repository's.")
@options.repository
@click.option(
    "--access",
    metavar="auto|native|dir[:FOLDER]|userns|apptainer",
    help="How it is reached. Default: the first that fits.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def modules(pattern: str | None, version: str | None, repository: str | None, access: str | None, as_json: bool) -> int:
    """List the modules that a release has for this CPU and GPU, as NAME/VERSION.

    PATTERN is a part of a name, in either case, or has * and ? in it. Ends with 1 when nothing matches.
    """
    import sys

    import msgspec

    from envkit.eessi import entry, listing

    found = entry.modules(entry.EntryOptions(version=version, repository=repository, access=access))
    shown = listing.matching(found.modules, pattern)
    if as_json:
        answer = {"version": 1, "release": found.release, "target": found.target, "modules": shown}
        echo_json(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        echo("".join(f"{name}\n" for name in shown), nl=False)
    if pattern and not shown and not as_json:
        print(entry.nearest(pattern, found.modules), file=sys.stderr)
    return 0 if shown else 1


@eessi.command(short_help="Fill a cache with what modules need, for nodes without a network.")
@click.argument("names", metavar="MODULE...", nargs=-1, required=True, callback=options.modules)
@click.option("--release", "version", metavar="RELEASE", help="The release. Default: 2023.06, or the repository's.")
@options.repository
@click.option(
    "--access",
    metavar="auto|native|dir[:FOLDER]|userns|apptainer",
    help="How it is reached. Default: the first that fits.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prefetch(
    names: tuple[str, ...], version: str | None, repository: str | None, access: str | None, as_json: bool
) -> None:
    """Read every file that loading the modules needs, so that the CernVM-FS cache holds it.

    These are the modules' own folders, those of what they load, and EESSI's compatibility layer. Compute nodes without
    a network then need no server. A native mount fills the cache of this machine's client. For the clients that envkit
    starts, name a folder that the nodes see, here and there: export ENVKIT_EESSI_CACHE=FOLDER

    A cache that is too small is refused beforehand, and ends this with 7.
    """
    import msgspec

    from envkit.eessi import entry
    from envkit.eessi import prefetch as work
    from envkit.report.progress import console

    status_line = console(err=True, tells=True)
    asked = entry.EntryOptions(version=version, repository=repository, access=access, modules=names)
    with status_line.status("looking for what they need") as status:
        done = work.prefetch(
            asked, entry.say, lambda read, count: status.update(f"{read} of {count} files have been read")
        )
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode({"version": 1, **msgspec.structs.asdict(done)})).decode())
        return
    place = f" They are in {done.cache}." if done.cache else ""
    echo(f"Read {done.files} files, {work.megabytes(done.bytes)} MB.{place}")


@eessi.command(short_help="List the repositories that --repository takes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def repositories(as_json: bool) -> None:
    """List the CernVM-FS repositories that --repository takes: EESSI's own, and those in repositories.toml.

    That file lies beside config.toml: your own, that of this installation of envkit, the system's in /etc/envkit.
    "mounted" is what this machine has mounted now; a client may mount others when they are first used.
    """
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from envkit.eessi import repositories as work
    from envkit.report.progress import console
    from envkit.report.words import plain

    found = work.listed()
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode({"version": 1, "repositories": found})).decode())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "RELEASE", "STATE", "WHAT", "FILE"):
        table.add_column(heading, overflow="fold")
    for one in found:
        cells = (one.name, one.release, "mounted" if one.mounted else "", one.what, one.file)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console().print(table)


@eessi.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the sessions."""
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from envkit.eessi import entry, sessions
    from envkit.report.progress import console
    from envkit.report.words import plain

    found = sessions.entries(entry.say)
    if as_json:
        answer = {"version": 1, "sessions": found}
        echo_json(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "REPOSITORY", "RELEASE", "ACCESS", "CPU", "MODULES", "CREATED", "STATE"):
        table.add_column(heading, overflow="fold")
    for one in found:
        state = "in use" if one.in_use else ""
        cells = (
            one.name,
            one.repository,
            one.release,
            one.access,
            one.target,
            " ".join(one.modules),
            one.created,
            state,
        )
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console().print(table)


@eessi.command(short_help="Remove sessions.")
@click.argument("name", required=False, shell_complete=complete.sessions)
def clean(name: str | None) -> int:
    """Remove the session NAME with its cache; without a name, every one that is not in use, and the image."""
    from envkit.cli import explain
    from envkit.eessi import archives, image, sessions
    from envkit.errors import HostProblem

    if name is not None and not sessions.clean(name):
        raise HostProblem(what=f"The session {name} is in use.", fix="Leave it first.")
    if name is not None:
        echo(f"Removed the session {name}.")
        return 0
    kept, status = list[str](), 0
    for one in sessions.names():
        try:
            if sessions.clean(one):
                echo(f"Removed the session {one}.")
            else:
                kept.append(one)
        except HostProblem as error:  # of this one; the others are removed all the same
            explain(error)
            status = error.exit_code
    sessions.clean_shared()
    archives.clean()
    if kept:
        echo(f"In use, and kept: {', '.join(kept)}.")
    elif removed := image.clean():
        echo(f"Removed {removed} images.")
    return status
