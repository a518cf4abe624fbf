"""Bundles that are signed, at the command line, with the real openssl."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.errors import HostProblem, SignatureInvalid
from envkit.sources import signature
from envkit.sources.fetch import Source, write_bundle
from envkit.system import owners

from .integration.site import needs


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of keys: it takes long to make one."""
    needs("openssl")
    folder = tmp_path_factory.mktemp("keys")
    for name, words in {"ed25519": [], "other": [], "EC": ["-pkeyopt", "ec_paramgen_curve:P-256"], "RSA": []}.items():
        private, public = folder / f"{name}.pem", folder / f"{name}.pub"
        kind = "ed25519" if name == "other" else name
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", kind, *words, "-out", private], check=True, capture_output=True
        )
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return folder


@pytest.fixture
def keys(made_keys: Path, tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    """Pairs of keys, private and public, by their kind."""
    shutil.copytree(made_keys, tmp_path, dirs_exist_ok=True)
    return {path.stem: (path, path.with_suffix(".pub")) for path in tmp_path.glob("*.pem")}


@pytest.mark.parametrize("device", ["/dev/zero", "/dev", "/dev/null"])
def test_a_key_that_is_no_file(device: str, tmp_path: Path) -> None:
    with pytest.raises(HostProblem, match="is no key: it is not a file"):
        signature.require_signs(Path(device))
    with pytest.raises(HostProblem, match="is no key: it is not a file"):
        signature.require(tmp_path / "x", Path(device))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get at the folders of tests, which pytest closes."""
    monkeypatch.setattr(owners, "is_open_to_others", lambda _: True)


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_key_that_others_can_change(mode: int, bundle: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    private, public = keys["ed25519"]
    signature.sign(bundle, private)
    public.chmod(mode)
    with pytest.raises(HostProblem, match="others can change it") as told:
        signature.require(bundle, public)
    assert told.value.fix == f"Have its owner close it: chmod go-w {public}"
    public.chmod(0o644)
    signature.require(bundle, public)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    cache, path = tmp_path / "cache", tmp_path / "b.tar"
    cache.mkdir()
    (cache / "a.tar.gz").write_bytes(b"a")
    write_bundle([Source(filename="a.tar.gz", sha256=None, needed_by="x.eb")], cache, path, stack="s")
    return path


@pytest.mark.parametrize("kind", ["ed25519", "EC", "RSA"])
def test_what_is_signed_is_verified_by_its_own_key_alone(
    kind: str, bundle: Path, keys: dict[str, tuple[Path, Path]]
) -> None:
    private, public = keys[kind]
    assert signature.sign(bundle, private) == bundle.with_name("b.tar.sig")
    signature.require(bundle, public)
    with pytest.raises(SignatureInvalid, match="not signed with the private half"):
        signature.require(bundle, keys["other"][1])
    with bundle.open("r+b") as stream:
        stream.seek(600)
        stream.write(b"!")
    with pytest.raises(SignatureInvalid):
        signature.require(bundle, public)


def test_a_bundle_that_is_changed_while_it_is_read(bundle: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    signature.sign(bundle, keys["ed25519"][0])
    with pytest.raises(SignatureInvalid) as refused, signature.required(bundle, keys["ed25519"][1]):
        bundle.write_bytes(bundle.read_bytes())
    assert refused.value.why == "It was changed while it was read."
    signature.sign(bundle, keys["ed25519"][0])
    with signature.required(bundle, keys["ed25519"][1]):
        pass
    with signature.required(bundle, None):
        bundle.write_bytes(b"")


def test_another_folder_in_the_place_of_that_of_a_bundle(
    bundle: Path, tmp_path: Path, keys: dict[str, tuple[Path, Path]]
) -> None:
    """What was signed is what is read, whatever lies there meanwhile."""
    (tmp_path / "signed").mkdir()
    there = Path(bundle.rename(tmp_path / "signed" / bundle.name))
    content = there.read_bytes()
    signature.sign(there, keys["ed25519"][0])
    with signature.required(there, keys["ed25519"][1]) as stream:
        (tmp_path / "signed").rename(tmp_path / "aside")
        (tmp_path / "signed").mkdir()
        there.write_bytes(b"another")
        assert stream and stream.read() == content


@pytest.mark.usefixtures("opened")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have another group's folder")
def test_a_key_that_others_can_replace(bundle: Path, tmp_path: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    """Who may write to its folder, or to one that a link on the way leads through, can put any key there."""
    private, public = keys["ed25519"]
    signature.sign(bundle, private)
    (tmp_path / "shared").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "shared/key.pub").write_bytes(public.read_bytes())
    (tmp_path / "own/key.pub").symlink_to(tmp_path / "shared/key.pub")
    for key in (tmp_path / "shared/key.pub", tmp_path / "own/key.pub"):
        signature.require(bundle, key)
    os.chown(tmp_path / "shared", -1, 12345)
    (tmp_path / "shared").chmod(0o775)
    for key in (tmp_path / "shared/key.pub", tmp_path / "own/key.pub"):
        with pytest.raises(HostProblem, match="others can change it") as refused:
            signature.require(bundle, key)
        assert refused.value.why.startswith(f"{tmp_path / 'shared'}: The group 12345 may write to it")
        assert "ENVKIT_TRUST: @12345" in refused.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have another group")
def test_a_key_of_a_group_where_nobody_else_gets(
    bundle: Path, tmp_path: Path, keys: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As keys are with the umask 002, in a home that is closed."""
    private, public = keys["ed25519"]
    signature.sign(bundle, private)
    (tmp_path / "home").mkdir(mode=0o700)
    key = tmp_path / "home/key.pub"
    key.write_bytes(public.read_bytes())
    os.chown(key, -1, 12345)
    key.chmod(0o664)
    signature.require(bundle, key)
    monkeypatch.setattr(owners, "is_open_to_others", lambda _: True)
    with pytest.raises(HostProblem, match="others can change it"):
        signature.require(bundle, key)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have another's key")
def test_a_key_of_somebody_else(bundle: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    private, public = keys["ed25519"]
    signature.sign(bundle, private)
    os.chown(public, 12345, -1)
    with pytest.raises(HostProblem, match="others can change it") as refused:
        signature.require(bundle, public)
    assert f"cp {public} ~" in refused.value.fix and "ENVKIT_TRUST: 12345" in refused.value.fix


def test_a_signature_that_is_not_there_or_is_none(bundle: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    public = keys["ed25519"][1]
    for content in (None, b"", b"x" * 64):
        if content is not None:
            signature.place(bundle).write_bytes(content)
        with pytest.raises(SignatureInvalid) as refused:
            signature.require(bundle, public)
        assert refused.value.why and "b.tar.sig" in refused.value.fix
    signature.sign(bundle, keys["ed25519"][0])
    with pytest.raises(SignatureInvalid):
        signature.require(bundle, keys["ed25519"][0])  # a private key is none to check with


def test_a_key_that_is_none(bundle: Path, tmp_path: Path, keys: dict[str, tuple[Path, Path]]) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN NOTHING-----\n")
    for key in (tmp_path / "key.pem", keys["ed25519"][1]):
        with pytest.raises(HostProblem, match="Nothing can be signed with") as refused:
            signature.sign(bundle, key)
        assert "openssl genpkey" in refused.value.fix
    assert not signature.place(bundle).exists()


def test_without_openssl(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostProblem, match="no program openssl"):
        signature.sign(bundle, tmp_path / "key.pem")


def test_a_bundle_is_taken_only_if_the_key_has_signed_it(
    bundle: Path, keys: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is in the cache before."""
    words = ["install", "pytorch", "--method", "easybuild", "--prefix", str(tmp_path / "p"), "--bundle", str(bundle)]
    signature.sign(bundle, keys["ed25519"][0])
    assert run([*words, "--signed-by", str(keys["other"][1])]) == SignatureInvalid.exit_code
    assert f"{bundle} is not signed" in capsys.readouterr().err
    assert not list((tmp_path / "p" / "sources").iterdir())
    assert run([*words, "--signed-by", str(keys["ed25519"][1])]) not in (0, 2)  # it lacks what PyTorch needs
    assert (tmp_path / "p" / "sources" / "a.tar.gz").exists()


def test_a_key_that_cannot_sign_is_noticed_before_anything_is_fetched(
    tmp_path: Path, keys: dict[str, tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fetch", "pytorch", "--method", "easybuild", "--prefix", str(tmp_path / "p")]
    assert run([*words, "--bundle", str(tmp_path / "b.tar"), "--sign", str(keys["RSA"][1])]) == HostProblem.exit_code
    told = " ".join(capsys.readouterr().err.split())
    assert f"Nothing can be signed with {keys['RSA'][1]}" in told and "Give a private key" in told
    assert not (tmp_path / "p").exists() and not (tmp_path / "b.tar").exists()


def test_signing_that_makes_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.touch()
    assert run(["fetch", "pytorch", "--sign", str(key)]) == 2
    assert "--sign goes with --bundle" in capsys.readouterr().err
    assert run(["install", "pytorch", "--signed-by", str(key)]) == 2
    assert "--signed-by goes with --from and --bundle" in capsys.readouterr().err
