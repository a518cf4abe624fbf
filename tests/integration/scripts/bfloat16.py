"""Horovod with bfloat16, bit by bit, in each rank.

    python bfloat16.py mpi|gloo RANKS

says what the ranks must use, and how many there must be.

What is sent has few enough bits for sums in float32 to be exact in any order, but not for those in bfloat16: what is
right is then the exact result, rounded once.
"""

import math
import sys
from functools import reduce

import horovod.torch as hvd
import torch

B, SIZES = torch.bfloat16, (1, 2, 1003, 65537)  # messages are sent in other ways when they are large
bad, done = [], 0


def check(name, found, right):
    global done
    same = found.dtype == right.dtype and found.shape == right.shape
    both_nan = same and found.isnan() & right.isnan()
    bits = torch.int16 if found.dtype in (B, torch.float16) else torch.int32
    if not same or not bool((both_nan | (found.view(bits) == right.view(bits))).all()):
        bad.append(name)
        print(f"rank {hvd.rank()}: {name}: {found.flatten()[:8]}, not {right.flatten()[:8]}", flush=True)
    done += 1


def sent(rank, count, seed=0, most=255):
    """Multiples of 1/64 with up to eight bits."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return (torch.randint(-most, most + 1, (count,), generator=generator) / 64).to(B)


def exact(op, tensors):
    return reduce(op, [tensor.float() for tensor in tensors])


def reductions(rank, ranks):
    for count in SIZES:
        tensors = [sent(each, count, seed=count) for each in range(ranks)]
        own, total = tensors[rank], exact(torch.add, tensors).to(B)
        check(f"sum {count}", hvd.allreduce(own, op=hvd.Sum, name=f"sum{count}"), total)
        average = (total.float() * torch.tensor(1 / ranks)).to(B)
        check(f"average {count}", hvd.allreduce(own, op=hvd.Average, name=f"average{count}"), average)
        check(f"min {count}", hvd.allreduce(own, op=hvd.Min, name=f"min{count}"), exact(torch.minimum, tensors).to(B))
        check(f"max {count}", hvd.allreduce(own, op=hvd.Max, name=f"max{count}"), exact(torch.maximum, tensors).to(B))
        few = [sent(each, count, most=15) for each in range(ranks)]
        product = hvd.allreduce(few[rank], op=hvd.Product, name=f"product{count}")
        check(f"product {count}", product, exact(torch.mul, few).to(B))
        scaled = [(tensor.float() * torch.tensor(0.75)).to(B) for tensor in tensors]
        right = (exact(torch.add, scaled).to(B).float() * torch.tensor(1.7)).to(B)
        found = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.75, postscale_factor=1.7, name=f"scaled{count}")
        check(f"prescale and postscale {count}", found, right)
        check(f"unchanged {count}", own, sent(rank, count, seed=count))
        in_place = own.clone()
        hvd.allreduce_(in_place, op=hvd.Sum, name=f"in_place{count}")
        check(f"in place {count}", in_place, total)


def special_values(rank, ranks):
    first = [math.inf, -math.inf, math.nan, math.inf, 0.0, -0.0, 1e-40, -1e-40, 3.3895e38, 1.0, 1.0078125, 256.0]
    rest = [1.0, 1.0, 1.0, -math.inf, -0.0, -0.0, 1e-40, 1e-40, 3.3895e38, 2**-8, 2**-8, 1.0]
    for times in (1, 8192):  # few, and many
        tensors = [torch.tensor((first if each == 0 else rest) * times, dtype=B) for each in range(ranks)]
        found = hvd.allreduce(tensors[rank], op=hvd.Sum, name=f"special{times}")
        check(f"infinities, NaN, denormals, overflow and ties, {times}", found, exact(torch.add, tensors).to(B))


def several(rank, ranks):
    counts = (1, 7, 8, 1000, 65537)
    tensors = [[sent(each, count, seed=count) for count in counts] for each in range(ranks)]
    totals = [exact(torch.add, column).to(B) for column in zip(*tensors, strict=True)]
    grouped = hvd.grouped_allreduce(tensors[rank], op=hvd.Sum, name="grouped")
    for count, found, right in zip(counts, grouped, totals, strict=True):
        check(f"grouped {count}", found, right)
    for turn in range(3):  # the same names again are taken from the cache
        begun = []
        for index in range(30):
            kind = (B, torch.float16, torch.float32)[index % 3]
            tensor = torch.arange(50 + index).remainder(17).to(kind)
            handle = hvd.allreduce_async(tensor, op=hvd.Sum, name=f"fused{index}")
            begun.append((index, handle, (tensor.float() * ranks).to(kind)))
        for index, handle, right in begun:
            check(f"fused {index}, turn {turn}", hvd.synchronize(handle), right)


def moves(rank, ranks):
    for count in SIZES:
        tensors = [sent(each, count + each, seed=count) for each in range(ranks)]
        found = hvd.broadcast(tensors[rank][:count], root_rank=ranks - 1, name=f"broadcast{count}")
        check(f"broadcast {count}", found, tensors[-1][:count])
        check(f"allgather {count}", hvd.allgather(tensors[rank], name=f"allgather{count}"), torch.cat(tensors))
    parts = [sent(rank, 5 + rank, seed=seed) for seed in range(3)]
    for seed, found in enumerate(hvd.grouped_allgather(parts, name="grouped_allgather")):
        check(f"grouped allgather {seed}", found, torch.cat([sent(each, 5 + each, seed=seed) for each in range(ranks)]))
    splits = [[1 + (each + to) % 3 for to in range(ranks)] for each in range(ranks)]
    outgoing = [sent(each, sum(splits[each])).split(splits[each]) for each in range(ranks)]
    own = torch.tensor(splits[rank], dtype=torch.int32)
    found, received = hvd.alltoall(torch.cat(outgoing[rank]), own, name="alltoall")
    check("alltoall", found, torch.cat([outgoing[each][rank] for each in range(ranks)]))
    check("alltoall's splits", received, torch.tensor([splits[each][rank] for each in range(ranks)], dtype=torch.int32))


def scattered(rank, ranks):
    for rows in (ranks, 2 * ranks + 1, 5000 * ranks):
        tensors = [sent(each, rows * 3, seed=rows).reshape(rows, 3) for each in range(ranks)]
        begin = rank * (rows // ranks) + min(rank, rows % ranks)
        own = slice(begin, begin + rows // ranks + (rank < rows % ranks))
        total = exact(torch.add, tensors).to(B)[own]
        average = (total.float() * torch.tensor(1 / ranks)).to(B)
        found = hvd.reducescatter(tensors[rank], op=hvd.Sum, name=f"reducescatter{rows}")
        check(f"reducescatter {rows}", found, total)
        found = hvd.reducescatter(tensors[rank], op=hvd.Average, name=f"reducescatter_average{rows}")
        check(f"reducescatter, average, {rows}", found, average)
        pair = [tensors[rank], tensors[rank]]
        for found in hvd.grouped_reducescatter(pair, op=hvd.Sum, name=f"grouped_reducescatter{rows}"):
            check(f"grouped reducescatter {rows}", found, total)


def subset(rank, ranks):
    if rank < ranks - 1:
        tensors = [sent(each, 1003) for each in range(ranks - 1)]
        found = hvd.allreduce(sent(rank, 1003), op=hvd.Sum, name="subset", process_set=all_but_one)
        check("process set", found, exact(torch.add, tensors).to(B))


def training(rank, ranks):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(B)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).to(B)
    targets = inputs.sum(1, keepdim=True)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(inputs[rank::ranks]) - targets[rank::ranks]).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    check("weights", hvd.broadcast(weights, root_rank=0, name="weights"), weights)
    check("the loss falls", torch.tensor(float(losses[-1] < losses[0] * 0.3)), torch.tensor(1.0))


def compression(rank, ranks):
    weight = torch.nn.Parameter(torch.zeros(1003))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), named_parameters=[("weight", weight)], compression=hvd.Compression.bf16
    )
    gradients = [sent(each, 1003).float() * (1 + 2**-12) for each in range(ranks)]
    (weight * gradients[rank]).sum().backward()
    optimizer.synchronize()
    total = exact(torch.add, [gradient.to(B) for gradient in gradients]).to(B)
    check("Compression.bf16", weight.grad, (total.float() * torch.tensor(1 / ranks)).to(B).float())
    large, context = hvd.Compression.bf16.compress(torch.tensor([70000.0]))
    check("the range of float32", hvd.Compression.bf16.decompress(large, context), torch.tensor([70144.0]))
    whole, context = hvd.Compression.bf16.compress(torch.tensor([7], dtype=torch.int32))
    check("whole numbers", hvd.Compression.bf16.decompress(whole, context), torch.tensor([7], dtype=torch.int32))


def adasum(rank, ranks):
    """Of two ranks, which is by what the gradients have in common less than their sum."""
    one, other = sent(0, 1003).double(), sent(1, 1003, seed=1).double() + sent(0, 1003).double()
    one, other = one.to(B).double(), other.to(B).double()
    dot = one @ other
    right = (1 - dot / (one @ one) / 2) * one + (1 - dot / (other @ other) / 2) * other
    found = hvd.allreduce((one, other)[rank].to(B), op=hvd.Adasum, name="adasum")
    near = (found.double() - right).abs() <= 2**-7 * right.abs()
    check("Adasum", near.float(), torch.ones(1003))


def join(rank, ranks):
    """The ranks that have no more data take part with zeros."""
    if rank == 0:
        for count in SIZES:
            found = hvd.allreduce(sent(0, count), op=hvd.Sum, name=f"join{count}")
            check(f"join {count}", found, sent(0, count))
    hvd.join()


library, size = sys.argv[1], int(sys.argv[2])
all_but_one = hvd.ProcessSet(list(range(size - 1)))
hvd.init(process_sets=[all_but_one])
assert hvd.size() == size
assert (hvd.mpi_enabled(), hvd.gloo_enabled()) == {"mpi": (True, False), "gloo": (False, True)}[library]
steps = [reductions, special_values, several, moves, scattered, subset, training, compression, join]
for step in [*steps, adasum] if library == "mpi" and size == 2 else steps:
    step(hvd.rank(), hvd.size())
print(f"{hvd.rank()} of {hvd.size()}: {done} checks, {len(bad)} bad", flush=True)
sys.exit(bool(bad))
