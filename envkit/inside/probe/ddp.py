"""PyTorch's own data-parallel training, for comparison in the same ranks.

The ranks meet while Horovod runs and train after it has been shut down, so that neither disturbs the other.
"""

import datetime
import importlib
import socket
from typing import Any, Callable, Dict, List

from .machine import interface
from .networks_torch import network, sgd, training_step
from .throughput import samples_per_s

MEETING_S = 60
LOOPBACK = "127.0.0.1"


def meet(hvd: Any, tell: Callable[[List[int]], List[int]], on_gpu: bool) -> Dict[str, Any]:
    """Have all ranks join a process group whose store rank 0 holds; `tell` says where that is, through Horovod."""
    distributed = importlib.import_module("torch.distributed")
    timeout = datetime.timedelta(seconds=MEETING_S)
    port, address, store = 0, own_address() if hvd.cross_size() > 1 else LOOPBACK, None
    if hvd.rank() == 0:
        store = distributed.TCPStore(address, 0, hvd.size(), True, timeout, wait_for_workers=False)
        port = store.port
    numbers = tell([int(part) for part in address.split(".")] + [port])
    address, port = ".".join(str(part) for part in numbers[:4]), numbers[4]
    if store is None:
        store = distributed.TCPStore(address, port, hvd.size(), False, timeout)
    backend = "nccl" if on_gpu else "gloo"
    distributed.init_process_group(backend, store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=timeout)
    return {"backend": backend}


def own_address() -> str:
    """The address by which the other nodes reach this one: its name's, or else of the first interface that has one."""
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = LOOPBACK
    if not named.startswith("127."):
        return named
    interfaces = [interface(name) for _, name in sorted(socket.if_nameindex())]
    usable = [each["address"] for each in interfaces if each["up"] and each["address"] and each["kind"] == "physical"]
    return str(usable[0]) if usable else LOOPBACK


def throughput(torch: Any, model: Dict[str, Any], device: str, most: int) -> Dict[str, Any]:
    """Samples per second of all ranks with DistributedDataParallel."""
    distributed = importlib.import_module("torch.distributed")
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    net = parallel(network(torch, model, device))

    def share(value: float) -> float:
        given = torch.tensor([value], dtype=torch.float64, device=device)
        distributed.all_reduce(given, op=distributed.ReduceOp.MAX)
        return float(given)

    step = training_step(torch, net, sgd(torch, net), model, device)
    return samples_per_s(step, share, model, distributed.get_world_size(), most)


def part() -> int:
    """Leave the process group; how many ranks it had."""
    distributed = importlib.import_module("torch.distributed")
    ranks = distributed.get_world_size()
    distributed.destroy_process_group()
    return int(ranks)
