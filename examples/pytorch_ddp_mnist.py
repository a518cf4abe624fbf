"""MNIST with PyTorch's own DistributedDataParallel, without Horovod.

    torchrun --nproc-per-node 4 pytorch_ddp_mnist.py --data DIR       (or mpirun, or srun)

DIR has the four files of MNIST: train-images-idx3-ubyte.gz and so on. Copy this file as a start of your own.
"""

import argparse
import gzip
import os
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse(argv=None):
    parser = argparse.ArgumentParser(description="MNIST with PyTorch's DistributedDataParallel.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the files of MNIST")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.01, help="of one rank; it grows with their number")
    parser.add_argument("--warmup-epochs", type=float, default=1.0, help="how long it takes to grow")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written after each epoch; goes on from there")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def read_idx(path):
    """Read a file of bytes in the IDX format: 2 zeros, the type, the number of dimensions, the dimensions, the data."""
    content = gzip.decompress(path.read_bytes())
    dimensions = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(dimensions)


def load(folder, part):
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").astype(np.float32)[:, None] / 255
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64)
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


LAUNCHERS = (  # what torchrun, mpirun, PALS, mpiexec and srun call rank, size and local rank
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def meet(device_count):
    """Join the process group; return rank, number of ranks and local rank. Alone, without a launcher, it is rank 0."""
    names = next((names for names in LAUNCHERS if all(name in os.environ for name in names)), None)
    rank, size, local_rank = (int(os.environ[name]) for name in names) if names else (0, 1, 0)
    # Where rank 0 waits for the others. Across nodes srun and torchrun say it; else set MASTER_ADDR to its node.
    address = os.environ.get("MASTER_ADDR") or os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"
    start = os.environ.get("PMIX_NAMESPACE") or os.environ.get("PALS_APID")
    start = start or "-".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = os.environ.get("MASTER_PORT") or 20000 + zlib.crc32(start.encode()) % 10000  # another one for each start
    port = port if size > 1 else 0  # any that is free
    backend = "nccl" if device_count else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://{address}:{port}", rank=rank, world_size=size)
    return rank, size, local_rank


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(32 * 6 * 6, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )  # fmt: skip


def evaluate(model, loader, device):
    """Return loss and accuracy over the images of all ranks: sums are added up, so that unequal shares are right."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss = F.cross_entropy(output, labels, reduction="sum").item()
            sums += torch.tensor([loss, (output.argmax(1) == labels).sum().item(), len(labels)], device=device)
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def save(path, state):
    """Write under another name, then rename: who reads it, or is killed, never meets half a file."""
    part = path.with_name(path.name + ".part")
    torch.save(state, part)
    part.replace(path)


def main(argv=None):
    args = parse(argv)
    rank, size, local_rank = meet(torch.cuda.device_count())
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a GPU for each rank; some schedulers show a rank its own alone
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)

    train, test = load(args.data, "train"), load(args.data, "t10k")
    # In each step the ranks together have the same images, whatever their number: a part of one order that all know.
    sampler = DistributedSampler(train, num_replicas=size, rank=rank, seed=args.seed, drop_last=True)
    train_loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), 500)

    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first_epoch = 0
    if args.checkpoint and args.checkpoint.exists():  # all read it: its folder is one that every node sees
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
    dist.barrier()  # nobody writes the next one before all have read this one
    parallel = DistributedDataParallel(model, [device.index] if device.index is not None else None)

    if rank == 0:
        note = args.data / "GENERATED.txt"
        print("data: " + (note.read_text().splitlines()[0] if note.exists() else str(args.data)))
        print(f"{size} ranks, {len(train)} images, batch {args.batch_size} x {size}, on {device.type}")
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        model.train()
        losses = []
        for step, (images, labels) in enumerate(train_loader):
            done = epoch + step / len(train_loader)
            grown = min(1.0, done / args.warmup_epochs) if args.warmup_epochs else 1.0
            for group in optimizer.param_groups:
                group["lr"] = args.lr * (1 + (size - 1) * grown)
            optimizer.zero_grad()
            loss = F.cross_entropy(parallel(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / size
        dist.all_reduce(mean)
        test_loss, accuracy = evaluate(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean.item():.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.4f}")
            if args.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                save(args.checkpoint, state)
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    main()
    # Python's own end may abort the process: a thread of Gloo's, which DDP keeps, may still have a tensor to let go
    sys.stdout.flush()
    os._exit(0)
