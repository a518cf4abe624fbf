"""The few things of PyTorch that the probe uses, for two-feature linear models, in plain Python."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

__version__ = "2.1.0"
float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int32, int64 = "int32", "int64"


class Tensor:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.grad: Tensor | None = None
        self.of: tuple[list[Any], slice] | None = None

    @property
    def data(self) -> Tensor:
        return self

    def reshape(self, _: int) -> Tensor:
        flat = self.rows[0] if self.rows and isinstance(self.rows[0], list) else self.rows
        return Tensor(list(flat))

    def __len__(self) -> int:
        return len(self.rows)

    def min(self) -> Any:
        return min(self.rows)

    def max(self) -> Any:
        return max(self.rows)

    def item(self) -> Any:
        return self.rows[0]

    def __getitem__(self, which: Any) -> Tensor:
        if not isinstance(which, slice):
            return Tensor([self.rows[which]])
        part = Tensor(self.rows[which])
        part.of = self.rows, which
        return part

    def __setitem__(self, which: slice, value: Any) -> None:
        self.rows[which] = value.rows if isinstance(value, Tensor) else [value] * len(self.rows[which])

    def __int__(self) -> int:
        return int(self.rows[0])

    def __float__(self) -> float:
        return float(self.rows[0])

    def _by(self, operation: Any, other: Any) -> Tensor:
        others = other.rows if isinstance(other, Tensor) else [other] * len(self.rows)
        return Tensor(list(map(operation, self.rows, others)))

    def __add__(self, other: Any) -> Tensor:
        return self._by(operator.add, other)

    def __sub__(self, other: Any) -> Tensor:
        return self._by(operator.sub, other)

    def __le__(self, other: Any) -> Tensor:
        return self._by(operator.le, other)

    def __abs__(self) -> Tensor:
        return Tensor([abs(value) for value in self.rows])

    def __invert__(self) -> Tensor:
        return Tensor([not value for value in self.rows])

    def __mod__(self, other: Any) -> Tensor:
        return self._by(operator.mod, other)

    def __and__(self, other: Any) -> Tensor:
        return self._by(operator.and_, other)

    def __truediv__(self, other: Any) -> Tensor:
        return self._by(operator.truediv, other)

    def __ne__(self, other: object) -> Any:
        return self._by(operator.ne, other)

    __hash__ = object.__hash__

    def nonzero(self) -> Tensor:
        return Tensor([place for place, value in enumerate(self.rows) if value])

    def to(self, dtype: str) -> Tensor:
        kind = float if dtype.startswith(("float", "bfloat")) else int
        return Tensor([kind(value) for value in self.rows])

    def tolist(self) -> list[Any]:
        return self.rows

    def detach(self) -> Tensor:
        return self

    def copy_(self, other: Tensor) -> None:
        self.rows = [list(row) for row in other.rows]

    def sub_(self, other: Tensor) -> None:
        self.rows = [[a - b for a, b in zip(self.rows[0], other.rows[0], strict=True)]]

    def __mul__(self, factor: Any) -> Tensor:
        if self.rows and isinstance(self.rows[0], list):
            return Tensor([[factor * value for value in self.rows[0]]])
        return self._by(operator.mul, factor)

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> Self:
        self.rows = (self + other).rows
        return self


def tensor(values: list[Any], dtype: object = None, device: object = None) -> Tensor:
    return Tensor(values)


def arange(count: int, dtype: object = None, device: object = None) -> Tensor:
    return Tensor(list(range(count)))


def empty(count: int, dtype: object = None, device: object = None) -> Tensor:
    return Tensor([0] * count)


def equal(one: Tensor, other: Tensor) -> bool:
    return one.rows == other.rows


def add(one: Tensor, number: int, out: Tensor) -> Tensor:
    """Write to a tensor, and to the one that it is a part of."""
    out.rows = (one + number).rows
    if out.of:
        rows, which = out.of
        rows[which] = out.rows
    return out


def zeros(count: int) -> Tensor:
    return Tensor([0.0] * count)


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
        gradient = [2 / len(errors) * sum(e * x for e, x in zip(errors, column, strict=True)) for column in columns]
        self.model.weight.grad = Tensor([gradient])


class Optimizer:
    def __init__(self, parameters: list[Any], defaults: dict[str, Any]) -> None:
        self.defaults, self.param_groups = defaults, []  # type: dict[str, Any], list[dict[str, Any]]
        self.state: dict[Tensor, dict[str, Any]] = {parameter: {} for parameter in parameters}
        self.add_param_group({"params": list(parameters)})

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **group})

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "param_groups": self.param_groups}


def _mse_loss(predicted: tuple[Linear, Tensor], targets: Tensor) -> Loss:
    return Loss(*predicted, targets)


nn = SimpleNamespace(Linear=Linear, functional=SimpleNamespace(mse_loss=_mse_loss))
optim = SimpleNamespace(Optimizer=Optimizer)
cuda = SimpleNamespace(is_available=lambda: False)
