"""Signatures of files by a key in PEM, as images have them: made and checked by the program ``openssl`` (3.0 or newer).

What is signed is the SHA-256 of the file, so that of a large one as well it takes no time: ``FILE.sig`` beside it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from envkit.errors import HostProblem, OpensslMissing, SignatureInvalid
from envkit.system import files, owners, process, temporary
from envkit.system.owners import Trusted

LARGEST = 100_000  # bytes of a key
NO_SIGNERS = ("X25519", "X448", "DH")  # kinds of keys that agree on a secret, as openssl names them
LACKING = "Install OpenSSL 3.0 or newer: its program openssl signs and checks."


def place(path: Path) -> Path:
    """Return where the signature of a file lies."""
    return path.with_name(f"{path.name}.sig")


def sign(path: Path, key: Path) -> Path:
    """Sign a file with a private key; return its signature. Raises HostProblem for a key that is none, OSError."""
    files.write(place(path), signature_of(path, key), mode=0o644)
    return place(path)


def require_signs(key: Path) -> None:
    """Require that a key can sign, before there is anything to sign. Raises HostProblem."""
    with temporary.folder("sign") as folder:
        (folder / "nothing").touch()
        signature_of(folder / "nothing", key)


def signature_of(path: Path, key: Path) -> bytes:
    """Return the signature of a file by a private key. Raises HostProblem for a key that is none, OSError."""
    require_file(key)
    with temporary.folder("sign") as folder:
        done = openssl(
            folder, files.sha256(path), "-sign", "-inkey", str(key.absolute()), "-out", str(folder / "signature")
        )
        if done.status:
            raise HostProblem(
                what=f"Nothing can be signed with {key}.",
                why=unfit(key, done),
                fix="Give a private key in PEM without a passphrase, such as 'openssl genpkey -algorithm ed25519' "
                "makes.",
            )
        return files.read(folder / "signature")


def unfit(key: Path, done: process.Completed) -> str:
    """Say why nothing was signed with a key."""
    try:
        content = files.read(key)
    except OSError as error:
        return f"It cannot be read: {error.strerror}."
    if b"PRIVATE KEY" not in content:
        return "It is a public key." if b"PUBLIC KEY" in content else "It is no private key in PEM."
    if b"ENCRYPTED" in content:
        return "It has a passphrase, for which envkit does not ask."
    read = process.capture(["openssl", "pkey", "-in", str(key.absolute()), "-passin", "pass:", "-noout", "-text_pub"])
    if read.status:
        return "It is cut off or damaged."
    return "Keys of its kind sign nothing." if read.stdout.startswith(NO_SIGNERS) else last_line(done)


def public_of(key: Path) -> bytes:
    """Return the public half of a private key, in PEM. Raises HostProblem for a key that is none, OSError."""
    with temporary.folder("sign") as folder:
        argv = ["openssl", "pkey", "-in", str(key.absolute()), "-passin", "pass:", "-pubout"]
        done = process.capture([*argv, "-out", str(folder / "public")], cwd=folder)
        if done.status:
            raise HostProblem(what=f"{key} has no public half.", why=last_line(done), fix="Give a private key in PEM.")
        return files.read(folder / "public")


def require(path: Path, key: Path, known: Trusted | None = None) -> None:
    """Require that the private half of a public key has signed a file; the key is only theirs whom one trusts.

    Raises SignatureInvalid, HostProblem.
    """
    require_file(key)
    try:
        require_signed(path, files.sha256(path), key, known)
    except OSError as error:
        raise unsigned(path, key, f"{error.filename} cannot be read: {error.strerror}.") from error


def require_signed(path: Path, sha256: str, key: Path, known: Trusted | None) -> None:
    """Require it of what a file holds, by its SHA-256. Raises SignatureInvalid, HostProblem, OSError."""
    with temporary.folder("sign") as folder:
        (folder / "key").write_bytes(trusted(key, known))
        (folder / "signature").write_bytes(files.read(place(path)))
        words = ("-verify", "-pubin", "-inkey", str(folder / "key"), "-sigfile", str(folder / "signature"))
        done = openssl(folder, sha256, *words)
    if done.status:
        raise unsigned(path, key, last_line(done))


def trusted(key: Path, known: Trusted | None = None) -> bytes:
    """Return a public key. Raises HostProblem for one that can be changed or replaced by others, OSError."""
    known = known or owners.known(())
    with files.open_plain(key) as stream:
        is_open = owners.is_open_to_others(key.resolve().parent)
        if (who := owners.stranger(os.fstat(stream.fileno()), key, known, is_open=is_open)) is not None:
            raise untrusted(key, key, *who)
        if (found := owners.usurper(key, known)) is not None:
            raise untrusted(key, *found)
        return stream.read(LARGEST)


def untrusted(key: Path, path: Path, who: str, word: str) -> HostProblem:
    """Say who else can change a public key, or put another in its place."""
    fix = f"Have its owner close it: chmod go-w {quote(str(path))}"
    if who.startswith("It belongs"):
        fix = f"If it is the right one, copy it into a folder of your own: cp {quote(str(key))} ~"
    return HostProblem(
        what=f"The key {key} is not used: others can change it.",
        why=f"{path}: {who}, who could have it verify what they like.",
        fix=fix + (f"\nIf you trust them, name them in ENVKIT_TRUST: {word}" if word else ""),
    )


def require_file(key: Path) -> None:
    """Require that a key is a plain file, of which openssl reads no end otherwise. Raises HostProblem."""
    if key.exists() and not key.is_file():
        raise HostProblem(what=f"{key} is no key: it is not a file.", fix="Name a file with a key in PEM.")


def unusable(key: Path) -> str:
    """Say why a file can be no public key; nothing if it may be one."""
    try:
        content = files.read(key)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if b"PUBLIC KEY" not in content:  # one that has the private half as well does verify
        return "is a private key: name its public half" if b"PRIVATE KEY" in content else "is no public key"
    done = process.capture(["openssl", "pkey", "-pubin", "-in", str(key.absolute()), "-noout", "-text_pub"])
    if done.status not in (0, 127):
        return "holds a public key that is cut off or damaged"
    return "holds a key of a kind that signs nothing" if done.stdout.startswith(NO_SIGNERS) else ""


@contextmanager
def required(path: Path, key: Path | None, known: Trusted | None = None) -> Iterator[BinaryIO | None]:
    """Open a file that must be signed, if a key is given, for the block; it must be the same at the end of that.

    Raises what ``require`` does.
    """
    if key is None:
        yield None
        return
    require_file(key)
    try:
        stream = files.open_plain(path)
    except OSError as error:
        raise unsigned(path, key, f"{error.filename} cannot be read: {error.strerror}.") from error
    with stream:
        before = files.identity(os.fstat(stream.fileno()))
        try:
            require_signed(path, hashlib.file_digest(stream, "sha256").hexdigest(), key, known)
        except OSError as error:
            raise unsigned(path, key, f"{error.filename} cannot be read: {error.strerror}.") from error
        stream.seek(0)
        yield stream
        if files.identity(os.fstat(stream.fileno())) != before:
            raise unsigned(path, key, "It was changed while it was read.")


def unsigned(path: Path, key: Path, why: str) -> SignatureInvalid:
    """Say that a file is not signed with the key given."""
    return SignatureInvalid(
        what=f"{path} is not signed with the private half of {key}.",
        why=why,
        fix=f"Carry {place(path).name} along with it. --signed-by takes a public key: ask who made the file "
        "for theirs, by a way that you trust.",
    )


def openssl(folder: Path, sha256: str, *words: str) -> process.Completed:
    """Have openssl sign the SHA-256 of a file, or check its signature. Raises OpensslMissing."""
    message = folder / "message"
    message.write_text(f"envkit sha256:{sha256}\n")
    argv = ["openssl", "pkeyutl", "-rawin", "-in", str(message), "-passin", "pass:", *words]
    done = process.capture(argv, cwd=folder)
    if done.status == 127:
        raise OpensslMissing(what="There is no program openssl on PATH.", fix=LACKING)
    return done


def can_check() -> bool:
    """Say whether the program is there that checks signatures."""
    return process.which("openssl") is not None


def last_line(completed: process.Completed) -> str:
    """Return the last line of what openssl said."""
    return ((completed.stderr + completed.stdout).strip().splitlines() or [f"openssl ended with {completed.status}"])[
        -1
    ]
