"""Images per second of training on made-up images: PyTorch with Horovod, and beside it with PyTorch's own DDP.

    mpirun -np 4 python pytorch_synthetic.py       (or srun, or horovodrun)

On GPUs it is ResNet-50 with images of 224 x 224 by default; on CPUs a small network of the same kind.
"""

import argparse
import socket
import time

import horovod.torch as hvd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = {  # blocks of each stage, width, side of the images, images of a batch
    "cuda": ((3, 4, 6, 3), 64, 224, 32),
    "cpu": ((1, 1, 1, 1), 16, 64, 8),
}


def parse(argv=None):
    parser = argparse.ArgumentParser(description="Images per second on made-up images, Horovod and DDP.")
    parser.add_argument("--batch-size", type=int, help="of each rank; 32 on GPUs, 8 on CPUs")
    parser.add_argument("--epochs", type=int, default=10, help="measurements; the first one is left out")
    parser.add_argument("--steps", type=int, default=10, help="in each measurement")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compression", choices=["none", "fp16", "bf16"], default="none", help="of Horovod's gradients"
    )
    return parser.parse_args(argv)


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, stride):
        super().__init__()
        self.main = nn.Sequential(
            *normalised(channels, inner, 1), nn.ReLU(),
            *normalised(inner, inner, 3, stride), nn.ReLU(),
            *normalised(inner, 4 * inner, 1),
        )  # fmt: skip
        same = channels == 4 * inner
        self.side = nn.Identity() if same else nn.Sequential(*normalised(channels, 4 * inner, 1, stride))

    def forward(self, images):
        return F.relu(self.main(images) + self.side(images))


def normalised(channels, out, kernel, stride=1):
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)


def resnet(blocks, width):
    layers = [*normalised(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, number in enumerate(blocks):
        for block in range(number):
            inner = width * 2**stage
            layers.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def measure(model, optimizer, images, labels, args):
    """Return the images per second of this rank in each measurement."""
    speeds = []
    for _ in range(args.epochs):
        finish(images.device)
        began = time.perf_counter()
        for _ in range(args.steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        finish(images.device)
        speeds.append(len(labels) * args.steps / (time.perf_counter() - began))
    return speeds[1:] or speeds


def finish(device):
    """A GPU works on while Python goes on: wait for it before looking at the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def tell(name, speeds):
    """Say what all ranks have measured."""
    everyone = hvd.allgather(torch.tensor(speeds, dtype=torch.float64)[None], name=name)
    total = everyone.sum(dim=0)
    if hvd.rank() == 0:
        each = ", ".join(f"{speed:.1f}" for speed in everyone.mean(dim=1).tolist())
        spread = f" +- {1.96 * total.std().item():.1f}" if len(total) > 1 else ""
        print(f"{name}: images/s per rank: {each}; in all {total.mean().item():.1f}{spread}")


def meet():
    """Join a process group for DDP. Horovod knows the ranks already, and tells them where rank 0 waits."""
    place = None
    if hvd.rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            host = "127.0.0.1" if hvd.cross_size() == 1 else socket.gethostname()
            place = f"tcp://{host}:{free.getsockname()[1]}"
    place = hvd.broadcast_object(place, root_rank=0, name="place")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=place, rank=hvd.rank(), world_size=hvd.size())


def main(argv=None):
    args = parse(argv)
    hvd.init()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a GPU for each rank; some schedulers show a rank its own alone
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    blocks, width, side, usual = SIZES[device.type]
    batch = args.batch_size or usual
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    if hvd.rank() == 0:
        network = "ResNet-50" if device.type == "cuda" else "a small network"
        print(f"{network}, {hvd.size()} ranks on {device.type}, batch {batch} each, images of {side} x {side}")

    model = resnet(blocks, width).to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    hvd.broadcast_parameters(start, root_rank=0)
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    compression = getattr(hvd.Compression, args.compression)
    horovod = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    tell("Horovod", measure(model, horovod, images, labels, args))

    model = resnet(blocks, width).to(device)  # a new one: Horovod has hung its hooks on the other
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    meet()
    parallel = DistributedDataParallel(model, [device.index] if device.index is not None else None)
    tell("DDP", measure(parallel, optimizer, images, labels, args))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
