"""Pushing from the job of a CI: what its variables tell, what is taken of them, and what is refused."""

import base64
import errno
import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.cache import ci, contents, pack
from envkit.cache import manifest as files
from envkit.cache import oci as oci
from envkit.cache.manifest import Ci
from envkit.cache.place import Place
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import manifest, receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Cached
from envkit.errors import UsageProblem
from envkit.system.decompression import zstd
from envkit.verify import last

from . import s3
from .integration import registry
from .integration.site import needs
from .small_disk import leave, small_disk
from .test_cache import described, module_in, packed
from .test_json_types import valid
from .verify.test_report import report

pytestmark = pytest.mark.xdist_group("schemas")
COMMIT, TOKEN = "0a1b2c3d" * 5, "a-token-of-the-job"
GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://code.example.org", "GITHUB_REPOSITORY": "site/software",
    "GITHUB_SHA": COMMIT, "GITHUB_RUN_ID": "17", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_TOKEN": TOKEN,
    "ACTIONS_RUNTIME_TOKEN": TOKEN,
}  # fmt: skip
GITLAB = {
    "GITLAB_CI": "true", "CI_PROJECT_URL": "https://lab.example.org/a/b/c", "CI_COMMIT_SHA": COMMIT,
    "CI_JOB_URL": "https://lab.example.org/a/b/c/-/jobs/99", "CI_JOB_TOKEN": TOKEN,
    "CI_REPOSITORY_URL": f"https://gitlab-ci-token:{TOKEN}@lab.example.org/a/b/c.git",
}  # fmt: skip
RUN = "https://code.example.org/site/software/actions/runs/17/attempts/2"
NAME = "toy-ci"


class TestJob:
    """What a job says of itself."""

    def test_of_github(self) -> None:
        made = Ci(kind="GitHub", repository="https://code.example.org/site/software", commit=COMMIT, run=RUN)
        assert ci.job(GITHUB) == made

    def test_of_gitlab(self) -> None:
        made = ci.job(GITLAB)
        assert (made.kind, made.repository, made.commit) == ("GitLab", GITLAB["CI_PROJECT_URL"], COMMIT)
        assert made.run == GITLAB["CI_JOB_URL"]

    @pytest.mark.parametrize("env", [{}, {"GITHUB_ACTIONS": "false"}, {"CI": "true"}])
    def test_in_none(self, env: dict[str, str]) -> None:
        with pytest.raises(UsageProblem) as refused:
            ci.job(env)
        assert "this is none" in refused.value.what
        assert "GITHUB_ACTIONS (GitHub), GITLAB_CI (GitLab)" in refused.value.why

    @pytest.mark.parametrize(
        ("env", "name", "value"),
        [
            (GITHUB, "GITHUB_SHA", ""),
            (GITHUB, "GITHUB_SHA", "main"),
            (GITHUB, "GITHUB_RUN_ATTEMPT", ""),
            (GITHUB, "GITHUB_SERVER_URL", f"https://me:{TOKEN}@code.example.org"),
            (GITHUB, "GITHUB_REPOSITORY", f"site/software?token={TOKEN}"),
            (GITLAB, "CI_JOB_URL", "javascript:alert(1)"),
            (GITLAB, "CI_PROJECT_URL", "https://lab.example.org/a\x1b[2J"),
        ],
    )
    def test_what_is_not_as_a_ci_sets_it(self, env: dict[str, str], name: str, value: str) -> None:
        with pytest.raises(UsageProblem) as refused:
            ci.job({**env, name: value})
        assert name in refused.value.why
        assert refused.value.why.endswith(
            " must be set."
            if not value
            else ", is expected, as {} sets them.".format("GitLab" if env is GITLAB else "GitHub")
        )
        assert TOKEN not in "".join((refused.value.what, refused.value.why, refused.value.fix))


@pytest.fixture
def there(
    prefix: Prefix, install: Callable[..., ModuleReceipt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Prefix:
    """A prefix with two environments; that which was installed last has passed."""
    needs("objdump")
    for name in [*GITHUB, *GITLAB]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVKIT_PREFIX", str(prefix.root))
    module = "Horovod/1.0-toy"
    lock = Lock(
        name=NAME, method="easybuild", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type="x86_64"), tools={},
        parts=(LockedPart(name=module, recipe="Horovod.eb", sha256="1" * 64),),
    )  # fmt: skip
    install("toy-before", module, lock=lock, horovod="/h")
    made = install(NAME, module, lock=lock, horovod="/h", created="2026-02-02T03:04:05+00:00")
    manifest.write(Tree(root=Path(made.tree)), module)
    passed(made)
    return prefix


def passed(made: ModuleReceipt, **changes: Any) -> None:
    """Keep a verdict on an environment, of this host."""
    told = report("pytorch-2ranks")
    hosts = tuple(msgspec.structs.replace(one, name=platform.node()) for one in told.hosts)
    last.keep(msgspec.structs.replace(told, **{"hosts": hosts, **changes}), made.name, made.tree)


def receipt_of(prefix: Prefix) -> ModuleReceipt:
    """Return the receipt of the environment."""
    from envkit.methods import installed

    found = installed.find(prefix, NAME)
    assert isinstance(found, ModuleReceipt)
    return found


def push(folder: Path, *words: str) -> int:
    """Push what was installed last from a CI; return the exit code."""
    folder.mkdir(exist_ok=True)
    return run(["cache", "push", "--from-ci", "--unsigned", "--to", str(folder), *words])


@pytest.mark.parametrize("of", [GITHUB, GITLAB])
def test_the_manifest_says_which_job(
    of: dict[str, str], there: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in of.items():
        monkeypatch.setenv(name, value)
    assert push(tmp_path / "cache", "--json") == 0
    told = valid("cache push", capsys.readouterr().out)
    [build] = told["builds"]
    assert (told["name"], build["sent"], build["ci"]["commit"]) == (NAME, True, COMMIT)
    place = Place(named=str(tmp_path / "cache"))
    entry = place.entry(place.names()[0])
    assert entry.manifest.provenance.ci == ci.job(of)
    for path in (tmp_path / "cache").rglob("*.json"):
        assert TOKEN not in path.read_text()
    assert run(["cache", "show", entry.id[:9], place.named]) == 0
    run_url = ci.job(of).run
    assert f", commit {COMMIT[:12]}, {run_url}" in capsys.readouterr().out
    assert push(tmp_path / "cache") == 0
    said = capsys.readouterr().out
    assert said.startswith("There already: Horovod/1.0-toy") and "Nothing was added" not in said
    for name, value in {**of, "GITHUB_RUN_ATTEMPT": "7", "CI_JOB_URL": "https://gitlab.example.org/jobs/7"}.items():
        monkeypatch.setenv(name, value)
    assert push(tmp_path / "cache") == 0
    assert capsys.readouterr().out.endswith(
        f"Pushed by {run_url}\n"
        f"Nothing was added to it: it does not name this job, {ci.job(os.environ).run}, "
        "since a build stays as it was pushed.\n"
    )
    assert place.entry(place.names()[0]).manifest == entry.manifest


def test_what_was_taken_from_there_is_there(
    there: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in GITLAB.items():
        monkeypatch.setenv(name, value)
    assert push(tmp_path / "cache", "--json") == 0
    made, told = receipt_of(there), json.loads(capsys.readouterr().out)
    [build] = told["builds"]
    origin = Cached(place=told["place"], id=build["id"], host="x", built="y", key="")
    modules = tuple(msgspec.structs.replace(one, cached=origin) for one in made.modules)
    receipt.write(receipt.path_of(Tree(root=Path(made.tree)), NAME), msgspec.structs.replace(made, modules=modules))
    assert push(tmp_path / "cache", "--json") == 0
    again = valid("cache push", capsys.readouterr().out)
    assert again == {**told, "builds": [{**build, "sent": False, "object_sent": False}]}
    assert push(tmp_path / "another") == 3
    assert "was taken from the cache" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "cache/manifests")
    assert push(tmp_path / "cache") == 3


def test_a_full_folder_for_temporary_files_is_named(
    there: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Not the place, which may have room."""

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, value in GITLAB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pack, "pack", full)
    assert push(tmp_path / "cache") == 7
    assert f"No space left on device: {tempfile.gettempdir()}" in capsys.readouterr().err


def test_a_push_to_a_full_disk_is_one_message_and_leaves_nothing_half_made(
    there: Prefix, tmp_path: Path, capsys: Any
) -> None:
    full, at = 0, str(tmp_path / "small")
    with small_disk(tmp_path / "small", 60) as small:
        for free in range(30):  # pages
            leave(small, free)
            status = run(["cache", "push", NAME, "--prefix", str(there.root), "--to", at, "--unsigned"])
            said = capsys.readouterr()
            if status == 0:
                break
            full += 1
            assert status == 7 and said.out == "", said
            assert [line for line in said.err.splitlines() if "could not be put into" in line] == [
                f"envkit: {NAME} could not be put into {at}."
            ], said.err
            assert "or use another place. Run the same command again: what is there already is not" in said.err
            (small / "filler").unlink()
            assert {one.state for one in contents.verified([Place(named=at)], ()).builds} <= {"unsigned"}
        assert run(["cache", "verify", at]) == 0
        assert not list(small.rglob(".envkit-*"))
    assert full > 1


def test_outside_of_a_ci(there: Prefix, tmp_path: Path, capsys: Any) -> None:
    assert push(tmp_path / "cache") == 2
    said = capsys.readouterr().err
    assert "envkit: --from-ci is for jobs of GitHub and GitLab, and this is none." in said
    assert "What to do: Leave --from-ci out" in said
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    "why", ["its last verdict is FAIL", "No verdict on it", "Its last verdict is of node7, not of"]
)
def test_what_has_not_passed_here(
    why: str, there: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in GITLAB.items():
        monkeypatch.setenv(name, value)
    made = receipt_of(there)
    if "FAIL" in why:
        passed(made, verdict="fail")
    elif "node7" in why:
        row = report("pytorch-2ranks").hosts[0]
        passed(made, hosts=(msgspec.structs.replace(row, name="node7"),))
    else:
        shutil.rmtree(tmp_path / "state")
    assert push(tmp_path / "cache") == 1
    said = capsys.readouterr().err
    assert re.search(why, said, re.IGNORECASE)
    assert f"envkit verify {NAME}" in said
    assert not list((tmp_path / "cache").iterdir())


def test_nothing_is_installed(prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in GITLAB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ENVKIT_PREFIX", str(prefix.root))
    assert push(tmp_path / "cache") == 6
    assert capsys.readouterr().err.startswith("envkit: ")


def test_a_job_that_a_terminal_would_obey_is_not_read(tmp_path: Path) -> None:
    tree, told = module_in(tmp_path / "a-prefix-of-some-length"), ci.job(GITHUB)
    made = described(packed(tree, tmp_path / "packed"))
    for text in ("https://x", "\x1b[2J"):
        of = msgspec.structs.replace(made.provenance, ci=msgspec.structs.replace(told, run=text))
        content = files.packed(msgspec.structs.replace(made, provenance=of), b"")
        if text.isprintable():
            assert files.read(content)[0].provenance.ci
        else:
            with pytest.raises(ValueError, match="terminal"):
                files.read(content)


def of_bucket(folder: Path) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield a bucket, the settings with which it is reached, and what no file may have of them."""
    with s3.serving() as settings:
        yield (
            f"s3://{s3.BUCKET}/site",
            settings,
            [settings[f"AWS_{one}"] for one in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")],
        )


def of_registry(folder: Path) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield a registry that asks for a password, the settings that name the file with it, and what no file may have."""
    needs("docker-registry", "perl")
    words = ["perl", "-e", 'print crypt($ARGV[0], "\\$2y\\$05\\$abcdefghijklmnopqrstuu")', TOKEN]
    hashed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (folder / "htpasswd").write_text(f"somebody-else:{hashed}\n")
    with registry.serving(folder, f"{{htpasswd: {{realm: site, path: {folder}/htpasswd}}}}") as port:
        login = base64.b64encode(f"somebody-else:{TOKEN}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": login}}}))
        yield (
            f"oci://127.0.0.1:{port}/site/envkit",
            {"DOCKER_CONFIG": str(folder)},
            ["somebody-else", TOKEN, login[:20]],
        )


@pytest.mark.integration
@pytest.mark.parametrize("of", [of_bucket, of_registry])
def test_credentials_of_a_cache_are_stored_nowhere(
    of: Callable[[Path], Iterator[tuple[str, dict[str, str], list[str]]]], there: Prefix, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    """Nor shown: neither in the place, nor in the prefix, the home, or a folder that builds are copied to."""
    outside = tmp_path_factory.mktemp("login")
    s3.use(monkeypatch, {})
    oci.client.cache_clear()
    with contextmanager(of)(outside) as (named, settings, private):
        for name, value in {
            "HOME": str(tmp_path / "home"),
            "XDG_CACHE_HOME": str(tmp_path / "xdg"),
            **settings,
        }.items():
            monkeypatch.setenv(name, value)
        copy = tmp_path / "copy"
        copy.mkdir()
        (tmp_path / "home").mkdir()
        assert run(["-v", "cache", "push", NAME, "--unsigned", "--to", named]) == 0
        for words in (["list", named], ["list", named, "--json"], ["verify", named], ["prune", named, "--dry-run"]):
            assert run(["-v", "cache", *words]) == 0
        assert run(["cache", "pull", "--unsigned", "--all", "--from", named, "--to", str(copy)]) == 0
        for name in Place(named=named).names():
            (tmp_path / "manifest").write_bytes(Place(named=named).read(f"manifests/{name}", files.MOST))
    (control := outside / "control").write_bytes(zstd.compress(b"x" + private[-1].encode()))
    assert [*having(private, [control])] == [control]
    told = capsys.readouterr()
    assert copy_of(copy) and not [one for one in private if one in told.out + told.err]
    content = [path for path in (outside / "content").rglob("*") if path.is_file()]
    assert [*having(private, [*content, *(path for path in tmp_path.rglob("*") if path.is_file())])] == []


def copy_of(folder: Path) -> list[Path]:
    """Return the builds in a folder."""
    return [*folder.glob("objects/*.tar.zst")]


def having(private: list[str], paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that have something private in them, as it is, coded or packed."""
    sought = [
        one
        for value in private
        for one in (value.encode(), base64.b64encode(value.encode())[:-4], value.encode().hex().encode())
    ]
    for path in paths:
        content = path.read_bytes()
        for unpack in (zstd.decompress, gzip.decompress):
            with suppress(zstd.ZstdError, OSError, EOFError):
                content += unpack(path.read_bytes())
        if any(one in content for one in sought):
            yield path
