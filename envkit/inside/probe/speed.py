"""The measurements of speed, and their times: the raw MPI before Horovod begins, PyTorch's DDP after it has ended."""

import importlib
import os
import sys
from typing import Any, Callable, Dict, List, Optional

from . import software, throughput
from .bench import Message, sweep
from .record import Record
from .values import LARGEST, MB, MOVES, Values

RAW_S, HOROVOD_S = 4.0, 8.0
FUSION_BYTES = 128 * MB


class Speed:
    """`sizes` of messages in bytes (none: no bandwidth), `steps` of training at most (0: none), `ddp` beside it."""

    def __init__(self, framework: str, sizes: List[int], steps: int, ddp: bool) -> None:
        self.framework = framework
        self.sizes = sizes
        self.steps = steps
        self.ddp = ddp and framework == "torch"
        self.mpi = None  # type: Any
        self.met = False

    def before_import(self) -> None:
        if self.steps:
            throughput.one_thread()

    def before_init(self, record: Record, hvd: Any) -> None:
        """MPI is initialised here if it is to be measured: Horovod finds it so."""
        if self.sizes and mpi_moves_data(hvd) and self.where(hvd) == "cpu":
            record.state("raw_bandwidth", self.raw_mpi, record)

    def measure(self, record: Record, hvd: Any) -> None:
        if self.sizes:
            record.state("bandwidth", self.bandwidth, record, hvd)
            if hvd.size() > 1 and max(self.sizes) >= LARGEST:
                record.state("values_bench", self.compare, record, hvd)
            if self.where(hvd) == "gpu":
                record.state("raw_bandwidth", self.raw_nccl, record, hvd)
        if self.steps:
            record.state("throughput", self.throughput, record, hvd)
        if self.ddp:
            self.met = bool(record.state("ddp_meeting", self.meet, hvd))

    def after_shutdown(self, record: Record, hvd: Any) -> None:
        if self.met:
            record.state("ddp_throughput", self.ddp_throughput, record, self.where(hvd))
        if self.mpi:
            record.state("mpi_finalize", self.mpi.finalise)

    def where(self, hvd: Any) -> str:
        """The device that Horovod's collectives run on: gpu or cpu."""
        if not hvd.nccl_built():
            return "cpu"
        module = sys.modules[self.framework]
        if self.framework == "torch":
            return "gpu" if module.cuda.is_available() else "cpu"
        return "gpu" if module.config.list_physical_devices("GPU") else "cpu"

    def raw_mpi(self, record: Record) -> Dict[str, Any]:
        """The allreduce of the MPI library that Horovod's extension links."""
        raw = importlib.import_module(".raw_mpi", __package__)
        name = raw.linked(str(software.horovod()["extensions"][self.framework]))
        if name is None:
            raise OSError("Horovod's extension links no MPI library of a known name")
        mpi = raw.RawMpi(name)
        if mpi.initialise():
            self.mpi = mpi
        rows = (
            sweep(self.sizes, announced(record, "raw_bandwidth", mpi.prepare), mpi.share, RAW_S)
            if mpi.size() > 1
            else []
        )
        return dict(swept(self.sizes, rows), library=mpi.name, where="cpu", ranks=mpi.size())

    def raw_nccl(self, record: Record, hvd: Any) -> Dict[str, Any]:
        """The allreduce of the NCCL that this rank has loaded."""
        if hvd.size() == 1:
            return dict(swept(self.sizes, []), where="gpu", ranks=1)
        _, share = allreduce(self.framework, hvd, "gpu")
        raw = importlib.import_module(".raw_nccl", __package__)
        given = (hvd.rank(), hvd.size(), hvd.local_rank(), teller(self.framework, hvd))
        nccl = raw.RawNccl(software.libraries(), *given)
        rows = sweep(self.sizes, announced(record, "raw_bandwidth", nccl.prepare), share, RAW_S)
        nccl.end()
        return dict(swept(self.sizes, rows), library=nccl.name, where="gpu", ranks=hvd.size())

    def bandwidth(self, record: Record, hvd: Any) -> Dict[str, Any]:
        """Horovod's allreduce of float32."""
        where = self.where(hvd)
        prepare, share = allreduce(self.framework, hvd, where)
        rows = sweep(self.sizes, announced(record, "bandwidth", prepare), share, HOROVOD_S) if hvd.size() > 1 else []
        return dict(swept(self.sizes, rows), where=where, ranks=hvd.size())

    def compare(self, record: Record, hvd: Any) -> Dict[str, Any]:
        """Every operation at 16 and 64 MB, and tensors that are more together than one buffer of Horovod holds."""
        fused = min(int(os.environ.get("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES)), FUSION_BYTES) * 5 // 4
        names = MOVES + ("reducescatter",)
        stages = [[(name, "float32", size) for name in names] for size in (16 * MB, LARGEST)]
        values = values_on(self.framework, hvd, self.where(hvd))
        return values.compare(record, "values_bench", stages + [[("grouped", "float32", fused)]])

    def throughput(self, record: Record, hvd: Any) -> Dict[str, Any]:
        """Samples per second by model."""
        where = self.where(hvd)
        _, share = allreduce(self.framework, hvd, where)
        rates = {}
        for name, model in throughput.MODELS[where].items():
            record.arrive("throughput_%s" % name)
            step = training_step(self.framework, hvd, model, where)
            rates[name] = throughput.samples_per_s(step, share, model, hvd.size(), self.steps)
        return {"where": where, "ranks": hvd.size(), "models": rates}

    def meet(self, hvd: Any) -> Any:
        ddp = importlib.import_module(".ddp", __package__)
        return ddp.meet(hvd, teller(self.framework, hvd), self.where(hvd) == "gpu")

    def ddp_throughput(self, record: Record, where: str) -> Dict[str, Any]:
        ddp = importlib.import_module(".ddp", __package__)
        torch = sys.modules["torch"]
        rates = {}
        for name, model in throughput.MODELS[where].items():
            record.arrive("ddp_throughput_%s" % name)
            rates[name] = ddp.throughput(torch, model, "cuda" if where == "gpu" else "cpu", self.steps)
        ranks = ddp.part()
        return {"where": where, "ranks": ranks, "models": rates}


def asked(framework: str, sizes: Optional[str], steps: Optional[int], ddp: bool) -> Speed:
    """Return what the arguments of the probe ask for; `sizes` are bytes with commas between them."""
    return Speed(framework, [int(size) for size in (sizes or "").split(",") if size], steps or 0, ddp)


def announced(record: Record, name: str, prepare: Callable[[int], Message]) -> Callable[[int], Message]:
    """The same function, but each size is a step of its own, so that a message that does not arrive can be named."""

    def announce(size: int) -> Message:
        record.arrive("%s_%d" % (name, size))
        return prepare(size)

    return announce


def swept(sizes: List[int], rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {"rows": rows, "left_out": sizes[len(rows) :]}


def mpi_moves_data(hvd: Any) -> bool:
    """Whether Horovod will send through MPI what is in main memory."""
    chosen = {os.environ.get(name, "mpi").lower() for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")}
    return bool(hvd.mpi_built()) and chosen == {"mpi"}


def allreduce(framework: str, hvd: Any, where: str) -> Any:
    """The functions that `bench.sweep` wants: one prepares the sum of so many bytes, one finds the largest value."""
    module, values = sys.modules[framework], values_on(framework, hvd, where)
    return (torch_allreduce if framework == "torch" else tensorflow_allreduce)(hvd, module, where, values)


def values_on(framework: str, hvd: Any, where: str) -> Values:
    measures = importlib.import_module(".with_" + framework, __package__)
    return measures.values_on(hvd, sys.modules[framework], where)  # type: ignore[no-any-return]


def teller(framework: str, hvd: Any) -> Callable[[List[int]], List[int]]:
    """A function that gives every rank the numbers of rank 0."""
    module = sys.modules[framework]
    if framework == "torch":
        return lambda numbers: list(hvd.broadcast(module.tensor(numbers), 0, name="speed.tell").tolist())

    def tell(numbers: List[int]) -> List[int]:
        with module.device("/CPU:0"):
            return list(hvd.broadcast(module.constant(numbers), 0, name="speed.tell").numpy().tolist())

    return tell


def torch_allreduce(hvd: Any, torch: Any, where: str, values: Values) -> Any:
    def prepare(size: int) -> Message:
        """In place: what is compared is written before the last call, which else would sum sums."""
        count = size // 4
        tensor = torch.zeros(count, device="cuda" if where == "gpu" else "cpu")
        own, total = values.sequences("float32", count, hvd.size())
        return Message(
            call=lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="bandwidth.%d" % size),
            fill=lambda: own.write(tensor, 0, 0, count),
            compare=lambda: total.compare(tensor, [(0, count)]),
        )

    def share(value: float) -> float:
        return float(hvd.allgather(torch.tensor([value], dtype=torch.float64), name="bandwidth.share").max())

    return prepare, share


def tensorflow_allreduce(hvd: Any, tf: Any, where: str, values: Values) -> Any:
    def prepare(size: int) -> Message:
        count = size // 4
        own, total = values.sequences("float32", count, hvd.size())
        data = values.arrays.empty(count, "float32")
        own.write(data, 0, 0, count)
        tensor = values.arrays.given(data)
        results = {}  # type: Dict[str, Any]

        def call() -> Any:
            with tf.device("/%s:0" % where.upper()):
                results["last"] = hvd.allreduce(tensor, op=hvd.Sum, name="bandwidth.%d" % size)
                return results["last"][:1].numpy()

        return Message(call, compare=lambda: total.compare(values.arrays.got(results["last"]), [(0, count)]))

    def share(value: float) -> float:
        with tf.device("/CPU:0"):
            return float(max(hvd.allgather(tf.constant([value], dtype=tf.float64), name="bandwidth.share").numpy()))

    return prepare, share


def training_step(framework: str, hvd: Any, model: Dict[str, Any], where: str) -> Callable[[], Any]:
    """One step of training with Horovod."""
    module = sys.modules[framework]
    networks = importlib.import_module(".networks_" + framework, __package__)
    if framework == "tensorflow":
        with module.device("/%s:0" % where.upper()):
            return networks.training_step(module, hvd, model)  # type: ignore[no-any-return]
    device = "cuda" if where == "gpu" else "cpu"
    net = networks.network(module, model, device)
    optimizer = hvd.DistributedOptimizer(networks.sgd(module, net), named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    return networks.training_step(module, net, optimizer, model, device)  # type: ignore[no-any-return]
