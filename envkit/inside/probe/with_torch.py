"""The measurements with PyTorch."""

import inspect
import sys
from typing import Any, Callable, Dict, List

from .collectives import Collectives, measure_collectives, numbers
from .record import Record
from .training import FEATURES, LEARNING_RATE, STEPS, problem, trained
from .values import Arrays, Values, measure_values


def gpus_of(torch: Any) -> Dict[str, Any]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    uuids = [str(getattr(device, "uuid", "")) or None for device in properties]
    return {"count": count, "names": [device.name for device in properties], "uuids": uuids}


def choose_device(torch: Any, gpus: Any, local_rank: int) -> Dict[str, Any]:
    index = local_rank % gpus["count"]
    torch.cuda.set_device(index)
    return {"index": index, "uuid": gpus["uuids"][index], "name": gpus["names"][index]}


def collectives_on(hvd: Any, torch: Any, device: str, where: str) -> Collectives:
    def make(values: List[float], kind: str) -> Any:
        return torch.tensor(values, dtype=getattr(torch, kind), device=device)

    return Collectives(hvd, make, beginning(hvd), where)


def beginning(hvd: Any) -> Callable[..., Callable[[], Any]]:
    """A function that begins an operation without waiting, by Horovod's function for that."""

    def begin(call: str, *given: Any, **options: Any) -> Callable[[], Any]:
        name = call[:-1] + "_async_" if call.endswith("_") else call + "_async"
        handle = getattr(hvd, name)(*given, **options)
        return lambda: hvd.synchronize(handle)

    return begin


def values_on(hvd: Any, torch: Any, where: str) -> Values:
    device = "cuda" if where == "gpu" else "cpu"
    arrays = Arrays(
        counting=lambda count: torch.arange(count, dtype=torch.int64, device=device),
        cast=lambda tensor, kind: tensor.to(getattr(torch, kind)),
        empty=lambda count, kind: torch.empty(count, dtype=getattr(torch, kind), device=device),
        plus=lambda tensor, number, out: torch.add(tensor, number, out=out),
        equal=torch.equal,
        places=lambda mask: mask.nonzero().reshape(-1),
        given=lambda tensor: tensor,
        got=lambda tensor: tensor,
        in_place=True,
    )
    return Values(hvd, arrays, beginning(hvd), where)


def gradient_descent(torch: Any, parameters: Any, rate: float) -> Any:
    """A plain optimizer, for hvd.DistributedOptimizer to extend as it extends any.

    PyTorch's own optimizers import torch._dynamo with the first group of parameters or step, which takes longer than
    all the rest of a rank. This one is a torch.optim.Optimizer, too, with the same functions, but as they were before
    PyTorch wrapped them for torch.compile; `state` counts the steps, so that there is a state to broadcast.
    """

    class GradientDescent(torch.optim.Optimizer):  # type: ignore[misc]
        add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
        zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
        state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)

        def __init__(self, parameters: Any, rate: float = LEARNING_RATE) -> None:
            super().__init__(parameters, {"rate": rate})

        def step(self, _closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(parameter.grad.data * group["rate"])
                    steps = self.state[parameter].setdefault("steps", torch.zeros(1))
                    steps += 1

    return GradientDescent(parameters, rate)


def training(hvd: Any, torch: Any, device: str) -> Dict[str, Any]:
    """Own data, own weights and own learning rate in each rank, rank 0's broadcast, then STEPS optimizer steps."""
    task = problem(hvd.rank())
    inputs = torch.tensor(task["inputs"], device=device)
    targets = torch.tensor([[target] for target in task["targets"]], device=device)
    model = torch.nn.Linear(FEATURES, 1, bias=False).to(device)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([task["own"]]))
    plain = gradient_descent(torch, model.parameters(), LEARNING_RATE * (1 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    started = numbers(model.weight.detach())
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return trained(task, started, numbers(model.weight.detach()), optimizer.param_groups[0]["rate"])


def measure(record: Record, hvd: Any) -> None:
    torch = sys.modules["torch"]
    gpus = record.state("gpus", gpus_of, torch)
    device = "cpu"
    measure_collectives(record, collectives_on(hvd, torch, "cpu", "cpu"))
    measure_values(record, lambda: values_on(hvd, torch, "cpu"), "cpu")
    if gpus and gpus["count"] and hvd.nccl_built():
        if record.state("device", choose_device, torch, gpus, hvd.local_rank()):
            device = "cuda"
        measure_collectives(record, collectives_on(hvd, torch, "cuda", "gpu"))
        measure_values(record, lambda: values_on(hvd, torch, "gpu"), "gpu")
    record.state("training_torch", training, hvd, torch, device)
