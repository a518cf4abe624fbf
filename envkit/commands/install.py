"""``envkit install``."""

from pathlib import Path

import click

from envkit.cli import usage
from envkit.commands import batch, complete, options, submitted
from envkit.knowledge import methods

OF_THE_JOB = (
    "submit", "method", "gpus_per_node", "time", "account", "partition", "prefix", "bundle", "offline", "jobs",
    "job_per_module",
)  # fmt: skip
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    cls=options.Grouped,
    groups={
        "Options of EasyBuild": ("extras", "mpi"),
        "Options of EESSI": ("release", "access"),
        "Options of images": (
            "base", "build_args", "source", "dockerfile", "binds", "sandbox", "sign",
        ),
        **batch.SUBMITTED,
    },
)  # fmt: skip
@options.method
@options.stack
@options.prefix
@click.option("--dry-run", is_flag=True, help="Print the plan and what stands in its way; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan of --dry-run as JSON.")
@click.option("--offline", is_flag=True, help="Use no network: every source must be in PREFIX/sources.")
@click.option(
    "--bundle",
    type=FILE,
    help="Take the sources from this file, made by 'envkit fetch --bundle'. Implies --offline.",
)
@click.option(
    "--accept-eula",
    "eulas",
    metavar="NAME",
    multiple=True,
    help="Accept this licence, such as CUDA. May be repeated.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compile this many files at a time. Default: the cores there are.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Install even versions that are known to fail together ('envkit compat'), or with an MPI that is too old.",
)
@click.option(
    "--locked",
    type=FILE,
    help="Install what this lock says ('envkit show NAME --lock'), or refuse; STACK can be left out.",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Build again what has changed or came from a cache, and what depends on it; where nothing has, the last "
    "module (Horovod's) alone. An image is always made anew. Nothing is taken from a cache.",
)
@click.option(
    "--unsigned-cache", is_flag=True, help="Take also what nobody has signed from the caches of your configuration."
)
@options.extras
@options.mpi
@click.option("--release", metavar="RELEASE", help="The release to build on. Default: STACK's own.")
@click.option(
    "--access",
    metavar="auto|native|dir[:FOLDER]|userns|apptainer",
    help="How its repository is reached. Default: the first that fits.",
)
@options.image
@click.option(
    "--from", "source", metavar="FILE.sif|docker://IMAGE@sha256:DIGEST", help="Take over this image as STACK."
)
@click.option(
    "--from-dockerfile",
    "dockerfile",
    type=FILE,
    help="Build this Dockerfile of one stage as STACK; what it copies is taken from its own folder.",
)
@click.option(
    "--site",
    metavar="NAME|FILE.toml",
    help="What this site needs of an image (binds, variables, CPU binding) or a job.",
    shell_complete=complete.sites,
)
@click.option("--bind", "binds", metavar="SOURCE[:TARGET]", multiple=True, help="Bind this into the image, always.")
@click.option("--sandbox", is_flag=True, help="Make an image a folder, which can be changed.")
@click.option("--sign", metavar="KEY.pem", type=FILE, help="Sign the image with this private key.")
@click.option(
    "--signed-by",
    metavar="KEY.pub",
    type=FILE,
    help="Take the file of --from or --bundle only if this public key verifies it.",
)
@click.option("--submit", is_flag=True, help="Build in a Slurm job on one node, and wait for it.")
@click.option(
    "--job-per-module",
    is_flag=True,
    help="Of EasyBuild: build each module in a job of its own, side by side as far as they can be.",
)
@batch.GPUS
@batch.TIME
@batch.ACCOUNT
@batch.PARTITION
@click.pass_context
def install(
    context: click.Context, /, stack: str | None, method: str | None, framework: str | None, accelerator: str,
    load: tuple[str, ...], prefix: str | None, dry_run: bool, as_json: bool, offline: bool, bundle: Path | None,
    eulas: tuple[str, ...], jobs: int | None, rebuild: bool, force: bool, release: str | None, access: str | None,
    base: str, build_args: tuple[tuple[str, str], ...], source: str | None, dockerfile: Path | None, sandbox: bool,
    site: str | None, binds: tuple[str, ...], sign: Path | None, signed_by: Path | None, submit: bool,
    job_per_module: bool, locked: Path | None, mpi: str, unsigned_cache: bool,
    extras: tuple[str, ...], **of_job: str | None,
) -> int:  # fmt: skip
    """Install a Horovod environment and verify it.

    STACK is a name from 'envkit list', 'pytorch' or 'tensorflow', the file name of any recipe (.eb) of EasyBuild's own
    collection, or the path of one of your own (./my.eb); it may be left out. Where neither such a name or recipe nor
    --method is given, the first that this machine can have is taken, for its GPUs if it has some; which and why is told
    in three lines on standard error. What is left of an interrupted installation is resumed.

    With --submit every source is fetched here, and the rest is done in a job of --jobs CPUs (default: 8), an hour long
    at most, if --time says nothing else. Its log goes to standard output, and Ctrl-C cancels it. With --job-per-module
    EasyBuild submits such a job for each module first, after those that it needs; what fails is explained at the end.
    """
    method, framework, accelerator = options.giving_way(context, stack or (locked.name if locked else None), "auto")
    takes_over = methods.of_option("source")
    if (source or dockerfile) and method not in (methods.AUTO, takes_over):
        usage(f"--from and --from-dockerfile go with --method {takes_over}, not with {method}.")
    if source and dockerfile:
        usage("Give one of --from and --from-dockerfile.")
    if sign and sandbox:
        usage("--sign: a folder, which can be changed, cannot be signed. Leave out --sandbox.")
    if signed_by and not (source or bundle):
        usage("--signed-by goes with --from and --bundle.")
    if as_json and not dry_run:
        usage("--json goes with --dry-run.")
    if submit and dry_run:
        usage("Give one of --dry-run and --submit.")
    if not submit:
        submitted.require_submit({**of_job, "job_per_module": job_per_module}, (*of_job, "job_per_module"))
    from envkit.commands import plans
    from envkit.config import configuration
    from envkit.environments import lockfile, receipt
    from envkit.environments import prefix as place
    from envkit.install import install as work
    from envkit.planning.extras import in_lock
    from envkit.planning.request import Request
    from envkit.report.progress import console as console_of
    from envkit.report.progress import say

    wanted = lockfile.read(locked) if locked else None
    if wanted:
        stack, release = stack or wanted.name, release or wanted.release or None
        method = wanted.method if method == "auto" else method
        extras = (*in_lock(wanted), *extras)
    request = Request(
        prefix=place.locate(prefix), wanted=stack, method=method, framework=framework, accelerator=accelerator,
        load=load, release=release, locked=wanted, access=access, accepted_eulas=eulas, bundle=bundle,
        offline=offline or bundle is not None, rebuild=rebuild, jobs=jobs or 0, force=force, base=base,
        build_args=build_args, source=source, dockerfile=dockerfile, sandbox=sandbox, site=site, binds=binds,
        sign=sign, signed_by=signed_by, mpi=mpi, configured=options.configured(context),
        unsigned_cache=unsigned_cache, extras=extras,
    )  # fmt: skip
    console = console_of(err=as_json, tells=True)
    if text := configuration.message():
        say(console, text)
    if dry_run:
        existing = None if as_json else work.find_installed(request)
        if existing:
            work.say_already(existing, request.prefix, console)
            if not receipt.is_same(Path(existing.tree).parent, request.prefix.root):
                return 0
            say(console, "The plan, as if it were not there:")
        planned = work.planned(request)
        work.say_forced(planned, console)
        return plans.show_json(planned) if as_json else plans.show(planned, console_of())
    if submit:
        done = (*(["rebuild"] if job_per_module else []), *([] if source else ["signed_by"]))
        words = list(batch.repeated(context, leave=(*OF_THE_JOB, *done)))
        settings = {**of_job, "jobs": jobs, "site": site, "prefix": prefix, "job_per_module": job_per_module}
        return submitted.installation(request, settings, words, console)
    report = work.install(request, console)
    return 0 if report is None or report.verdict == "pass" else 1
