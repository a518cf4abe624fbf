"""``envkit doctor``."""

import click

from envkit.commands import options


@click.command()
@options.prefix
@options.load
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(prefix: str | None, load: tuple[str, ...], as_json: bool) -> int:
    """Say what this machine offers, and by which methods a Horovod environment can be had here.

    What does not work is said with its reason and its remedy. Changes nothing. Ends with 0 if at least one method
    works, otherwise with 3.
    """
    import os
    import sys

    from envkit import prefix as place
    from envkit.doctor import gather, report, rules, terminal
    from envkit.verify.report.terminal import Paper

    found = rules.judge(gather.gather(place.locate(prefix), load, os.environ))
    if as_json:
        click.echo(report.to_json(found))
    else:
        sys.stdout.write(terminal.render(found, Paper.of(sys.stdout)))
    return 0 if found.works else 3
