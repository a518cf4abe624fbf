"""The commands of the documentation, copied from its pages and pasted into a shell, one page after the other.

As a user does that has one environment, a home of their own and a script to train. Each command has to end with 0, or
with the status that the page shows below it. What cannot run on one machine without GPUs is named in ELSEWHERE, with
the test that does run it, or why none does: a page cannot gain a command that is in neither.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envkit.system.resources import data

from ..stacks import ENVKIT, Site

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("pages")]

ROOT = Path(__file__).parents[2]
STACK = "pytorch-2.13-cpu"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE_S = 1500
LMOD = "/usr/share/lmod/lmod/init/bash"
TRAIN = (ROOT / "docs" / "tutorial.md").read_text().partition("$ cat train.py\n")[2].partition("$ ")[0]

GPUS = "no GPU is here"
ELASTIC = (
    "envkit run pytorch-2.13-cpu -- horovodrun -np 2 --min-np 1 --max-np 2 \\\n"
    "      --host-discovery-script ./discover --network-interfaces eth0 "
)
LAB = "tests/lab runs jobs on a cluster"
EESSI = "tests/integration/test_eessi.py and tests/lab/test_eessi_in_jobs.py run it on a tree of the shape of EESSI's"
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "cache.md": {
        "envkit cache pull --from https": "tests/test_cache_pull.py has servers",
        "envkit cache pull 01265a5f": "tests/test_cache_pull.py has servers",
        "envkit cache pull pytorch --from oci": "tests/integration/test_cache_registry.py has a registry",
        "mkdir ~/mirror; envkit cache pull --all --from s3": "tests/test_cache_bucket.py has a server of buckets",
        "mkdir -m 2775": "it is there, from the page's beginning",
        "apptainer registry login": "tests/integration/test_cache_registry.py has a registry",
        "envkit cache push pytorch-2.13-cpu --to oci": "tests/integration/test_cache_registry.py has a registry",
    },
    "configuration.md": {"envkit list": "tests/test_docs.py has the mistake that it is shown with"},
    "diagnose.md": {"": "tests/integration/test_diagnose.py builds the published Horovod"},
    "doctor.md": {"envkit doctor --submit": LAB},
    "eessi.md": {"": EESSI},
    "elastic.md": {
        "echo ray": "not reliable, as the page says",
        "envkit venv": "not reliable, as the page says",
        "envkit run ~/mine": "not reliable, as the page says",
        ELASTIC + "envkit verify": "tests/integration/test_elastic.py: names of one machine are no hosts to it",
    },
    "examples.md": {"envkit job slurm": GPUS},
    "horovod-tests.md": {"": "tests/integration/test_upstream.py, which takes a clone that it is given"},
    "images.md": {
        "envkit install --method apptainer": "tests/integration/test_images.py builds it",
        "envkit install lumi-torch": GPUS,
    },
    "jobs.md": {"": LAB},
    "modules.md": {
        "envkit doctor --load": "tests/integration/test_doctor.py has modules of a site",
        "envkit install pytorch --load": "tests/lab has modules of a site",
    },
    "offline.md": {"envkit install pytorch --bundle": "tests/integration/test_install_settings.py, with toys"},
    "packages.md": {"~/vision/bin/python -m pip install torchvision": "its index is not reached here"},
    "reframe.md": {"": "tests/integration/test_reframe.py"},
    "reference.md": {"": "tests/test_docs.py builds the pages"},
    "sites.md": {"": "tests/test_docs.py has the mistake that it is shown with; tests/lab runs jobs"},
    "stacks.md": {"": "a Cray; tests/integration/test_mpi_families.py has a stand-in"},
    "verify.md": {
        "srun --mpi=pmix": LAB,
        "horovodrun -np 4 envkit verify": "tests/integration/test_elastic.py",
        "mpiexec -n 8": "MPICH's; tests/integration/test_mpi_families.py has it",
        "mpiexec -n 2": "MPICH's; tests/zoo has it",
        "envkit verify pytorch-2.13-cpu": "fails where the page's file is; tests/integration/test_root_cause.py has it",
    },
}  # fmt: skip

CACHE = '[cache]\nfrom = ["HOME/project/envkit-cache"]\nkeys = ["HOME/cache.pub"]\n'
RANKS = (ROOT / "docs" / "pytest.md").read_text().partition("```python\n")[2].partition("```")[0]
FILES: Mapping[str, Mapping[str, str]] = {  # what the user of a page has, and the page does not show
    "cache.md": {"~/.config/envkit/config.toml": CACHE},
    "packages.md": {
        "~/requirements.txt": "ipykernel\n",
        "~/old.txt": "numpy==1.26.4\n",
    },
    "report.md": {"~/slurm-4711.out": "srun: error: node1: task 1: Out Of Memory\n"},
    "pytest.md": {"~/test_sum.py": RANKS},
    "elastic.md": {
        "~/train.py": (
            "import torch, horovod.torch as hvd\nhvd.init()\n"
            "@hvd.elastic.run\ndef train(state):\n    hvd.allreduce(torch.ones(1))\n    state.commit()\n"
            "train(hvd.elastic.TorchState(done=0))\n"
        )
    },
}  # fmt: skip

BEFORE: Mapping[str, tuple[str, ...]] = {  # what the user of a page has done
    "cache.md": ("envkit verify pytorch-2.13-cpu",),
}

INSTEAD: Mapping[str, str] = {  # what stands for something of the page's own machine
    "/project/": "~/project/",
    "/root/cache.pem": "~/cache.pem",
    "envkit clean all": "envkit clean all --yes",  # a terminal would ask
    "~/.local/share/envkit": "$ENVKIT_PREFIX",
    "--network-interfaces eth0": "--network-interfaces lo",
    "node1:1": "localhost:1",
    "node2:1": "127.0.0.1:1",
    "-np 8": "-np 2",
    "pip freeze": "envkit run pytorch-2.13-cpu -- pip freeze",
    "01265a5f": "$(envkit cache list ~/project/envkit-cache | grep -oEm1 '\\b[0-9a-f]{12}\\b')",
}


@dataclass
class Command:
    """What stands behind one prompt, and what the page shows below it."""

    line: str
    shown: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The status that the page states: 0 unless the command prints another one."""
        return int(self.shown[-1]) if "echo $?" in self.line else 0


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page in their order, those of several lines as one."""
    for block in BLOCK.findall((ROOT / page).read_text()):
        found: list[Command] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found and found[-1].line.endswith("\\"):
                found[-1].line += f"\n{line}"
            elif found:
                found[-1].shown.append(line)
        yield from found


def is_elsewhere(page: str, command: Command) -> bool:
    """Say whether a command is one of those that other tests run, or none can."""
    return any(command.line.startswith(begins) for begins in ELSEWHERE.get(Path(page).name, {}))


PAGES = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))]
RUN = [page for page in PAGES if not all(is_elsewhere(page, command) for command in commands(page))]
LAST = ["docs/upgrade.md", "docs/uninstall.md"]  # they change the environment


def test_exceptions_are_of_commands_that_there_are() -> None:
    for page, begins in ELSEWHERE.items():
        lines = [command.line for command in commands(f"docs/{page}")]
        assert lines
        assert [begin for begin in begins if not any(line.startswith(begin) for line in lines)] == []


@pytest.fixture(scope="module")
def copy(stacks: Site, installed: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the prefix that has the environment and nothing else, shown in the place of the real one."""
    installed(STACK)
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(stacks.prefix, folder / "prefix", symlinks=True, ignore=others)
    yield folder / "prefix"
    shutil.rmtree(folder)


def others(folder: str, names: list[str]) -> list[str]:
    """Return what of a folder of the prefix belongs to other environments."""
    if Path(folder).name == "environments":
        return [name for name in names if name != f"{STACK}.json"]
    return [name for name in names if "TensorFlow" in name or name in ("images", "layers", "logs")]


@pytest.mark.parametrize("page", [*[page for page in RUN if page not in LAST], *LAST])
def test_page(page: str, stacks: Site, copy: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True, mode=0o700)
    files = {"~/train.py": TRAIN, **FILES.get(Path(page).name, {})}
    for name, text in files.items():
        path = home / name.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("HOME", str(home)))
    todo = [Command(line) for line in BEFORE.get(Path(page).name, ())]
    todo += [command for command in commands(page) if not is_elsewhere(page, command)]
    script = "".join(pasted(number, command, home) for number, command in enumerate(todo))
    done = in_shell(script, home, stacks.prefix, copy)
    for number, command in enumerate(todo):
        said = done.stdout.partition(f"@@ begin {number}\n")[2].partition(f"@@ end {number} ")
        status = said[2].partition("\n")[0]
        printed = said[0].split("\n")[-2] if "echo $?" in command.line else status
        assert (printed, status) == (str(command.status), "0"), f"$ {command.line}\n{said[0]}\n{done.stderr[-3000:]}"


def pasted(number: int, command: Command, home: Path) -> str:
    """Return what a shell is given for a command; a file that it shows is made."""
    line, shown = command.line, "\n".join(command.shown)
    for there, here in INSTEAD.items():
        line, shown = line.replace(there, here), shown.replace(there, here)
    words = shlex.split(line, comments=True)
    if words[:1] == ["cat"] and len(words) == 2 and not (home / words[1]).exists():
        (home / words[1]).write_text(shown + "\n")
        (home / words[1]).chmod(0o700)
    return f"echo '@@ begin {number}'\n{line}\necho \"@@ end {number} $?\"\n"


def in_shell(script: str, home: Path, prefix: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    """Run lines in a bash of a user who has this home, where the prefix is the copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "PYTEST_", "XDG_"))}
    own = {
        "HOME": str(home),
        "ENVKIT_PREFIX": str(prefix),
        "PATH": f"{ENVKIT.parent}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    bound = [sys.executable, "-I", "-S", str(data("system/namespace.py")), "bind", str(copy), str(prefix), "--"]
    return subprocess.run(
        [*bound, "bash", "-c", f". {LMOD}\n{script}"],
        env={**kept, **own},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
