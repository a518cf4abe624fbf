"""Dockerfiles at the command line, built for real on an image from a registry on loopback."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from envkit.apptainer import method
from envkit.apptainer.image_plan import content
from envkit.environments import lockfile as locks
from envkit.environments.prefix import Prefix
from envkit.errors import RecipeInvalid
from envkit.install import install as work
from envkit.planning.request import Request
from envkit.system.files import sha256

from . import registry
from .site import SYSTEM_PATH, needs
from .test_eessi import apptainer

pytestmark = pytest.mark.integration

ENVKIT = Path(sys.executable).with_name("envkit")
PROGRAMS = ("sh", "cat", "chmod", "cp", "ls", "mkdir", "rm", "ln", "stat")


def small(folder: Path) -> Path:
    """Make the root of an image of this machine's shell and a few programs."""
    for name in ("proc", "sys", "dev", "tmp", "var/tmp", "root", "home", "usr/bin"):
        (folder / name).mkdir(parents=True)
    for name in ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/localtime"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        needs(name)
        program = Path(str(shutil.which(name, path="/usr/bin:/bin"))).resolve()
        shutil.copy(program, folder / "usr" / "bin" / name)
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/lib\S+)", told):
            (folder / library.strip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, folder / library.strip("/"))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image by digest in a registry."""
    needs("docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    with tarfile.open(folder / "small.tar", "w") as tar:
        tar.add(small(folder / "small"), "/")
    with registry.serving(folder) as port:
        yield f"127.0.0.1:{port}/small@{registry.put(port, 'small', folder / 'small.tar')}"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A context, and a secret outside of it."""
    root = tmp_path / "context"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.txt").write_text("one")
    (root / "sub" / "link").symlink_to("a.txt")
    (root / "run").write_text("#!/bin/sh\necho ran\n")
    (root / "run").chmod(0o775)
    (tmp_path / "secret").write_text("the secret")
    (root / "out").symlink_to("../secret")
    return root


def install(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``envkit install small``."""
    (tmp_path / "scratch").mkdir(exist_ok=True)
    env = {"PATH": f"{Path(apptainer()).parent}:{SYSTEM_PATH}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    env |= {"APPTAINER_NOHTTPS": "1", "TMPDIR": str(tmp_path / "scratch"), "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    argv = [str(ENVKIT), "install", "small", "--method", "apptainer", *words]
    return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=300, check=False)


def write(context: Path, base: str, *lines: str) -> Path:
    """Write a Dockerfile."""
    path = context / "Dockerfile"
    path.write_text("\n".join((f"FROM {base}", *lines)) + "\n")
    return path


def inside(tmp_path: Path, script: str) -> str:
    """What a script says in the one image that was built."""
    [image] = (tmp_path / "prefix").rglob("layers/small-*.sif")
    argv = [
        apptainer(),
        "--silent",
        "exec",
        *(["--userns"] if os.geteuid() == 0 else []),
        str(image),
        "sh",
        "-c",
        script,
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.parametrize(
    "source", ["/etc/shadow", "../secret", "../../../../../../etc/shadow", "out", "sub/../../secret"]
)
def test_files_of_the_host_are_not_reached(source: str, base: str, context: Path, tmp_path: Path) -> None:
    """As for Docker a path starts in the context, and does not leave it."""
    path = write(context, base, f"COPY {source} /taken")
    done = install(tmp_path, "--from-dockerfile", str(path))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"{path}:2: COPY takes {source}, which is not there." in done.stderr
    assert str(context) in done.stderr
    assert not list((tmp_path / "prefix").rglob("*.sif"))


def test_what_is_copied_is_in_its_place(base: str, context: Path, tmp_path: Path) -> None:
    """In the order of the lines; a change of a file is built again, and no lock of the other is honoured."""
    path = write(
        context, base, "WORKDIR /w", "RUN mkdir /opt && echo old >/opt/a.txt", "COPY sub/a.txt /opt/", "COPY . all/",
        "COPY run /usr/bin/own", "RUN own >/said && cat /opt/a.txt >>/said",
    )  # fmt: skip
    done = install(tmp_path, "--from-dockerfile", str(path))
    assert done.returncode == 5, done.stdout + done.stderr  # it was built, and has no Python
    assert "has no Python" in done.stderr
    show = "cat /said; cd /w/all; ls -A . sub; cat sub/link; echo; stat -c '%a %u' run /usr/bin/own"
    said = inside(tmp_path, f"{show}; test -e /.envkit-context || echo gone")
    assert said.split("\n") == [
        *("ran", "one.:", "Dockerfile", "out", "run", "sub", "", "sub:", "a.txt", "link"),
        *("one", "775 0", "775 0", "gone", ""),
    ]
    assert inside(tmp_path, "cd /w/all; test -L sub/link && test -L out && echo links") == "links\n"
    request = Request(prefix=Prefix(root=tmp_path / "prefix"), wanted="small", method="apptainer", dockerfile=path)
    lock = tmp_path / "small.lock"
    lock.write_text(locks.text(work.prepare(request).lock))
    assert " * [x] image" in install(tmp_path, "--from-dockerfile", str(path), "--dry-run").stdout
    (context / "sub" / "a.txt").write_text("two")
    again = install(tmp_path, "--from-dockerfile", str(path), "--dry-run")
    assert " * [ ] image" in again.stdout, again.stdout + again.stderr
    refused = install(tmp_path, "--from-dockerfile", str(path), "--locked", str(lock))
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "image is made from something else here than in the lock" in refused.stderr


def test_a_folder_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    root = small(tmp_path / "box")
    request = Request(prefix=Prefix(root=tmp_path / "prefix"), wanted="small", method="apptainer", source=str(root))

    def key() -> str:
        return method.taken_over("small", str(request.source), tmp_path).layers[0].key

    before = key()
    assert key() == before
    (root / "etc" / "hosts").write_text("1")
    assert len({before, key(), changed(root / "etc" / "hosts", key), changed(root / "etc" / "group", key)}) == 4
    done = install(tmp_path, "--from", str(root), "--dry-run")
    assert key()[:20] in done.stdout, done.stdout + done.stderr


def changed(path: Path, key: object) -> str:
    """The key after a change of a mode alone."""
    path.chmod(0o600)
    assert callable(key)
    return str(key())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_folder_that_may_not_be_read() -> None:
    """It is not taken over under a name that says nothing of what is in it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = small(Path(folder) / "box")
        (root / "etc" / "hosts").chmod(0o600)
        os.seteuid(12345)
        try:
            with pytest.raises(RecipeInvalid, match="etc/hosts may not be read") as refused:
                content(root)
        finally:
            os.seteuid(0)
    assert f"apptainer build FILE.sif {root}" in refused.value.fix


@pytest.mark.parametrize("sandbox", [False, True])
def test_a_file_that_is_changed_after_it_was_planned(
    tmp_path: Path, sandbox: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is held against what was planned, so that nothing else can take its place."""
    source = tmp_path / "small.sif"
    folder = small(tmp_path / "box")
    subprocess.run([apptainer(), "--silent", "build", str(source), str(folder)], check=True, capture_output=True)
    wanted = sha256(source)
    real = shutil.copyfile

    def swapped(given: str, target: Path) -> None:
        with source.open("ab") as stream:
            stream.write(b"\0" * 4096)
        real(given, target)

    monkeypatch.setattr(shutil, "copyfile", swapped)
    monkeypatch.setenv("PATH", f"{Path(apptainer()).parent}:{os.environ['PATH']}")
    prefix = Prefix(root=tmp_path / "prefix")
    prefix.create()
    request = Request(
        prefix=prefix, wanted="small", method="apptainer", source=str(source), sandbox=sandbox, accelerator="cpu"
    )
    with pytest.raises(RecipeInvalid, match="was changed while it was taken over"):
        work.install(request, Console())
    assert not list(prefix.root.rglob("*.sif")) and not list(prefix.root.rglob(f"*{wanted[:20]}*"))


PACKAGES = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: a library
 with a second line

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


@pytest.fixture(scope="module")
def python_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with this machine's Python, and two packages of Debian by name."""
    python = Path("/usr/bin/python3").resolve()
    library = Path(f"/usr/lib/{python.name}")
    if not library.is_dir():
        pytest.skip("this machine has no Python of its own below /usr")
    folder = tmp_path_factory.mktemp("python")
    root = small(folder / "root")
    shutil.copy(python, root / "usr/bin/python3")
    needing = [python, *library.glob("lib-dynload/_ctypes.*.so")]
    told = subprocess.run(["ldd", *needing], capture_output=True, text=True, check=True).stdout
    for needed in set(re.findall(r"(/lib\S+\.so\S*) \(", told)):
        (root / needed.strip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, root / needed.strip("/"))
    shutil.copytree(library, root / str(library).strip("/"), ignore=shutil.ignore_patterns("__pycache__", "test*"))
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(PACKAGES)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    image = folder / "python.sif"
    subprocess.run([apptainer(), "--silent", "build", str(image), str(root)], check=True, capture_output=True)
    return image


def envkit(tmp_path: Path, *words: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Run envkit in the prefix of ``install``, with a secret in its environment."""
    env = {"PATH": f"{Path(apptainer()).parent}:{SYSTEM_PATH}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    env |= {"TMPDIR": str(tmp_path), "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    env |= dict.fromkeys(("http_proxy", "https_proxy", "PIP_INDEX_URL"), "http://me:s3cr3t-Tok3n@127.0.0.1:9")
    env |= {"APPTAINER_DOCKER_PASSWORD": "s3cr3t-Tok3n", "GITHUB_TOKEN": "s3cr3t-Tok3n"}
    return subprocess.run(
        [str(ENVKIT), *words], env=env, cwd="/", capture_output=True, text=True, timeout=300, check=False, umask=umask
    )


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_an_image_from_its_file_to_the_command_in_it(python_image: Path, tmp_path: Path, umask: int) -> None:
    """It is the same at each step, or told; what is in it is in its lock, and no secret is in anything."""
    done = envkit(tmp_path, "install", "own", "--method", "apptainer", "--from", str(python_image), umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    [image] = (tmp_path / "prefix").rglob("images/own.sif")
    assert sha256(image) == sha256(python_image)
    assert image.stat().st_mode & 0o022 == 0 and (tmp_path / "prefix").stat().st_mode & 0o777 == 0o700
    lock = json.loads(envkit(tmp_path, "show", "own", "--lock").stdout)
    assert (lock["system"], lock["packages"]) == ("debian 12", {"libc6:amd64": "2.36-9"})
    enter = ("run", "own", "--", "python3", "-c", "print(6 * 7)")
    assert envkit(tmp_path, *enter).stdout == "42\n"
    plain = [path for path in (tmp_path / "prefix").rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in plain if b"s3cr3t" in path.read_bytes()] == []
    before = image.stat()
    with image.open("r+b") as stream:
        stream.seek(before.st_size - 1)
        byte = stream.read(1)
        stream.seek(before.st_size - 1)
        stream.write(bytes([byte[0] ^ 255]))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = envkit(tmp_path, *enter)
    assert (refused.returncode, refused.stdout) == (6, ""), refused.stderr
    assert "is not the one that was installed" in refused.stderr


def test_what_is_made_in_a_build_is_for_whoever_enters(base: str, context: Path, tmp_path: Path) -> None:
    """Whatever the umask of who builds."""
    path = write(context, base, "RUN mkdir -p /opt/new && echo 1 >/opt/new/file")
    before = os.umask(0o077)
    try:
        done = install(tmp_path, "--from-dockerfile", str(path))
    finally:
        os.umask(before)
    assert done.returncode == 5 and "has no Python" in done.stderr, done.stdout + done.stderr
    for mode in inside(tmp_path, "stat -c %a /opt/new /opt/new/file").split():
        assert int(mode, 8) & 0o044 == 0o044 and not int(mode, 8) & 0o002
