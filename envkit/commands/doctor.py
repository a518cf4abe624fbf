"""``envkit doctor``."""

from pathlib import Path
from typing import Any

import click

from envkit.cli import echo_json
from envkit.commands import batch, options, submitted

OF_THE_JOB = ("submit", "gpus_per_node", "time", "account", "partition", "site", "shared")


@click.command(cls=options.Grouped, groups={**batch.SUBMITTED})
@options.prefix
@options.load
@options.repository
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--submit", is_flag=True, help="Examine a compute node, in a Slurm job, and show how it differs from this host."
)
@batch.GPUS
@batch.TIME
@batch.ACCOUNT
@batch.PARTITION
@batch.SITE
@click.option("--shared", type=click.Path(path_type=Path), metavar="DIR", help="A folder that the node sees, too.")
@click.pass_context
def doctor(
    context: click.Context, /, prefix: str | None, load: tuple[str, ...], repository: str | None, as_json: bool,
    submit: bool, **of_job: Any,
) -> int:  # fmt: skip
    """Show what this machine offers, and which methods of installation work here.

    For each method that does not work it gives the reason and the remedy. It changes nothing. Ends with 0 if at least
    one method works, wholly or in part, otherwise with 3.

    With --submit it examines a compute node, in a job of at most five minutes (or --time), and shows how the node
    differs from this host. Messages about the job go to standard error; Ctrl-C cancels it.
    """
    if not submit:
        submitted.require_submit(of_job, of_job)
    import os
    import sys

    from envkit.config import configuration
    from envkit.doctor import compare, gather, report, rules, terminal
    from envkit.eessi import repositories
    from envkit.environments import prefix as place
    from envkit.report.paper import Paper

    wanted, node_report = repositories.find(repository or "", os.environ), None
    if submit:
        words = list(batch.repeated(context, leave=(*OF_THE_JOB, "prefix", "as_json")))
        node_report, status = submitted.examination({**of_job, "prefix": prefix}, words)
        if node_report is None:
            return status
    result = rules.judge(gather.gather(place.locate(prefix), load, os.environ, wanted))
    result = compare.with_comparison(node_report, result) if node_report else result
    if as_json:
        echo_json(report.to_json(result))
    else:
        sys.stdout.write(terminal.render(result, Paper.of(sys.stdout)))
        if text := configuration.message():
            sys.stdout.write(f"\n{text}\n")
    return 0 if result.works else 3
