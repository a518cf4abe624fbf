"""What users of conda, pip, environment modules, Spack and Horovod type: each line ends in a code and a hint in words.

Two environments are there: pytorch-2.13-cpu and tensorflow-2.21-cpu.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix
from envkit.system import process

LINES = """
# commands of conda, mamba and pixi
create -n mine                              | 2 | 'envkit install'
create --name mine pytorch                  | 2 | 'envkit install'
create                                      | 2 | 'envkit install'
env list                                    | 2 | 'envkit list'
env create -f environment.yml               | 2 | 'envkit list'
info                                        | 2 | 'envkit doctor'
search pytorch                              | 2 | 'envkit list'
update                                      | 2 | 'envkit upgrade
update --all                                | 2 | 'envkit upgrade
uninstall pytorch                           | 2 | 'envkit remove
deactivate                                  | 2 | envkit_deactivate
init                                        | 2 | 'envkit install'
new mine                                    | 2 | 'envkit install'
add numpy                                   | 2 | 'envkit venv
package                                     | 2 | 'envkit --help'
clean --all                                 | 2 | envkit clean all
install -c conda-forge pytorch              | 2 | 'envkit install --help'
install -n mine pytorch                     | 2 | -n
install pytorch -y                          | 2 | asks nothing
install --yes pytorch                       | 2 | asks nothing
install pytorch=2.13                        | 2 | pytorch-2.13-cpu
install pytorch==2.13                       | 2 | pytorch-2.13-cpu
install pytorch pytorch-cuda=12.1           | 2 | one
list -n mine                                | 2 | 'envkit show NAME'
list --export                               | 2 | 'envkit show NAME --lock'
remove                                      | 2 | NAME
remove --all                                | 2 | NAME
remove -n mine                              | 2 | NAME
remove mine                                 | 6 | 'envkit list'
remove -y pytorch-2.13                      | 2 | asks nothing
run -n mine python train.py                 | 2 | Put -- before the command
# commands of pip and uv
pip install numpy                           | 2 | 'envkit venv
freeze                                      | 2 | 'envkit show NAME --lock'
lock                                        | 2 | 'envkit show NAME --lock'
sync                                        | 2 | 'envkit install --locked FILE'
python train.py                             | 2 | 'envkit run NAME -- python
check                                       | 2 | 'envkit verify'
cache purge                                 | 2 | 'envkit clean'
download pytorch                            | 2 | 'envkit fetch'
wheel                                       | 2 | 'envkit fetch'
inspect                                     | 2 | 'envkit show
install -r requirements.txt                 | 2 | 'envkit venv NAME DIR --requirement FILE'
install --requirement requirements.txt      | 2 | 'envkit venv NAME DIR --requirement FILE'
install -U pytorch                          | 2 | 'envkit upgrade NAME'
install --upgrade pytorch                   | 2 | 'envkit upgrade NAME'
install -e .                                | 2 | 'envkit venv
install --user pytorch                      | 2 | --prefix
install --target dir pytorch                | 2 | --prefix
install --index-url http://x pytorch        | 2 | pip.conf
install --no-cache-dir pytorch              | 2 | 'envkit clean'
install --force-reinstall pytorch           | 2 | --rebuild
install pytorch>=2.0                        | 2 | pytorch-2.13-cpu
install numpy                               | 2 | 'envkit venv
install horovod                             | 2 | pytorch
install horovod[pytorch]                    | 2 | pytorch
show                                        | 6 | Name one of them
show torch                                  | 6 | pytorch
show numpy                                  | 6 | 'envkit list'
uninstall -y horovod                        | 2 | 'envkit remove
# commands of module (Lmod, Environment Modules)
load pytorch                                | 2 | envkit activate NAME
unload pytorch                              | 2 | envkit_deactivate
purge                                       | 2 | envkit_deactivate
swap pytorch tensorflow                     | 2 | envkit activate NAME
use /sw/modules                             | 2 | --prefix
avail                                       | 2 | 'envkit list'
av pytorch                                  | 2 | 'envkit list'
spider pytorch                              | 2 | 'envkit list'
whatis pytorch                              | 2 | 'envkit show
module load pytorch                         | 2 | envkit activate NAME
show PyTorch/2.13.0                         | 6 | 'envkit list'
shell PyTorch/2.13.0                        | 6 | 'envkit list'
# commands of Spack and EasyBuild
spec pytorch                                | 2 | 'envkit install --dry-run'
find                                        | 2 | 'envkit list'
concretize                                  | 2 | 'envkit install --dry-run'
compilers                                   | 2 | 'envkit doctor'
external find                               | 2 | 'envkit doctor'
gc                                          | 2 | 'envkit clean'
build pytorch                               | 2 | 'envkit install'
mirror create                               | 2 | 'envkit fetch --bundle FILE'
test run                                    | 2 | 'envkit verify'
install pytorch@2.13                        | 2 | pytorch-2.13-cpu
install pytorch+cuda                        | 2 | --accelerator cuda
install pytorch%gcc                         | 2 | pytorch-2.13-cpu
install --robot PyTorch.eb                  | 2 | 'envkit install --help'
install PyTorch-9.9.9.eb                    | 2 | Nearest
install --method eb pytorch                 | 2 | easybuild
install --method singularity pytorch        | 2 | apptainer
install --method conda pytorch              | 2 | easybuild
# what is installed: names
install tf                                  | 2 | tensorflow
install torch                               | 2 | pytorch
install Pytorch                             | 2 | pytorch
install TensorFlow                          | 2 | tensorflow
install keras                               | 2 | tensorflow
install jax                                 | 2 | Horovod has no JAX
install mxnet                               | 2 | no stack of MXNet
install pytorch-2.9                         | 2 | pytorch-2.9-foss-2024a-cuda
install pytorch-3                           | 2 | pytorch-2.13-cpu
install pytorch-gpu                         | 2 | --accelerator cuda
install pytorch 2.13                        | 2 | one
install --framework torch                   | 2 | pytorch
install --accelerator gpu                   | 2 | cuda
install --gpu pytorch                       | 2 | --accelerator cuda
install --cuda pytorch                      | 2 | --accelerator cuda
install --cpu pytorch                       | 2 | --accelerator cpu
install --accelerator amd                   | 2 | rocm
verify tf                                   | 6 | tensorflow
shell jax                                   | 6 | 'envkit list'
run torch -- python train.py                | 6 | pytorch
# running, verifying, jobs
run train.py                                | 2 | envkit run NAME -- python train.py
run pytorch python train.py                 | 2 | Put -- before the command
run pytorch -np 2 -- python train.py        | 2 | -n
run pytorch -n 2 --                         | 2 | There is no command after --
run pytorch -n 0 -- python train.py         | 2 | 0 is not in the range
run pytorch -n 2 -- train.py                | 2 | python train.py
run pytorch -- train.py                     | 2 | python train.py
exec pytorch -- python train.py             | 2 | 'envkit run
mpirun -np 2 python train.py                | 2 | 'envkit run
horovodrun -np 2 python train.py            | 2 | 'envkit run
srun python train.py                        | 2 | 'envkit run
sbatch job.sh                               | 2 | 'envkit job
submit                                      | 2 | 'envkit job
status                                      | 2 | 'envkit list'
test                                        | 2 | 'envkit verify'
doctor --gpu                                | 2 | 'envkit doctor --help'
diagnose                                    | 2 | LOG
diagnose no-such.log                        | 2 | no-such.log
job                                         | 2 | slurm
job sge pytorch                             | 2 | slurm
job slurm pytorch                           | 2 | --
data cifar10                                | 2 | mnist
example mnist                               | 2 | pytorch-mnist
# help
version                                     | 2 | --version
install help                                | 2 | 'envkit install --help'
-V                                          | 2 | --version
--verison                                   | 2 | --version
ls                                          | 2 | 'envkit list'
rm pytorch                                  | 2 | 'envkit remove
lst                                         | 2 | 'envkit list'
"""
TABLE = [
    tuple(word.strip() for word in line.rsplit("|", 2))
    for line in LINES.splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("line", "code", "hint"), TABLE, ids=[row[0] for row in TABLE])
def test_ends_in_a_code_and_a_hint(
    line: str,
    code: str,
    hint: str,
    prefix: Prefix,
    install: Callable[..., ModuleReceipt],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("pytorch-2.13-cpu", "Horovod/1-PyTorch", horovod="/h")
    install("tensorflow-2.21-cpu", "Horovod/1-TensorFlow", framework="tensorflow", horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(prefix.root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(process, "exec_into", lambda argv, env: started.append(argv))
    started: list[object] = []
    status = run(shlex.split(line))
    told = capsys.readouterr()
    said = " ".join((told.err if status else told.out).split())
    assert status == int(code), said
    assert hint in said
    assert not started
