"""Damaged and made-up files end in an error that is documented, soon, and in nothing else.

200 cases for each reader, the same in every run, by hypothesis, which makes what fails small. 10,000 with --all, others
each time, or ENVKIT_FUZZ_CASES of them, drawn without it, which is many times as fast; ENVKIT_FUZZ_KEEP is a folder for
what fails. What failed once lies in corpus/READER/, and is tried again in every run.
"""

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Prefix
from envkit.errors import EnvkitError
from envkit.machine.host import Platform

from .mutants import CHANGES, damaged
from .readers import READERS, Reader

CORPUS = Path(__file__).with_name("corpus")
HANGS_S = 20
Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]


@contextmanager
def in_time() -> Iterator[None]:
    """Have what takes too long fail: it works for so long, or waits for ten times as long, as on a busy machine."""
    began, spent = time.monotonic(), time.process_time()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if time.process_time() - spent < HANGS_S / 2 and time.monotonic() - began < 10 * HANGS_S:
            signal.setitimer(signal.ITIMER_REAL, HANGS_S)
            return
        raise AssertionError(f"it took more than {HANGS_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tried(name: str, data: bytes, folder: Path) -> None:
    """Have a reader read a file; what it raises has to be documented."""
    reader = READERS[name]
    with in_time():
        try:
            reader.call(data, folder)
        except EnvkitError as error:
            assert error.what and error.exit_code not in (0, 1)
        except reader.allowed:
            pass


@pytest.fixture
def begins(
    tmp_path: Path, prefix: Prefix, install: Install, install_image: InstallImage
) -> Callable[[str], list[bytes]]:
    """Return the real files that a reader begins from."""

    def made(name: str) -> list[bytes]:
        if name != "receipt":
            return READERS[name].seeds(tmp_path)
        install("toy-cpu")
        install_image("toy-image", debian="a1")
        tree = prefix.tree(Platform.own())
        texts = [receipt.path_of(tree, one).read_bytes() for one in ("toy-cpu", "toy-image")]
        folder = str(tmp_path / "tree").encode()
        return [text.replace(b"toy-image", b"toy-cpu").replace(str(tree.root).encode(), folder) for text in texts]

    return made


def changed(reader: Reader, begins: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return what makes damaged files."""
    by_reader = st.builds(reader.change, st.sampled_from(begins), CHANGES)
    return st.one_of(by_reader, by_reader, st.builds(damaged, st.sampled_from(begins), CHANGES), st.binary(max_size=64))


@pytest.mark.integration
@pytest.mark.parametrize("name", READERS)
def test_what_is_damaged_ends_in_a_documented_error(
    name: str, begins: Callable[[str], list[bytes]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given_number = os.environ.get("ENVKIT_FUZZ_CASES", "")
    made = begins(name)
    tried(name, made[0], tmp_path)

    def case(data: bytes) -> None:
        try:
            tried(name, data, tmp_path)
        except BaseException:
            keep(name, data)
            raise

    if given_number or request.config.getoption("--all"):
        for data in drawn(READERS[name], made, int(given_number or 10_000)):
            case(data)
        return
    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    limits = settings(
        max_examples=200,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    limits(given(changed(READERS[name], made))(case))()


def drawn(reader: Reader, begins: list[bytes], number: int) -> Iterator[bytes]:
    """Yield damaged files as ``changed`` makes them, without what hypothesis does besides."""
    of = random.Random()
    for _ in range(number):
        changes = [(of.randrange(7), of.randrange(1 << 20), of.randrange(1 << 16)) for _ in range(of.randint(1, 6))]
        kind = of.randrange(8)
        if kind == 0:
            yield of.randbytes(of.randrange(65))
        else:
            yield (damaged if kind < 3 else reader.change)(of.choice(begins), changes)


def keep(name: str, data: bytes) -> None:
    """Keep what failed, where ENVKIT_FUZZ_KEEP says."""
    if folder := os.environ.get("ENVKIT_FUZZ_KEEP"):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
        Path(folder, name, hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


KEPT = {f"{path.parent.name}/{path.name}": path for path in sorted(CORPUS.glob("*/*"))}


@pytest.mark.parametrize("one", KEPT)
def test_what_failed_once_fails_no_more(one: str, tmp_path: Path) -> None:
    tried(KEPT[one].parent.name, KEPT[one].read_bytes(), tmp_path)


def test_a_reader_that_fails_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(data: bytes, _folder: Path) -> Any:
        return 1 / len(data)

    monkeypatch.setitem(READERS, "bad", Reader(seeds=lambda _: [b"x"], call=fails))
    tried("bad", b"x", tmp_path)
    with pytest.raises(ZeroDivisionError):
        tried("bad", b"", tmp_path)
