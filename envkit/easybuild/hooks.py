# SPDX-FileCopyrightText: The authors of envkit
# SPDX-License-Identifier: GPL-2.0-or-later
"""EasyBuild's hooks as a stream of events: one JSON object a line in the file named by ENVKIT_EVENTS.

Events: ``easyconfig`` (what a recipe needs; at exit, when ENVKIT_INVENTORY is set), ``plan``, ``begin``,
``step``, ``extension``, ``command``, ``submitted``, ``module``, ``ended``, ``failed``. Every event has ``time`` (s
since the epoch). Where ENVKIT_EVENTS is a folder, this is a job of Slurm, which has its own file in it; what eb submits
as jobs gets the words in ENVKIT_SBATCH besides. With ENVKIT_OFFLINE eb looks for no config.guess on the network. The
site's own hooks (ENVKIT_SITE_HOOKS, else EASYBUILD_HOOKS, which EESSI-extend sets) are called too, after the event has
been written, and what they return is what EasyBuild gets. Runs inside ``eb``, under its Python.
"""

import atexit
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig.easyconfig import get_easyblock_class, resolve_template
from easybuild.framework.easyconfig.templates import PYPI_SOURCE, template_constant_dict
from easybuild.tools.config import install_path
from easybuild.tools.hooks import HOOK_NAMES, load_source

PACKAGE = Path(__file__).resolve().parents[1]
PARSED: dict[str, Any] = {}


def tell(event: str, **facts: Any) -> None:
    """Write one event."""
    path = Path(os.environ["ENVKIT_EVENTS"])
    if path.is_dir():
        path /= os.environ["SLURM_JOB_ID"] + ".jsonl"
    with path.open("a") as stream:
        stream.write(json.dumps(dict(facts, event=event, time=time.time()), default=str) + "\n")


def site_hooks() -> Any:
    """Return the site's own hooks as a module, None without any."""
    path = os.environ.get("ENVKIT_SITE_HOOKS") or os.environ.get("EASYBUILD_HOOKS")
    return load_source("envkit_site_hooks", path) if path else None


SITE = site_hooks()


def on_parse(ec: Any) -> None:
    PARSED[ec.path] = ec


def on_pre_build_and_install_loop(ecs: list[Any]) -> None:
    tell("plan", modules=[ec["full_mod_name"] for ec in ecs])


def on_pre_easyblock(app: Any) -> None:
    tell("begin", module=app.full_mod_name, log=app.logfile)


def on_post_easyblock(app: Any) -> None:
    tell("ended", module=app.full_mod_name)


def on_pre_sanitycheck(app: Any) -> None:
    on_step("sanitycheck")(app)
    compile_python(app)


def compile_python(app: Any) -> None:
    """Compile the Python that a module has, where pip was told not to do so.

    pip would put the path of this prefix into what it compiles, and a cache of builds cannot have that.
    """
    if "PIP_NO_COMPILE" not in os.environ:
        return
    folder, below = Path(app.installdir), "/software/" + app.full_mod_name
    own = getattr(app, "python_cmd", None) or next(folder.glob("bin/python"), None)
    if own is None or not str(folder).endswith(below) or not any(folder.glob("lib/python*/site-packages")):
        return
    from easybuild.tools.run import run_shell_cmd  # which EasyBuild 4 lacks

    root = str(folder)[: -len(below)]
    words = ["-I", "-S", str(PACKAGE / "binary/compile_python.py"), root, app.full_mod_name, root]
    run_shell_cmd(shlex.join([str(own), *words]), hidden=True)


def on_module_write(app: Any, path: str, text: str) -> str:
    if path.startswith(install_path("mod")):  # eb writes others into its temporary folder, to load what it tests
        tell("module", module=app.full_mod_name, path=path)
    return text


def on_pre_single_extension(extension: Any) -> None:
    tell("extension", module=extension.master.full_mod_name, name=extension.name)


def on_pre_run_shell_cmd(cmd: Any, *_args: Any, **facts: Any) -> str | None:
    if submits(cmd):
        return str(cmd) + " " + os.environ["ENVKIT_SBATCH"]  # of two words for one thing sbatch takes the last
    if not facts.get("hidden"):
        tell("command", command=str(cmd)[:200])
    return None


if "ENVKIT_SBATCH" in os.environ:
    # not in a build: eb writes what a hook is given, the whole output of the command, into one line of its log

    def on_post_run_shell_cmd(cmd: Any, *_args: Any, **facts: Any) -> None:
        if submits(cmd):
            tell("submitted", command=str(cmd), status=facts.get("exit_code"), output=facts.get("output"))


def submits(cmd: Any) -> bool:
    """Say whether a command is one by which eb submits a job."""
    return "ENVKIT_SBATCH" in os.environ and str(cmd).startswith("sbatch --") and " --wrap " in str(cmd)


def on_fail(error: Any) -> None:
    tell("failed", message=str(error), exit_code=int(getattr(error, "exit_code", 1) or 1))


def on_cancel(error: Any) -> None:
    tell("failed", message="cancelled: " + str(error), exit_code=1)


def on_crash(error: Any) -> None:
    tell("failed", message="EasyBuild crashed: " + repr(error), exit_code=1)


def on_step(step: str) -> Callable[[Any], None]:
    """Return the hook that tells of the beginning of a step."""

    def begin(app: Any) -> None:
        tell("step", module=app.full_mod_name, step=step)

    return begin


def compose(name: str) -> Callable[..., Any] | None:
    """Return what eb shall call for a hook: our own, then the site's."""
    own = globals().get("on_" + name)
    if own is None and name.startswith("pre_") and name[4:] not in ("build_and_install_loop", "easyblock"):
        own = on_step(name[4:])
    site = getattr(SITE, name + "_hook", None)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs) if own else None
        return (site(*args, **kwargs) if site else None) or result

    call.__name__ = name + "_hook"
    return call if own or site else None


for _name in HOOK_NAMES:
    _call = compose(_name)
    if _call:
        globals()[_name + "_hook"] = _call


def inventory() -> None:
    """Tell what every recipe that was read needs."""
    tempfile.tempdir = str(Path(os.environ["ENVKIT_EVENTS"]).parent)  # eb's own is gone by now
    for path, ec in PARSED.items():
        try:
            with ec.allow_unresolved_templates():
                tell("easyconfig", **facts_of(ec, path))
        except Exception as error:
            tell("unreadable", path=path, message=repr(error))


def facts_of(ec: Any, path: str) -> dict[str, Any]:
    """Return what a recipe needs, with its templates filled in."""
    if "%(" in str(ec["sources"]):  # some easyblocks define templates of their own, when they are made
        get_easyblock_class(ec["easyblock"], name=ec.name)(ec)
    return {
        "path": path,
        "module": ec.full_mod_name,
        "name": ec.name,
        "version": ec.version,
        "accept_eula": bool(ec["accept_eula"]),
        "os_dependencies": os_packages(ec),
        "dependencies": [dependency["full_mod_name"] for dependency in ec.all_dependencies],
        "config_guess": config_guess_of(ec),
        **files_of(ec),
    }


def config_guess_of(ec: Any) -> dict[str, str] | None:
    """Return where in its sources eb looks for the config.guess that it configures this with, and its SHA-256."""
    from easybuild.easyblocks.generic import configuremake

    easyblock = get_easyblock_class(
        ec["easyblock"], name=ec.name, error_on_failed_import=False, error_on_missing_easyblock=False
    )
    if easyblock is None or not issubclass(easyblock, configuremake.ConfigureMake):
        return None
    place = f"generic/eb_v{configuremake.EASYBLOCKS_VERSION}/ConfigureMake/config.guess"
    return {"place": place, "sha256": configuremake.CONFIG_GUESS_SHA256}


def os_packages(ec: Any) -> list[str | list[str]]:
    """Return the packages of the system that a recipe asks for."""
    return [dep if isinstance(dep, str) else list(dep) for dep in ec["osdependencies"]]


def files_of(ec: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the sources and the patches of a recipe, of its components and of its extensions."""
    sources = listed(ec["sources"], ec["checksums"], ec["source_urls"] or default_urls(ec))
    patches = patched(ec["patches"], ec["sources"], ec["checksums"])
    common = ec.get("default_component_specs", resolve=False) or {}
    for component in ec.get("components", resolve=False) or []:
        if isinstance(component, (list, tuple)):
            names = template_constant_dict({"name": component[0], "version": component[1]})
            given = dict(common, **(component[2] if len(component) > 2 else {}))
            options = resolved(given, dict(ec.template_values, **names))
            urls = options.get("source_urls") or ec["source_urls"]
            sources += listed(options.get("sources", []), options.get("checksums", []), urls)
            patches += patched(options.get("patches"), options.get("sources"), options.get("checksums"))
    reader = SimpleNamespace(cfg=ec, dry_run=False, log=ec.log)
    for extension in EasyBlock.collect_exts_file_info(reader, fetch_files=False, verify_checksums=False):
        if extension.get("sources"):
            values = dict(ec.template_values, **template_constant_dict(extension))
            options = extension["options"]
            urls = resolved(options.get("source_urls") or ec.get_ref("source_urls") or [PYPI_SOURCE], values)
            given = resolved(options.get("sources") or [], values)
            sources += listed(given or extension["sources"], extension["checksums"], urls)
            patches += patched(options.get("patches"), given or extension["sources"], extension["checksums"])
    return {"sources": sources, "patches": patches}


def resolved(value: Any, template_values: dict[str, Any]) -> Any:
    """Return a value with its templates filled in."""
    return resolve_template(value, template_values, expect_resolved=False)


def default_urls(ec: Any) -> list[str]:
    """Return where a recipe without source URLs looks."""
    return resolved([PYPI_SOURCE], ec.template_values) if (ec["easyblock"] or "").startswith("Python") else []


def listed(sources: Any, checksums: Any, urls: list[str]) -> list[dict[str, Any]]:
    """Return sources, in whichever way a recipe writes them, as facts."""
    entries = []
    for index, source in enumerate([sources] if isinstance(sources, (str, dict)) else sources or []):
        facts = source if isinstance(source, dict) else {"filename": source[0] if isinstance(source, tuple) else source}
        url, _, name = facts["filename"].rpartition("/")  # some recipes give a whole URL
        entries.append(
            {
                "filename": name,
                "download_filename": facts.get("download_filename") or name,
                "sha256": checksum(checksums, index, name) or checksum(checksums, index, facts["filename"]),
                "urls": [url] if url else list(facts.get("source_urls") or urls),
                "git": bool(facts.get("git_config")),
            }
        )
    return entries


def patched(patches: Any, sources: Any, checksums: Any) -> list[dict[str, Any]]:
    """Return patches, in whichever way a recipe writes them, as facts; their checksums follow those of the sources."""
    before = 1 if isinstance(sources, (str, dict)) else len(sources or [])
    entries = []
    for index, patch in enumerate(patches or []):
        name = patch["name"] if isinstance(patch, dict) else patch[0] if isinstance(patch, (list, tuple)) else patch
        entries.append({"filename": Path(name).name, "sha256": checksum(checksums, before + index, Path(name).name)})
    return entries


def checksum(checksums: Any, index: int, filename: str) -> str | None:
    """Return the SHA-256 that a recipe pins: a string, a pair, one of several, or per file name."""
    value = checksums
    if isinstance(value, (list, tuple)):
        value = value[index] if index < len(value) else None
    if isinstance(value, dict):
        value = value.get(filename)
    if isinstance(value, (list, tuple)):
        value = next(
            (entry for entry in value if isinstance(entry, str) and re.fullmatch("[0-9a-f]{64}", entry)), value[-1:]
        )
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else None


def look_for_nothing() -> None:
    """Have eb take config.guess from its sources alone: it would try for a minute in each module that it configures."""
    from easybuild.easyblocks.generic import configuremake

    configuremake.download_file = lambda *_args, **_facts: None


if os.environ.get("ENVKIT_OFFLINE"):
    look_for_nothing()
if os.environ.get("ENVKIT_INVENTORY"):
    atexit.register(inventory)
