"""Two workers of Ray take a step with Horovod, each with its own data; prints rank, size, sum and weight of each."""

import ray
from horovod.ray import RayExecutor


def train():
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, hvd.rank() + 1.0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), named_parameters=model.named_parameters()
    )
    model(torch.tensor([[hvd.rank() + 1.0]])).sum().backward()
    optimizer.step()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
    return hvd.rank(), hvd.size(), total.item(), model.weight.item()


ray.init(num_cpus=2, include_dashboard=False)
executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=2, use_gpu=False)
executor.start()
print("FOUND", executor.run(train), flush=True)
executor.shutdown()
