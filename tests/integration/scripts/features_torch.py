"""What becomes of each feature of Horovod with PyTorch, on two ranks: a line of JSON from rank 0.

    python features_torch.py

A feature whose result is right on both ranks is "works"; else it has what went wrong.
"""

import json

import horovod.torch as hvd
import torch

ALONE = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
hvd.init(process_sets=ALONE)
RANK, SIZE = hvd.rank(), hvd.size()
FEATURES = {}


def feature(name):
    def add(function):
        FEATURES[name] = [function]
        return function

    return add


def alike(tensor):
    """Whether a tensor is the same on all ranks."""
    return len({str(one) for one in hvd.allgather_object(tensor.tolist())}) == 1


def trained(model, optimizer, steps=2, data=None):
    """Whether ranks with different data have equal weights after training that changed them."""
    before = [one.detach().clone() for one in model.parameters()]
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.full((4, 3), float(RANK + step + 1)) if data is None else data
        model(x).float().sum().backward()
        optimizer.step()
    now = [one.detach() for one in model.parameters()]
    moved = any(not torch.equal(one, other) for one, other in zip(before, now, strict=True))
    return moved and all(alike(one.float()) for one in now)


def small():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def distributed(model, optimizer=None, **more):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **more)


def allreduce_of(kind):
    def check():
        own = torch.ones(5, dtype=kind)
        total = hvd.allreduce(own, op=hvd.Sum, name=f"sum.{kind}")
        return total.dtype == kind and torch.equal(total, own * SIZE if kind != torch.bool else own)

    return check


def moved_of(kind):
    def check():
        own = torch.tensor([RANK == 0, RANK == 1, True]).to(kind)
        both = torch.cat([torch.tensor([True, False, True]), torch.tensor([False, True, True])]).to(kind)
        gathered = hvd.allgather(own, name=f"gather.{kind}")
        sent = hvd.broadcast(own, root_rank=1, name=f"broadcast.{kind}")
        return torch.equal(gathered, both) and torch.equal(sent, both[3:])

    return check


for group, kinds in {
    "float32, float64, float16": (torch.float32, torch.float64, torch.float16),
    "int32, int64": (torch.int32, torch.int64),
    "bfloat16": (torch.bfloat16,),
    "int8": (torch.int8,),
    "uint8": (torch.uint8,),
    "bool": (torch.bool,),
    "complex64": (torch.complex64,),
}.items():
    FEATURES[f"allreduce of {group}"] = [allreduce_of(kind) for kind in kinds]
for group in ("bfloat16", "uint8", "bool", "complex64"):
    FEATURES[f"allgather and broadcast of {group}"] = [moved_of(getattr(torch, group))]


@feature("reducescatter, alltoall")
def _():
    parts = hvd.reducescatter(torch.arange(4.0), op=hvd.Sum)
    swapped = hvd.alltoall(torch.tensor([float(RANK), float(RANK)]))
    return parts.tolist() == [[0.0, 2.0], [4.0, 6.0]][RANK] and swapped.tolist() == [0.0, 1.0]


@feature("SyncBatchNorm on CPUs")
def _():
    layer = hvd.SyncBatchNorm(2)
    layer(torch.tensor([[1.0, 2.0], [3.0, 4.0]]) + RANK)
    return alike(layer.running_mean)


@feature("sparse gradients")
def _():
    torch.manual_seed(0)
    model = torch.nn.Embedding(4, 2, sparse=True)
    return trained(model, distributed(model), data=torch.tensor([RANK, 2]))


@feature("join")
def _():
    for step in range(1 + RANK):
        hvd.allreduce(torch.ones(1), name=f"join.{step}")
    return hvd.join() == 1


@feature("process sets")
def _():
    own = torch.tensor([float(RANK)])
    return hvd.allreduce(own, op=hvd.Sum, name=f"alone.{RANK}", process_set=ALONE[RANK]).tolist() == [float(RANK)]


@feature("Adasum")
def _():
    model = small()
    return trained(model, distributed(model, op=hvd.Adasum))


@feature("Compression.fp16")
def _():
    model = small()
    return trained(model, distributed(model, compression=hvd.Compression.fp16))


@feature("Compression.bf16")
def _():
    model = small()
    return trained(model, distributed(model, compression=hvd.Compression.bf16))


@feature("models in bfloat16")
def _():
    model = small().bfloat16()
    return trained(model, distributed(model), data=torch.full((4, 3), float(RANK + 1)).bfloat16())


@feature("autocast to bfloat16")
def _():
    model = small()
    with torch.autocast("cpu", torch.bfloat16):
        return trained(model, distributed(model))


@feature("groups, backward_passes_per_step")
def _():
    model = small()
    optimizer = distributed(model, num_groups=1, backward_passes_per_step=2)
    for number in range(2):
        model(torch.full((4, 3), float(RANK + number))).sum().backward()
    optimizer.step()
    return alike(model.weight)


@feature("torch.compile")
def _():
    model = small()
    optimizer = distributed(model)
    compiled = torch.compile(model)
    for number in range(2):
        optimizer.zero_grad()
        compiled(torch.full((4, 3), float(RANK + number))).sum().backward()
        optimizer.step()
    return alike(model.weight)


@feature("the state of elastic training")
def _():
    model = small()
    state = hvd.elastic.TorchState(model, torch.optim.Adam(model.parameters()), step=RANK)
    with torch.no_grad():
        model.weight += RANK
    state.sync()
    return state.step == 0 and alike(model.weight)


def told(checks):
    """What becomes of a feature on this rank."""
    try:
        return "works" if all(check() for check in checks) else "wrong"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


found = {}
for name, checks in FEATURES.items():
    said = {*hvd.allgather_object(told(checks))}
    found[name] = " | ".join(sorted(said))
if RANK == 0:
    print("FOUND " + json.dumps(found), flush=True)
