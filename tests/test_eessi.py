"""EESSI's parts one by one: servers asked over loopback, modules listed, the image pulled, binds and names read."""

import ast
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import click
import pytest

from envkit import cli
from envkit.cli import envkit
from envkit.commands.enter import asked_for
from envkit.eessi import access, binds, entry, image, listing, prefetch, release, repositories, servers, sessions
from envkit.eessi import client_cache as cache_of_session
from envkit.eessi.release import Release
from envkit.errors import ConfigInvalid, DiskFull, HostProblem, SourcesMissing, UsageProblem
from envkit.inside import nearest
from envkit.knowledge.eessi import causes, known, symptom, symptoms
from envkit.machine.runtime import Runtime
from envkit.system.resources import data

from . import eessi_tree
from .conftest import Fake

MACHINE = os.uname().machine
Served = Callable[[], str]


class Files(SimpleHTTPRequestHandler):
    """Serves a folder, as a server does and as a proxy of it, and says nothing."""

    def translate_path(self, path: str) -> str:
        """Take a whole address for the path in it."""
        return super().translate_path(path.partition("//")[2].partition("/")[2] if "://" in path else path)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    """Serve on loopback; yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The folder of the repository on a server."""
    folder = tmp_path / "web" / "cvmfs" / known().repository
    folder.mkdir(parents=True)
    (folder / ".cvmfspublished").write_bytes(b"C0123\nB1024\nNsoftware.eessi.io\nX4567\n--\n89ab\n\xff\xfe")
    return folder


@pytest.fixture
def server(published: Path) -> Iterator[str]:
    """A server that has the repository."""
    with serving(partial(Files, directory=str(published.parents[1]))) as address:
        yield address


@pytest.fixture
def dead() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def found(server: str, proxy: str = "DIRECT", folder: Path = Path("/proc/nonexistent")) -> str:
    """Name the symptom that a client with these servers and proxies would show; nothing if it shows none."""
    urls = ";".join(f"{one}/cvmfs/@fqrn@" for one in server.split(";"))
    env = {"CVMFS_SERVER_URL": urls, "CVMFS_HTTP_PROXY": proxy}
    problem = servers.problem(servers.client(env, folder))
    assert problem is None or "{" not in problem.what + problem.why + problem.fix
    return problem.id if problem else ""


def test_a_server_that_has_the_repository(server: str, dead: str) -> None:
    assert found(server) == ""
    assert found(f"{dead};{server}") == ""  # one is enough
    assert found(server, f"{dead};DIRECT") == ""
    assert found("http://software.invalid", server) == ""  # by the proxy alone


def test_a_dead_server_a_dead_proxy_and_both(server: str, dead: str) -> None:
    assert found(dead) == "server-dead"
    assert found(server, dead) == "proxy-dead"
    assert found(dead, dead) == "proxies-needed"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_password_of_a_dead_proxy_is_not_told(scheme: str, server: str, dead: str) -> None:
    proxy = f"{scheme}me:s3cret@{dead.partition('://')[2]}"
    told = servers.problem(servers.client({"CVMFS_SERVER_URL": f"{server}/cvmfs/@fqrn@", "CVMFS_HTTP_PROXY": proxy}))
    assert told is not None and "***@127.0.0.1" in told.what, told
    assert "s3cret" not in repr(told)


@pytest.mark.parametrize(
    "proxy", ["http://me:a/s3cret@h", "me:a/s3cret@h:3128", "a/s3cret@h", "http://me:s3cret", "http:/me:s3cret@h"]
)
def test_no_password_of_a_malformed_proxy_is_told(proxy: str) -> None:
    told = servers.problem(servers.client({"CVMFS_SERVER_URL": "http://x", "CVMFS_HTTP_PROXY": proxy}))
    assert told is not None and told.id == "proxy-malformed" and "cret" not in repr(told)
    with pytest.raises(click.UsageError) as refused:
        asked_for({"http_proxy": proxy})
    assert "--http-proxy" in refused.value.message and "cret" not in refused.value.message


@pytest.mark.parametrize("address", ["http://me:s3cret@{}", "http://me:a/s3cret@{}", "ftp://me:s3cret@{}"])
def test_no_password_of_a_server_is_told(address: str, dead: str) -> None:
    url = address.format(dead.partition("://")[2])
    told = servers.problem(servers.client({"CVMFS_SERVER_URL": url, "CVMFS_HTTP_PROXY": "DIRECT"}))
    assert told is not None and "***@127.0.0.1" in repr(told) and "cret" not in repr(told)


def test_a_proxy_that_reaches_no_server() -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with serving(Gateway) as proxy:
        assert found("http://software.invalid", proxy) == "server-dead"


def test_an_unknown_repository_and_a_wrong_answer(server: str, published: Path) -> None:
    (published / ".cvmfspublished").write_bytes(b"C0123\nNother.example.org\n--\n")
    assert found(server) == "wrong-answer"
    (published / ".cvmfspublished").write_bytes(b"<html>Log in first</html>")
    assert found(server) == "wrong-answer"
    (published / ".cvmfspublished").unlink()
    assert found(server) == "unknown-repository"


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:31x28", "http://[::1", "ftp://one", "http://", "a b", "one:99999"])
def test_a_proxy_that_is_no_address(server: str, proxy: str) -> None:
    assert found(server, proxy) == "proxy-malformed"
    assert found(server, f"{proxy};DIRECT") == "proxy-malformed"


def test_a_server_that_does_not_speak_http(server: str) -> None:
    """A mail server, say, where the repository is looked for, and where its proxy is."""

    class Mail(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 mail.example.org ESMTP\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Mail) as mail:
        Thread(target=mail.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{mail.server_address[1]}"
        told = servers.problem(servers.client({"CVMFS_SERVER_URL": address, "CVMFS_HTTP_PROXY": "DIRECT"}))
        assert told is not None and told.id == "wrong-answer" and "does not speak HTTP" in told.why
        assert found(server, address) == "wrong-answer"
        mail.shutdown()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CVMFS_HTTP_PROXY=${SITE_PROXY:-DIRECT}", ("",)),
        ('CVMFS_HTTP_PROXY="${SITE_PROXY:-http://p:1};DIRECT"', ("http://p:1", "")),
        ('PROXY=http://q:2\nCVMFS_HTTP_PROXY="$PROXY"', ("http://q:2",)),
        ("CVMFS_HTTP_PROXY=${HERE}", ("http://r:3",)),
        ("CVMFS_HTTP_PROXY=$(proxy-of-site)", ("",)),
        ("CVMFS_HTTP_PROXY='$PROXY'", ("",)),
    ],
)
def test_a_configuration_with_parameters_of_a_shell(configured: Path, line: str, expected: tuple[str, ...]) -> None:
    (configured / "default.local").write_text(f"{line}\n")
    assert servers.client({"HERE": "http://r:3"}, configured).proxies == expected


def test_servers_that_are_none_are_the_usual_ones() -> None:
    assert servers.client({"CVMFS_SERVER_URL": " ; "}).servers == servers.client({}).servers


def test_https_is_not_what_cernvm_fs_speaks() -> None:
    assert found("https://127.0.0.1") == "server-dead"


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A configuration of CernVM-FS with a folder for its keys."""
    folder = tmp_path / "cvmfs"
    for name in ("domain.d", "config.d", "keys"):
        (folder / name).mkdir(parents=True)
    (folder / "default.conf").write_text("CVMFS_CACHE_BASE=/var/lib/cvmfs\nCVMFS_HTTP_PROXY=DIRECT\n")
    (folder / "domain.d" / "eessi.io.conf").write_text(
        'CVMFS_SERVER_URL="http://one/cvmfs/@fqrn@;http://two/cvmfs/@fqrn@"\n'
        f"export CVMFS_KEYS_DIR={folder}/keys # our own\n"
    )
    return folder


def test_the_configuration_of_a_client(configured: Path) -> None:
    (configured / "default.local").write_text("CVMFS_HTTP_PROXY='http://p:3128|http://q:3128;DIRECT'\n")
    read = servers.client({}, configured)
    assert read.servers == ("http://one/cvmfs/software.eessi.io", "http://two/cvmfs/software.eessi.io")
    assert read.proxies == ("http://p:3128", "http://q:3128", "")
    assert [path.name for path in read.files] == ["default.conf", "default.local", "eessi.io.conf"]
    assert servers.client({"CVMFS_HTTP_PROXY": "auto;DIRECT"}, configured).proxies == ("",)
    none = servers.client({"http_proxy": "http://r:1"}, configured / "none")
    assert none.proxies == ("http://r:1", "")
    assert none.servers == tuple(url.replace("@fqrn@", known().repository) for url in known().servers)


def openssl(*words: str, given: bytes = b"") -> bytes:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    return subprocess.run(["openssl", *words], input=given, capture_output=True, check=True).stdout


def test_a_wrong_key_and_a_missing_one(server: str, published: Path, configured: Path, tmp_path: Path) -> None:
    """The whitelist is signed as CernVM-FS signs it: RSA of the SHA-1 in hex, with nothing round it."""
    assert found(server, folder=configured) == "no-key"
    for name in ("right", "wrong"):
        openssl("genrsa", "-out", str(tmp_path / f"{name}.pem"), "2048")
        public = openssl("rsa", "-in", str(tmp_path / f"{name}.pem"), "-pubout")
        (tmp_path / f"{name}.pub").write_bytes(public)
    body = b"20260101000000\nE20360101000000\nNsoftware.eessi.io\nAA:BB\n"
    digest = hashlib.sha1(body).hexdigest().encode()
    signature = openssl("pkeyutl", "-sign", "-inkey", str(tmp_path / "right.pem"), given=digest)
    (published / ".cvmfswhitelist").write_bytes(body + b"--\n" + digest + b"\n" + signature)
    shutil.copy(tmp_path / "wrong.pub", configured / "keys")
    assert found(server, folder=configured) == "wrong-key"
    (configured / "keys" / "damaged.pub").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    assert found(server, folder=configured) == "wrong-key"
    shutil.copy(tmp_path / "right.pub", configured / "keys")
    assert found(server, folder=configured) == ""


def test_every_symptom_says_what_and_what_to_do() -> None:
    for name, words in symptoms().items():
        assert set(words) <= {"what", "why", "fix"} and words["what"] and words["fix"], name
    assert symptom("mount-hangs", path="/x", seconds=20).what == "/x has not answered in 20 s"


def test_software_in_no_release_is_told_of_in_whole_sentences() -> None:
    told = json.loads(data("inside/not_in_eessi.json").read_text())
    assert all(words.endswith(".") for words in told.values()) and "Horovod" in told


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository."""
    return eessi_tree.make(tmp_path / "repository")


def test_releases_and_targets(tree: Path) -> None:
    assert release.versions(tree) == ["2023.06", "2025.06"]
    read = Release(root=tree, version="2023.06")
    assert release.targets(read) == [f"{MACHINE}/{name}" for name in sorted(eessi_tree.TARGETS)]
    assert release.target(read, ["zen4", "zen3", "zen2"]) == f"{MACHINE}/amd/zen3"
    assert release.target(read, ["future"]) == f"{MACHINE}/generic"
    override = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": f"{MACHINE}/future:{MACHINE}/amd/zen2"}
    assert release.target(read, ["zen3"], override) == f"{MACHINE}/amd/zen2"
    zen2 = f"software/linux/{MACHINE}/amd/zen2"
    (tree / "host_injections" / "2023.06" / zen2 / "modules" / "all").mkdir(parents=True)
    own, gpu = f"versions/2023.06/{zen2}", f"versions/2023.06/{zen2}/accel/nvidia/cc80"
    for name, places in (("", [own]), ("cc80", [own, gpu]), ("cc86", [own, gpu]), ("cc70", [own])):
        folders = release.module_folders(read, f"{MACHINE}/amd/zen2", name)
        expected = [*places, f"host_injections/2023.06/{zen2}"]
        assert [str(path.relative_to(tree)) for path in folders] == [f"{place}/modules/all" for place in expected]


def test_modules_are_read_again_only_where_they_have_changed(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "modules.json"
    folder = release.module_folders(Release(root=tree, version="2023.06"), f"{MACHINE}/generic")[0]
    first = release.modules(folder, cache)
    assert first[-2:] == ["Tool/1.0", "Tool/2.0"] and "foss/2023a" in first
    written = cache.stat().st_mtime_ns
    assert release.modules(folder, cache) == first and cache.stat().st_mtime_ns == written
    (folder / "Tool" / "3.0.lua").touch()
    (folder / "Tool" / ".version").touch()
    (folder / "GCCcore" / "12.3.0.lua").unlink()
    shutil.rmtree(folder / "foss")
    again = release.modules(folder, cache)
    assert again[-1] == "Tool/3.0" and "foss/2023a" not in again and "GCCcore/12.3.0" not in again
    cache.write_text("damaged")
    assert release.modules(folder, cache) == again


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("PyTorch/2.1.1-foss-2023a", ["PyTorch/2.1.2-foss-2023a", "PyTorch/2.0"]),
        ("pytorch", ["PyTorch/2.0", "PyTorch/2.1.2-foss-2023a"]),
        ("Tol/9", ["Tool/1.0"]),
        ("Horovod/0.28.1", []),
    ],
)
def test_nearest(module: str, expected: list[str]) -> None:
    names = ["PyTorch/2.0", "PyTorch/2.1.2-foss-2023a", "Tool/1.0", "foss/2023a"]
    assert nearest.nearest(module, names) == expected


def test_binds_are_merged_and_the_later_counts(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    env = {
        "SINGULARITY_BIND": f"{tmp_path}/a:/x,{tmp_path}/a",
        "APPTAINER_BIND": f"{tmp_path}/b:/x:ro",
        "APPTAINER_BINDPATH": f"{tmp_path}/c:/y",
    }
    merged = binds.asked([f"{tmp_path}/a:/y"], env)
    assert [str(bind) for bind in merged] == [f"{tmp_path}/b:/x:ro", f"{tmp_path}/a:{tmp_path}/a", f"{tmp_path}/a:/y"]
    words = ["bind-ro", f"{tmp_path}/b", "/x", "bind", f"{tmp_path}/a", "/y"]
    assert binds.for_namespace(merged) == words


def test_binds_of_a_site_that_cannot_be_are_told_of_and_left_out(tmp_path: Path) -> None:
    """They are for its images; those of the command line are the person's own, and an error."""
    (tmp_path / "a").mkdir()
    (tmp_path / "file").touch()
    a = tmp_path / "a"
    image = f"{tmp_path}/file:/img:image-src=/,id=1"
    env = {
        "APPTAINER_BIND": f"/none/at/all,{a}:/x:ro,{image},{a}:/y:/z:q,{a}:relative,{a}:/far/far/away,{a}:/etc/passwd"
    }
    said = list[str]()
    merged = binds.asked([f"{a}:/mine:ro"], env, said.append)
    assert [str(bind) for bind in merged] == [
        f"{a}:/x:ro", image, f"{a}:/far/far/away", f"{a}:/etc/passwd", f"{a}:/mine:ro"
    ]  # fmt: skip
    assert len(said) == 3 and all("is left out" in one for one in said), said
    assert "APPTAINER_BIND: /none/at/all: there is no /none/at/all on this machine" in said[0]
    fit = binds.fitting(merged, said.append)
    assert [str(bind) for bind in fit] == [f"{a}:/x:ro", f"{a}:/mine:ro"] and len(said) == 6, said
    assert [str(bind) for bind in binds.fitting(merged, said.append, has_namespace=False)] == [f"{a}:/mine:ro"]
    with pytest.raises(UsageProblem):
        binds.asked([image], {})


def no_flock_below(monkeypatch: pytest.MonkeyPatch, number: int, *folders: Path) -> None:
    """Have files in these folders have no locks, as on Lustre that is mounted without them."""
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if any(Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder) for folder in folders):
            raise OSError(number, os.strerror(number))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_home_without_file_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    """A session is held by a lock beside its cache; without any locks it is said what to do."""
    state, local = tmp_path / "state", tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(tempfile, "tempdir", str(local))
    no_flock_below(monkeypatch, number, state)
    first, second = sessions.begin("2023.06"), sessions.begin("2023.06")
    assert (first.name, second.name) == ("2023.06", "2023.06-2")
    assert (sessions.in_use("2023.06"), sessions.clean("2023.06")) == (True, False)
    assert sessions.in_use("never") is False
    no_flock_below(monkeypatch, number, state, local)
    with pytest.raises(HostProblem, match="has no locks") as raised:
        sessions.begin("other")
    assert os.strerror(number) in raised.value.what and "TMPDIR" in raised.value.fix


@pytest.mark.parametrize("name", ["", "..", "a/../b", "-x", "a b", "a\nb"])
def test_names_that_no_session_has(name: str) -> None:
    with pytest.raises(UsageProblem):
        sessions.resume(name)


SAVED = {"version": "2023.06", "access": "dir", "cpu": "x86_64/generic", "modules": []}


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is somebody else's; the sessions lie beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "current"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_file_in_the_current_folder_takes_the_place_of_no_session(current: Path) -> None:
    (current / "2023.06").write_text(json.dumps({**SAVED, "copy": str(current / "evil")}))
    shutil.make_archive("mine", "gztar", current)
    for name in ("2023.06", "mine.tar.gz"):
        with pytest.raises(UsageProblem, match="but a file in the current folder") as raised:
            entry.resumed(name)
        assert f"--resume ./{name}" in raised.value.fix
    assert not sessions.names()
    (sessions.root() / "2023.06").mkdir(mode=0o700, parents=True)
    assert entry.resumed("2023.06").before is None
    before = entry.resumed("./2023.06").before
    assert before and before.copy == str(current / "evil")


def test_a_session_whose_local_copy_lies_in_the_current_folder_is_refused(current: Path) -> None:
    (current / "saved").write_text(json.dumps({**SAVED, "copy": "evil"}))
    with pytest.raises(HostProblem, match="holds no session that can be read") as raised:
        entry.resumed("./saved")
    assert "no absolute path" in raised.value.why


def test_the_ways_that_there_are_each_have_a_probe() -> None:
    assert list(access.PROBES) == list(access.Access)


def test_only_who_has_named_a_way_is_told_to_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {way: access.Probe(access=way, problem=symptom("not-mounted", path="/cvmfs/x")) for way in access.Access}
    monkeypatch.setattr(access, "PROBES", {way: lambda _wanted, probe=probe: probe for way, probe in probes.items()})
    wanted = access.AccessRequest(version="2023.06", copy=None, env={})
    with pytest.raises(HostProblem) as none:
        access.select(wanted, None)
    assert "native: /cvmfs/x is not mounted" in none.value.why and "--access" not in f"{none.value.why}{none.value.fix}"
    with pytest.raises(HostProblem) as forced:
        access.select(wanted, access.Access.NATIVE)
    assert forced.value.fix.endswith("or use another way. Leave --access out to take the first way that works.")


# of eessi_container.sh, as its --help has them
CONTAINER = {
    "--access": "a", "--extra-bind-paths": "b", "--container": "c", "--fakeroot": "f", "--storage": "g",
    "--host-injections": "i", "--list-repos": "l", "--mode": "m", "--nvidia": "n", "--overlay-tool": "o",
    "--pass-through": "p", "--repository": "r", "--resume": "u", "--save": "s", "--sandbox": "S", "--verbose": "v",
    "--http-proxy": "x", "--https-proxy": "y",
}  # fmt: skip


@pytest.mark.parametrize("option", CONTAINER)
def test_options_of_eessi_container(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one of envkit's, or answered with what does it; its row is in the documentation."""
    page = (Path(__file__).parents[1] / "docs" / "eessi.md").read_text()
    assert f"\n| `-{CONTAINER[option]}`, `{option}" in page  # by both names
    for name in (option, f"-{CONTAINER[option]}"):
        for command in ("run", "shell"):
            taken = {word for one in (envkit.get_command(None, command),) for p in one.params for word in p.opts}  # type: ignore[arg-type,union-attr]
            if name in taken or name == "-h":
                continue
            assert cli.run([command, "eessi", name, "x", "--", "true"]) == 2
            assert "What to do: " in capsys.readouterr().err, (command, name)


def test_values_of_eessi_container(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "eessi", "--nvidia", "all", "--", "true"]
    monkeypatch.setattr("sys.argv", ["envkit", *words])
    assert cli.run(words) == 2
    assert "Write it as --nvidia alone" in capsys.readouterr().err
    assert cli.run(["run", "eessi", "--access", "rw", "--", "true"]) == 2
    assert "Use --writable DIR: what is written goes to that folder." in capsys.readouterr().err
    for name in ("x.tgz", "."):
        assert cli.run(["run", "eessi", "--save", name, "--", "true"]) == 2
        assert f"--save {name}: envkit writes no archive." in capsys.readouterr().err


def test_what_steers_entering_steers_listing(tree: Path, tmp_path: Path) -> None:
    """The overrides of EESSI's own module, and what a site adds under a prefix of its own."""
    read, zen2 = Release(root=tree, version="2023.06"), f"{MACHINE}/amd/zen2"
    env = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": zen2, "EESSI_ACCELERATOR_TARGET_OVERRIDE": "accel/nvidia/cc80"}
    here = listing.Hardware(cpus=("zen3",))
    found = listing.read(read, here, env)
    assert found.target == zen2 and "CUDA/12.1.1" in found.modules
    assert "CUDA/12.1.1" not in listing.read(read, here, {}).modules
    other = {**env, "EESSI_ARCHDETECT_OPTIONS_OVERRIDE": f"{MACHINE}/generic"}
    assert "CUDA/12.1.1" not in listing.read(read, here, other).modules
    assert "CUDA/12.1.1" in listing.read(read, here, {**other, "EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE": zen2}).modules
    own = tmp_path / "site" / "versions" / "2023.06" / "software" / "linux" / zen2 / "modules" / "all" / "Mine"
    own.mkdir(parents=True)
    (own / "1.0.lua").touch()
    assert "Mine/1.0" in listing.read(read, here, {**env, "EESSI_SITE_SOFTWARE_PREFIX": str(tmp_path / "site")}).modules


def test_modules_are_listed_without_a_place_to_remember_them(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = release.module_folders(Release(root=tree, version="2023.06"), f"{MACHINE}/generic")[0]
    assert "foss/2023a" in release.modules(folder, tmp_path / "file" / "cache" / "modules.json")


DIGEST = "sha256:" + "1" * 64


class Registry(BaseHTTPRequestHandler):
    """A registry that gives a token to anybody, and an image for several machines."""

    size = 1000
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        """Answer."""
        self.asked.append(self.path)
        if self.path.startswith("/token"):
            self.answer({"token": "t0ken"})
        elif self.headers.get("Authorization") != "Bearer t0ken":
            self.send_response(401)
            challenge = f'Bearer realm="http://{self.headers["Host"]}/token",service="here"'
            self.send_header("WWW-Authenticate", challenge)
            self.end_headers()
        elif self.path.endswith(f"/manifests/{DIGEST}"):
            machines = ("arm64", "amd64", "riscv64")
            self.answer({"manifests": [{"digest": f"sha256:{m}", "platform": {"architecture": m}} for m in machines]})
        elif "/client/manifests/sha256:" in self.path:
            self.answer({"layers": [{"size": self.size}, {"size": self.size}]})
        else:
            self.send_error(404)

    def answer(self, content: dict[str, Any]) -> None:
        """Send JSON."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The reference of an image in a registry on loopback."""
    Registry.size = 1000
    Registry.asked.clear()
    with serving(Registry) as address:
        yield f"docker://{address.removeprefix('http://')}/eessi/client@{DIGEST}"


@pytest.fixture
def tool(fake: Fake, tmp_path: Path) -> Runtime:
    """A program that pulls by writing down how it was called."""
    body = f'echo "$@" >>{tmp_path}/pulls; for last; do before=$target; target=$last; done; echo image >"$before"'
    return Runtime(path=fake("apptainer", body), family="Apptainer", version="1.4.5")


def test_the_image_is_pulled_once_by_digest(registry: str, tool: Runtime, tmp_path: Path) -> None:
    env = {**os.environ, "ENVKIT_EESSI_IMAGE": registry, "SINGULARITY_CACHEDIR": str(tmp_path / "cache")}
    said = list[str]()
    path, digest = image.find(tool, env, said.append)
    assert digest == DIGEST
    assert path == tmp_path / "cache" / "envkit" / f"sha256-{'1' * 64}.sif" and path.read_text() == "image\n"
    host = registry.removeprefix("docker://").partition("/")[0]
    called = (tmp_path / "pulls").read_text()
    assert called.startswith("pull --disable-cache --no-https ")
    assert called.endswith(f"docker://{host}/eessi/client@{digest}\n") and "pulling docker://" in said[0]
    asked = len(Registry.asked)
    assert image.find(tool, env, said.append) == (path, digest)
    assert (len(Registry.asked), len(said)) == (asked, 1)  # neither registry nor tool is asked again
    assert (image.clean(env), path.exists()) == (1, False)


def test_no_image_is_used_that_others_can_change(
    registry: str, tool: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one in a shared cache that is open to others, nor one that they have put there before it was closed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    env = {**os.environ, "ENVKIT_EESSI_IMAGE": registry, "APPTAINER_CACHEDIR": str(tmp_path / "cache")}
    shared, said = tmp_path / "cache" / "envkit", list[str]()
    planted = image.file_of(shared, DIGEST)
    eessi_tree.write(planted, "planted\n")
    for mode, mine in ((0o777, False), (0o755, True)):
        shared.chmod(mode)
        planted.chmod(0o666 if mine else 0o644)
        for used in ("", DIGEST):
            path, _ = image.find(tool, env, said.append, used)
            assert path.is_relative_to(shared) == mine and path.read_text() == "image\n"
            assert path.stat().st_mode & 0o022 == 0
    assert (tmp_path / "pulls").read_text().count("docker://") == 2
    assert said[0] == f"{shared} is left aside, since others can change it: {shared}: Everybody may write to it."
    planted.unlink()
    planted.symlink_to("/etc/hostname")
    assert image.find(tool, env, said.append)[0].read_text() == "image\n" and not planted.is_symlink()


def test_an_own_cache_that_others_can_change(
    registry: str, tool: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    env = {name: value for name, value in os.environ.items() if not name.endswith("_CACHEDIR")}
    image.own().mkdir(parents=True)
    image.own().chmod(0o777)
    with pytest.raises(HostProblem, match="is run: others can change it") as problem:
        image.find(tool, {**env, "ENVKIT_EESSI_IMAGE": registry}, print)
    assert f"{image.own()}: Everybody may write to it." in problem.value.why


def test_an_image_that_has_no_room(registry: str, tool: Runtime, tmp_path: Path) -> None:
    Registry.size = 10**16
    env = {"ENVKIT_EESSI_IMAGE": registry, "APPTAINER_CACHEDIR": str(tmp_path)}
    with pytest.raises(DiskFull) as problem:
        image.find(tool, env, print)
    wanted = 2 * 10**16 * image.UNPACKED // 1_000_000
    assert f"It takes {wanted} MB in {tmp_path}/envkit, which has" in problem.value.why
    assert not (tmp_path / "pulls").exists()


def test_images_that_cannot_be_had(registry: str, tmp_path: Path, dead: str, fake: Fake) -> None:
    failing = Runtime(path=fake("failing", "echo 'FATAL: no'; exit 255"), family="Apptainer", version="1.4.5")
    gone = registry.replace("1" * 64, "0" * 64).replace("/client@", "/nothing@")
    nobody = f"docker://{dead.removeprefix('http://')}/eessi/client@{DIGEST}"
    for reference, reason in ((gone, "404"), (nobody, "refused"), (registry, "FATAL: no")):
        env = {**os.environ, "ENVKIT_EESSI_IMAGE": reference, "APPTAINER_CACHEDIR": str(tmp_path)}
        with pytest.raises(SourcesMissing) as problem:
            image.find(failing, env, lambda _: None)
        assert reason in problem.value.why
    for reference in ("docker://nothing", registry.partition("@")[0] + ":stable", "/nowhere/image.sif"):
        with pytest.raises(UsageProblem):
            image.find(failing, {"ENVKIT_EESSI_IMAGE": reference, "APPTAINER_CACHEDIR": str(tmp_path)}, print)


def test_what_is_known_is_in_the_data() -> None:
    table = tomllib.loads(data("knowledge/eessi.toml").read_text())
    assert known().default == table["default"] and table["mount"].endswith(table["repository"])
    ids = [one.id for one in causes()]
    assert len(ids) == len(set(ids)) and all(one.says and one.what.endswith(".") and one.fix for one in causes())


def test_the_cache_of_the_machines_client(tmp_path: Path) -> None:
    """Its place and its limit; a limit of -1 is none."""
    (tmp_path / "default.conf").write_text("CVMFS_CACHE_BASE=/var/lib/cvmfs\nCVMFS_QUOTA_LIMIT=4000\n")
    client = servers.client({}, tmp_path)
    assert (client.cache, client.limit_mb) == (Path("/var/lib/cvmfs"), 4000)
    (tmp_path / "default.local").write_text("CVMFS_ALIEN_CACHE=/shared/cvmfs\nCVMFS_QUOTA_LIMIT=-1\n")
    client = servers.client({}, tmp_path)
    assert (client.cache, client.limit_mb) == (Path("/shared/cvmfs"), None)


@pytest.mark.parametrize(("limit", "total", "fits"), [(4000, 4_000_000_000, True), (4000, 4_000_000_001, False)])
def test_the_limit_of_a_cache(tmp_path: Path, limit: int, total: int, fits: bool) -> None:
    cache = prefetch.Cache(words="a cache", folder=None, limit_mb=limit)
    if fits:
        prefetch.require_room(cache, total)
        return
    with pytest.raises(DiskFull, match="The cache is too small: 4001 MB are to be read") as raised:
        prefetch.require_room(cache, total)
    assert "its limit is 4000 MB" in raised.value.why


def test_what_a_cache_holds_already_counts(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "object").write_bytes(b"x" * 3_000_000)
    assert cache_of_session.held_mb(tmp_path, 10) == 3
    cache = prefetch.Cache(words="a cache", folder=tmp_path)
    free = shutil.disk_usage(tmp_path).free
    prefetch.require_room(cache, free - 100_000_000)
    with pytest.raises(DiskFull):
        prefetch.require_room(cache, free + 1_000_000_000)


def test_what_runs_inside_is_python_3_6() -> None:
    """In its syntax, and without what strings, types and containers have got since."""
    tree = ast.parse(Path(nearest.__file__).read_text(), feature_version=(3, 6))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"removesuffix", "removeprefix", "readlink", "is_relative_to", "with_stem", "hardlink_to"}
    subscripted = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    }
    assert not subscripted & {"dict", "list", "tuple", "set"}
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"pathlib", "typing"}


def test_modules_are_named_as_lmod_does(tmp_path: Path) -> None:
    for name in ("Tool/1.0.lua", "Tool/2.0-foss-2023a.lua", "Tcl/8.6", ".hidden/1.0.lua", "Tool/.modulerc.lua"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert nearest.modules(["", str(tmp_path)]) == ["Tcl/8.6", "Tool/1.0", "Tool/2.0-foss-2023a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release = 1\n", "'release' is no table"),
        ('["x.org"]\n', "the key 'release' is missing: expected the name of a release in quotes"),
        ('["x.org"]\nrelease = 2023.06\n', ":2: [\"x.org\"]: 'release': expected the name of a release in quotes"),
        ('["x.org"]\nrelease = "../x"\n', "'release': expected"),
        (
            '["x.org"]\nrelease = "1"\nserver = "http://x"\n',
            ":3: [\"x.org\"]: there is no key 'server'; there are release,",
        ),
        ('["x.org"]\nrelease = "1"\nservers = ["ftp://x"]\n', "'servers': expected a list of URLs"),
        ('["x.org"]\nrelease = "1"\nservers = ["http://x/$(id)"]\n', "'servers': expected a list of URLs"),
        ('["x.org"]\nrelease = "1"\nkey = "x.pub"\n', "'key': expected the absolute path"),
        ('["../x"]\nrelease = "1"\n', "is no name of another repository"),
        ('["software.eessi.io"]\nrelease = "1"\n', "is no name of another repository"),
        ("[x\n", ":1: this is not TOML"),
    ],
)
def test_mistakes_in_the_list_of_repositories(text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as problem:
        repositories.parsed(text.encode(), Path("/x/repositories.toml"))
    assert said in problem.value.why and "/x/repositories.toml" in problem.value.why


def test_lists_of_repositories_are_those_of_whom_one_trusts(tmp_path: Path) -> None:
    """The user's counts more than the system's, and one that others can change is a mistake."""
    own = tmp_path / "envkit" / "repositories.toml"
    eessi_tree.write(own, '["riscv.eessi.io"]\nrelease = "2025.06-001"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert repositories.find("riscv.eessi.io", env).release == "2025.06-001"
    assert repositories.find("riscv.eessi.io", {}).release == "20240402"
    own.chmod(0o666)
    with pytest.raises(ConfigInvalid, match="mistake"):
        repositories.find("riscv.eessi.io", env)
    assert repositories.find("", env).name == known().repository


def test_a_repository_without_releases_of_its_own() -> None:
    with pytest.raises(UsageProblem) as problem:
        repositories.find("dev.eessi.io", {})
    assert "module use /cvmfs/dev.eessi.io/PROJECT/versions/$EESSI_VERSION/" in problem.value.fix
