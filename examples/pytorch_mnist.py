"""MNIST with PyTorch and Horovod.

    mpirun -np 4 python pytorch_mnist.py --data DIR       (or srun, or horovodrun)

DIR has the four files of MNIST: train-images-idx3-ubyte.gz and so on. Copy this file as a start of your own.
"""

import argparse
import gzip
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse(argv=None):
    parser = argparse.ArgumentParser(description="MNIST with PyTorch and Horovod.")
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
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss = F.cross_entropy(output, labels, reduction="sum").item()
            sums += torch.tensor([loss, (output.argmax(1) == labels).sum().item(), len(labels)])
    sums = hvd.allreduce(sums, op=hvd.Sum, name="metrics")
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def save(path, state):
    """Write under another name, then rename: who reads it, or is killed, never meets half a file."""
    part = path.with_name(path.name + ".part")
    torch.save(state, part)
    part.replace(path)


def main(argv=None):
    args = parse(argv)
    hvd.init()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a GPU for each rank; some schedulers show a rank its own alone
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)

    train, test = load(args.data, "train"), load(args.data, "t10k")
    # In each step the ranks together have the same images, whatever their number: a part of one order that all know.
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True)
    train_loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test, range(hvd.rank(), len(test), hvd.size())), 500)

    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first_epoch = 0
    if args.checkpoint and hvd.rank() == 0 and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
    # Rank 0 has the checkpoint, and the others get it from there, as they get the first weights.
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0, name="epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    if hvd.rank() == 0:
        note = args.data / "GENERATED.txt"
        print("data: " + (note.read_text().splitlines()[0] if note.exists() else str(args.data)))
        print(f"{hvd.size()} ranks, {len(train)} images, batch {args.batch_size} x {hvd.size()}, on {device.type}")
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        model.train()
        losses = []
        for step, (images, labels) in enumerate(train_loader):
            done = epoch + step / len(train_loader)
            grown = min(1.0, done / args.warmup_epochs) if args.warmup_epochs else 1.0
            for group in optimizer.param_groups:
                group["lr"] = args.lr * (1 + (hvd.size() - 1) * grown)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        train_loss = hvd.allreduce(torch.stack(losses).mean(), name="loss").item()
        test_loss, accuracy = evaluate(model, test_loader, device)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {train_loss:.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.4f}")
            if args.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                save(args.checkpoint, state)
    return model


if __name__ == "__main__":
    main()
