"""A stack on aarch64, under emulation: a Debian for arm64 in a folder, whose programs qemu runs on this machine.

    python -m tests.aarch64 DIR [STACK]

makes the folder, prepares envkit there, installs the stack and verifies it on two ranks; run again, it goes on where it
was. The compiler alone is this machine's own, for the other machine type: emulated, it would take hours. Programs of
arm64 run only in a namespace of this command, which needs Linux 6.7: nothing is registered for others.

For an image (tensorflow-2.21-cpu-image), Apptainer and mksquashfs are this machine's own as well: qemu cannot
make the namespaces that Apptainer asks for. Of the compiler in the image, the driver is emulated, and what it starts
for C++ is this machine's own, told to read the image's headers.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from envkit.apptainer.image_plan import mirror

from .checkout import ROOT, clone
from .integration.test_debian_13 import CLONE, Machine, output

USUAL, IMAGE = "tensorflow-2.21-cpu", "-image"
USER_NAMESPACES = (6, 7)  # from this Linux on binfmt_misc can be mounted in one
IDS = 2**32 - 2  # one less than all: with all, Apptainer takes itself to be in no user namespace
BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = "qemu-aarch64-static"
CROSS = "aarch64-linux-gnu"
MADE = "etc/pip.conf"  # what is written last
HOST = "x86_64-linux-gnu"
NEEDED = {QEMU: "qemu-user-static", f"{CROSS}-g++": f"g++-{CROSS}", "debootstrap": "debootstrap"}
# An ELF file of 64 bits, little endian, for machine 183, that is run. F: qemu is opened now, not in the root.
HEAD = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
RUNTIME = ROOT / ".venv/apptainer"  # where scripts/apptainer.sh puts it, with its own C library
# What Apptainer calls, as scripts/apptainer.sh installs it.
FOR_IMAGES = (
    "squashfs-tools",
    "squashfuse",
    "fuse2fs",
    "fuse3",
    "fuse-overlayfs",
    "uidmap",
    "debootstrap",
    "e2fsprogs",
)
BOOTSTRAPPING = """#!/bin/sh
for word; do
    shift
    [ "$word" = --arch=amd64 ] && word=--arch=arm64
    set -- "$@" "$word"
done
exec /usr/sbin/debootstrap "$@"
"""
# What is run in the place of cc1plus, with its path and its words: the same of this machine, and the image's headers.
COMPILER = "cc1plus"
SEEN = "/srv/native"  # where a build of an image sees the compiler: in the folder of the compiler cache
START = """
#include <stdlib.h>
#include <unistd.h>
static char *headers[] = {"-nostdinc", "-nostdinc++", %s, NULL};
int main(int count, char **words) {
    char **all = calloc(count + sizeof headers / sizeof *headers, sizeof *all), **next = all;
    *next++ = "%s";
    for (int at = 2; at < count; at++) *next++ = words[at];
    for (char **word = headers; *word; word++) *next++ = *word;
    execv(all[0], all);
    return 127;
}
"""
INCLUDES = (
    "/usr/include/c++/{0}", f"/usr/include/{CROSS}/c++/{{0}}", "/usr/include/c++/{0}/backward",
    f"/usr/lib/gcc/{CROSS}/{{0}}/include", "/usr/local/include", f"/usr/include/{CROSS}", "/usr/include",
)  # fmt: skip
# $1 is the rules, a line each, $2 the root, then the folders that it is to show, up to "--". It waits for a line, until
# it has users.
ENTER = """
read -r _
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s\n' "$1" | while read -r rule; do printf '%s' "$rule" > /proc/sys/fs/binfmt_misc/register; done
root=$2; shift 2
mount --bind "$root" "$root"
for folder in dev sys; do mount --rbind /$folder "$root/$folder"; done
mount -t proc none "$root/proc"
mount --bind /proc/sys/fs/binfmt_misc "$root/proc/sys/fs/binfmt_misc"  # the rules last as long as it is mounted
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
mount -t tmpfs -o mode=755 none "$root/run"
cpus=$root/sys/devices/system/cpu  # oneDNN, in PyTorch, ends the program where it cannot read what an arm64 CPU says
mount -t tmpfs none "$cpus"
for word in online possible present; do echo 0-1 > "$cpus/$word"; done
for number in 0 1; do
    mkdir -p "$cpus/cpu$number/regs/identification"
    echo 0x00000000413fd0c1 > "$cpus/cpu$number/regs/identification/midr_el1"  # a Neoverse N1
done
mkdir -p "$root/x86/usr"; mount --rbind -o ro /usr "$root/x86/usr"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"; mount --bind -o ro "$1" "$root$1"; shift
done
shift
cd "$root"
pivot_root . .  # Apptainer refuses to run in a root that is not that of its namespace
umount -l .
exec chroot . "$@"
"""


class Emulated(Machine):
    """A Debian for arm64 of this machine's own release, since the compiler and its libraries are this machine's."""

    rules: tuple[str, ...] = ()  # of what else is not run by qemu; the last that fits counts

    def bootstrap(self, mirror: str) -> None:
        """Make the root, if it is not there, in two steps: files, and then what their own programs do."""
        if (self.root / MADE).is_file():
            return
        release = platform.freedesktop_os_release()
        made = ["--foreign", "--arch=arm64", "--variant=minbase", "--include=ca-certificates"]
        run("debootstrap", *made, release["VERSION_CODENAME"], str(self.root), mirror)
        env = ["/usr/bin/env", "container=lxc", f"PATH={self.env['PATH']}"]
        self.enter(*env, "/debootstrap/debootstrap", "--second-stage")
        self.link("/lib64/ld-linux-x86-64.so.2", f"/x86/usr/lib/{HOST}/ld-linux-x86-64.so.2")
        self.link(f"/usr/lib/{HOST}", f"/x86/usr/lib/{HOST}")
        self.link(f"/usr/{CROSS}", f"/x86/usr/{CROSS}")
        for name in ("gcc", "g++"):
            self.put(f"/usr/local/bin/{name}", f'#!/bin/sh\nexec /x86/usr/bin/{CROSS}-{name} "$@"\n')
            (self.root / "usr/local/bin" / name).chmod(0o755)
        self.link("/usr/local/bin/cc", "gcc")
        self.link("/usr/local/bin/c++", "g++")

    def add_runtime(self) -> None:
        """Put this machine's Apptainer there, and what it calls. Raises CalledProcessError."""
        self.go("apt-get", "-qq", "install", "-y", "--no-install-recommends", *FOR_IMAGES)
        self.shown.append(RUNTIME)
        self.link("/usr/local/bin/apptainer", str(RUNTIME / "bin/apptainer"))
        self.link("/usr/local/bin/mksquashfs", "/x86/usr/bin/mksquashfs")
        self.put("/usr/local/bin/debootstrap", BOOTSTRAPPING)  # Apptainer names the machine that it was made for
        (self.root / "usr/local/bin/debootstrap").chmod(0o755)

    def add_compiler(self) -> None:
        """Have this machine's compiler compile C++ in images that have the same one. Raises CalledProcessError.

        Theirs is known by the head of its file: a rule of binfmt_misc sees no more.
        """
        version = output(f"{CROSS}-g++", "-dumpversion").strip()
        self.env["CCACHE_DIR"] = "/root/ccache"
        own, there = self.root / f"root/ccache/{Path(SEEN).name}", self.root / "var/tmp/theirs"
        for folder in (own, there):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.go("sh", "-c", f"cd /var/tmp/theirs && apt-get -qq -o APT::Sandbox::User=root download g++-{version}")
        [package] = there.glob("*.deb")
        run("dpkg-deb", "--extract", str(package), str(there))
        [theirs] = there.rglob(COMPILER)
        head = "".join(f"\\x{byte:02x}" for byte in theirs.read_bytes()[:64])
        compiler = Path(output(f"{CROSS}-g++", f"-print-prog-name={COMPILER}").strip())
        libraries = re.findall(r"(/\S+) \(0x", output("ldd", str(compiler)))
        for path in (compiler, *map(Path, libraries)):
            shutil.copy(path, own / path.name)
        loader = next(path for path in map(Path, libraries) if path.name.startswith("ld-linux"))
        words = ["--set-interpreter", f"{SEEN}/{loader.name}", "--force-rpath", "--set-rpath", SEEN]
        run("patchelf", *words, str(own / compiler.name))
        told = ", ".join(f'"-isystem", "{folder.format(version)}"' for folder in INCLUDES)
        (own / "start.c").write_text(START % (told, f"{SEEN}/{compiler.name}"))
        run("gcc", "-static", "-o", str(own / "start"), str(own / "start.c"))
        self.rules = (f":{COMPILER}:M::{head}::{own}/start:F",)

    def link(self, file: str, target: str) -> None:
        """Make a link of the root."""
        path = self.root / file.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def go(self, *argv: str) -> None:
        """Run a program in the clone, as root; what it prints is shown. Raises CalledProcessError."""
        env = [f"{key}={value}" for key, value in self.env.items()]
        self.enter("/usr/bin/env", "--ignore-environment", f"--chdir={CLONE}", *env, *argv)

    def enter(self, *argv: str) -> None:
        """Run a program in the root. Raises CalledProcessError."""
        rules = "\n".join([f":{QEMU}:M::{HEAD}:{MASK}:{shutil.which(QEMU)}:F", *self.rules])
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--user", "--mount", "--pid", "--fork", "--kill-child"]
        words = ["sh", "-ec", ENTER, "sh", rules, str(self.root), *map(str, self.shown), "--", *argv]
        with subprocess.Popen([*apart, *words], stdin=subprocess.PIPE) as process:
            assert process.stdin
            while Path(f"/proc/{process.pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink():
                if process.poll() is not None:
                    raise subprocess.CalledProcessError(process.returncode, apart)
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{kind}").write_text(f"0 0 {IDS}")
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"go\n")
                process.stdin.close()
            if process.wait() != 0:
                raise subprocess.CalledProcessError(process.returncode, argv)


def run(*argv: str) -> None:
    """Run a program of this machine. Raises CalledProcessError."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def unfit(stack: str = USUAL) -> str:
    """Say why this machine cannot make a stack; nothing if it can."""
    if platform.machine() != "x86_64":
        return f"This machine is {platform.machine()}: on aarch64, scripts/quickstart.sh does it without emulation."
    if os.geteuid() != 0:
        return "It needs root, for the folder's devices, users and mounts."
    if tuple(map(int, platform.release().split(".")[:2])) < USER_NAMESPACES:
        return f"Linux {platform.release()} has no binfmt_misc in user namespaces, which 6.7 and newer have."
    if not BINFMT.is_dir():
        return "This Linux has no binfmt_misc: modprobe binfmt_misc, or it was built without (CONFIG_BINFMT_MISC)."
    if platform.freedesktop_os_release()["ID"] != "debian":
        return "It is for Debian, whose release here and in the folder has to be the same."
    if absent := [package for program, package in NEEDED.items() if shutil.which(program) is None]:
        return f"Packages are missing: apt-get install {' '.join(absent)}"
    if stack.endswith(IMAGE) and not (RUNTIME / "bin/apptainer").is_file():
        return f"There is no {RUNTIME}: it takes the Apptainer that scripts/apptainer.sh unpacks, not an installed one."
    return "" if mirror() else "This machine's apt names no mirror of Debian."


def main(folder: str, stack: str = USUAL) -> int:
    """Install and verify a stack."""
    if why := unfit(stack):
        print(why, file=sys.stderr)
        return 3
    root, where = Path(folder).resolve(), mirror()
    assert where is not None
    if root.exists() and not (root / MADE).is_file():
        print(
            f"{root} is there, and no root that this has made to the end: remove it, or name another.", file=sys.stderr
        )
        return 3
    try:
        debian = Emulated(root, where)
        own = root / CLONE.removeprefix("/")
        if own.is_dir():
            run("git", "-C", str(own), "fetch", "-q", str(ROOT), "HEAD")
            run("git", "-C", str(own), "reset", "-q", "--hard", "FETCH_HEAD")
        else:
            clone(own)
        debian.go("scripts/prepare.sh")
        if stack.endswith(IMAGE):
            debian.add_runtime()
            debian.add_compiler()
        debian.go(".venv/bin/envkit", "install", stack)
        debian.go(".venv/bin/envkit", "show", stack)
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))}: ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
