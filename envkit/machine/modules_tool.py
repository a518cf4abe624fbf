"""The modules tool of this machine, Lmod or Environment Modules, and the settings that it leaves or is given.

What is said when it fails is in environments/shell/modules_tool.sh.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envkit.errors import ModuleNotLoaded
from envkit.system import process
from envkit.system.resources import data

KEPT = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LC_\w+|PATH|TMPDIR|MODULEPATH|MODULEPATH_ROOT|MODULESHOME"
    r"|LMOD_\w+|MODULES_CMD|LOADEDMODULES|_LMFILES_|__LMOD_\w+|_ModuleTable\w*"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|no|all|ftp)_proxy|(HTTPS?|NO|ALL|FTP)_PROXY"
)
MODULES_STATE = re.compile(
    r"LOADEDMODULES|_LMFILES_|__LMOD_\w+|_ModuleTable\w*|MODULEPATH|MODULEPATH_ROOT|__MODULES_\w+"
)
PATIENCE_S, TIMED_OUT = 30, 124  # for all modules together; what process.capture() gives one that is stopped
REMEDY = (
    "Install Lmod (Debian, Ubuntu: apt install lmod; RHEL: dnf install Lmod), or without root ask the site's "
    "support for 'module'. One that lies in an unusual place is found through LMOD_CMD or MODULES_CMD."
)


@dataclass(frozen=True, kw_only=True)
class ModulesTool:
    """The program that loads modules; ``kind`` as EasyBuild names it: Lmod or EnvironmentModules."""

    kind: str
    command: Path


def find_modules_tool(env: Mapping[str, str] = os.environ) -> ModulesTool | None:
    """Find Lmod or Environment Modules: by the variables they set, then by the usual places."""
    for kind, candidates in (
        ("Lmod", (env.get("LMOD_CMD"), *LMOD_PLACES)),
        ("EnvironmentModules", (env.get("MODULES_CMD"), *ENVIRONMENT_MODULES_PLACES)),
    ):
        for command in existing(filter(None, candidates)):
            return ModulesTool(kind=kind, command=command)
    return None


LMOD_PLACES = (
    "/usr/share/lmod/lmod/libexec/lmod",
    "/opt/apps/lmod/lmod/libexec/lmod",
    "/usr/local/lmod/lmod/libexec/lmod",
    "/opt/cray/pe/lmod/lmod/libexec/lmod",
)


ENVIRONMENT_MODULES_PLACES = (
    "/usr/lib/x86_64-linux-gnu/modulecmd.tcl",
    "/usr/lib/aarch64-linux-gnu/modulecmd.tcl",
    "/usr/share/Modules/libexec/modulecmd.tcl",
    "/usr/local/Modules/libexec/modulecmd.tcl",
)


def existing(candidates: Iterable[str]) -> Iterable[Path]:
    """Yield the candidates that are files this user may run."""
    return (Path(path) for path in candidates if Path(path).is_file() and os.access(path, os.X_OK))


def clean(env: Mapping[str, str], tool: ModulesTool | None, load: Sequence[str]) -> dict[str, str]:
    """Return the settings a build starts from: nothing of the caller's modules, virtual environment or paths
    to libraries; the modules in ``load`` are loaded on top.

    Raises ModuleNotLoaded when one of these cannot be loaded.
    """
    settings = {key: value for key, value in env.items() if KEPT.fullmatch(key)}
    settings["PATH"] = without_private_folders(env)
    if tool is not None and (load or settings.get("LOADEDMODULES")):
        settings = loaded(settings, tool, load)
    elif load:
        raise ModuleNotLoaded(
            what=f"The modules {', '.join(load)} cannot be loaded.",
            why="Neither Lmod nor Environment Modules was found on this machine.",
            fix="Leave --load out, or install Lmod (Debian, Ubuntu: apt install lmod).",
        )
    return {key: value for key, value in settings.items() if not MODULES_STATE.fullmatch(key)}


def loaded(env: Mapping[str, str], tool: ModulesTool, load: Sequence[str]) -> dict[str, str]:
    """Return ``env`` after unloading every module and loading those in ``load``. Raises ModuleNotLoaded."""
    words = ["load.sh", str(tool.command), "/nonexistent", *load, "--"]
    argv = ["bash", "--noprofile", "--norc", str(data("environments/shell/enter.sh")), *words, "--", "env", "-0"]
    try:
        done = require_entered(process.capture(argv, env=env, timeout_s=PATIENCE_S))
    except ModuleNotLoaded as failed:
        what = f"The modules {', '.join(load)} could not be loaded." if load else failed.what
        raise ModuleNotLoaded(what=what, why=failed.why, fix=failed.fix) from failed
    if done.status:
        raise not_ended(load, env.get("LOADEDMODULES", "").split(":"), done)
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if "=" in entry)
    return {
        key: value
        for key, _, value in pairs
        if not key.startswith("BASH_FUNC_") and key not in {"_", "SHLVL", "PWD", "OLDPWD"}
    }


def not_ended(load: Sequence[str], before: Sequence[str], done: process.Completed) -> ModuleNotLoaded:
    """Return what to say of a modules tool that was stopped; ``before`` are the modules that it was to unload."""
    one, verb = (load, "load") if load else (before, "unload")
    kept = "Leave out of --load (or of your configuration) the one that waits" if load else "Begin in a new session"
    late = f"The modules tool had not ended after {PATIENCE_S} s."
    return ModuleNotLoaded(
        what=f"The modules {', '.join(filter(None, one))} could not be {verb}ed.",
        why=late if done.status == TIMED_OUT else done.stderr.strip(),
        fix=f"See which it is, one by one: module {verb} {one[0]}. Its file may wait for a server or a file system "
        f"that does not answer. {kept}, and tell the site's support.",
    )


def require_entered(completed: process.Completed) -> process.Completed:
    """Return what a command inside an environment left. Raises ModuleNotLoaded where it was not reached.

    What enters has then said why, in three parts as every error has them, after what the modules tool said.
    """
    if completed.status != ModuleNotLoaded.exit_code:
        return completed
    output, _, own = f"\n{completed.stderr}".rpartition("\nenvkit: ")
    what, why, fix = (*own.strip().split("\n\n"), "", "")[:3]
    raise ModuleNotLoaded(
        what=what,
        why="\n".join(filter(None, (output.strip(), why.strip()))),
        fix=fix.removeprefix("What to do: "),
    )


def without_private_folders(env: Mapping[str, str]) -> str:
    """Return PATH without the folders of a virtual environment, of conda and of pyenv's stand-ins."""
    private = [env[key] for key in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT") if env.get(key)]
    own = str(Path(process.which("envkit") or "/").parent)
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    public = (
        f for f in folders if f.startswith("/") and f != own and not any(Path(f).is_relative_to(p) for p in private)
    )
    return os.pathsep.join(dict.fromkeys(public))
