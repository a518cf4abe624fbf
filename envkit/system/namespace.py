"""Run a command where more is mounted, in a user namespace of its own, as the caller's own user.

``python namespace.py WORD... -- COMMAND...``, where the words are, in this order:

``shared FOLDER``: all who name this folder, which is on a local disk, share one namespace, and so one mount. Who comes
first makes it; it ends with the last of them and of what they have started.
``bind SOURCE TARGET``, ``bind-ro SOURCE TARGET``: TARGET shows SOURCE. May be repeated.
``overlay TARGET UPPER WORK``: what is written below TARGET, once it is mounted, goes to UPPER; WORK is the kernel's
own. All of them belong to the caller, the folders to one local disk.
``cache FOLDER``: the cache of PROGRAM; one that is damaged is put aside, and PROGRAM is started again.
``mount LOG TARGET PROGRAM ARG...``: PROGRAM mounts TARGET and stays; its output goes to LOG, and what it would tell the
system's log is in a file of that name that ends in .syslog. It ends with this process, in whatever way that ends.

``python namespace.py try`` finds out whether this user may do that.

The root is a new one: every top-level folder of the old, and the targets. Nothing of it is seen outside, and
the kernel takes it away with the last process. COMMAND takes the place of this process. Needs no rights, and the
standard library alone. Ends with 3 and a line on standard error when it cannot be done.
"""

import ctypes
import fcntl
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203}
MOUNT_S = 60.0
GRACE_S = 2.0
DESCRIPTORS = 65536
HIGH = 100  # descriptors below are those that people use by number
LIBC = ctypes.CDLL(None, use_errno=True)


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


def join(folder: Path, words: list[str]) -> None:
    """Stand in the namespace of a folder, which is made if there is none; ends with 3 if it cannot be."""
    here = Path.cwd()
    user = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    with (folder / "joining").open("w") as joining:
        try:
            fcntl.flock(joining, fcntl.LOCK_EX)
        except OSError as error:
            problem = f"{folder} is where ranks share a mount, and has no file locks: {error.strerror}."
            sys.exit(fail(f"{problem} Name a folder on a local disk: export TMPDIR=FOLDER"))
        fcntl.flock(user, fcntl.LOCK_SH)  # waits for the end of one that nobody uses any more
        if not is_held(folder):
            have_held(folder, words)
        holder, inner = (folder / "holder").read_text().split()
        names = (f"/proc/{holder}/ns/user", f"/proc/{holder}/ns/mnt", f"/proc/{inner}/ns/user")
        for descriptor in [os.open(name, os.O_RDONLY) for name in names]:
            require(LIBC.setns(descriptor, 0), "setns")
            os.close(descriptor)
    fcntl.fcntl(user, fcntl.F_DUPFD, HIGH)  # which the command keeps
    os.close(user)
    os.chdir(here)


def is_held(folder: Path) -> bool:
    """Say whether there is a process that keeps the namespace of a folder."""
    with (folder / "held").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def have_held(folder: Path, words: list[str]) -> None:
    """Start a process that makes the namespace of a folder, and keeps it; ends with 3 if it cannot."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                hold(folder, words, writer)
        except OSError as error:
            fail(f"{error.strerror}.")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    if not os.read(reader, 1):
        sys.exit(3)
    os.close(reader)


def hold(folder: Path, words: list[str], ready: int) -> None:
    """Make a namespace, and within it the one of the caller's own user; stay until nobody uses them."""
    user, group = os.geteuid(), os.getegid()
    os.setsid()
    os.closerange(3, ready)
    os.closerange(ready + 1, DESCRIPTORS)
    make(words)
    reader, writer = os.pipe()
    inner = os.fork()
    if not inner:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        unshare(CLONE_NEWUSER, user, group)
        os.write(writer, b"1")
        os.closerange(0, DESCRIPTORS)
        while True:
            signal.pause()
    os.close(writer)
    os.read(reader, 1)
    held, users = os.open(folder / "held", os.O_RDWR), os.open(folder / "users", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    (folder / "holder").write_text(f"{os.getpid()} {inner}")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(nowhere, place)
    os.write(ready, b"1")
    os.close(ready)
    fcntl.flock(users, fcntl.LOCK_EX)


def make(words: list[str]) -> None:
    """Make the namespace that the words describe, and stand in it with every right there."""
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
    if words:
        mount_by(words[3:], target=place_of(words[2]), log=Path(words[1]), cache=cache)
    if overlay:
        lay_over(*overlay)
        os.chdir(folder)


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


def mount_by(program: Sequence[str], target: Path, log: Path, cache: Path | None) -> None:
    """Have a program mount ``target``, once more with an empty cache if that is damaged; ends with 3 if it fails."""
    status = mounted_by(program, target, log)
    if not status:
        return
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from envkit.system import cvmfs_messages

    if cache and any(cache.iterdir()) and cvmfs_messages.is_damaged(status, log):
        cvmfs_messages.say_aside(put_aside(cache))
        status = mounted_by(program, target, log)
    if status:
        sys.exit(cvmfs_messages.explain(program[0], status, log))


def mounted_by(program: Sequence[str], target: Path, log: Path) -> str:
    """Have a program mount ``target``, kept by a process that ends it after this one; return its status if it fails."""
    reader, writer = os.pipe()
    asking = os.getpid()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                keep(program, log, asking, writer)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    deadline = time.monotonic() + MOUNT_S
    status = ""
    while not status and not is_mounted(target):
        if select.select([reader], [], [], 0.01)[0]:
            status = os.read(reader, 16).decode() or "killed"
        elif time.monotonic() > deadline:
            status = "timeout"
    os.close(reader)
    return status


def put_aside(cache: Path) -> Path:
    """Give a cache another name, in the place of an earlier one, and make it anew; return that name."""
    aside = cache.with_name(f"{cache.name}.damaged")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    cache.rename(aside)
    cache.mkdir(mode=0o700)
    return aside


def is_mounted(target: Path) -> bool:
    """Say whether a file system is mounted there, without touching it."""
    return f" {target} " in Path("/proc/self/mountinfo").read_text()


def keep(program: Sequence[str], log: Path, asking: int, writer: int) -> None:
    """Run a program until it ends or the process ``asking`` does; tell its status, and end."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.close(os.open(log.with_suffix(".syslog"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    for descriptor, place in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    child = os.fork()
    if not child:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            os.execvp(program[0], list(program))
        os._exit(127)
    while not has_ended(asking):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            os.write(writer, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        wait_briefly(child, asking)
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    os._exit(0)  # what has not ended is killed now


def has_ended(process: int) -> bool:
    """Say whether a process has ended, though nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_briefly(*processes: int) -> None:
    """Wait until one of the processes ends; a second at most where the kernel cannot tell (before 5.3)."""
    descriptors = []
    try:
        descriptors = [os.pidfd_open(process) for process in processes]
        select.select(descriptors, [], [])
    except OSError:
        time.sleep(0 if descriptors else 1)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
