"""What is released: licences that fit, and an sdist and a wheel that anybody builds again byte by byte."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TAG = "SPDX-License-" + "Identifier"  # in one piece it would be of this file
GPL = {"envkit/easybuild/hooks.py", "envkit/easybuild/run_eb.py"}
checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")


def git(*words: str, cwd: Path = ROOT) -> str:
    """Run git; return what it prints."""
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


@checkout
def test_every_file_has_a_licence() -> None:
    done = subprocess.run([sys.executable, "-m", "reuse", "lint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_runs_inside_easybuild_has_a_licence_that_fits() -> None:
    """EasyBuild is GPL-2.0-only. No other module is imported there, by it or by these."""
    for name in GPL:
        lines = (ROOT / name).read_text().splitlines()
        assert f"# {TAG}: GPL-2.0-or-later" in lines[:3], name
        assert not [line for line in lines if line.startswith(("import envkit", "from envkit"))], name
    others = [path for path in (ROOT / "envkit").rglob("*.py") if str(path.relative_to(ROOT)) not in GPL]
    importing = [
        path for path in others if "\nfrom easybuild" in path.read_text() or "\nimport easybuild" in path.read_text()
    ]
    assert importing == []


@checkout
def test_a_release_is_built_again_byte_by_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    git("clone", "-q", str(ROOT), str(source))
    changes = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    for changed in changes.splitlines():
        if (ROOT / changed).is_file():
            (source / changed).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / changed, source / changed)
    release = [str(source / "scripts" / "release.sh")]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHON": sys.executable, "HOME": str(tmp_path)}
    (source / "scratch").touch()
    refused = subprocess.run(release, env=env, capture_output=True, text=True, check=False)
    assert (refused.returncode, "not committed" in refused.stderr) == (2, True)
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "add", "-A", cwd=source)
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "x", cwd=source)
    for folder in ("one", "two"):
        done = subprocess.run([*release, str(tmp_path / folder)], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    [wheel], [sdist] = [[name for name in made if name.endswith(end)] for end in (".whl", ".tar.gz")]
    assert set(made) == {wheel, sdist, "SHA256SUMS", "provenance.json"}
    stated = json.loads(made["provenance.json"])
    subjects = {one["name"]: one["digest"]["sha256"] for one in stated["subject"]}
    assert subjects == {name: hashlib.sha256(made[name]).hexdigest() for name in (wheel, sdist)}
    built_from = {one["name"]: one["digest"] for one in stated["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert built_from["envkit"] == {"gitCommit": git("rev-parse", "HEAD", cwd=source).strip()}
    names = zipfile.ZipFile(tmp_path / "one" / wheel).namelist()
    assert any(name.endswith("licenses/LICENSES/GPL-2.0-or-later.txt") for name in names)
    with tarfile.open(tmp_path / "one" / sdist) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert {"LICENSE", "SECURITY.md", "REUSE.toml", "requirements/run.txt", "scripts/prepare.sh"} <= inside


@pytest.mark.parametrize("file", ["SECURITY.md", "README.md"])
def test_what_is_promised_has_a_test(file: str) -> None:
    """Each test that a document names is there, and each promise names one."""
    text = (ROOT / file).read_text()
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    if file == "SECURITY.md":
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        assert len(rows) > 20 and all("::test_" in row for row in rows)
