"""The settings of a user's own that may keep ranks from working, and how ranks are started without them."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit.inside.probe.started import ancestors, detect, is_unseen, variables_of
from envkit.knowledge.known import known
from envkit.launch import hosts, launcher
from envkit.system import files, process
from envkit.verify.outcome import EndedJob, Expected, HostFile, SessionLimit, Setting, UnusablePlace

LINE = re.compile(r"\s*([\w.]+)\s*=\s*(.*?)\s*")
ROOM = 1 << 20  # bytes
SLURM_S = 10
LONGEST = 100_000  # bytes of a file of settings
SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def in_force(env: Mapping[str, str]) -> list[Setting]:
    """The settings in force that may matter, the more suspicious first."""
    settings = [
        *variables(launcher.variables(env), env),
        *of_ended_job(env),
        *lines(env),
        *limits(),
        *folders(env),
        *packages(env),
    ]
    return sorted(settings, key=is_harmless)


def is_harmless(setting: Setting) -> bool:
    """Whether a setting hardly ever matters."""
    return re.fullmatch(known("settings")["harmless"], setting.name) is not None


def variables(ranks: Mapping[str, str], env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield those variables that a user sets: not those of this rank's launcher, of the job, and of envkit for root."""
    table, by = known("settings"), detect(env)
    own = {*variables_of(by, env)} if by and not is_unseen(by, env) else set()
    not_own = [
        table["unless"],
        *([table["of_mpirun"]] if "OMPI_COMM_WORLD_SIZE" in env else []),
        *([table["of_scheduler"]] if hosts.in_job(env) else []),
    ]
    for pattern in table["variables"]:
        for name in sorted(ranks):
            by_python = name == "LC_CTYPE" and env.get(name) == "C.UTF-8"  # Python's own, where there is no locale
            others = name in own or by_python or is_below(name, env) or re.fullmatch("|".join(not_own), name)
            if name in env and re.fullmatch(pattern, name) and not others:
                yield Setting(kind="variable", name=name, value=env[name])


def is_below(name: str, env: Mapping[str, str]) -> bool:
    """Whether a variable names a place in the folder that mpirun calls its own; elsewhere it is the user's."""
    folder = env.get(known("settings")["of_mpirun_below"].get(name, ""))
    return bool(folder) and env.get(name, "").startswith(f"{folder}/")


def of_ended_job(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the variables of a job of Slurm that is none any more, as a shell has kept them: launchers believe them."""
    if job := ended_job(env):
        for name in job.variables:
            yield Setting(kind="variable", name=name, value=env[name])


def ended_job(env: Mapping[str, str]) -> EndedJob | None:
    """The job of Slurm whose variables are set and that runs no more.

    Slurm says so; where it does not answer, nothing of it is above this process. Without its programs, as in an image,
    nobody can tell.
    """
    job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID", "")
    if not job or process.which("squeue", path=env.get("PATH")) is None:
        return None
    answer = process.capture(["squeue", "--noheader", f"--jobs={job}"], env=dict(env), timeout_s=SLURM_S)
    names, is_all = ancestors()
    is_below = not is_all or any(re.match("slurm|salloc|srun|sbatch", name) for name in names)
    is_over = not answer.stdout.strip() if answer.status == 0 else "Invalid job id" in answer.stderr or not is_below
    of_job = re.compile(known("schedulers")["slurm"]["of_a_job"])
    return EndedJob(scheduler="Slurm", job=job, variables=tuple(sorted(filter(of_job.match, env)))) if is_over else None


def lines(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the lines of the files of settings in the home folder."""
    for name in known("settings")["files"]:
        yield from lines_of(Path(env.get("HOME") or "/nothing", name), "line")


def of_machine(libraries: Iterable[str]) -> list[Setting]:
    """The lines of the machine's own settings of Open MPI, and of those beside its libraries."""
    return [
        line for place in machine_folders(libraries) for line in lines_of(place / "openmpi-mca-params.conf", "machine")
    ]


def of_unknown_components(said: str, in_force: Iterable[Setting]) -> Iterator[Setting]:
    """Yield those of some settings that ask Open MPI for a component which it says that it lacks."""
    told = {match.groups() for match in re.finditer(known("settings")["unknown_component"], said)}
    for setting in in_force:
        framework = setting.name.removeprefix("OMPI_MCA_")
        if any((framework, word) in told for word in setting.value.lstrip("^").split(",")):
            yield setting


def default_hosts(libraries: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the hosts that Open MPI starts ranks on where nobody names any, each with the file that names it.

    Beside that, the variable that names another file, or "none".
    """
    lines_set = [*lines(env), *of_machine(libraries)]
    for table in known("settings")["default_hostfiles"]:
        named = [env.get(table["variable"]), *(s.value for s in lines_set if s.name == table["setting"])]
        places = [place / table["file"] for place in machine_folders(libraries)]
        chosen = [Path(name) for name in named if name][:1] or places
        for path in chosen:
            words = (line.partition("#")[0].split() for line in text(path).splitlines())
            for host in dict.fromkeys(each[0].partition(":")[0] for each in words if each):
                yield host, (str(path), table["variable"])


def machine_folders(libraries: Iterable[str]) -> list[Path]:
    """Return the folders of the machine's own settings of Open MPI, and those beside its libraries."""
    beside = (Path(library).resolve().parents[1] / "etc" for library in libraries)
    return list(dict.fromkeys((*map(Path, known("settings")["machine"]), *beside)))


def lines_of(path: Path, kind: str) -> Iterator[Setting]:
    """Yield the lines of a file of settings; of two that say the same thing the last counts."""
    matches = (LINE.fullmatch(line.partition("#")[0]) for line in text(path).splitlines())
    for name, value in {match[1]: match[2] for match in matches if match}.items():
        yield Setting(kind=kind, name=name, value=value, where=str(path))


def folders(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the folders of PATH, the system's left out, that have a program which may take the environment's place."""
    for folder in dict.fromkeys(env.get("PATH", "").split(os.pathsep)):
        programs = [name for name in known("settings")["programs"] if folder and os.access(f"{folder}/{name}", os.X_OK)]
        if programs and folder not in SYSTEM and Path(folder) != Path(sys.executable).parent:
            yield Setting(kind="folder", name="PATH", value=", ".join(programs), where=folder)


def packages(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the folders of Python packages in the home folder, which every Python of that version has."""
    base = Path(env.get("PYTHONUSERBASE") or f"{env.get('HOME') or '/nothing'}/.local")
    if not env.get("PYTHONNOUSERSITE"):
        for folder in sorted(base.glob("lib/python3*/site-packages")):
            if any(folder.iterdir()):
                yield Setting(kind="packages", name="PYTHONNOUSERSITE", value="", where=str(folder))


def limits() -> Iterator[Setting]:
    """Yield the limits of this session that it may raise by itself."""
    for limit in low_limits():
        soft, hard = resource.getrlimit(number := getattr(resource, limit.name))
        if hard == resource.RLIM_INFINITY or hard > soft:
            option = known("settings")["limits"][limit.name]["option"]
            yield Setting(kind="limit", name=f"ulimit {option}", value=str(limit.value), where=str(number))


@contextmanager
def raised(dropped: Iterable[Setting]) -> Iterator[None]:
    """Raise limits of this session, as far as it may, while ranks are started."""
    before = {int(limit.where): resource.getrlimit(int(limit.where)) for limit in of(dropped, "limit")}
    for number, (_, hard) in before.items():
        resource.setrlimit(number, (hard, hard))
    try:
        yield
    finally:
        for number, both in before.items():
            resource.setrlimit(number, both)


def text(path: Path) -> str:
    """The beginning of a file, nothing where it cannot be read."""
    with suppress(OSError):
        with files.open_plain(path) as stream:
            return stream.read(LONGEST).decode(errors="replace")
    return ""


def without(env: Mapping[str, str], dropped: Iterable[Setting], home: Path) -> dict[str, str]:
    """The variables of ranks that have not these settings; ``home`` is an empty folder to stand in for the home."""
    gone = list(dropped)
    unset = {setting.name for setting in of(gone, "variable")}
    ranks = {name: value for name, value in env.items() if name not in unset}
    if places := {setting.where for setting in of(gone, "folder")}:
        ranks["PATH"] = os.pathsep.join(word for word in env.get("PATH", "").split(os.pathsep) if word not in places)
    if any(of(gone, "packages")):
        ranks["PYTHONNOUSERSITE"] = "1"
    if files := {setting.where for setting in of(gone, "line")}:
        stand_in(
            Path(env["HOME"]),
            home,
            {Path(file): [setting for setting in of(gone, "line") if setting.where == file] for file in files},
        )
        ranks["HOME"] = str(home)
    if of(gone, "machine"):
        ranks["OMPI_MCA_mca_base_param_files"] = ",".join(machine_files(env, gone, home))
    return ranks


def machine_files(env: Mapping[str, str], gone: Sequence[Setting], home: Path) -> Iterator[str]:
    """Yield what Open MPI reads in place of the machine's own settings: the user's, and those without some lines."""
    yield f"{home if of(gone, 'line') else env.get('HOME', '')}/.openmpi/mca-params.conf"
    for number, file in enumerate(dict.fromkeys(setting.where for setting in of(gone, "machine"))):
        copy = home / f"machine-{number}.conf"
        dropped = [setting for setting in of(gone, "machine") if setting.where == file]
        copy.write_text(without_lines(Path(file), dropped))
        yield str(copy)


def of(settings: Iterable[Setting], kind: str) -> list[Setting]:
    """Those of one kind."""
    return [setting for setting in settings if setting.kind == kind]


def stand_in(real: Path, home: Path, files: Mapping[Path, Sequence[Setting]]) -> None:
    """Make a home folder that leads to all of another, but for some lines of files in it."""
    parts = {file.relative_to(real).parts[0] for file in files}
    for entry in real.iterdir():
        if entry.name not in parts:
            (home / entry.name).symlink_to(entry)
    for part in parts:
        for entry in (real / part).iterdir():
            (home / part).mkdir(exist_ok=True)
            if entry not in files:
                (home / part / entry.name).symlink_to(entry)
    for file, dropped in files.items():
        (home / file.relative_to(real)).write_text(without_lines(file, dropped))


def without_lines(file: Path, dropped: Iterable[Setting]) -> str:
    """A file of settings without some of its lines."""
    gone = {(setting.name, setting.value) for setting in dropped}
    matches = ((line, LINE.fullmatch(line.partition("#")[0])) for line in text(file).splitlines())
    return "".join(f"{line}\n" for line, match in matches if not match or match.groups() not in gone)


def commands(settings: Sequence[Setting]) -> Iterator[str]:
    """Yield what to type to be without these settings."""
    if names := [setting.name for setting in of(settings, "variable")]:
        yield f"unset {' '.join(names)}"
    for setting in of(settings, "machine"):
        if not os.access(setting.where, os.W_OK):
            yield in_place_of(setting)
    own = [line for line in of(settings, "machine") if os.access(line.where, os.W_OK)]
    for setting in (*of(settings, "line"), *own):
        value = re.sub(r"([][\\.*^$/+?(){}|])", r"\\\1", setting.value)
        pattern = rf"/^\s*{setting.name}\s*=\s*{value}\s*(#.*)?$/d"
        yield f"sed -E -i.before {shlex.quote(pattern)} {shlex.quote(setting.where)}"
    for setting in of(settings, "folder"):
        yield f"PATH=$(printf %s \"$PATH\" | tr : '\\n' | grep -vxF {shlex.quote(setting.where)} | paste -sd:)"
    for setting in of(settings, "limit"):
        yield f"ulimit -S{setting.name[-1]} hard"
    if of(settings, "packages"):
        yield "export PYTHONNOUSERSITE=1"


def in_place_of(setting: Setting) -> str:
    """Return what to type where a line of a file of the machine's is not to count and may not be removed."""
    if values := [value for value in values_of(setting) if value != setting.value]:
        return f"export OMPI_MCA_{setting.name}={shlex.quote(values[-1])}"
    return 'export OMPI_MCA_mca_base_param_files="$HOME/.openmpi/mca-params.conf"'  # it reads the user's own alone


def values_of(setting: Setting) -> list[str]:
    """Return what the lines of a setting's file give it, the last of which counts."""
    matches = (LINE.fullmatch(line.partition("#")[0]) for line in text(Path(setting.where)).splitlines())
    return [match[2] for match in matches if match and match[1] == setting.name]


def is_in_search_path(file: HostFile, settings: Iterable[Setting]) -> bool:
    """Whether a cut library lies in a folder of the LD_LIBRARY_PATH that is in force."""
    folders = [word for one in settings if one.name == "LD_LIBRARY_PATH" for word in one.value.split(":") if word]
    return file.how == "cut" and any(Path(file.path).is_relative_to(folder) for folder in folders)


def unwritable(env: Mapping[str, str]) -> Iterator[UnusablePlace]:
    """Yield the folders for temporary files that cannot be written to, where ranks and launchers write."""
    for folder in dict.fromkeys((env.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")):  # noqa: S108
        try:
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(b"\0" * ROOM)
                stream.flush()
        except OSError as error:
            if error.errno == errno.EFBIG:  # the session's own limit
                continue
            yield UnusablePlace(path=folder, error=error.strerror or str(error))


def own_place(expected: Expected) -> UnusablePlace | None:
    """The folder that TMPDIR names where it cannot be written to, and /tmp can."""
    named = [one.value for one in expected.settings if one.kind == "variable" and one.name == "TMPDIR"]
    unusable = {place.path: place for place in expected.places}
    return unusable.get(named[0]) if named and "/tmp" not in unusable else None  # noqa: S108


def is_hopeless() -> bool:
    """Whether a limit of this session is too low for any rank; what meets it may hang."""
    table = known("settings")["limits"]
    return any(limit.value < table[limit.name]["few"] * table[limit.name]["unit"] for limit in low_limits())


def low_limits() -> list[SessionLimit]:
    """The limits of this session that are too low for a rank."""
    low = []
    for name, words in known("settings")["limits"].items():
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and soft < words["enough"] * words["unit"]:
            low.append(SessionLimit(name=name, value=soft))
    return low
