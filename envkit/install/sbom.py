"""The bill of materials of an environment, as CycloneDX JSON: its lock, and what is known of its vulnerabilities."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from envkit.environments import lockfile
from envkit.environments.lockfile import Lock, LockedFile, LockedPart
from envkit.environments.receipt import Receipt
from envkit.knowledge.known import known
from envkit.verify.checks.security import is_affected
from envkit.verify.target import read_built

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component
    from cyclonedx.model.vulnerability import Vulnerability

HOROVOD = "horovod"


def text(receipt: Receipt, locked: Lock) -> str:
    """Return the bill of an environment as JSON, the same for the same receipt."""
    from cyclonedx.output.json import JsonV1Dot6

    return str(JsonV1Dot6(bill(receipt, locked)).output_as_string(indent=2)) + "\n"


def bill(receipt: Receipt, locked: Lock) -> Bom:
    """Return the bill of an environment."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType

    root = Component(
        name=receipt.name,
        bom_ref=receipt.name,
        type=ComponentType.CONTAINER if receipt.is_image else ComponentType.PLATFORM,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=receipt.sha256)] if receipt.sha256 else [],
        properties=properties(locked),
    )
    tool = Component(name="envkit", version=receipt.envkit, type=ComponentType.APPLICATION)
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, lockfile.text(locked) + receipt.created))
    bom.metadata.timestamp = datetime.fromisoformat(receipt.created)
    bom.metadata.tools.components.add(tool)
    bom.metadata.component = root
    for part in locked.parts:
        own = component(part, locked, receipt.origins.get(part.name, ""))
        files = [source(file, part) for file in part.sources]
        bom.components.update([own, *files])
        bom.register_dependency(root, [own])
        bom.register_dependency(own, files)
    within = [package(name, version, locked.system) for name, version in locked.packages.items()]
    bom.components.update(within)
    bom.register_dependency(root, within)
    if receipt.is_image and not any(item.name == HOROVOD for item in bom.components):
        inside = [Component(name=HOROVOD, version=version, bom_ref=HOROVOD) for version in version_inside(receipt)]
        bom.components.update(inside)
        bom.register_dependency(root, inside)
    bom.vulnerabilities.update(weakness for item in bom.components for weakness in vulnerabilities(item))
    return bom


def version_inside(receipt: Receipt) -> list[str]:
    """Return the version of the Horovod in an image that was taken over, if one was read."""
    built = read_built(receipt.flags or b"null")
    return [built.horovod] if built else []


def properties(locked: Lock) -> list[Property]:
    """Return what a lock holds besides parts, as properties."""
    from cyclonedx.model import Property

    machine = {
        title: str(getattr(locked.machine, field) or "") for title, field in lockfile.TITLES.items() if field != "load"
    }
    flags = {f"flag {name}": str(value) for name, value in locked.flags.items()}
    facts = {"method": locked.method, "framework": locked.framework, **machine, **locked.tools, **flags}
    return [Property(name=f"envkit:{name}", value=value) for name, value in facts.items() if value]


def component(part: LockedPart, locked: Lock, origin: str) -> Component:
    """Return a module, or a layer of an image; ``origin`` is the cache that it was taken from."""
    from cyclonedx.model import Property, XsUri
    from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree

    name, _, version = part.name.partition("/")
    kind = PatchClassification.UNOFFICIAL
    patches = [Patch(type=kind, diff=Diff(url=XsUri(patch.filename))) for patch in part.patches]
    facts = {"recipe": part.recipe, "recipe SHA-256": part.sha256, "taken": origin}
    facts |= {f"patch {patch.filename} SHA-256": patch.sha256 or "" for patch in part.patches}
    return Component(
        name=name,
        version=version or None,
        bom_ref=f"{locked.name}: {part.name}",
        type=ComponentType.APPLICATION,
        pedigree=Pedigree(patches=patches) if patches else None,
        properties=[Property(name=f"envkit:{name}", value=value) for name, value in facts.items() if value],
    )


def source(file: LockedFile, part: LockedPart) -> Component:
    """Return a source: a package of the Python package index, or a file."""
    from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name, version = release(file)
    kind = ExternalReferenceType.DISTRIBUTION
    return Component(
        name=name,
        version=version,
        bom_ref=f"{part.name}: {file.filename}",
        type=ComponentType.LIBRARY if version else ComponentType.FILE,
        purl=PackageURL("pypi", None, name, version, {"file_name": file.filename}) if version else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)] if file.sha256 else [],
        external_references=[ExternalReference(type=kind, url=XsUri(url)) for url in file.urls],
    )


def package(name: str, version: str, system: str) -> Component:
    """Return a package of Debian, or of a system that is made from it, in an image."""
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    short, _, architecture = name.partition(":")
    vendor, _, number = system.partition(" ")
    qualifiers = {"arch": architecture, "distro": f"{vendor}-{number}" if number else ""}
    return Component(
        name=short,
        version=version,
        bom_ref=f"deb: {name}",
        type=ComponentType.LIBRARY,
        purl=PackageURL(
            "deb", vendor or "debian", short, version, {key: value for key, value in qualifiers.items() if value}
        ),
    )


def release(file: LockedFile) -> tuple[str, str | None]:
    """Return the name and version that the file of a Python package has in its name; else the file, and no version."""
    from packaging.utils import parse_sdist_filename, parse_wheel_filename

    try:
        name, version, *_ = (
            parse_wheel_filename(file.filename)
            if file.filename.endswith(".whl")
            else parse_sdist_filename(file.filename)
        )
    except ValueError:
        return file.filename, None
    return (name, str(version)) if file.project else (file.filename, None)


def vulnerabilities(parts: Component) -> Iterator[Vulnerability]:
    """Yield what is known of Horovod, with whether it concerns this version and which launches; nothing of others."""
    from cyclonedx.model import XsUri
    from cyclonedx.model.impact_analysis import ImpactAnalysisResponse, ImpactAnalysisState
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis, VulnerabilitySource

    titles = {mode["mode"]: mode["title"] for mode in known("security")["modes"]}
    for cve in known("security")["cves"] if parts.name == HOROVOD and parts.version else ():
        launches = "; ".join(titles[mode] for mode in cve["modes"])
        concerned = is_affected(parts.version or "", cve["affected"])
        open_to = f"Where the ranks are started by: {launches}. mpirun and srun do not start that part."
        yield Vulnerability(
            bom_ref=f"{parts.bom_ref.value}: {cve['id']}",
            id=cve["id"],
            source=VulnerabilitySource(url=XsUri(cve["source"])),
            description=cve["what"],
            affects=[BomTarget(ref=parts.bom_ref.value or "")],
            analysis=VulnerabilityAnalysis(
                state=ImpactAnalysisState.EXPLOITABLE if concerned else ImpactAnalysisState.NOT_AFFECTED,
                responses=[ImpactAnalysisResponse.WORKAROUND_AVAILABLE] if concerned else [],
                detail=open_to if concerned else f"Concerns versions {cve['affected']}.",
            ),
        )
