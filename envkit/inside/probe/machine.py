"""Reads what the machine gives to a rank: cores, shared memory, interfaces, fabric, and where libraries are sought."""

import fcntl
import os
import platform
import re
import resource
import shutil
import socket
import struct
from typing import Any, Dict, List, Optional, Set

from .record import attempt

FABRIC_LIBRARIES = (
    "libibverbs.so.1",
    "libfabric.so.1",
    "libcxi.so.1",
    "libucp.so.0",
    "libnccl-net.so",
    "librccl-net.so",
)
SHADOWING = re.compile(r"(libmpi|libmpich|libnccl|librccl|libstdc\+\+|libcuda|libfabric)\.so(\.\d+)?")
DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
IFF_UP, IFF_LOOPBACK = 0x1, 0x8


def machine() -> Dict[str, Any]:
    """Return what the ranks of a node have in common."""
    system = os.uname()
    return {
        "hostname": system.nodename,
        "kernel": system.release,
        "architecture": system.machine,
        "libc": " ".join(platform.libc_ver()),
        "cores": os.cpu_count(),
        "granted": attempt(granted_cores),
        "shm": attempt(lambda: space("/dev/shm")),
        "container": container(),
    }


def affinity() -> List[int]:
    """The numbers of the cores that this rank may use."""
    return sorted(os.sched_getaffinity(0))


def limits() -> Dict[str, int]:
    """The limits of this rank (ulimit) that are set, by the name that the kernel has for them."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    soft = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return {name: value for name, value in soft.items() if value != resource.RLIM_INFINITY}


def granted_cores() -> Optional[int]:
    """How many cores the control group of this process may use; None where there is no such limit."""
    for line in lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpuset"):
            folder = os.path.join("/sys/fs/cgroup", controllers, path.lstrip("/"))
            ranges = text(folder + "/cpuset.cpus.effective") or text(folder + "/cpuset.effective_cpus")
            if ranges:
                return count(ranges)
    return None


def count(ranges: str) -> int:
    """How many numbers there are in a list such as 0-3,8."""
    pairs = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


def space(path: str) -> Dict[str, Any]:
    """Bytes in all, and free for this user, who may or may not write there."""
    room, may_write = os.statvfs(path), os.access(path, os.W_OK | os.X_OK)
    return {"size": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize, "writable": may_write}


def container() -> Optional[str]:
    """The kind of container that this process is in, as far as it can be told."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if os.environ.get(name):
            return "apptainer"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return "docker" if os.path.exists("/.dockerenv") else None


def search_path() -> Dict[str, Any]:
    """Libraries that are loaded before all others, and the folders searched first, with what they shadow.

    Beside them the first mpirun on PATH: that of Open MPI has its ranks search the folder of its own library first.
    """
    preload = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    shadowed = {}
    for folder in folders("LD_LIBRARY_PATH"):
        named = {}  # type: Dict[str, str]
        for name in listed(folder):
            match = SHADOWING.fullmatch(name)
            if match:
                named.setdefault(match.group(1), os.path.realpath(os.path.join(folder, name)))
        shadowed[folder] = named
    return {
        "preload": preload,
        "preload_file": lines("/etc/ld.so.preload"),
        "folders": shadowed,
        "mpirun": shutil.which("mpirun") or "",
    }


def folders(variable: str) -> List[str]:
    """The folders of a search path, each once."""
    return list(dict.fromkeys(part for part in os.environ.get(variable, "").split(":") if part))


def fabric() -> Dict[str, Any]:
    """Network interfaces, the devices of fast fabrics, and the libraries that use these."""
    return {
        "interfaces": [interface(name) for _, name in sorted(socket.if_nameindex())],
        "infiniband": [device(name) for name in listed("/sys/class/infiniband")],
        "cxi": listed("/sys/class/cxi"),
        "libraries": find_libraries(),
    }


def interface(name: str) -> Dict[str, Any]:
    """An interface: address and network mask where it has IPv4; kind is physical, virtual, bridge or loopback."""
    flags = int(text("/sys/class/net/%s/flags" % name) or "0", 16)
    home = "/sys/class/net/" + name
    if flags & IFF_LOOPBACK:
        kind = "loopback"
    elif os.path.isdir(home + "/bridge"):
        kind = "bridge"
    else:
        kind = "virtual" if "/devices/virtual/" in os.path.realpath(home) else "physical"
    up = bool(flags & IFF_UP) and text(home + "/operstate") != "down"
    address, mask = ipv4(name, SIOCGIFADDR), ipv4(name, SIOCGIFNETMASK)
    return {"name": name, "kind": kind, "up": up, "address": address, "mask": mask}


def ipv4(name: str, question: int) -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), question, struct.pack("256s", name[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def device(name: str) -> Dict[str, Any]:
    """An RDMA device: the link layers of its active ports (InfiniBand or Ethernet)."""
    ports = "/sys/class/infiniband/%s/ports" % name
    active = [port for port in listed(ports) if "ACTIVE" in text("%s/%s/state" % (ports, port))]
    return {"name": name, "active": [text("%s/%s/link_layer" % (ports, port)) for port in active]}


def find_libraries() -> Dict[str, Optional[str]]:
    """Return where the loader would find each of the fabric's libraries: a folder, or its cache; None: nowhere."""
    cache = b""
    if os.path.exists("/etc/ld.so.cache"):
        with open("/etc/ld.so.cache", "rb") as stream:
            cache = stream.read()
    places = folders("LD_LIBRARY_PATH")
    contents = {folder: set(listed(folder)) for folder in places}  # type: Dict[str, Set[str]]
    locations = {}  # type: Dict[str, Optional[str]]
    for name in FABRIC_LIBRARIES:
        locations[name] = next((folder for folder in places if name in contents[folder]), None)
        if locations[name] is None and any(start + name.encode() + b"\0" in cache for start in (b"\0", b"/")):
            locations[name] = "/etc/ld.so.cache"
        if locations[name] is None:
            fixed = [folder for folder in DEFAULT_DIRECTORIES if os.path.exists(os.path.join(folder, name))]
            locations[name] = fixed[0] if fixed else None
    return locations


def listed(folder: str) -> List[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def text(path: str) -> str:
    """The contents of a small file, without blanks around; nothing where it cannot be read."""
    try:
        with open(path, errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def lines(path: str) -> List[str]:
    return text(path).splitlines()


EARLY = (machine, affinity, limits, search_path, fabric)
