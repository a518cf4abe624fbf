"""A cluster on one machine: real Slurm, MPI and ssh on several hosts, which are namespaces (root), or which share
one host name (any user)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HOSTS = Path(__file__).with_name("hosts.sh")
SLURM = Path(__file__).with_name("slurm.conf")
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "sshd", "ssh-keygen", "ip", "nsenter", "unshare", "setpriv")
WITHOUT_ROOT = ("slurmctld", "slurmd", "srun", "munged")
GPUS = 4


def missing_programs(names: Sequence[str]) -> list[str]:
    """The programs of a list that are not on this machine."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [name for name in names if shutil.which(name, path=path) is None]


class Cluster:
    """Nodes node0, node1, ... and a host for logging in. Files are shared, but for FOLDER/unshared and /dev/shm."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.hosts = [f"node{number}" for number in range(nodes)]
        self.unshared = folder / "unshared"
        self.outer: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Start it; raises RuntimeError with the log when it does not come up within 30 s."""
        self.write_files()
        words = [
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--propagation",
            "private",
        ]
        with (self.folder / "log" / "hosts").open("wb") as log:
            self.outer = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *words,
                 "bash", str(HOSTS), str(self.folder), str(len(self.hosts))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 30
        while not (self.folder / "ready").exists():
            if self.outer.poll() is not None or time.monotonic() > end:
                self.down()
                raise RuntimeError((self.folder / "log" / "hosts").read_text(errors="replace"))
            time.sleep(0.05)

    def write_files(self) -> None:
        """Write the settings of munge, Slurm and ssh."""
        folder = self.folder
        for name in (
            "log",
            "pids",
            "state",
            "unshared",
            *(f"{kind}/{h}" for kind in ("spool", "tmp") for h in self.hosts),
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
        write_slurm(folder, self.hosts, places="")
        addresses = [f"10.77.0.{number + 1} {host}" for number, host in enumerate(self.hosts)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "10.77.0.254 login", *addresses, ""]))
        for key in ("hostkey", "id"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/hostkey\nAuthorizedKeysFile {folder}/id.pub\nStrictModes no\nPermitRootLogin yes\n"
            f"UsePAM no\nPidFile none\nMaxStartups 1000\nSetEnv SLURM_CONF={folder}/slurm.conf\n"
        )
        (folder / "ssh_config").write_text(
            f"Host *\n IdentityFile {folder}/id\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n"
            " ConnectTimeout 5\n LogLevel ERROR\n"
        )

    def command(self, argv: Sequence[str], on: str = "login") -> list[str]:
        """The argv that runs ``argv`` on a host of the cluster."""
        pid = str(self.first_process())
        enter = ["nsenter", "--target", pid, "--mount", "--uts", "--ipc", "--net", "--pid", f"--wdns={self.folder}"]
        if on != "login":
            inner = (self.folder / "pids" / on).read_text().strip()
            enter += ["nsenter", "--target", inner, "--mount", "--uts", "--ipc", "--net"]
        return [*enter, *argv]

    def first_process(self) -> int:
        """The pid, outside, of the first process of the cluster."""
        assert self.outer is not None
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
        return int(children[0])

    def run(
        self, argv: Sequence[str], *, on: str = "login", env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and return what it printed; its status is 124 where it ran past the time (s)."""
        bounded = ["timeout", "--kill-after=5", str(timeout), *argv]
        return subprocess.run(
            self.command(bounded, on), env=self.environment(env), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=timeout + 30, check=False,
        )  # fmt: skip

    def start(
        self, argv: Sequence[str], *, on: str = "login", env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on a host, its output to be read."""
        return subprocess.Popen(
            self.command(argv, on), env=self.environment(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a login on this cluster."""
        return {**environment(), "SLURM_CONF": f"{self.folder}/slurm.conf", **(changes or {})}

    def processes(self, having: str) -> list[str]:
        """The command lines of the cluster's processes that hold a text; those of the test itself are outside."""
        told = self.run(["ps", "-e", "-o", "stat=,args="]).stdout.splitlines()
        return [line for line in told if having in line and not line.startswith("Z")]

    def slurmd(self, host: str) -> int:
        """The pid, inside the cluster, of a host's slurmd."""
        return int((self.folder / "pids" / f"slurmd.{host}").read_text())

    def kill_slurmd(self, host: str) -> None:
        """End a host's slurmd as a failing node does."""
        self.run(["kill", "-9", str(self.slurmd(host))], on=host)

    def restore_slurmd(self, host: str) -> None:
        """Start a host's slurmd again and wait until Slurm takes jobs there."""
        self.run(["slurmd", "-f", str(self.folder / "slurm.conf"), "-N", host], on=host)
        end = time.monotonic() + 40
        while host not in self.run(["sinfo", "--noheader", "--states=idle", "--Node", "--format=%N"]).stdout.split():
            assert time.monotonic() < end, self.run(["sinfo", "-Nl"]).stdout
            self.run(["scontrol", "update", f"nodename={host}", "state=resume"])
            time.sleep(0.5)

    def down(self) -> None:
        """End everything: with the first process of a pid namespace all others end."""
        if self.outer is None:
            return
        with suppress(OSError, IndexError):
            os.kill(self.first_process(), signal.SIGKILL)
        self.outer.wait(10)
        self.outer = None


class SharedHost:
    """Slurm without root: its nodes share this machine, its name and its files. Started and ended by one user."""

    def __init__(self, folder: Path, nodes: int, port: int) -> None:
        self.folder = folder
        self.hosts = [f"node{number}" for number in range(nodes)]
        self.port = port

    def up(self) -> None:
        """Start it; raises RuntimeError when it does not come up within 30 s."""
        for name in ("log", "pids", "state", *(f"{kind}/{h}" for kind in ("spool", "tmp") for h in self.hosts)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        ports = f"[{self.port + 1}-{self.port + len(self.hosts)}]"
        places = f"NodeHostname={os.uname().nodename} NodeAddr=127.0.0.1 Port={ports}"
        write_slurm(self.folder, self.hosts, places=places, port=self.port)
        folder = self.folder
        self.must(
            "munged", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock",
            f"--pid-file={folder}/pids/munged", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/log/munged",
        )  # fmt: skip
        self.must("slurmctld", "-f", str(folder / "slurm.conf"))
        for host in self.hosts:
            self.must("slurmd", "-f", str(folder / "slurm.conf"), "-N", host)
        end = time.monotonic() + 30
        while self.run(["sinfo", "--noheader", "--states=idle", "--format=%D"]).stdout.strip() != str(len(self.hosts)):
            if time.monotonic() > end:
                raise RuntimeError(self.run(["sinfo", "-Nl"]).stdout)
            time.sleep(0.1)

    def must(self, *argv: str) -> None:
        """Run a command that must succeed."""
        done = self.run(list(argv))
        if done.returncode:
            raise RuntimeError(f"{argv[0]}: {done.stderr}{done.stdout}")

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return what it printed; raises TimeoutExpired."""
        given = {**environment(), "SLURM_CONF": f"{self.folder}/slurm.conf", **(env or {})}
        log = self.folder / "log" / "out"
        with log.open("w+") as out, (self.folder / "log" / "err").open("w+") as err:  # daemons would hold a pipe open
            done = subprocess.run(
                argv, env=given, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout, check=False
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(argv, done.returncode, out.read(), err.read())

    def down(self) -> None:
        """End the daemons, each by its pid."""
        self.run(["scancel", "--user", str(os.getuid())])
        for path in sorted((self.folder / "pids").iterdir(), reverse=True):
            end_process(int(path.read_text()))


def end_process(pid: int) -> None:
    """Ask a process to end, and see to it."""
    end = time.monotonic() + 5
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """A plain environment: what the tests' own tools set is left out."""
    kept = {name: value for name, value in os.environ.items() if name in {"HOME", "PATH", "LANG", "USER", "LOGNAME"}}
    kept["PATH"] += ":/usr/sbin:/sbin"
    if os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept


def write_slurm(folder: Path, hosts: Sequence[str], *, places: str, port: int = 6817) -> None:
    """Write slurm.conf, gres.conf and munge's key."""
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    nodes = f"node[0-{len(hosts) - 1}]"
    values = {"folder": str(folder), "nodes": nodes, "places": places, "port": str(port), "gpus": str(GPUS)}
    values |= {"host": "login" if not places else f"{os.uname().nodename}(127.0.0.1)", "user": user()}
    (folder / "slurm.conf").write_text(SLURM.read_text().format(**values))
    (folder / "cgroup.conf").touch()
    (folder / "gres.conf").write_text(f"NodeName={nodes} Name=gpu Type=a100 File={devices(folder)}\n")


def devices(folder: Path) -> str:
    """Device files that stand for GPUs: Slurm wants character devices, and only looks at them."""
    try:
        for number in range(GPUS):
            os.mknod(folder / f"gpu{number}", 0o20600, os.makedev(1, 3))
    except PermissionError:
        return f"/dev/tty[0-{GPUS - 1}]"
    return f"{folder}/gpu[0-{GPUS - 1}]"


def user() -> str:
    """The name of this user."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
