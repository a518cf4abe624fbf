"""The few things of PyTorch that the probe uses, for two-feature linear models, in plain Python."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__version__ = "2.1.0"
float64 = "float64"


class Tensor:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.gradient: list[float] = []

    def reshape(self, _: int) -> Tensor:
        flat = self.rows[0] if self.rows and isinstance(self.rows[0], list) else self.rows
        return Tensor(list(flat))

    def tolist(self) -> list[Any]:
        return self.rows

    def detach(self) -> Tensor:
        return self

    def copy_(self, other: Tensor) -> None:
        self.rows = [list(row) for row in other.rows]


def tensor(values: list[Any], dtype: object = None, device: object = None) -> Tensor:
    return Tensor(values)


@contextmanager
def no_grad() -> Iterator[None]:
    yield


class Linear:
    def __init__(self, features: int, outputs: int, bias: bool) -> None:
        self.weight = Tensor([[0.0] * features])

    def to(self, device: str) -> Linear:
        return self

    def parameters(self) -> list[Tensor]:
        return [self.weight]

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        return [("weight", self.weight)]

    def state_dict(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def __call__(self, inputs: Tensor) -> tuple[Linear, Tensor]:
        return self, inputs


class Loss:
    def __init__(self, model: Linear, inputs: Tensor, targets: Tensor) -> None:
        self.model, self.inputs, self.targets = model, inputs.rows, targets.rows

    def backward(self) -> None:
        (weights,) = self.model.weight.rows
        pairs = zip(self.inputs, self.targets, strict=True)
        errors = [sum(w * x for w, x in zip(weights, row, strict=True)) - y for row, (y,) in pairs]
        columns = zip(*self.inputs, strict=True)
        self.model.weight.gradient = [
            2 / len(errors) * sum(e * x for e, x in zip(errors, column, strict=True)) for column in columns
        ]


class SGD:
    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.rate = parameters, lr

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.gradient = []

    def step(self) -> None:
        for parameter in self.parameters:
            pairs = zip(parameter.rows[0], parameter.gradient, strict=True)
            parameter.rows = [[w - self.rate * g for w, g in pairs]]


def _mse_loss(predicted: tuple[Linear, Tensor], targets: Tensor) -> Loss:
    return Loss(*predicted, targets)


nn = SimpleNamespace(Linear=Linear, functional=SimpleNamespace(mse_loss=_mse_loss))
optim = SimpleNamespace(SGD=SGD)
cuda = SimpleNamespace(is_available=lambda: False)
