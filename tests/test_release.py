"""What is released: licences that fit, and an sdist and a wheel that anybody builds again byte by byte."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from envkit import __version__

from .checkout import ROOT, checkout, clone, git

TAG = "SPDX-License-" + "Identifier"  # in one piece it would be of this file
GPL = {"envkit/easybuild/hooks.py", "envkit/easybuild/run_eb.py"}


@pytest.mark.integration
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


@pytest.mark.integration
@checkout
def test_a_release_is_built_again_byte_by_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    clone(source)
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
    for path, group, name in re.findall(r"`(tests/[\w/]+\.py)::(?:(\w+)::)?(\w+)`", text):
        code = (ROOT / path).read_text()
        if group:
            code = code.partition(f"\nclass {group}")[2].partition("\nclass ")[0]
        assert f"\n{'    ' * bool(group)}def {name}(" in code, f"{path}::{group}::{name}"
    if file == "SECURITY.md":
        rows = [line for line in text.splitlines() if line.startswith("| ") and not line.endswith("| tests |")]
        assert len(rows) > 20 and all("::test_" in row for row in rows)


OF_PROMISES = re.compile(r"SHA-256|digest|\bpin(s|ned)\b|password|\bsecret|\bsign(s|ed)\b|signature", re.IGNORECASE)


PROMISING = re.compile(r"\bpriva(te|cy)\b|cannot (replace|change|be read)", re.IGNORECASE)


def test_each_sentence_of_readme_on_promises_is_backed() -> None:
    """By a test that SECURITY.md names beside it."""
    text = (ROOT / "README.md").read_text()
    parts = re.split(r"^```.*$", text, flags=re.MULTILINE)
    comments = [match[1] for code in parts[1::2] for match in re.finditer(r"# (.*)$", code, re.MULTILINE)]
    prose = "\n".join(line for part in parts[::2] for line in part.splitlines() if not line.startswith("|"))
    paragraphs = [" ".join(block.split()) for block in prose.split("\n\n")]
    sentences = [one for block in paragraphs for one in re.split(r"(?<=[.?!])(?:\*\*)? (?=[\[`\w])", block)]
    promises = [one for one in (*sentences, *comments) if OF_PROMISES.search(one) or PROMISING.search(one)]
    table = (ROOT / "SECURITY.md").read_text().partition("## What README says")[2]
    told = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert sorted(promises) == sorted(told)


def test_every_page_that_promises_something_is_looked_through() -> None:
    """A page that begins to speak of digests, pins, signatures or passwords has its sentences in the table, too."""
    named = set(re.findall(r"`(README\.md|docs/[\w-]+\.md)`", (ROOT / "SECURITY.md").read_text()))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert {str(page.relative_to(ROOT)) for page in pages if OF_PROMISES.search(page.read_text())} == named


WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
WRITES = {"contents": "write", "id-token": "write", "attestations": "write"}


@checkout
def test_what_publishes_is_pinned_and_may_do_no_more_than_it_has_to() -> None:
    text = WORKFLOW.read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # "on", as YAML 1.1 reads it: nobody else's pull request
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "publish": WRITES,
    }
    steps = [step for job in jobs.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert len(used) == 4 and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", one) for one in used)
    for one in used:  # which release that is
        assert re.search(rf"uses: {re.escape(one)} # v\d+\.\d+\.\d+\n", text), one
    [fetched] = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert fetched["with"] == {"persist-credentials": False}
    assert not [
        step for step in jobs["publish"]["steps"] if "checkout" in step.get("uses", "")
    ]  # it runs no code of ours


@checkout
def test_what_is_published_was_built_twice_and_is_the_tag(tmp_path: Path) -> None:
    """The shell text of the workflow, run here."""
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert len(jobs["build"]["strategy"]["matrix"]["machine"]) == 2 and jobs["publish"]["needs"] == "build"
    runs = {step["name"]: step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert not [run for run in runs.values() if "${{" in run]  # no text of others becomes a command
    assert runs["Build, twice"] == "scripts/release.sh dist" and (ROOT / "scripts/release.sh").is_file()

    def status(name: str, cwd: Path, **env: str) -> int:
        argv = ["bash", "-eo", "pipefail", "-c", runs[name]]
        return subprocess.run(argv, cwd=cwd, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True).returncode

    for tag, expected in ((f"v{__version__}", 0), ("v99.9", 1), (f"v{__version__}0", 1)):
        assert status("The tag is the version", ROOT, GITHUB_REF_NAME=tag) == expected
    for machine in ("one", "two"):
        made = tmp_path / "built" / machine
        made.mkdir(parents=True)
        (made / "a.whl").write_text("a")
        (made / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n")
    same = "Both machines have built the same"
    assert status(same, tmp_path) == 0
    (tmp_path / "built/two/a.whl").write_text("b")
    assert status(same, tmp_path) == 1
    (tmp_path / "built/one/a.whl").write_text("b")
    assert status(same, tmp_path) == 1
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > told\n')
    (tmp_path / "bin/gh").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "GITHUB_REF_NAME": "v1.2", "GH_REPO": "o/r"}
    assert status("Publish", tmp_path, **env) == 0
    told = (tmp_path / "told").read_text().splitlines()
    assert told[:4] == ["release", "create", "v1.2", "--verify-tag"]
    assert told[-2:] == ["built/one/SHA256SUMS", "built/one/a.whl"]
