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

    contents = entry.modules(entry.EntryOptions(version=version, repository=repository, access=access))
    shown = listing.matching(contents.modules, pattern)
    if as_json:
        answer = {"version": 1, "release": contents.release, "target": contents.target, "modules": shown}
        echo_json(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        echo("".join(f"{name}\n" for name in shown), nl=False)
    if pattern and not shown and not as_json:
        print(entry.nearest(pattern, contents.modules), file=sys.stderr)
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
    entry_options = entry.EntryOptions(version=version, repository=repository, access=access, modules=names)
    with status_line.status("looking for what they need") as status:
        done = work.prefetch(
            entry_options, entry.say, lambda read, count: status.update(f"{read} of {count} files have been read")
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

    entries = work.listed()
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode({"version": 1, "repositories": entries})).decode())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "RELEASE", "STATE", "WHAT", "FILE"):
        table.add_column(heading, overflow="fold")
    for repository in entries:
        cells = (
            repository.name,
            repository.release,
            "mounted" if repository.mounted else "",
            repository.what,
            repository.file,
        )
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

    entries = sessions.entries(entry.say)
    if as_json:
        answer = {"version": 1, "sessions": entries}
        echo_json(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "REPOSITORY", "RELEASE", "ACCESS", "CPU", "MODULES", "CREATED", "STATE"):
        table.add_column(heading, overflow="fold")
    for session in entries:
        state = "in use" if session.in_use else ""
        cells = (
            session.name,
            session.repository,
            session.release,
            session.access,
            session.target,
            " ".join(session.modules),
            session.created,
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
    in_use, status = list[str](), 0
    for session in sessions.names():
        try:
            if sessions.clean(session):
                echo(f"Removed the session {session}.")
            else:
                in_use.append(session)
        except HostProblem as error:  # of this one; the others are removed all the same
            explain(error)
            status = error.exit_code
    sessions.clean_shared()
    archives.clean()
    if in_use:
        echo(f"In use, and kept: {', '.join(in_use)}.")
    elif removed := image.clean():
        echo(f"Removed {removed} images.")
    return status
