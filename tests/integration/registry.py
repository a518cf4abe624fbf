"""A registry of images on loopback (Debian's docker-registry), and a Debian put into it."""

import gzip
import hashlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
YAML = """\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {auth}
"""


@contextmanager
def serving(folder: Path, auth: str = "{}", port: int = 0) -> Iterator[int]:
    """Run a registry whose content is in a folder, with the section ``auth`` of its settings; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        port = int(probe.getsockname()[1])
    settings = folder / "registry.yml"
    settings.write_text(YAML.format(folder=folder / "content", port=port, auth=auth))
    log = (folder / "registry.log").open("wb")
    running = subprocess.Popen(["docker-registry", "serve", settings], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while not answers(port):
            assert running.poll() is None and time.monotonic() < deadline, (folder / "registry.log").read_text()
            time.sleep(0.1)
        yield port
    finally:
        running.terminate()
        running.wait(10)
        log.close()


def answers(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def put(port: int, name: str, tar: Path) -> str:
    """Put an image of one layer, a tar file, into the registry; return its digest."""
    content = tar.read_bytes()
    packed = gzip.compress(content, 1)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(content)]},
        }
    ).encode()
    for blob in (packed, config):
        place = request(port, "POST", f"/v2/{name}/blobs/uploads/", b"", "")
        joint = "&" if "?" in place else "?"
        request(port, "PUT", f"{place}{joint}digest={digest(blob)}", blob, "application/octet-stream")
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(config), "digest": digest(config)},
            "layers": [{"mediaType": LAYER, "size": len(packed), "digest": digest(packed)}],
        }
    ).encode()
    request(port, "PUT", f"/v2/{name}/manifests/{digest(manifest)}", manifest, MANIFEST)
    return digest(manifest)


def digest(content: bytes) -> str:
    """The digest by which a registry knows some content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def request(port: int, method: str, path: str, body: bytes, kind: str) -> str:
    """Make a request that must succeed; return where it says that the rest of an upload goes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Content-Type": kind} if kind else {})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status in (201, 202), (answer.status, said)
    location = answer.getheader("Location") or ""
    connection.close()
    return location.partition(str(port))[2] or location
