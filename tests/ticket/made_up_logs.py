"""Made-up logs of jobs: who runs them, who pays, on which hosts, with which secrets, and what has to stay of them."""
# ruff: noqa: E501

import random
import string
from collections.abc import Iterator

USERS = ("ada", "bkurz", "mm1234", "jdoe", "e_stein", "u0123456", "k.meier", "ab12cdef", "li-wei", "tux")
ACCOUNTS = ("proj7", "p_hvd", "nn9999k", "bio-lab3", "pr28xy", "EUHPC_D01_123", "ml2024")
HOSTS = (
    "gpu{:02d}",
    "node{:03d}",
    "nid{:06d}",
    "gn{:d}",
    "cn{:04d}",
    "jwb{:04d}",
    "dgx-{:02d}",
    "compute-1-{:d}",
    "r3n{:02d}",
)
LOGINS = ("login01", "login3", "fe02", "uan01", "head01", "submit-2")
DOMAINS = ("hpc.uni-example.de", "cluster.example.ac.uk", "int.supercomp.example.org", "example-lab.fr")

# Lines from which a name is known.
USER_SEEN = (
    "SLURM_JOB_USER={user}", "USER={user}", "export LOGNAME='{user}'", "PBS_O_LOGNAME={user}", '{{"USER": "{user}"}}',
    "uid=1000({user}) gid=100({account}) groups=100({account})", "cd /home/{user}/project", "/users/{user}/venv/bin/python",
    "reading /work/users/{user}/run1/config.yaml", "cp -r ~{user}/data .", "srun: error: Invalid user {user}",
    "[{user}@{login} ~]$ module list", "submitted by user {user}", "UserId={user}(1000) GroupId={account}(5000) MCS_label=N/A",
    "Job was submitted from host <{login}> by user <{user}> in cluster <c1>.", "    Job_Owner = {user}@{login}",
    "-rw-r--r-- 1 {user} {account} 1234 Nov 23 10:00 train.py", "squeue -u {user}", "the owner {user} has no quota",
)  # fmt: skip
ACCOUNT_SEEN = (
    "SLURM_JOB_ACCOUNT={account}", "sbatch --account={account} --qos=gpu job.sh", "#SBATCH --account {account}",
    "#SBATCH -A {account}", "srun -N 2 -A {account} python train.py", "#PBS -A {account}", "    Account_Name = {account}",
    "SBATCH_ACCOUNT={account}", "PBS_ACCOUNT={account}", "LSB_PROJECT_NAME={account}", "#BSUB -P {account}",
    "   Priority=1 Account={account} QOS=normal", "#PBS -P {account}",
)  # fmt: skip
HOST_SEEN = (
    "Job 4711 on {folded}", "SLURM_JOB_NODELIST={folded}", "SLURM_NODELIST='{folded}'", "srun -w {folded} hostname",
    "sbatch --nodelist={folded} job.sh", "   NodeList={folded}", "salloc: Nodes {folded} are ready for job",
    "mpirun --host {first}:4,{second}:4 -np 8 python train.py", "horovodrun -np 8 -H {first}:4,{second}:4 python train.py",
    "LSB_HOSTS={first} {first} {second}", "LSB_MCPU_HOSTS={first} 4 {second} 4", "exec_host = {first}/0*4+{second}/0*4",
    "srun: error: {first},{second}: tasks 0-1: Killed", "#SBATCH --nodelist {folded}", "#SBATCH -w {first},{second}",
    "hosts: {first}, {second}", "SLURM_STEP_NODELIST={first},{second}",
)  # fmt: skip
# Lines that have it, too.
USES = (
    "Loading data from /scratch/{user}/data, owner {user}", "saved by {user}: /tmp/{user}_cache/x.bin", "quota of {user} is full",
    "  File \"/scratch/{account}/{user}/train.py\", line 3, in <module>", "charging {account}", "/p/project/{account}/env/lib",
    "group {account} has no time left", "started on {first}.{domain} at {login}", "{second}.{domain}: connection refused",
    "rank 3 runs on {second}", "{first}: NCCL WARN Call to ibv_modify_qp failed", "{login}.{domain}", "proxy.{domain} unreachable",
    "connect from {first} to {second} failed", "host {first} is down", "ORTE has lost {second}", "({first})", "'{second}'",
    "slurmstepd: error: *** JOB 4711 ON {first} CANCELLED AT 2026-11-23 ***", "ssh {user}@{first}.{domain}", "at {login}: done",
    "SLURM_SUBMIT_HOST={login}", "PBS_O_HOST={login}.{domain}", "SLURMD_NODENAME={first}", "HOSTNAME={second}.{domain}",
    "nodes {folded} of job 4711", "mail of {user}@{domain}", "   BatchHost={first}", "   ReqNodeList={folded} ExcNodeList=(null)",
    "submitted from {login}",
)  # fmt: skip
SECRETS = (
    "mysql --db-pass={secret}", "run --db-pass {secret}", "wandb login {hex}", "wandb login --relogin {hex}", "db_pwd: {secret}",
    "train --api-token={secret}", "--client-secret {secret}", "--license-key={secret}", '{{"ssh_key": "{secret}"}}', "DB_PASS={secret}",
    "ACCESS_TOKEN={secret}", "redis_pass='{secret}'", "export COMET_API_KEY={secret}", "--hub-token {secret}", "smtpPwd={secret}",
)  # fmt: skip
# Lines that have to stay as they are.
STAY = (
    "module load GCC/12.3.0 OpenMPI/4.1.5-GCC-12.3.0 CUDA/12.1.1", "torch==2.13.0+cu126 numpy 2.3.1 horovod 0.28.1",
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB on cuda:0", "tensor on cuda0 to float16 from conv2d",
    "KeyError: 'model_state' in user code", "the user has no data on the node", "/usr/lib64/libmpi.so.40: undefined symbol",
    "ModuleNotFoundError: No module named 'horovod.torch'", "4 GPUs of type A100 on each node, rank[0-3] on host",
    "WARNING: Ignoring invalid distribution ~umpy", "pip install --user torch", "Missing key(s) in state_dict: layer1.weight",
    "user namespaces are disabled by the kernel", "sm_90 compute_90 mlx5_0 ib0 eth0 hsn0", "Open MPI 4.1.4 at /usr/lib/x86_64-linux-gnu",
    "tasks 0-3 of step 4711.0 exited with 137", "#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --time=01:00:00",
)  # fmt: skip


class MadeUpLog:
    """A log, and what of it is private, by kind."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        shape, number = pick.choice(HOSTS), pick.randint(1, 90)
        first, second = shape.format(number), shape.format(number + 1)
        digits = len(first) - len(first.rstrip(string.digits))
        known = {
            "user": pick.choice(USERS),
            "account": pick.choice(ACCOUNTS),
            "first": first,
            "second": second,
            "folded": f"{first[:-digits]}[{first[-digits:]}-{second[-len(str(number + 1)) :].rjust(digits, '0')}]",
            "login": pick.choice(LOGINS),
            "domain": pick.choice(DOMAINS),
            "secret": "".join(pick.choices(string.ascii_letters + string.digits, k=pick.randint(6, 24))) + "x",
            "hex": "".join(pick.choices("0123456789abcdef", k=40)),
        }
        self.stay = pick.sample(STAY, 4)
        made = [pick.choice(kind) for kind in (USER_SEEN, ACCOUNT_SEEN, HOST_SEEN)]
        made += [*pick.sample(USES, 8), *pick.sample(SECRETS, 2)]
        lines = [*(line.format(**known) for line in made), *self.stay]
        pick.shuffle(lines)
        self.text = "\n".join(lines)
        self.private = {
            "user": (known["user"],),
            "account": (known["account"],),
            "host": (first, second, known["folded"], known["login"]),
            "domain": (known["domain"],),
            "secret": (known["secret"], known["hex"]),
        }

    def left(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the kind and the name of what is private and still in a text."""
        for kind, names in self.private.items():
            yield from ((kind, name) for name in names if name in text)
