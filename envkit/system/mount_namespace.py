"""Run a command where more is mounted, in a user namespace of its own, as the caller's own user.

``python mount_namespace.py WORD... -- COMMAND...``, where the words are, in this order:

``shared FOLDER``: all who name this folder, which is on a local disk, share one namespace, and so one mount. Who comes
first starts a process that makes it, its keeper, which ends with the last of them and of what they have started, and
with what mounts::

    FOLDER/users    locked by all who are in it (shared) and by what they start; by the keeper as it ends (alone)
           joining  locked while somebody looks whether there is a keeper
           held     locked by the keeper and what runs PROGRAM
           holder   the processes by whose namespaces one enters; nothing before these are there, "failed"
           said     the words of the keeper

``bind SOURCE TARGET``, ``bind-ro SOURCE TARGET``: TARGET shows SOURCE. May be repeated.
``overlay TARGET UPPER WORK``: what is written below TARGET, once it is mounted, goes to UPPER; WORK is the kernel's
own. All of them belong to the caller, the folders to one local disk.
``cache FOLDER``: the cache of PROGRAM; one that is damaged is put aside, and PROGRAM is started again.
``mount LOG TARGET PROGRAM ARG...``: PROGRAM mounts TARGET by FUSE and stays; its output goes to LOG, and what it would
tell the system's log is in a file of that name that ends in .syslog. It ends with this process, in whatever way that
ends.

``python mount_namespace.py try`` finds out whether this user may do that.

The root is a new one: every top-level folder of the old, and the targets. Nothing of it is seen outside, and
the kernel takes it away with the last process. COMMAND takes the place of this process. Needs no rights, and the
standard library alone. Ends with 3 and a line on standard error when it cannot be done.
"""

import ctypes
import fcntl
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from types import ModuleType

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203}
MOUNT_S = 60.0
GRACE_S = 2.0
DESCRIPTORS = 65536
HIGH = 100  # descriptors below are those that people use by number
PATIENCE_S = 3 * MOUNT_S  # with a keeper that is not ready
LOOK_S = 0.02
AGAIN_S = 1.0  # between looks at who is still there that holds no lock
LONGEST_AGAIN_S = 10.0
TRIES = 3  # to start a keeper that stays
FAILED, NOTHING = b"failed", b" " * 64
PID, LARGEST_SAID = 16, 100_000  # bytes
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
LIBC = ctypes.CDLL(None, use_errno=True)


class Mounted:
    """What has been mounted: its device, the process that keeps what mounts, and where that tells of its end.

    No other mount has that device: by FUSE each has one of its own.
    """

    def __init__(self, device: str, keeper: int, told: int) -> None:
        self.device, self.keeper, self.told = device, keeper, told


def main(arguments: list[str]) -> int:
    """Enter, and become the command; return the status of a failure."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and so would the command
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if arguments == ["try"]:
            unshare(CLONE_NEWUSER | CLONE_NEWNS, 0)
            mount("tmpfs", "/tmp", "tmpfs")  # noqa: S108
            return 0
        place = arguments.index("--")
        enter(arguments[:place])
        os.execvp(arguments[place + 1], arguments[place + 1 :])
    except OSError as error:
        where = f" ({str(error.filename).removeprefix('/new')})" if error.filename else ""
        return fail(f"{error.strerror}{where}.")


def fail(message: str) -> int:
    """Say what happened; return the status."""
    print(f"envkit: {message}", file=sys.stderr)
    return 3


def enter(words: list[str]) -> None:
    """Make the namespace that the words describe, or join it, and stand in it as the caller's own user."""
    if words[:1] == ["shared"]:
        join(Path(words[1]), words[2:])
        return
    user, group = os.geteuid(), os.getegid()
    make(words)
    unshare(CLONE_NEWUSER, user, group)


class Files:
    """The files of a shared namespace, open: they stay the same ones whatever their folder becomes."""

    def __init__(self, folder: Path) -> None:
        how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        names = ("users", "joining", "held", "holder", "said")
        files = [os.open(folder / name, how, 0o600) for name in names]
        for file in files:
            os.utime(file)  # or what cleans temporary folders would remove them some day
        self.users, self.joining, self.held, self.holder, self.said = files


def join(folder: Path, words: list[str]) -> None:
    """Stand in the namespace of a folder, which is made if there is none; ends with 3 if it cannot be."""
    here, files = Path.cwd(), Files(folder)
    deadline, begun = time.monotonic() + PATIENCE_S, 0
    while True:
        has_begun = have_held(folder, files, words, deadline)
        begun += has_begun
        found = ready(files, deadline, has_begun=has_begun)
        if found and is_within(found):
            break
        if begun == TRIES or time.monotonic() > deadline:
            keeper = f", process {found[0]}" if found else ""
            sys.exit(fail(f"What mounts it here does not stay, or does not answer ({folder}{keeper})."))
        time.sleep(LOOK_S)
    out_of_the_way(files.users)  # which the command keeps
    os.chdir(here)


def have_held(folder: Path, files: Files, words: list[str], deadline: float) -> bool:
    """Lock a namespace for its use, and begin to make it where nobody does; say whether that was so."""
    try:
        lock(files.joining, fcntl.LOCK_EX, deadline)
        lock(files.users, fcntl.LOCK_SH, deadline)  # waits for the end of one that nobody uses any more
    except OSError as error:
        problem = f"{folder} is where a mount is shared, and its files cannot be locked: {error.strerror}."
        sys.exit(fail(f"{problem} Name a folder on a local disk: export TMPDIR=FOLDER"))
    has_begun = not is_held(folder)
    if has_begun:
        os.pwrite(files.holder, NOTHING, 0)
        begin(folder, words)
    fcntl.flock(files.joining, fcntl.LOCK_UN)
    return has_begun


def lock(file: int, how: int, deadline: float) -> None:
    """Lock a file. Raises OSError where that is not to be had."""
    while True:
        try:
            return fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def begin(folder: Path, words: list[str]) -> None:
    """Start a keeper; it is held once this returns. Ends with 3 where none can be started."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                hold(Files(folder), words, writer)  # whose locks are its own
        except OSError as error:
            os.write(writer, f"{error.strerror}.".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    told = os.read(reader, LARGEST_SAID)
    os.close(reader)
    if told not in (b"", b"1"):
        sys.exit(fail(told.decode()))


def is_held(folder: Path) -> bool:
    """Say whether there is a keeper of a folder's namespace, or a client of one that has ended."""
    held = os.open(folder / "held", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        return is_locked(held)
    finally:
        os.close(held)


def is_locked(file: int) -> bool:
    """Say whether another process has a file locked for itself alone."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def ready(files: Files, deadline: float, *, has_begun: bool) -> list[str]:
    """Wait for what a namespace is entered by; nothing if its keeper has gone. Ends with 3 where it could not be made.

    ``has_begun``: on this process's behalf, which tells what the keeper has said.
    """
    while True:
        is_there, told = is_locked(files.held), os.pread(files.holder, len(NOTHING), 0).strip()
        if told == FAILED or (told and is_there and has_begun):
            sys.stderr.write(os.pread(files.said, LARGEST_SAID, 0).decode(errors="replace"))
        if told == FAILED:
            sys.exit(3)
        if told or not is_there or time.monotonic() > deadline:
            return told.decode().split() if is_there else []
        time.sleep(LOOK_S)


def is_within(processes: list[str]) -> bool:
    """Go where a keeper is, and to its process of the caller's own user; say whether they are still there."""
    holder, inner = processes
    names = (f"/proc/{holder}/ns/user", f"/proc/{holder}/ns/mnt", f"/proc/{inner}/ns/user")
    descriptors = list[int]()
    try:
        descriptors.extend(os.open(name, os.O_RDONLY) for name in names)
        for descriptor in descriptors:
            require(LIBC.setns(descriptor, 0), "setns")
    except (FileNotFoundError, ProcessLookupError):
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def out_of_the_way(descriptor: int) -> None:
    """Keep a file open, where no command looks for one."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH)
    except OSError:  # so few may be open
        fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)


def hold(files: Files, words: list[str], begun: int) -> None:
    """Be the keeper: make the namespace, and within it the one of the caller's own user; end with the last user."""
    status = 1
    try:
        fcntl.flock(files.held, fcntl.LOCK_EX)
        os.pwrite(files.holder, NOTHING, 0)
        os.truncate(files.said, 0)
        os.write(begun, b"1")
        os.setsid()
        for place, descriptor in enumerate((os.open(os.devnull, os.O_RDWR), files.said, files.said)):
            os.dup2(descriptor, place)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  (the caller may have had none)
        kept, last = {files.users, files.held, files.holder}, 2
        for descriptor in sorted(kept):
            os.closerange(last + 1, descriptor)
            last = descriptor
        os.closerange(last + 1, DESCRIPTORS)
        free_of_limits()
        stay(files, words)
        status = 0
    except SystemExit:  # which has said why
        pass
    except Exception as error:
        with suppress(Exception):
            fail(f"{getattr(error, 'strerror', '') or f'{type(error).__name__}: {error}'}.")
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        with suppress(OSError):
            os.pwrite(files.holder, FAILED.ljust(len(NOTHING)) if status else NOTHING, 0)
        os._exit(status)


def free_of_limits() -> None:
    """Have no limits but those that nobody here can lift, nor be bound to cores: the others have their own."""
    for limit in LIMITS:
        soft, hard = resource.getrlimit(limit)
        wanted = min(hard, max(soft, DESCRIPTORS)) if limit == resource.RLIMIT_NOFILE and hard > 0 else hard
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (wanted, hard))
    with suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))


def stay(files: Files, words: list[str]) -> None:
    """Make the namespace, and return once nobody is in it any more and its client has ended."""
    from threading import Thread  # where this user can still read it

    user, group = os.geteuid(), os.getegid()
    waiting, ending = pipe = os.pipe()
    mounted = make(words, pipe)
    assert mounted is not None  # noqa: S101  (what is shared is a mount)
    os.close(waiting)
    os.chdir("/")  # or the file system of the first one's folder stays in use
    reader, writer = os.pipe()
    keeper, inner = os.getpid(), os.fork()
    if not inner:
        be_inner(keeper, writer, user, group)
    os.close(writer)
    if not os.read(reader, 1):
        sys.exit(3)
    client = Thread(target=wait_for_end, args=(mounted.told,), daemon=True)
    client.start()
    os.pwrite(files.holder, f"{keeper} {inner}".encode().ljust(len(NOTHING)), 0)
    again_s = AGAIN_S
    fcntl.flock(files.users, fcntl.LOCK_EX)
    while any(is_seen_by_others(mounted, keeper, inner)):
        fcntl.flock(files.users, fcntl.LOCK_UN)
        time.sleep(again_s)
        again_s = min(again_s * 1.5, LONGEST_AGAIN_S)
        fcntl.flock(files.users, fcntl.LOCK_EX)
    os.pwrite(files.holder, NOTHING, 0)
    os.close(ending)
    client.join()


def be_inner(keeper: int, ready: int, user: int, group: int) -> None:
    """Be the process of the caller's own user, by whose namespace one enters; end with the keeper."""
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        unshare(CLONE_NEWUSER, user, group)
        os.write(ready, b"1")
        os.closerange(0, DESCRIPTORS)
        while os.getppid() == keeper:
            signal.pause()
    except OSError as error:
        fail(f"{error.strerror} ({error.filename}).")
        sys.stderr.flush()
    finally:
        os._exit(1)


def wait_for_end(told: int) -> None:
    """End this process when the client has ended: who comes next has another one, and is not led to a dead mount."""
    os.read(told, 1)
    os._exit(0)


def is_seen_by_others(mounted: Mounted, *own: int) -> Iterator[bool]:
    """Yield for each process here whether it sees a mount and is neither the client nor one of a keeper's own.

    Such a one has closed the files by which it would hold a lock.
    """
    session = {*of_session(mounted.keeper)}
    known = {*map(str, own), *session}
    clients = {program_of(process) for process in session} - {program_of(str(mounted.keeper)), ""}
    device = f" {mounted.device} ".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if place.stat().st_uid == os.geteuid() and place.name not in known:
                yield device in (place / "mountinfo").read_bytes() and program_of(place.name) not in clients


def of_session(leader: int) -> Iterator[str]:
    """Yield the processes of a session."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(place.name)) == leader:
                yield place.name


def program_of(process: str) -> str:
    """Return the program that a process runs; nothing if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{process}/exe")  # noqa: PTH115
    return ""


def make(words: list[str], pipe: tuple[int, int] | None = None) -> Mounted | None:
    """Make the namespace that the words describe, and stand in it with every right there.

    Once the end of ``pipe`` that is written to is closed, what mounts is ended.
    """
    folder = Path.cwd()
    binds = []
    while words and words[0] in ("bind", "bind-ro"):
        binds.append((Path(words[1]).resolve(strict=True), place_of(words[2]), words[0] == "bind-ro"))
        del words[:3]
    targets = {target: source.is_dir() for source, target, _ in binds}
    overlay = words[1:4] if words[:1] == ["overlay"] else []
    del words[: 4 if overlay else 0]
    cache = Path(words[1]) if words[:1] == ["cache"] else None
    del words[: 2 if cache else 0]
    if words:
        targets[place_of(words[2])] = True
    unshare(CLONE_NEWUSER | CLONE_NEWNS, 0)
    build_root(targets)
    for source, target, read_only in binds:
        show(Path("/old", *source.parts[1:]), Path("/new", *target.parts[1:]), read_only=read_only)
    change_root()
    os.chdir(folder)
    mounted = None
    if words:
        mounted = mount_by(words[3:], place_of(words[2]), Path(words[1]), cache, pipe)
    if overlay:
        lay_over(*overlay)
        os.chdir(folder)
    return mounted


def lay_over(target: str, upper: str, work: str) -> None:
    """Have what is written below a folder go to another one; ends with 3 if the kernel refuses."""
    options = f"lowerdir={target},upperdir={upper},workdir={work},userxattr"  # no comma or colon is in them
    try:
        mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
    except OSError as error:
        wants = "An overlay without root takes Linux 5.11 or newer, and a folder on a local disk: --writable FOLDER"
        sys.exit(fail(f"{target} cannot be written to here: {error.strerror}. {wants}"))


def place_of(target: str) -> Path:
    """Return a path without symbolic links above its last part."""
    return Path(target).parent.resolve() / Path(target).name


def unshare(flags: int, user: int, group: int | None = None) -> None:
    """Make a user namespace in which this process has an id; with capabilities there, until it becomes a command."""
    uid, gid = os.geteuid(), os.getegid()
    require(LIBC.unshare(flags), "unshare")
    Path("/proc/self/uid_map").write_text(f"{user} {uid} 1")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{user if group is None else group} {gid} 1")


def build_root(targets: Mapping[Path, bool]) -> None:
    """Make in /new a root that shows all of the old one, now in /old, and has the targets, empty: folders or files.

    A target may be new where it is at most two folders deep; a deeper one must be there.
    """
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")  # noqa: S108
    for name in ("old", "new"):
        Path("/tmp", name).mkdir()  # noqa: S108
    pivot_root("/tmp", "/tmp/old")  # noqa: S108
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    old, new = Path("/old"), Path("/new")
    shallow = [target.parts[1:] for target in targets if len(target.parts) < 4]
    tops = {parts[0] for parts in shallow}
    show_all(old, new, leave=tops)
    for top in sorted(tops):
        below = {parts[1] for parts in shallow if parts[0] == top and len(parts) == 2}
        if below:
            (new / top).mkdir()
        if below and (old / top).is_dir():
            show_all(old / top, new / top, leave=below)
    for target, is_folder in targets.items():
        place = Path("/new", *target.parts[1:])
        if len(target.parts) < 4 and not place.exists():
            place.mkdir() if is_folder else place.touch()


def change_root() -> None:
    """Leave the old root behind; the folders of the new one's own cannot be changed."""
    os.chdir("/new")
    pivot_root(".", ".")
    require(LIBC.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def show_all(old: Path, new: Path, leave: AbstractSet[str]) -> None:
    """Show each entry of a folder in another, but for some; what cannot be shown is left out."""
    for entry in old.iterdir():
        if entry.name in leave:
            continue
        with suppress(OSError):
            if entry.is_symlink():
                (new / entry.name).symlink_to(entry.readlink())
                continue
            (new / entry.name).mkdir() if entry.is_dir() else (new / entry.name).touch()
            show(entry, new / entry.name)


def show(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Bind a file or folder."""
    mount(str(source), str(target), flags=MS_BIND | MS_REC)
    if read_only:
        mount("none", str(target), flags=MS_REMOUNT | MS_BIND | MS_RDONLY | os.statvfs(target).f_flag & 15)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, as mount(2)."""
    words = (os.fsencode(word) for word in (source, target, kind))
    require(LIBC.mount(*words, flags, os.fsencode(options)), target)


def pivot_root(new: str, old: str) -> None:
    """Change the root, as pivot_root(2), which has no function in the C library."""
    require(LIBC.syscall(PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), "pivot_root")


def require(result: int, what: str) -> None:
    """Raise OSError when a call to the kernel has failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount_by(
    program: Sequence[str], target: Path, log: Path, cache: Path | None, pipe: tuple[int, int] | None
) -> Mounted:
    """Have a program mount ``target``, once more with an empty cache if that is damaged; ends with 3 if it fails."""
    mark = log.with_name("damaged")
    if mark.exists():
        if cache:
            messages().say_aside(put_aside(cache))
        mark.unlink(missing_ok=True)
    done = mounted_by(program, target, log, pipe)
    if isinstance(done, str) and cache and any(cache.iterdir()) and messages().is_damaged(done, log):
        messages().say_aside(put_aside(cache))
        done = mounted_by(program, target, log, pipe)
    if isinstance(done, str):
        sys.exit(messages().explain(program[0], done, log))
    return done


def messages() -> ModuleType:
    """Return the module that tells what the words of a client mean."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from envkit.system import cvmfs_messages

    return cvmfs_messages


def mounted_by(program: Sequence[str], target: Path, log: Path, pipe: tuple[int, int] | None) -> Mounted | str:
    """Have a program mount ``target``, kept by a process that ends it after this one; return its status if it fails."""
    reader, writer = os.pipe()
    asking = os.getpid()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                keep(program, log, asking, writer, pipe)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    keeper = os.read(reader, PID).decode()
    deadline = time.monotonic() + MOUNT_S
    status = "" if keeper else "killed"
    while not status and not (device := device_at(target)):
        if select.select([reader], [], [], 0.01)[0]:
            status = os.read(reader, 16).decode() or "killed"
        elif time.monotonic() > deadline:
            status = "timeout"
    if status:
        os.close(reader)
        return status
    return Mounted(device, int(keeper), reader)


def put_aside(cache: Path) -> Path:
    """Give a cache another name, in the place of an earlier one, and make it anew; return that name."""
    aside = cache.with_name(f"{cache.name}.damaged")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    cache.rename(aside)
    cache.mkdir(mode=0o700)
    return aside


def device_at(target: Path) -> str:
    """Return the device of what is mounted there, without touching it; nothing if nothing is."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    return next((words[2].decode() for words in lines if words[4] == os.fsencode(target)), "")


def keep(program: Sequence[str], log: Path, asking: int, writer: int, pipe: tuple[int, int] | None) -> None:
    """Run a program until it ends, or ``asking`` does or closes its end of a pipe; tell its status, and end.

    First the number of this process is told.
    """
    os.setsid()
    os.write(writer, f"{os.getpid():<{PID}}".encode())
    if pipe:
        os.close(pipe[1])
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.close(os.open(log.with_suffix(".syslog"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    for descriptor, place in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    keeper, child = os.getpid(), os.fork()
    if not child:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            if os.getppid() != keeper:
                os._exit(127)
            os.execvp(program[0], list(program))
        os._exit(127)
    while not has_ended(asking) and not (pipe and select.select([pipe[0]], [], [], 0)[0]):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            os.write(writer, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        wait_briefly((child, asking), pipe[:1] if pipe else ())
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    os._exit(0)


def has_ended(process: int) -> bool:
    """Say whether a process has ended, though nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_briefly(processes: Sequence[int], closing: Sequence[int]) -> None:
    """Wait until one of the processes ends, or the other end of a pipe is closed; a second at most before Linux 5.3."""
    descriptors = []
    try:
        descriptors = [os.pidfd_open(process) for process in processes]
        select.select([*descriptors, *closing], [], [])
    except OSError:
        time.sleep(0 if descriptors else 1)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
