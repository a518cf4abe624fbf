"""The commands of the documentation, copied from its pages and pasted into a shell, one page after the other.

As a user does that has one environment, a home of their own and a script to train. Each command has to end with 0, or
with the status that the page shows below it; of several in one line, that of the last counts. What cannot run on one
machine without GPUs is named in ELSEWHERE, with the test that does run it or why none does, so a page cannot gain a
command that nobody runs. Of the pages in WHOLE nothing runs here.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from envkit.machine.host import Platform
from envkit.system.files import discard
from envkit.system.resources import data

from .. import eessi_tree
from ..pages import COMMENT, DOCS, ROOT, Command, commands, pasted, require_all
from ..stacks import ENVKIT, Site
from .site import needs

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("pages")]

STACK = "pytorch-2.13-cpu"
PAGE_S = 1500
LMOD = "/usr/share/lmod/lmod/init/bash"
TRAIN = (DOCS / "tutorial.md").read_text().partition("$ cat train.py\n")[2].partition("$ ")[0]

WHOLE: Mapping[str, str] = {
    "diagnose.md": "tests/integration/test_diagnose.py builds the published Horovod",
    "horovod-tests.md": "tests/integration/test_upstream.py takes a clone that it is given",
    "jobs.md": "tests/lab/test_pages_in_jobs.py pastes them on a cluster",
    "reference.md": "tests/test_docs.py builds the pages",
    "stacks.md": "a Cray; tests/integration/test_mpi_families.py has a stand-in",
}
ELASTIC = (
    "envkit run pytorch-2.13-cpu -- horovodrun -np 2 --min-np 1 --max-np 2 \\\n"
    "      --host-discovery-script ./discover --network-interfaces eth0 "
)
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "cache.md": {
        "envkit cache pull --from https://hpc.example.org/envkit-cache --to /project/envkit-cache":
            "tests/test_cache_pull.py has servers",
        "envkit cache pull pytorch --from oci://registry.example.org/site/envkit --to /project/envkit-cache":
            "tests/integration/test_cache_registry.py has a registry",
        "envkit cache pull 01265a5f --to /project/envkit-cache": "tests/test_cache_pull.py has servers",
        "mkdir ~/mirror; envkit cache pull --all --from s3://builds/envkit --to ~/mirror":
            "tests/test_cache_bucket.py has a server of buckets",
        "mkdir -m 2775 /project/envkit-cache": "it is there, from the page's beginning",
        "envkit install pytorch-2.13-cpu-image --base mirror": "tests/integration/test_images.py builds it",
        "envkit install pytorch-2.13-cpu-image --base mirror --dry-run": "tests/integration/test_images.py plans it",
        "envkit cache push pytorch-2.13-cpu-image --to /project/envkit-cache --sign ~/cache.pem":
            "tests/integration/test_images.py pushes it",
        "envkit install pytorch-2.13-cpu-image --base mirror --sandbox --dry-run":
            "tests/integration/test_images.py takes layers",
        "apptainer registry login --username me oras://registry.hpc.example.org":
            "tests/integration/test_cache_registry.py has a registry",
        "envkit cache push pytorch-2.13-cpu --to oci://registry.hpc.example.org/site/envkit-cache --sign ~/cache.pem":
            "tests/integration/test_cache_registry.py has a registry",
    },
    "configuration.md": {
        "envkit list": "tests/test_docs.py has the mistake that it is shown with",
        **dict.fromkeys(
            (
                "sudo sh -c '/opt/envkit/bin/envkit completion bash > /usr/share/bash-completion/completions/envkit'",
                "sudo sh -c '/opt/envkit/bin/envkit completion zsh > /usr/share/zsh/site-functions/_envkit'",
                (
                    "sudo sh -c '/opt/envkit/bin/envkit completion fish > "
                    "/usr/share/fish/vendor_completions.d/envkit.fish'"
                ),
                "sudo /opt/envkit/bin/envkit help --man /usr/local/share/man/man1",
            ),
            "for all users; tests/test_completion.py and tests/test_manual.py print them",
        ),
    },
    "doctor.md": {"envkit doctor --submit": "tests/lab/test_pages_in_jobs.py has a cluster"},
    "elastic.md": {
        "echo ray==2.52.0 > requirements.txt": "Ray is not reliable here, as the page says",
        "envkit venv pytorch ~/mine --requirement requirements.txt": "Ray is not reliable here, as the page says",
        "envkit run ~/mine -- python train.py": "Ray is not reliable here, as the page says",
        ELASTIC + "envkit verify pytorch-2.13-cpu":
            "tests/integration/test_elastic.py; two names of one machine are no two hosts to verify",
    },
    "eessi.md": {
        "export ENVKIT_EESSI_CACHE=/shared/eessi-cache": "tests/integration/test_eessi.py has servers",
        "envkit eessi prefetch --access userns PyTorch/2.1.2-foss-2023a": "tests/integration/test_eessi.py has servers",
        "envkit run eessi --access userns --load PyTorch/2.1.2-foss-2023a -- CMD":
            "tests/integration/test_eessi.py has servers",
        "envkit install --method eessi": "tests/integration/test_eessi_install.py has a tree with the real PyTorch",
        "envkit run pytorch-2.1-eessi -n 4 -- python train.py": "tests/integration/test_eessi_install.py",
        "envkit run eessi --repository software.example.org --load Tool -- tool":
            "tests/integration/test_eessi_repositories.py has others",
        "envkit run eessi --nvidia --host-injections ~/injected -- \\\n"
        "      /cvmfs/software.eessi.io/versions/2023.06/scripts/gpu_support/nvidia/link_nvidia_host_libraries.sh":
            "GPUs; tests/integration/test_eessi.py has a script of that kind",
        "envkit run eessi --nvidia --host-injections ~/injected -- ls /cvmfs/software.eessi.io/host_injections":
            "GPUs; tests/integration/test_eessi.py",
        "cd easyconfigs": "tests/integration/test_eessi_contribution.py has the real eb",
        "eb --check-contrib Horovod-0.28.1-foss-2023a-PyTorch-2.1.2.eb Horovod-0.28.1-foss-2023a-TensorFlow-2.13.0.eb":
            "tests/integration/test_eessi_contribution.py",
        "eb --new-pr Horovod-0.28.1-foss-2023a-{PyTorch-2.1.2,TensorFlow-2.13.0}.eb \\\n"
        "      $(grep -oh 'Horovod-0.28.1_[a-z0-9-]*.patch' "
        "Horovod-0.28.1-foss-2023a-{PyTorch-2.1.2,TensorFlow-2.13.0}.eb | sort -u)":
            "nobody opens a contribution in a test",
    },
    "examples.md": {
        "envkit job slurm pytorch-2.13-cuda --nodes 2 --gpus-per-node 4 --example pytorch-mnist --submit --follow "
        "-- --epochs 5": "tests/lab/test_pages_in_jobs.py has a cluster",
    },
    "images.md": {
        "envkit install --method apptainer": "tests/integration/test_images.py builds it",
        "envkit install lumi-torch --method apptainer --accelerator rocm --from docker://IMAGE@sha256:DIGEST":
            "tests/integration/test_image_options.py takes images over",
    },
    "modules.md": {
        "envkit doctor --load gcc/13.2 --load openmpi/5.0.3": "tests/integration/test_install_settings.py has modules",
        "envkit install pytorch --load gcc/13.2 --load openmpi/5.0.3":
            "tests/integration/test_install_settings.py has modules",
    },
    "offline.md": {
        "envkit install pytorch --bundle pytorch.tar": "tests/integration/test_stacks.py, where there is no MPI",
    },
    "packages.md": {
        "~/vision/bin/python -m pip install torchvision==0.28.0+cpu --extra-index-url "
        "https://download.pytorch.org/whl/cpu": "its index is not reached here, as the page says",
    },
    "verify.md": {
        "srun --mpi=pmix -N 2 --ntasks-per-node=4 envkit verify": "tests/lab/test_pages_in_jobs.py has a cluster",
        "horovodrun -np 4 envkit verify": "tests/lab/test_inside_jobs.py",
        "mpiexec -n 8 envkit verify": "MPICH's; tests/lab/test_mpi_families.py has it",
        "mpiexec -n 2 envkit verify pytorch-2.13-cpu; echo $?": "MPICH's; tests/zoo/kinds_worlds.py has it",
        "envkit verify pytorch-2.13-cpu": "fails where the page's file is; tests/integration/test_root_cause.py has it",
    },
}  # fmt: skip

CACHE = '[cache]\nfrom = ["HOME/project/envkit-cache"]\nkeys = ["HOME/cache.pub"]\n'
STEPS = """\
import torch, horovod.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    hvd.allreduce(torch.ones(1))
    state.commit()
train(hvd.elastic.TorchState(done=0))
"""
AS_ROOT = [["OMPI_ALLOW_RUN_AS_ROOT", "1"], ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"]]
PARTITION = {"name": "here", "scheduler": "local", "launcher": "local", "environs": ["plain"], "env_vars": AS_ROOT}
REFRAME = {
    "systems": [{"name": "cluster", "hostnames": [".*"], "partitions": [PARTITION]}],
    "environments": [{"name": "plain"}],
}


def toml_of(page: str) -> str:
    """Return the file in TOML that a page shows."""
    return (DOCS / page).read_text().partition("```toml\n")[2].partition("```")[0]


FILES: Mapping[str, Mapping[str, str]] = {  # what the user of a page has in the home, and the page does not show
    "cache.md": {".config/envkit/config.toml": CACHE},
    "packages.md": {"requirements.txt": "ipykernel\n", "old.txt": "numpy==1.26.4\n"},
    "report.md": {"slurm-4711.out": "srun: error: node1: task 1: Out Of Memory\n"},
    "pytest.md": {"test_sum.py": (DOCS / "pytest.md").read_text().partition("```python\n")[2].partition("```")[0]},
    "eessi.md": {"train.py": "print('trained')\n", "solver": "#!/bin/sh\necho solved\n"},
    "elastic.md": {"train.py": STEPS},
    "reframe.md": {"settings.py": f"site_configuration = {REFRAME}\n"},
    "sites.md": {"ours.toml": toml_of("sites.md").replace("binds =", "bind =")},
}
BEFORE: Mapping[str, str] = {"cache.md": "envkit verify pytorch-2.13-cpu"}  # what the user of a page has done

INSTEAD: Mapping[str, str] = {  # what stands for something of the page's own machine
    "/project/": "~/project/",
    "/sw/envkit/cache.pub": "~/cache.pub",
    "envkit clean all": "envkit clean all --yes",  # a terminal would ask
    "~/.local/share/envkit/x86_64-py3.11": f"$ENVKIT_PREFIX/{Platform.own()}",
    "--network-interfaces eth0": "--network-interfaces lo",
    "/tmp/ada-build": "~/build",
    "node1:1": "localhost:1",
    "node2:1": "127.0.0.1:1",
    "-np 8": "-np 2",
    "num_tasks=8": "num_tasks=2",
    "-n 4 --load": "-n 2 --load",
    "pip freeze": "envkit run pytorch-2.13-cpu -- pip freeze",
    "01265a5f": "$(envkit cache list ~/project/envkit-cache | grep -oEm1 '\\b[0-9a-f]{12}\\b')",
}


def is_elsewhere(page: str, command: Command) -> bool:
    """Say whether a command is one of those that do not run here."""
    return COMMENT.sub("", command.line) in ELSEWHERE.get(page, {})


PAGES = [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in WHOLE]
RUN = [page for page in PAGES if not all(is_elsewhere(page, command) for command in commands(page))]
LAST = ["upgrade.md", "uninstall.md"]  # they change the environment


def test_exceptions_are_of_commands_and_name_tests_that_there_are() -> None:
    for page, named in ELSEWHERE.items():
        assert set(named) <= {COMMENT.sub("", command.line) for command in commands(page)}
    reasons = [*WHOLE.values(), *(reason for named in ELSEWHERE.values() for reason in named.values())]
    tests = [test for reason in reasons for test in re.findall(r"tests/[\w/]+\.py", reason)]
    assert tests
    assert [test for test in tests if not (ROOT / test).exists()] == []
    assert all(list(commands(page)) for page in WHOLE)
    assert "hvd.init()" in TRAIN


@pytest.fixture(scope="module")
def copy(stacks: Site, installed: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the prefix that has the environment and nothing else, shown in the place of the real one."""
    installed(STACK)
    made = tmp_path_factory.mktemp("pages") / "prefix"
    shutil.copytree(stacks.prefix / "sources", made / "sources")
    tree = stacks.prefix / str(Platform.own())
    for name in ("software", "modules", "built"):
        shutil.copytree(tree / name, made / tree.name / name, symlinks=True, ignore=others)
    (made / tree.name / "environments").mkdir()
    shutil.copy(tree / "environments" / f"{STACK}.json", made / tree.name / "environments")
    yield made
    discard(made)


def others(folder: str, names: list[str]) -> list[str]:
    """Return what of a tree belongs to TensorFlow's environments, which other tests may be building."""
    return [name for name in names if "TensorFlow" in name]


@pytest.mark.parametrize("page", [*[page for page in RUN if page not in LAST], *LAST])
def test_page(page: str, stacks: Site, copy: Path, tmp_path: Path) -> None:
    needs("lmod", "openssl")
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True, mode=0o700)
    for name, text in {"train.py": TRAIN, **FILES.get(page, {})}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("HOME", str(home)))
        (home / name).chmod(0o700)
    todo = [Command(BEFORE[page])] if page in BEFORE else []
    todo += [command for command in commands(page) if not is_elsewhere(page, command)]
    script = "".join(pasted(number, command, home, INSTEAD) for number, command in enumerate(todo))
    settings = {"ENVKIT_EESSI_DIR": str(eessi_tree.make(tmp_path / "repository"))} if page == "eessi.md" else {}
    printed, complaints = in_shell(script, home, stacks.prefix, copy, settings)
    require_all(todo, printed, complaints)


def in_shell(script: str, home: Path, prefix: Path, copy: Path, settings: Mapping[str, str]) -> tuple[str, str]:
    """Run lines in a bash of a user who has this home, where the prefix is the copy; what they print, and complain."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "PYTEST_", "XDG_"))}
    own = {
        "HOME": str(home),
        "ENVKIT_PREFIX": str(prefix),
        "PATH": f"{ENVKIT.parent}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    bound = [sys.executable, "-I", "-S", str(data("system/mount_namespace.py")), "bind", str(copy), str(prefix), "--"]
    running = subprocess.Popen(
        [*bound, "bash", "-c", f". {LMOD}\n{script}"],
        env={**kept, **own, **settings},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return running.communicate(timeout=PAGE_S)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
