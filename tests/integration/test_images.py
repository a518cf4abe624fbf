"""Images, for real: built by Apptainer from nothing, verified in each MPI model, and spoilt in every way."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Tree
from envkit.system.files import sha256

from ..stacks import ENVKIT, Site
from .conftest import IMAGE
from .registry import put, serving
from .site import FUSE_FOR_ALL

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
BUILD_S = 1500

pytestmark = pytest.mark.integration


def failed(results: list[dict[str, str]]) -> list[str]:
    return [result["id"] for result in results if result["status"] == "fail"]


@pytest.mark.builds
def test_install_ends_with_a_verdict_and_a_receipt(
    stacks: Site, image: ImageReceipt, installed: Callable[[str], str]
) -> None:
    said = installed(IMAGE)
    if "Nothing to do." not in said:
        assert f"PASS  {IMAGE}: 2 ranks in one world on 1 host" in said
    assert sha256(Path(image.image)) == image.sha256
    assert [layer.name for layer in image.layers] == ["debian", "build-1", "build-2", "image"]
    assert (image.mpi and image.mpi.family, image.framework, image.libc) == ("Open MPI", "pytorch", "2.36")
    again = stacks.envkit("install", "--method", "apptainer")
    assert (again.returncode, "Nothing to do." in again.stdout) == (0, True)
    states = {one["name"]: one["state"] for one in json.loads(stacks.envkit("list", "--json").stdout)["environments"]}
    assert states[IMAGE].startswith("installed")


def test_another_prefix_takes_it_from_a_cache(stacks: Site, image: ImageReceipt, tmp_path: Path) -> None:
    """Signed by one, checked by another; nothing is built, and this machine verifies it all the same."""
    own, public, cache = tmp_path / "cache.pem", tmp_path / "cache.pub", tmp_path / "cache"
    for words in (("genpkey", "-algorithm", "ed25519", "-out", own), ("pkey", "-in", own, "-pubout", "-out", public)):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    cache.mkdir()
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}  # apart from what other tests have it fail by just now
    assert stacks.envkit("verify", IMAGE, "-n", "2", env=state).returncode == 0
    done = stacks.envkit("cache", "push", IMAGE, "--to", str(cache), "--sign", str(own), "--json", env=state)
    assert done.returncode == 0, done.stderr
    assert [one["sent"] for one in json.loads(done.stdout)["builds"]] == [True]
    site = Site(tmp_path / "prefix")
    env = {"ENVKIT_CACHE_FROM": str(cache), "ENVKIT_CACHE_KEYS": str(public)}
    planned = site.envkit("install", IMAGE, "--dry-run", env=env).stdout
    assert f"Cache:    the image is taken from {cache}, not built here:" in planned
    assert planned.count("[c]") == 1 and "[ ]" not in planned
    assert (
        "you have no keys" in site.envkit("install", IMAGE, "--dry-run", env={"ENVKIT_CACHE_FROM": str(cache)}).stdout
    )
    done = site.envkit("install", IMAGE, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Taken from" in done.stdout and "Building" not in done.stdout
    assert f"PASS  {IMAGE}: 2 ranks in one world on 1 host" in done.stdout
    shown = json.loads(site.envkit("show", IMAGE, "--json").stdout)
    assert shown["sha256"] == image.sha256
    assert f"from the cache {cache}" in site.envkit("show", IMAGE).stdout
    assert f"from the cache {cache}" in site.envkit("show", IMAGE, "--sbom").stdout
    report = json.loads(site.envkit("verify", IMAGE, "--json").stdout)
    assert (report["verdict"], report["origin"].startswith(f"the image from the cache {cache}")) == ("pass", True)
    refused = site.envkit("cache", "push", IMAGE, "--to", str(cache), "--unsigned")
    assert refused.returncode == 3 and "It was taken from the cache" in refused.stderr


def test_layers_are_taken_where_the_image_is_not(stacks: Site, image: ImageReceipt, tmp_path: Path) -> None:
    """Of a folder, which no cache has, the last layer alone is built."""
    (cache := tmp_path / "cache").mkdir()
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert stacks.envkit("verify", IMAGE, "-n", "2", env=state).returncode == 0
    done = stacks.envkit("cache", "push", IMAGE, "--layers", "--to", str(cache), "--unsigned", env=state)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Pushed ") == len(image.layers)
    site, env = Site(tmp_path / "prefix"), {"ENVKIT_CACHE_FROM": str(cache)}
    words = ("install", IMAGE, "--sandbox", "--unsigned-cache")
    planned = site.envkit(*words, "--dry-run", env=env).stdout
    marks = [line.partition(":")[0] for line in planned.splitlines() if line.startswith(" * [")]
    assert marks == [" * [c] debian", " * [x] build-1", " * [c] build-2", " * [ ] image"], planned
    done = site.envkit(*words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Building 1 of 4 layers" in done.stdout and f"PASS  {IMAGE}: 2 ranks in one world on 1 host" in done.stdout
    for shown in (site.envkit("show", IMAGE).stdout, site.envkit("show", IMAGE, "--sbom").stdout):
        assert shown.count(f"from the cache {cache}") == 2
    report = json.loads(site.envkit("verify", IMAGE, "--json").stdout)
    assert report["origin"].startswith(f"the layer debian from the cache {cache}, object ")


def test_the_image_says_what_is_inside(image: ImageReceipt) -> None:
    told = subprocess.run([image.runtime, "inspect", "--json", image.image], capture_output=True, text=True, check=True)
    labels = json.loads(told.stdout)["data"]["attributes"]["labels"]
    assert labels["io.envkit.horovod"] == "0.28.1"
    assert labels["io.envkit.torch"] == "2.13.0+cpu"
    assert labels["io.envkit.flags"] == "mpi gloo"
    assert labels["io.envkit.mpi"].startswith("Open MPI 4.1")
    helped = subprocess.run([image.runtime, "run-help", image.image], capture_output=True, text=True, check=True)
    assert "--cleanenv" in helped.stdout
    tested = subprocess.run(
        [image.runtime, "test", image.image],
        env=receipt_env(image),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert tested.returncode == 0, tested.stderr
    show = image.environment.command(["ls", "/usr/bin/g++", "/opt/build"])
    gone = subprocess.run(show, env=receipt_env(image), capture_output=True, text=True, check=False)
    assert gone.stderr.count("No such file") == 2, gone.stdout


def receipt_env(image: ImageReceipt) -> dict[str, str]:
    return image.environment.variables(os.environ)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ([], "the host's Open MPI 4."),
        (["--mpi-model", "hybrid"], "the host's Open MPI 4."),
        (["--mpi-model", "bind"], "the host's MPI library takes the place of the image's"),
        (["--mpi-model", "inside"], "the launcher in the image, on this node: you asked for it"),
    ],
)
def test_verify_in_each_mpi_model(model: list[str], why: str, stacks: Site, image: ImageReceipt) -> None:
    done = stacks.envkit("verify", IMAGE, "-n", "2", *model, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass"), (failed(report["results"]), done.stderr)
    assert why in report["started"]["why"]
    assert sorted((rank["rank"], rank["size"]) for rank in report["ranks"]) == [(0, 2), (1, 2)]
    passed = {result["id"] for result in report["results"] if result["status"] == "pass"}
    assert {"allreduce", "flags-agree", "world-size", "extension-loads", "training-truth-torch"} <= passed


def test_the_library_that_each_model_loads(stacks: Site, image: ImageReceipt) -> None:
    code = "import horovod.torch; print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libmpi.so' in line})"
    loaded = {}
    for model in ("hybrid", "bind"):
        done = stacks.envkit("run", IMAGE, "-n", "1", "--mpi-model", model, "--", "python", "-c", code)
        assert done.returncode == 0, done.stderr
        loaded[model] = done.stdout
    assert "/usr/lib" in loaded["hybrid"] and "/.envkit/mpi" not in loaded["hybrid"]
    assert "/.envkit/mpi/libmpi.so.40" in loaded["bind"]


def test_as_ranks_of_the_hosts_launcher(stacks: Site, image: ImageReceipt) -> None:
    env = {
        "NO_COLOR": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "ENVKIT_PREFIX": str(stacks.prefix),
    }
    argv = ["mpirun", "-np", "2", "--oversubscribe", str(ENVKIT), "verify", IMAGE]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"PASS  {IMAGE}: 2 ranks in one world") == 1


def test_run(stacks: Site, image: ImageReceipt) -> None:
    words = ["a b", "", "$HOME `id` *", "--", "é", "line one\nline two"]
    code = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(7)"
    done = stacks.envkit("run", IMAGE, "--", "python", "-c", code, *words)
    assert (done.returncode, json.loads(done.stdout)) == (7, words)
    trained = stacks.envkit("run", IMAGE, "-n", "2", "--", "python", str(SCRIPT), timeout_s=200)
    assert trained.returncode == 0, trained.stderr
    assert "0 of 2" in trained.stdout and "1 of 2" in trained.stdout


def test_check_build_and_show(stacks: Site, image: ImageReceipt) -> None:
    done = stacks.envkit("check-build", IMAGE)
    assert done.returncode == 0
    assert "[X] PyTorch" in done.stdout and "[X] MPI" in done.stdout and "[ ] NCCL" in done.stdout
    shown = stacks.envkit("show", IMAGE).stdout
    assert image.sha256 in shown and image.image in shown


@contextmanager
def named(image: ImageReceipt, name: str) -> Iterator[tuple[Path, Path]]:
    """Give the image's receipt another name; yield it, and the path of an image, which is to be made."""
    path = receipt.path_of(Tree(root=Path(image.tree)), IMAGE)
    other, made = path.with_name(f"{name}.json"), Path(image.image).with_name(f"{name}.sif")
    other.write_text(
        path.read_text().replace(image.image, str(made)).replace(f'"name": "{IMAGE}"', f'"name": "{name}"')
    )
    try:
        yield other, made
    finally:
        other.unlink()
        made.unlink(missing_ok=True)


def test_a_wall_that_the_site_puts_up_is_seen(stacks: Site, image: ImageReceipt, tmp_path: Path) -> None:
    """A site's own apptainer that adds --cleanenv: two worlds of one, each of which works."""
    wrapper = tmp_path / "apptainer"
    wrapper.write_text(
        f'#!/bin/bash\nargs=()\nfor word; do args+=("$word"); [ "$word" != exec ] || args+=(--cleanenv); done\n'
        f'exec {image.runtime} "${{args[@]}}"\n'
    )
    wrapper.chmod(0o755)
    with named(image, "walled") as (walled, linked):
        linked.hardlink_to(image.image)
        walled.write_text(walled.read_text().replace(image.runtime, str(wrapper)))
        done = stacks.envkit("verify", "walled", "-n", "2", "--mpi-model", "hybrid", "--timeout", "40")
    assert done.returncode == 1
    assert "world-size" in done.stdout and "--cleanenv" in done.stdout, done.stdout


def test_settings_of_apptainer_that_keep_ranks_apart_are_refused(stacks: Site, image: ImageReceipt) -> None:
    done = stacks.envkit("verify", IMAGE, "-n", "2", "--mpi-model", "hybrid", env={"APPTAINER_CLEANENV": "1"})
    assert (done.returncode, done.stdout) == (3, "")
    assert "APPTAINER_CLEANENV is set" in done.stderr


def flip(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 255]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "is not the one that was installed"),
        (flip, "is not the one that was installed"),
        (lambda path: path.unlink(), "has gone"),
    ],
    ids=["truncated", "flipped", "gone"],
)
def test_an_image_that_is_not_what_it_was(
    change: Callable[[Path], None], said: str, stacks: Site, image: ImageReceipt, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    change(shutil.copyfile(image.image, images / Path(image.image).name))
    done = stacks.envkit("verify", IMAGE, "-n", "2", instead={Path(image.image).parent: images})
    assert (done.returncode, done.stdout) == (6, "")
    assert f"The environment {IMAGE} is damaged: its image" in done.stderr
    assert said in done.stderr and "envkit repair" in done.stderr


def test_an_image_that_was_only_touched_is_what_it_was(stacks: Site, image: ImageReceipt) -> None:
    with named(image, "touched") as (_, touched):
        shutil.copyfile(image.image, touched)
        assert touched.stat().st_mtime_ns != image.changed
        done = stacks.envkit("run", "touched", "--", "true")
    assert done.returncode == 0, done.stderr


def test_an_image_is_taken_over(stacks: Site, image: ImageReceipt) -> None:
    done = stacks.envkit("install", "adopted", "--method", "apptainer", "--from", image.image, timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  adopted: 2 ranks" in done.stdout
    assert image.sha256 in stacks.envkit("show", "adopted").stdout
    assert stacks.envkit("verify", "adopted", "-n", "2").returncode == 0
    removed = stacks.envkit("remove", "adopted")
    assert removed.returncode == 0
    assert stacks.envkit("show", "adopted").returncode == 6


def test_an_image_that_is_none(stacks: Site, image: ImageReceipt, tmp_path: Path) -> None:
    bad = tmp_path / "bad.sif"
    with Path(image.image).open("rb") as stream:
        bad.write_bytes(stream.read(100_000))
    done = stacks.envkit("install", "bad", "--method", "apptainer", "--from", str(bad))
    assert done.returncode == 5, done.stdout + done.stderr
    assert "cannot be entered" in done.stderr
    assert "corrupted" in done.stderr
    assert stacks.envkit("show", "bad").returncode == 6
    assert not list((Path(image.tree) / "layers").glob("*bad*"))
    assert "bad" not in stacks.envkit("list").stdout


def test_a_registry_by_digest(stacks: Site, image: ImageReceipt, debian: Path, tmp_path: Path) -> None:
    """An image of a registry on loopback; the digest of one that is not there; a tag instead of a digest."""
    tar = tmp_path / "debian.tar"
    inside = image.environment.command(["true"])[:3]
    pack = [
        *inside,
        str(debian),
        "tar",
        "-C",
        "/",
        "--one-file-system",
        "--exclude=./tmp/*",
        "-cf",
        "-",
        "etc",
        "usr",
        "bin",
        "lib",
        "lib64",
        "sbin",
        "mnt",
        "srv",
    ]
    with tar.open("wb") as stream:
        subprocess.run(pack, env=receipt_env(image), stdout=stream, check=True)
    with serving(tmp_path) as port:
        digest = put(port, "debian", tar)
        reference = f"docker://127.0.0.1:{port}/debian"
        env = {"APPTAINER_NOHTTPS": "1", "APPTAINER_CACHEDIR": str(tmp_path / "cache")}
        tagged = stacks.envkit("install", "deb", "--method", "apptainer", "--from", f"{reference}:latest", env=env)
        assert (tagged.returncode, "names no digest" in tagged.stderr) == (2, True)
        wrong = f"{reference}@sha256:{'0' * 64}"
        missing = stacks.envkit("install", "deb", "--method", "apptainer", "--from", wrong, env=env)
        assert missing.returncode == 5, missing.stderr
        assert "0000" in missing.stderr
        done = stacks.envkit("install", "deb", "--method", "apptainer", "--from", f"{reference}@{digest}", env=env)
        assert done.returncode == 5, done.stdout + done.stderr
        assert "has no Python" in done.stderr


TOY = """\
Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: build

%arguments
    BOOTSTRAP=docker
    BASE=debian@sha256:0
    SECONDS=0
    MEGABYTES=1
    STATUS=0

%post
    echo one >/opt/one

%post
    sleep {{ SECONDS }}
    head -c {{ MEGABYTES }}000000 /dev/urandom >/opt/two

Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: final

%files from build
    /opt /opt

%test
    exit {{ STATUS }}
"""


class Toy:
    """A recipe that is built in seconds, in a prefix of its own."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base, self.prefix = folder, base, folder / "prefix"
        (folder / "toy.def").write_text(TOY)

    def argv(self, *words: str) -> list[str]:
        program = str(Path(__file__).parent / "scripts" / "build_image.py")
        return [sys.executable, program, str(self.prefix), str(self.base), str(self.folder / "toy.def"), *words]

    def build(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), env={**os.environ, **changes}, capture_output=True, text=True, timeout=200, check=False
        )

    def made(self) -> list[str]:
        """What lies in the folder of layers, by its name without the key."""
        return sorted(path.name.rpartition("-")[0] or path.name for path in self.prefix.glob("*/layers/*"))


@pytest.fixture
def toy(tmp_path: Path, debian: Path) -> Toy:
    return Toy(tmp_path, debian)


def test_an_image_of_which_only_the_end_differs_starts_from_what_is_there(toy: Toy) -> None:
    first = toy.build()
    assert first.returncode == 0, first.stderr
    assert "left: build-1 build-2 image" in first.stdout
    assert toy.made() == ["build-1", "build-2", "toy"]
    assert "left: \n" in toy.build().stdout
    changed = toy.build("MEGABYTES=2")
    assert (changed.returncode, "left: build-2 image" in changed.stdout) == (0, True)


def test_a_build_that_is_stopped_leaves_nothing_half_made_and_resumes(toy: Toy, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "APPTAINER_TMPDIR": str(scratch)}
    running = subprocess.Popen(
        toy.argv("SECONDS=60"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not any("sleep 60" in log.read_text() for log in toy.prefix.glob("logs/*/build-2.log")):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130, out + err
    assert "The layer build-2 was being built; nothing of the build goes on." in err
    assert "it resumes" in err
    assert toy.made() == ["build-1"]
    assert list(scratch.iterdir()) == []
    again = toy.build("SECONDS=0")
    assert (again.returncode, "left: build-2 image" in again.stdout) == (0, True)


def test_a_recipe_whose_test_fails_makes_no_image(toy: Toy) -> None:
    done = toy.build("STATUS=1")
    assert done.returncode == 5
    assert "Building image of toy failed." in done.stderr
    assert "test" in done.stderr
    assert toy.made() == ["build-1", "build-2"]


def test_no_room(toy: Toy, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", small], check=True)
    try:
        done = toy.build("MEGABYTES=400", APPTAINER_TMPDIR=str(small))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
    assert done.returncode == 7, done.stderr
    assert "The disk is full" in done.stderr


class User:
    """A user without rights, who runs what the tests run."""

    name = "envkit-builder"

    def __init__(self) -> None:
        if subprocess.run(["id", self.name], capture_output=True, check=False).returncode:
            subprocess.run(["useradd", "--create-home", "--no-log-init", self.name], check=True)
        entry = pwd.getpwnam(self.name)
        self.home = Path(entry.pw_dir)
        # the capability is for this test's Python alone, which may lie in root's home
        words = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        self.start = [
            *FUSE_FOR_ALL,
            "setpriv",
            *words,
            "--inh-caps=+dac_read_search",
            "--ambient-caps=+dac_read_search",
        ]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HOME": str(self.home), "USER": self.name, "ENVKIT_PREFIX": str(self.home / "prefix")}
        return subprocess.run(
            [*self.start, *argv], env=env, cwd=self.home, capture_output=True, text=True, timeout=BUILD_S, check=False
        )

    def ids(self, verb: str) -> None:
        """Add or take away the subordinate ids."""
        for kind in ("uids", "gids"):
            argv = ["usermod", f"--{verb}-sub{kind}", "300000-365535", self.name]
            subprocess.run(argv, capture_output=True, check=False)


@pytest.fixture
def user() -> Iterator[User]:
    yield User()
    subprocess.run(["userdel", "--remove", User.name], capture_output=True, check=False)


@pytest.mark.xdist_group("users")
def test_a_plain_user(user: User, image: ImageReceipt, debian: Path, tmp_path: Path) -> None:
    """Without subordinate ids, what is lacking is said; with them images are built and taken over."""
    for kind in ("subuid", "subgid"):
        path = Path("/etc", kind)
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(User.name)))
    refused = user.run(str(ENVKIT), "install", "--method", "apptainer", "--base", str(debian))
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert f"{User.name} has no range of subordinate ids in /etc/subuid" in refused.stderr
    assert "usermod --add-subuids" in refused.stderr
    user.ids("add")
    for source in (debian, Path(image.image)):
        shutil.copyfile(source, user.home / source.name)
        (user.home / source.name).chmod(0o644)
    recipe = user.home / "toy.def"
    recipe.write_text(TOY)
    program = str(Path(__file__).parent / "scripts" / "build_image.py")
    built = user.run(sys.executable, program, str(user.home / "toys"), str(user.home / debian.name), str(recipe))
    assert built.returncode == 0, built.stdout + built.stderr
    assert len(list(user.home.glob("toys/*/layers/toy-*.sif"))) == 1
    taken = str(user.home / Path(image.image).name)
    done = user.run(str(ENVKIT), "install", "mine", "--method", "apptainer", "--from", taken)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  mine: 2 ranks in one world" in done.stdout
