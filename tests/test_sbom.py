"""Bills of materials: valid by CycloneDX's own schema, the same for the same receipt, with what is known of Horovod."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.binary.build_flags import BuildFlags
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import lockfile, receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix
from envkit.install import sbom
from envkit.knowledge.known import known
from envkit.machine.host import Platform
from envkit.system.resources import data

Install = Callable[..., ModuleReceipt]
Output = pytest.CaptureFixture[str]
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


pytestmark = pytest.mark.xdist_group("schemas")  # to import what reads them takes seconds


def errors(text: str) -> object:
    """What CycloneDX's own schema has against a bill of materials, None if nothing."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def locked(horovod: str = "horovod-0.28.1.tar.gz") -> Lock:
    files = [
        lockfile.file(name, "b" * 64, ["https://example.org/x"], name.partition("-")[0]) for name in (TORCH, horovod)
    ]
    return Lock(
        name="toy-cpu",
        method="easybuild",
        framework="pytorch",
        accelerator="cpu",
        release="",
        machine=LockedMachine(type="x86_64", python="3.11.7"),
        tools={"envkit": "0.1.0"},
        parts=(
            LockedPart(
                name="gompi/system", recipe="gompi-system.eb", sha256="d" * 64, sources=(lockfile.file("toy.c", None),)
            ),
            LockedPart(
                name="Horovod/0.28.1",
                recipe="Horovod-0.28.1.eb",
                sha256="a" * 64,
                sources=tuple(files),
                patches=(lockfile.file("Horovod-0.28.1_cxx17.patch", "c" * 64),),
            ),
        ),
        flags={"mpi": 1, "nccl": 0},
    )


@pytest.fixture
def bill(install: Install, prefix: Prefix, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Print the bill of an environment with a lock, check it against the schema, and return it."""

    def make(*horovod: str) -> Any:
        install("toy-cpu", lock=locked(*horovod))
        assert run(["show", "--sbom", "--prefix", str(prefix.root)]) == 0
        text = capsys.readouterr().out
        assert errors(text) is None
        return json.loads(text)

    return make


def test_the_parts_and_their_sources(bill: Callable[..., Any]) -> None:
    told = bill()
    found = {one["name"]: one for one in told["components"]}
    assert found["torch"]["purl"].startswith("pkg:pypi/torch@2.13.0%2Bcpu")
    assert found["torch"]["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]
    assert found["torch"]["externalReferences"] == [{"type": "distribution", "url": "https://example.org/x"}]
    assert found["toy.c"]["type"] == "file"
    assert found["Horovod"]["version"] == "0.28.1"
    assert found["Horovod"]["pedigree"]["patches"] == [
        {"type": "unofficial", "diff": {"url": "Horovod-0.28.1_cxx17.patch"}}
    ]
    facts = {one["name"]: one["value"] for one in told["metadata"]["component"]["properties"]}
    assert facts["envkit:Python"] == "3.11.7" and facts["envkit:flag mpi"] == "1"


def test_it_is_the_same_each_time(bill: Callable[..., Any]) -> None:
    assert bill() == bill()


@pytest.mark.parametrize(("version", "open_to"), [("0.28.1", 2), ("0.23.0", 3), ("0.99.0", 0)])
def test_each_known_weakness_is_stated_with_what_it_concerns(
    bill: Callable[..., Any], version: str, open_to: int
) -> None:
    told = {one["id"]: one for one in bill(f"horovod-{version}.tar.gz")["vulnerabilities"]}
    assert set(told) == {cve["id"] for cve in known("security")["cves"]}
    states = [one["analysis"]["state"] for one in told.values()]
    assert (states.count("exploitable"), states.count("not_affected")) == (open_to, 3 - open_to)
    for one in told.values():
        assert one["affects"] == [{"ref": f"Horovod/0.28.1: horovod-{version}.tar.gz"}]
        assert one["analysis"]["detail"] and one["source"]["url"].startswith("https://nvd.nist.gov/")
    if version == "0.28.1":
        assert "horovodrun with Gloo" in told["CVE-2026-31234"]["analysis"]["detail"]


def test_an_image_has_its_digest(install_image: Callable[..., ImageReceipt]) -> None:
    built = BuildFlags(horovod="0.28.1", extensions=())
    made = msgspec.structs.replace(install_image(), built=msgspec.Raw(msgspec.json.encode(built)))
    layers = LockedPart(name="image", recipe="cpu.def", sha256="e" * 64)
    own = msgspec.structs.replace(locked(), name=made.name, method="apptainer", parts=(layers,))
    text = sbom.text(made, own)
    assert errors(text) is None
    told = json.loads(text)
    assert [one["affects"][0]["ref"] for one in told["vulnerabilities"]] == ["horovod"] * 3
    root = told["metadata"]["component"]
    assert (root["type"], root["hashes"][0]["content"]) == ("container", made.sha256)


@pytest.mark.parametrize("option", ["--lock", "--sbom"])
def test_an_environment_of_an_earlier_envkit_has_none(
    option: str, install: Install, prefix: Prefix, capsys: pytest.CaptureFixture[str]
) -> None:
    install("toy-cpu")
    assert run(["show", option, "--prefix", str(prefix.root)]) == 6
    error = capsys.readouterr().err
    assert "The environment toy-cpu has no lock." in error and "envkit install toy-cpu --rebuild" in error


def test_one_form_at_a_time(install: Install, prefix: Prefix) -> None:
    install("toy-cpu", lock=locked())
    assert run(["show", "--lock", "--sbom", "--prefix", str(prefix.root)]) == 2


def test_packages_of_debian(install_image: Callable[..., ImageReceipt], prefix: Prefix, capsys: Output) -> None:
    made, tree = install_image("toy-image", debian="a1"), prefix.tree(Platform.own())
    packages = {"libc6:amd64": "2.36-9+deb12u10", "base-files:all": "1:12.4"}
    lock = msgspec.structs.replace(
        locked(), name="toy-image", method="apptainer", system="debian 12", packages=packages
    )
    receipt.write(receipt.path_of(tree, "toy-image"), msgspec.structs.replace(made, lock=lock))
    assert run(["show", "toy-image", "--sbom", "--prefix", str(prefix.root)]) == 0
    text = capsys.readouterr().out
    assert errors(text) is None
    found = {one["name"]: one for one in json.loads(text)["components"]}
    assert found["libc6"]["version"] == "2.36-9+deb12u10"
    assert found["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"
    [root] = [one for one in json.loads(text)["dependencies"] if one["ref"] == "toy-image"]
    assert {"deb: libc6:amd64", "deb: base-files:all"} <= set(root["dependsOn"])
    assert run(["show", "toy-image", "--lock", "--prefix", str(prefix.root)]) == 0
    assert json.loads(capsys.readouterr().out)["packages"] == packages
    other = msgspec.structs.replace(lock, packages={"libc6:amd64": "2.41-1", "new:all": "1"})
    assert list(lockfile.other_packages(lock, other)) == [
        "package base-files:all: 1:12.4 in the lock, none here",
        "package libc6:amd64: 2.36-9+deb12u10 in the lock, 2.41-1 here",
        "package new:all: none in the lock, 1 here",
    ]
    assert list(lockfile.other_packages(None, other)) == []
    assert list(lockfile.refusals(lock, other)) == []


def test_the_packages_of_this_machine() -> None:
    """As dpkg itself tells them, where there is one."""
    told = subprocess.run(
        [sys.executable, str(data("inside/image_facts.py"))], capture_output=True, text=True, check=True
    )
    facts = json.loads(told.stdout)
    query = shutil.which("dpkg-query")
    if not query:
        assert facts["packages"] == {}
        return
    wanted = subprocess.run(
        [query, "-W", "-f", "${db:Status-Status} ${Package}:${Architecture} ${Version}\\n"],
        capture_output=True,
        text=True,
    ).stdout
    lines = (line.split() for line in wanted.splitlines())
    assert facts["packages"] == {name: version for state, name, version in lines if state == "installed"}
    assert facts["packages"] and re.fullmatch(r"[a-z]+( [\w.]+)?", facts["system"])
