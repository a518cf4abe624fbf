"""``envkit config``."""

import click

from envkit.cli import echo, echo_json, explain, printed, usage


@click.command()
@click.option("--path", "paths", is_flag=True, help="Print where the files are, and whether each is used.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(paths: bool, as_json: bool) -> int:
    """Show the configuration: each key, its value, and where the value comes from.

    \b
    After the command line, the first of these that sets a key counts:
    a variable      ENVKIT_METHOD, ENVKIT_JOB_ACCOUNT, ...
    the project     envkit.toml in this folder or above, up to your home or the root of the repository
    you             ~/.config/envkit/config.toml ($XDG_CONFIG_HOME)
    the site        etc/envkit/config.toml in the virtual environment that envkit is installed in
    the system      /etc/envkit/config.toml

    Ends with 2 if one of them has a mistake in it. Until that is corrected, commands that use it do not start.
    """
    import sys

    from envkit.config import configuration, report
    from envkit.errors import ConfigInvalid
    from envkit.planning.stack import stacks
    from envkit.report.paper import Paper

    if paths and as_json:
        usage("Give one of --path and --json; the files are in the JSON, too.")
    settings = configuration.read()
    overview = report.report(settings)
    if as_json:
        echo_json(report.to_json(overview))
    else:
        show = report.of_files if paths else report.of_keys
        whole = Paper(width=1000)  # a path in one piece, for programs
        for note in configuration.notes(settings):
            echo(f"envkit: {note}", err=True)
        printed("\n".join(show(overview, Paper.of(sys.stdout) if sys.stdout.isatty() else whole)) + "\n")
        if error := configuration.mistaken(settings):
            printed()
            explain(error)
    if not settings.mistakes:
        stacks()  # which may have mistakes of its own
    return ConfigInvalid.exit_code if settings.mistakes else 0
