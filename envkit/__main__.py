"""The program: ``envkit`` and ``python -m envkit``."""

import errno
import gc
import os
import resource
import signal
import sys

if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
    sys.dont_write_bytecode = True  # Python would keep a cut file (CPython issue 126606), and never start again
gc.set_threshold(100_000)  # most commands end before that

SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONINSPECT")


def require_folder() -> None:
    """Refuse to start in a folder that has been removed."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        print("envkit: the folder that you are in has gone.\n\nWhat to do: cd to another one.", file=sys.stderr)
        os._exit(3)


def isolate() -> None:
    """Begin anew where the caller's settings of Python, or packages in the home folder, can change this program.

    They are meant for the training, which gets them as they are. What a start-up file has printed is dropped, unless it
    can be seen already.
    """
    home = getattr(sys.modules.get("site"), "USER_SITE", None) or ""
    packages = os.listdir(home) if os.path.isdir(home) else []  # noqa: PTH112, PTH208
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    by_path = here in map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    is_there_without = not by_path and not any(name.startswith("envkit") for name in packages)
    if not sys.flags.isolated and is_there_without and (packages or any(map(os.environ.get, SETTINGS))):
        os.execv(sys.executable, [sys.executable, "-I", *sys.orig_argv[1:]])


def live_at_home() -> None:
    """Begin anew with root's own home where HOME is that of another user (sudo): what is made there would be root's.

    The same holds for the folders that XDG_*_HOME name, which ``sudo -E`` leaves where it does not leave HOME.
    """
    home = os.environ.get("HOME", "")
    if os.geteuid():
        return
    for name in [name for name, value in os.environ.items() if is_moved(name) and owner_of_nearest(value)]:
        print(f"envkit: {name} is another user's folder, so it is not used", file=sys.stderr, flush=True)
        del os.environ[name]
    if owner(home) in (0, None):
        return
    import pwd

    own = pwd.getpwuid(0).pw_dir
    if owner(own) == 0:
        print(f"envkit: {home} is another user's home, so that of root is used: {own}", file=sys.stderr, flush=True)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "HOME": own})


def owner(path: str) -> "int | None":
    """Return the uid of who owns a file; None where there is none."""
    try:
        return os.stat(path).st_uid  # noqa: PTH116
    except OSError:
        return None


def owner_of_nearest(path: str) -> int:
    """Return the uid of who owns a folder, or the nearest one above it that is there; root's for no absolute path."""
    while path.startswith("/") and path != "/":
        if (uid := owner(path)) is not None:
            return uid
        path = os.path.dirname(path.rstrip("/"))  # noqa: PTH120
    return 0


def is_moved(name: str) -> bool:
    """Say whether a variable moves a folder of this user's."""
    return name.startswith("XDG_") and name.endswith("_HOME")


def begin_anew() -> None:
    """Drop what a start-up file of Python has printed and nobody has seen yet: it would be in front of a report."""
    if sys.stdout is not None and not sys.stdout.isatty():
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=errors, closefd=False)


def silence() -> None:
    """Have nothing on standard error while a shell completes a word: it would be in the line that is being typed."""
    if os.environ.get("_ENVKIT_COMPLETE", "").endswith("_complete"):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)


signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # without it a launcher does not see its ranks end
silence()
live_at_home()
require_folder()
isolate()


def end_as_short_of_memory(*, threads: bool = False) -> None:
    """Say that envkit itself has no memory left, or can start no thread or program, by which limits; end with 3."""
    limits = {"-v": resource.RLIMIT_AS, "-d": resource.RLIMIT_DATA}
    if threads:
        limits["-u"] = resource.RLIMIT_NPROC
    told, raised = [], []
    for option, limit in limits.items():
        soft, hard = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            told.append(f"ulimit {option} is {soft // (1 if option == '-u' else 1024)}")
            raised += [f"ulimit -S{option[1]} hard"] if soft != hard else []
    what = "it may start no more threads or programs, or there is" if threads else "there is"
    print(
        f"envkit: {what} not enough memory for envkit itself.\n\n"
        f"  {', '.join(told) or 'No limit of this session on memory is set'}.\n\n"
        f"What to do: {' && '.join(raised) or 'Start a new session, or a job with more memory (Slurm: --mem)'}",
        file=sys.stderr,
    )
    os._exit(3)


def is_short_of_memory(error: Exception) -> bool:
    """Say whether an error is that memory was refused: to Python, a call of the system, or the loader of libraries.

    The loader gives a reason where there is another one ("failed to map segment from shared object: Operation not
    permitted"); Python's own parts may forget to say anything (SystemError).
    """
    if isinstance(error, SystemError):
        return str(error).endswith(("without exception set", "without setting an exception"))
    if isinstance(error, ImportError):
        return str(error).endswith(("failed to map segment from shared object", "Cannot allocate memory"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def end_as_damaged(error: Exception) -> None:
    """Say which file of envkit's own Python cannot be imported, and end with 3."""
    if is_short_of_memory(error):
        end_as_short_of_memory()
    names = [
        f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", *SETTINGS) if name in os.environ
    ]
    why = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        why = f"{error.filename}, line {error.lineno}: {error.msg}. The file is damaged."
    elif not isinstance(error, ImportError):
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f"{last.tb_frame.f_code.co_filename}, line {last.tb_lineno}: " if last else ""
        why = f"{where}{type(error).__name__}: {error}. The file may be damaged."
    of_base = sys.base_prefix + "/" in why and sys.prefix + "/" not in why
    print(
        f"envkit: its own Python, {sys.executable}, cannot import what envkit needs.\n\n  {why}\n\n"
        f"What to do: {'Try without ' + ', '.join(names) + '. If that does not help, install' if names else 'Install'} "
        f"{f'the Python in {sys.base_prefix}' if of_base else 'envkit'} again.",
        file=sys.stderr,
    )
    os._exit(3)


try:
    from envkit.cli import run
except KeyboardInterrupt:
    print("envkit: stopped by Ctrl-C.", file=sys.stderr)
    os._exit(130)
except Exception as error:  # a library that is cut short can fail in any way
    end_as_damaged(error)


def main() -> None:
    """Run the command line and end with its exit code, at once: taking modules apart takes as long as some commands."""
    begin_anew()
    try:
        status = run()
    except (ImportError, SyntaxError) as error:  # of what is imported only where it is needed
        end_as_damaged(error)
    except (MemoryError, OSError, SystemError) as error:
        is_of_processes = isinstance(error, BlockingIOError)  # as of a program that is started
        if not is_of_processes and not is_short_of_memory(error):
            raise
        end_as_short_of_memory(threads=is_of_processes)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        end_as_short_of_memory(threads=True)
    os._exit(status)


if __name__ == "__main__":
    main()
