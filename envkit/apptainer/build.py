"""Building the layers of an image, one at a time."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envkit import diagnose
from envkit.apptainer import image_plan
from envkit.apptainer.dockerfile import AGAIN, Converted, stage
from envkit.apptainer.image_plan import Layer, note_of
from envkit.environments import trust
from envkit.environments.prefix import ALMOST_NOTHING, compiler_cache
from envkit.errors import BuildFailed, DiskFull, HostProblem, Interrupted, RecipeInvalid, SignatureInvalid
from envkit.machine import host, runtime
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report.progress import BuildProgress, LogTail
from envkit.sources import signature
from envkit.system import process, temporary, umask
from envkit.system.files import discard, replace

SQUASHFS = "-comp zstd -Xcompression-level {}"
FINAL_LEVEL, LAYER_LEVEL = 9, 1
WHEELS, CCACHE = "/mnt", "/srv"  # folders that a Debian has, for what is bound while building
TEMPORARY = "/var/tmp"  # TMPDIR of the recipes  # noqa: S108
STEP = re.compile(r"^INFO: +(?! |To see|Non-gzip|Build complete)(.+?)\.*$")
NAMED_PLACES = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")
FATAL = re.compile(r"^(?:FATAL|ERROR):\s+(.+)$")
KEPT = re.compile(
    r"(APPTAINER|SINGULARITY)_(CACHEDIR|NOHTTPS|DOCKER_USERNAME|DOCKER_PASSWORD|CONFIGDIR)|XDG_RUNTIME_DIR"
)


@dataclass(frozen=True, kw_only=True)
class LayerBuild:
    """How the layers of one image are built; ``folder`` is where its recipe's own files lie."""

    request: Request
    stack: Stack
    host: host.Host
    runtime: runtime.Runtime
    folder: Path
    dockerfile: Converted | None = None

    def make(self, layer: Layer, logs: Path, shown: BuildProgress, *, is_image: bool) -> None:
        """Build one layer, which appears complete or not at all.

        Raises BuildFailed, DiskFull, Interrupted, and RecipeInvalid for what is no longer what was planned.
        """
        layer.image.parent.mkdir(parents=True, exist_ok=True)
        log = logs / f"{layer.name}.log"
        partial = layer.image.with_name(f".{layer.image.name}.{os.getpid()}")
        tail = LogTail(log)
        shown.on({"event": "begin", "module": layer.name})
        discard(partial)  # of a process that had this number, and was killed

        def watch() -> None:
            for line in tail.new():
                if match := STEP.match(line):
                    shown.on({"event": "step", "step": match[1]})
            shown.tick()

        place = temporary_folder()
        temporary.sweep([place])
        scratch = place / f"envkit-build-{temporary.own_name()}"
        scratch.mkdir(mode=0o700)
        try:
            folder = self.folder
            if is_file(self.request.source):
                taken = partial if not self.request.sandbox else scratch / "image.sif"
                self.copy(layer, taken)
                layer = msgspec.structs.replace(layer, recipe=f"Bootstrap: localimage\nFrom: {taken}\n")
            if self.dockerfile is not None:
                folder = scratch / "context"
                folder.mkdir()
                stage(self.dockerfile, folder)
            if partial.exists():
                status = self.inspect(partial, log)
            else:
                status = image_plan.build(
                    self.runtime.path,
                    self.words(is_image),
                    layer,
                    folder=folder,
                    target=partial,
                    log=log,
                    env=self.settings(scratch),
                    binds=self.binds(scratch),
                    watch=watch,
                )
                if partial.is_file():  # Apptainer makes it, and what is inside, under a umask of its own
                    make_own(partial)
                if self.request.source and Path(self.request.source).is_dir():
                    self.require_same(layer, Path(self.request.source))
            if status:
                raise self.failed(layer, log, status)
            if is_image:
                self.seal(partial)
            replace(partial, layer.image)
            discard(note_of(layer.image))  # of what it takes the place of
        except Interrupted as stopped:
            stopped.why = f"The layer {layer.name} was being built; nothing of the build goes on."
            stopped.fix = f"Run the same command again: it resumes. Log: {log}"
            raise
        finally:
            discard(partial)
            discard(scratch)
        shown.on({"event": "module", "module": layer.name})

    def copy(self, layer: Layer, target: Path) -> None:
        """Copy the file that is taken over, byte for byte. Raises RecipeInvalid if it is not what was planned."""
        assert self.request.source  # noqa: S101
        with process.interruptible():
            shutil.copyfile(self.request.source, target)
            self.require_same(layer, target)
        make_own(target)

    def require_same(self, layer: Layer, image: Path) -> None:
        """Raise RecipeInvalid for an image that is not the one that was planned."""
        if image_plan.content(image) != layer.key:
            what = f"{self.request.source} was changed while it was taken over."
            raise RecipeInvalid(what=what, fix=AGAIN)

    def inspect(self, image: Path, log: Path) -> int:
        """Return what Apptainer says of an image that was taken over: 0 if it is one."""
        answer = process.capture([str(self.runtime.path), "inspect", str(image)], timeout_s=300)
        log.write_text(answer.stdout + answer.stderr)
        return answer.status

    def seal(self, image: Path) -> None:
        """Check the signature of an image, and sign it, where that is asked for.

        Raises SignatureInvalid, HostProblem for a key that is none, or that somebody who is not trusted can change.
        """
        public = self.request.signed_by if self.request.source else None  # else it is of the bundle
        for verb, key in (("verify", public), ("sign", self.request.sign)):
            if key is None:
                continue
            with temporary.folder("key") as folder:  # what was looked at is what is used
                if verb == "verify":
                    (folder / "key").write_bytes(signature.trusted(key, trust.trusted()))
                words = [verb, "--key", str(folder / "key" if verb == "verify" else key), str(image)]
                answer = process.capture([str(self.runtime.path), *words], timeout_s=300)
            complaint = "\n".join(
                match[1] for line in answer.stderr.splitlines() if (match := FATAL.match(strip(line)))
            )
            if answer.status and verb == "verify":
                raise SignatureInvalid(
                    what=f"{self.request.source} is not signed with the private half of {key}.",
                    why=complaint,
                    fix="--signed-by takes a public key: ask who made the image for theirs, by a way that you trust.",
                )
            if answer.status:
                raise HostProblem(
                    what=f"The image could not be signed with {key}.",
                    why=complaint,
                    fix="Give a private key in PEM without a passphrase, such as 'openssl genpkey -algorithm ed25519' "
                    "makes.",
                )

    def words(self, is_image: bool) -> list[str]:
        """Return what the build is told besides recipe and target."""
        level = FINAL_LEVEL if is_image else LAYER_LEVEL
        kind = ["--sandbox"] if is_image and self.request.sandbox else ["--mksquashfs-args", SQUASHFS.format(level)]
        return [*runtime.build_words(), *kind]

    def binds(self, scratch: Path) -> list[tuple[Path, str]]:
        """Return what a build sees of the prefix, and a folder for temporary files, which goes with the build.

        Otherwise these would be in the machine's own, where a build that is killed leaves them.
        """
        if not self.stack.recipe:
            return []
        ccache, passing = compiler_cache(self.request.prefix), scratch / "tmp"
        ccache.mkdir(exist_ok=True)
        own = [(self.request.prefix.sources, WHEELS), (ccache, CCACHE)]
        if any(mark in str(passing) for mark in ":,"):  # of which --bind makes something else
            return own
        passing.mkdir()
        passing.chmod(0o1777)
        return [*own, (passing, TEMPORARY)]

    def settings(self, scratch: Path) -> dict[str, str]:
        """Return the settings of a build: room for what is unpacked, and nothing that changes what is built."""
        env = {key: value for key, value in self.host.env.items() if not key.startswith(("APPTAINER", "SINGULARITY"))}
        passed = {key: value for key, value in os.environ.items() if KEPT.fullmatch(key)}
        for family in ("APPTAINER", "SINGULARITY"):
            env[f"{family}_TMPDIR"] = str(scratch)
        return env | passed

    def failed(self, layer: Layer, log: Path, status: int) -> BuildFailed | DiskFull:
        """Say why a layer was not built, in a few lines."""
        lines = log.read_text(errors="replace").splitlines()
        complaints = [match[1] for line in lines if (match := FATAL.match(strip(line)))]
        finding = diagnose.first_cause(lines)
        why, fix = "\n".join(complaints[-2:]) or f"{self.runtime.family} ended with {status}.", ""
        if finding is not None:
            why = f"{finding.cause}\n{log}:{finding.number}: {finding.line}" + (
                f"\n{complaints[-1]}" if complaints else ""
            )
            fix = finding.fix
        full = (finding is not None and finding.rule.id == "disk-full") or shutil.disk_usage(
            self.request.prefix.root
        ).free < ALMOST_NOTHING
        kind = DiskFull if full else BuildFailed
        fix = fix or "Look into the log, mend the cause, and run the same command again: it resumes."
        return kind(what=f"Building {layer.name} of {self.stack.name} failed.", why=why, fix=f"{fix}\nLog: {log}")


def make_own(image: Path) -> None:
    """Give an image the mode that the umask says; it can be executed."""
    with umask.set_to(0o077) as own:
        image.chmod(0o777 & ~own)


def is_file(source: str | None) -> bool:
    """Say whether what is taken over is an image in a file, and not one of a registry, nor a folder."""
    return source is not None and "://" not in source and Path(source).is_file()


def temporary_folder() -> Path:
    """Return where images are unpacked while they are built: where nobody else can rename it. Raises HostProblem."""
    named = next((os.environ[name] for name in NAMED_PLACES if os.environ.get(name)), "")
    trusted = trust.trusted()
    return (temporary.kept_apart(Path(named), trusted) if named else None) or temporary.usual_place(trusted)


def strip(line: str) -> str:
    """Return a line without the colours of a terminal."""
    return re.sub(r"\x1b\[\d*m", "", line)
