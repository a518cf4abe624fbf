"""States what is true of one rank in the environment that runs this file; judges nothing.

    python probe.py --framework torch|tensorflow|none --output DIRECTORY [--timeout SECONDS]

Standard library only, Python 3.6 or later. Started once per rank by any launcher, it leaves one JSON file in
DIRECTORY, brought up to date before every step, so that a rank that hangs or dies leaves its facts and the
name of the step. What cannot be had is {"error": ...}. The process forks before anything touches MPI: the
child measures, the parent watches it and records how it ended. Standard output stays silent. Status: 0 when
every fact was collected, whatever it says; 124 after the time limit; 143 when told to stop; else 1.
"""

import argparse
import faulthandler
import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

VERSION = 1
FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")
WORLD = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
EXTENSIONS = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib"}
DISTRIBUTIONS = (
    "horovod",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "keras",
    "tf-keras",
    "numpy",
    "mpi4py",
)
ENVIRONMENT = re.compile(
    r"HOROVOD_(?!.*(SECRET|KEY|TOKEN|PASS))\w+|OMPI_COMM_WORLD_\w*(RANK|SIZE)|PMIX_(RANK|NAMESPACE)|PRTE_LAUNCHED"
    r"|PMI_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE)|MPI_LOCALRANKID|MPI_LOCALNRANKS|JSM_NAMESPACE_(RANK|SIZE|LOCAL_RANK)"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|STEP_NUM_TASKS|STEP_ID|JOB_ID|MPI_TYPE)|PALS_(LOCAL_)?RANKID"
    r"|FLUX_(TASK_RANK|JOB_SIZE|TASK_LOCAL_ID)|(CUDA|ROCR|HIP)_VISIBLE_DEVICES|TF_USE_LEGACY_KERAS"
)
LIBRARIES = re.compile(
    r"(/\S*/(lib(?:mpich|mpi|nccl|rccl|cudart|amdhip64|torch|torch_cuda|torch_hip|tensorflow_framework|tensorflow_cc))"
    r"(?:_(?:gnu|cray|intel|nvidia|amd)\w*)?[-.\w]*?\.so[.\d]*)$"
)
LEARNING_RATE = 0.1
STEPS = 3
SAMPLES, FEATURES = 4, 2


class Record:
    """The facts of one rank and the file that holds them."""

    def __init__(self, path: str, facts: Dict[str, Any]) -> None:
        self.path = path
        self.facts = facts

    def write(self) -> None:
        partial = self.path + ".partial"
        with open(partial, "w") as stream:
            json.dump(self.facts, stream, indent=1)
        os.replace(partial, self.path)

    def arrive(self, phase: str) -> Dict[str, Any]:
        entry = {"name": phase, "at": time.time(), "seconds": None}  # type: Dict[str, Any]
        self.facts["phase"] = phase
        self.facts["phases"].append(entry)
        self.write()
        return entry

    def state(self, name: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Make the result of a measurement a fact; a failed one is a fact too, and gives None."""
        arrival = self.arrive(name)
        start = time.time()
        value = None
        try:
            value = self.facts[name] = measure(*arguments)
        except (Exception, SystemExit) as error:
            self.facts[name] = failure(error)
        arrival["seconds"] = round(time.time() - start, 6)
        return value


def failure(error: BaseException) -> Dict[str, str]:
    tail = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-2000:]
    return {"error": "%s: %s" % (type(error).__name__, str(error)[:2000]), "traceback": tail}


def attempt(measure: Callable[[], Any]) -> Any:
    try:
        return measure()
    except Exception as error:
        return failure(error)


def python() -> Dict[str, str]:
    return {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3]}


def environment() -> Dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if ENVIRONMENT.fullmatch(name)}


def installed() -> Dict[str, str]:
    metadata = importlib.import_module("importlib.metadata")
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def horovod() -> Dict[str, Any]:
    """Where Horovod is and what it was built for and with, without importing it."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.origin:
        raise ImportError("No module named 'horovod'")
    directory = os.path.dirname(spec.origin)
    with open(spec.origin) as stream:
        version = re.search(r"^__version__ = ['\"](.+?)['\"]", stream.read(), re.MULTILINE)
    return {
        "path": directory,
        "version": version.group(1) if version else None,
        "metadata": attempt(lambda: read_json(os.path.join(directory, "metadata.json"))),
        "extensions": {name: extension(directory, name) for name in EXTENSIONS},
    }


def extension(directory: str, framework: str) -> Optional[str]:
    """The path of a framework's compiled extension."""
    folder = os.path.join(directory, framework)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    stem = EXTENSIONS[framework] + "."
    fitting = [name for name in names if name.startswith(stem) and name.endswith(".so")]
    return os.path.join(folder, fitting[0]) if fitting else None


def read_json(path: str) -> Any:
    with open(path) as stream:
        return json.load(stream)


def import_framework(name: str) -> Dict[str, Any]:
    module = importlib.import_module(name)
    return {"version": str(module.__version__), "path": getattr(module, "__file__", None)}


def load_extension(name: str) -> Dict[str, Any]:
    module = importlib.import_module("horovod." + name)
    if not hasattr(module, "init"):
        raise ImportError("horovod.%s was imported, but without its extension" % name)
    return {"module": module.__name__}


def flags(hvd: Any) -> Dict[str, Any]:
    return {name: attempt(getattr(hvd, name + "_built")) for name in FLAGS}


def initialise(hvd: Any) -> Dict[str, Any]:
    hvd.init()
    return {"initialised": True}


def world(hvd: Any) -> Dict[str, Any]:
    return {name: attempt(getattr(hvd, name)) for name in WORLD}


def libraries() -> Dict[str, List[str]]:
    """The libraries of interest that this process has mapped, by name."""
    found = {}  # type: Dict[str, List[str]]
    with open("/proc/self/maps") as stream:
        for line in stream:
            match = LIBRARIES.search(line.rstrip("\n"))
            if match and match.group(1) not in found.setdefault(match.group(2), []):
                found[match.group(2)].append(match.group(1))
    return found


def prime(index: int) -> int:
    """The prime number of that index; prime(0) is 2."""
    known = []  # type: List[int]
    candidate = 2
    while len(known) <= index:
        if all(candidate % divisor for divisor in known):
            known.append(candidate)
        candidate += 1
    return known[-1]


def collectives(record: Record, hvd: Any, make: Callable[[List[float]], Any], where: str) -> Dict[str, Any]:
    """What came of sending [p, -p, p/2], where p is the rank's prime; root is the last rank.

    The gathered part is [p] repeated 1 + rank % 3 times, so that neighbours differ in length.
    """
    root, own = hvd.size() - 1, prime(hvd.rank())
    sent = [float(own), -float(own), own / 2.0]
    part = [float(own)] * (1 + hvd.rank() % 3)
    calls = {  # type: Dict[str, Callable[[str], Any]]
        "broadcast": lambda name: hvd.broadcast(make(sent), root, name=name),
        "sum": lambda name: hvd.allreduce(make(sent), op=hvd.Sum, name=name),
        "average": lambda name: hvd.allreduce(make(sent), op=hvd.Average, name=name),
        "gathered": lambda name: hvd.allgather(make(part), name=name),
    }
    results = {"sent": sent}
    for operation, call in calls.items():
        record.arrive("%s_%s" % (operation, where))
        results[operation] = numbers(call("%s_%s" % (operation, where)))
    return results


def numbers(tensor: Any) -> List[float]:
    array = tensor if hasattr(tensor, "reshape") else tensor.numpy()
    return [float(value) for value in array.reshape(-1).tolist()]


def problem(rank: int) -> Dict[str, Any]:
    """A least-squares problem that only this rank has: SAMPLES x FEATURES inputs, targets, own weights."""
    draw = random.Random(rank + 1)
    inputs = [[draw.uniform(-1, 1) for _ in range(FEATURES)] for _ in range(SAMPLES)]
    targets = [draw.uniform(-1, 1) for _ in range(SAMPLES)]
    own = [draw.uniform(-1, 1) for _ in range(FEATURES)]
    return {"inputs": inputs, "targets": targets, "own": own, "learning_rate": LEARNING_RATE, "steps": STEPS}


def trained(task: Dict[str, Any], started: List[float], weights: List[float]) -> Dict[str, Any]:
    digest = hashlib.sha256(json.dumps(weights).encode()).hexdigest()
    return dict(task, started=started, weights=weights, digest=digest)


def torch_gpus(torch: Any) -> Dict[str, Any]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    uuids = [str(getattr(device, "uuid", "")) or None for device in properties]
    return {"count": count, "names": [device.name for device in properties], "uuids": uuids}


def torch_device(torch: Any, gpus: Any, local_rank: int) -> Dict[str, Any]:
    index = local_rank % gpus["count"]
    torch.cuda.set_device(index)
    return {"index": index, "uuid": gpus["uuids"][index], "name": gpus["names"][index]}


def torch_tensors(torch: Any, device: str) -> Callable[[List[float]], Any]:
    return lambda values: torch.tensor(values, dtype=torch.float64, device=device)


def torch_training(hvd: Any, torch: Any, device: str) -> Dict[str, Any]:
    """Own data and own weights in each rank, one broadcast of the weights, then STEPS optimizer steps."""
    task = problem(hvd.rank())
    inputs = torch.tensor(task["inputs"], device=device)
    targets = torch.tensor([[target] for target in task["targets"]], device=device)
    model = torch.nn.Linear(FEATURES, 1, bias=False).to(device)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([task["own"]]))
    plain = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    started = numbers(model.weight.detach())
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return trained(task, started, numbers(model.weight.detach()))


def measure_torch(record: Record, hvd: Any) -> None:
    torch = sys.modules["torch"]
    gpus = record.state("gpus", torch_gpus, torch)
    device = "cpu"
    record.state("collectives_cpu", collectives, record, hvd, torch_tensors(torch, "cpu"), "cpu")
    if gpus and gpus["count"] and hvd.nccl_built():
        if record.state("device", torch_device, torch, gpus, hvd.local_rank()):
            device = "cuda"
        record.state("collectives_gpu", collectives, record, hvd, torch_tensors(torch, "cuda"), "gpu")
    record.state("training_torch", torch_training, hvd, torch, device)


def tensorflow_gpus(tf: Any) -> Dict[str, Any]:
    devices = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    names = [detail.get("device_name", device.name) for detail, device in zip(details, devices)]
    return {"count": len(devices), "names": names, "uuids": [None] * len(devices)}


def tensorflow_device(tf: Any, gpus: Any, local_rank: int) -> Dict[str, Any]:
    devices = tf.config.list_physical_devices("GPU")
    index = local_rank % len(devices)
    tf.config.experimental.set_memory_growth(devices[index], True)
    tf.config.set_visible_devices(devices[index], "GPU")
    return {"index": index, "uuid": gpus["uuids"][index], "name": gpus["names"][index]}


def tensorflow_collectives(record: Record, hvd: Any, tf: Any, where: str) -> Dict[str, Any]:
    with tf.device("/%s:0" % where.upper()):
        return collectives(record, hvd, lambda values: tf.constant(values, dtype=tf.float64), where)


def tensorflow_training(hvd: Any, tf: Any) -> Dict[str, Any]:
    """Plain TensorFlow: broadcast_variables, then STEPS steps through DistributedGradientTape."""
    task = problem(hvd.rank())
    inputs, targets = tf.constant(task["inputs"]), tf.constant([[target] for target in task["targets"]])
    weights = tf.Variable([[value] for value in task["own"]])
    hvd.broadcast_variables([weights], root_rank=0)
    started = numbers(weights)
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - targets))
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        weights.assign_sub(LEARNING_RATE * gradient)
    return trained(task, started, numbers(weights))


def keras_implementation(tf: Any) -> Dict[str, Any]:
    module = tf.keras.Model.__module__
    package = module.split(".")[0]
    version = getattr(tf.keras, "__version__", None) or sys.modules[package].__version__
    return {"implementation": package, "version": str(version), "module": module}


def keras_fit(tf: Any, task: Any, start: List[float], optimizer: Any, epochs: int, *callbacks: Any) -> Any:
    """A one-layer model that was trained from `start`, one batch per epoch, and its history."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input(shape=(FEATURES,)), layers.Dense(1, use_bias=False)])
    model.set_weights([tf.constant([[value] for value in start]).numpy()])
    model.compile(loss="mse", optimizer=optimizer)
    inputs, targets = tf.constant(task["inputs"]), tf.constant([[target] for target in task["targets"]])
    options = {"batch_size": SAMPLES, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = model.fit(inputs, targets, callbacks=list(callbacks), **options)
    return model, history.history


def keras_training(hvd: Any, tf: Any) -> Dict[str, Any]:
    """Keras: starting weights broadcast by hand, then STEPS batches of fit with DistributedOptimizer."""
    keras = importlib.import_module("horovod.tensorflow.keras")
    task = problem(hvd.rank())
    started = numbers(hvd.broadcast(tf.constant(task["own"]), 0, name="keras.start"))
    optimizer = keras.DistributedOptimizer(tf.keras.optimizers.SGD(LEARNING_RATE))
    model, _ = keras_fit(tf, task, started, optimizer, STEPS)
    return trained(task, started, numbers(model.get_weights()[0]))


def broadcast_callback(hvd: Any, tf: Any) -> Dict[str, Any]:
    """With a learning rate of zero the weights afterwards are those that rank 0 started with."""
    keras = importlib.import_module("horovod.tensorflow.keras")
    task = problem(hvd.rank())
    callback = keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model, _ = keras_fit(tf, task, task["own"], tf.keras.optimizers.SGD(0.0), 1, callback)
    return {"own": task["own"], "weights": numbers(model.get_weights()[0])}


def metric_callback(hvd: Any, tf: Any) -> Dict[str, Any]:
    """With a learning rate of zero the loss is the mean over the ranks of the loss at their own weights."""
    keras = importlib.import_module("horovod.tensorflow.keras")
    task = problem(hvd.rank())
    callback = keras.callbacks.MetricAverageCallback()
    _, history = keras_fit(tf, task, task["own"], tf.keras.optimizers.SGD(0.0), 1, callback)
    return dict(task, loss=float(history["loss"][-1]))


def warmup_callback(hvd: Any, tf: Any) -> Dict[str, Any]:
    """After the warm-up the learning rate is the one that was asked for."""
    keras = importlib.import_module("horovod.tensorflow.keras")
    task = problem(hvd.rank())
    callback = keras.callbacks.LearningRateWarmupCallback(LEARNING_RATE, warmup_epochs=2, steps_per_epoch=1)
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE / 10)
    model, _ = keras_fit(tf, task, task["own"], optimizer, 3, callback)
    rate = model.optimizer.learning_rate
    return {"asked": LEARNING_RATE, "reached": float(rate.numpy() if hasattr(rate, "numpy") else rate)}


def measure_tensorflow(record: Record, hvd: Any) -> None:
    tf = sys.modules["tensorflow"]
    gpus = record.state("gpus", tensorflow_gpus, tf)
    on_gpu = bool(gpus and gpus["count"] and hvd.nccl_built())
    if on_gpu:
        record.state("device", tensorflow_device, tf, gpus, hvd.local_rank())
    record.state("collectives_cpu", tensorflow_collectives, record, hvd, tf, "cpu")
    if on_gpu:
        record.state("collectives_gpu", tensorflow_collectives, record, hvd, tf, "gpu")
    record.state("training_tensorflow", tensorflow_training, hvd, tf)
    record.state("keras", keras_implementation, tf)
    record.state("training_keras", keras_training, hvd, tf)
    record.state("broadcast_callback", broadcast_callback, hvd, tf)
    record.state("metric_callback", metric_callback, hvd, tf)
    record.state("warmup_callback", warmup_callback, hvd, tf)


MEASURES = {"torch": measure_torch, "tensorflow": measure_tensorflow}


def measure(record: Record, framework: str) -> None:
    """State every fact, in an order that leaves as much as possible if a later step does not return."""
    for fact in (python, environment, installed, horovod):
        record.state(fact.__name__, fact)
    if framework != "none" and record.state("import", import_framework, framework):
        if record.state("load", load_extension, framework):
            hvd = sys.modules["horovod." + framework]
            record.state("flags", flags, hvd)
            if record.state("init", initialise, hvd):
                record.state("world", world, hvd)
                record.state("mpi_threads", hvd.mpi_threads_supported)
                record.state("libraries", libraries)
                MEASURES[framework](record, hvd)
                record.state("shutdown", hvd.shutdown)
    record.arrive("exit")


def die_with_parent() -> None:
    """Leave the launcher's process group, whose signals are for the parent, but do not outlive the parent."""
    try:
        ctypes = importlib.import_module("ctypes")
        if ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0) == 0:
            os.setpgid(0, 0)
    except (ImportError, AttributeError, OSError):
        pass


def collect(record: Record, framework: str, stack: str) -> None:
    """Measure, in the child; being told to stop is the parent's business."""
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    os.dup2(2, 1)
    with open(stack, "w") as stream:
        faulthandler.enable(stream)
        faulthandler.register(signal.SIGUSR1, stream)
        measure(record, framework)
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.disable()


class StoppedError(Exception):
    """The parent was told to stop; holds the signal's name."""


def on_signal(number: int, _frame: Any) -> None:
    raise StoppedError(signal.Signals(number).name)


def wait_for(child: int, seconds: float) -> Optional[int]:
    """The wait status of the child, or None when the time is up."""
    end = time.time() + seconds
    while time.time() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.02)
    return None


def stop(child: int, stack: str) -> None:
    """Have the child write its Python stack, then end it."""
    os.kill(child, signal.SIGUSR1)
    end = time.time() + 0.7
    while time.time() < end and not (os.path.exists(stack) and os.path.getsize(stack)):
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def watch(child: int, timeout: float, stack: str) -> Dict[str, Any]:
    """How the child ended: exit (with its status), signal, timeout or terminated (from outside)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        status = wait_for(child, timeout)
    except StoppedError as stopped:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        stop(child, stack)
        return {"how": "terminated", "signal": str(stopped)}
    if status is None:
        stop(child, stack)
        return {"how": "timeout", "limit": timeout}
    if os.WIFSIGNALED(status):
        return {"how": "signal", "signal": signal.Signals(os.WTERMSIG(status)).name}
    return {"how": "exit", "status": os.WEXITSTATUS(status)}


def finish(record: Record, ended: Dict[str, Any], stack: str) -> int:
    """Add to the child's record how it ended; the exit status of this process."""
    try:
        record.facts = read_json(record.path)
    except (OSError, ValueError):
        pass
    if os.path.exists(stack):
        with open(stack, errors="replace") as stream:
            ended["stack"] = stream.read()[-4000:] or None
        os.remove(stack)
    record.facts["ended"] = dict(ended, phase=record.facts["phase"])
    record.write()
    if ended["how"] == "exit" and ended["status"] == 0 and record.facts["phase"] == "exit":
        return 0
    return {"timeout": 124, "terminated": 143}.get(ended["how"], 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="State what is true of one rank.")
    parser.add_argument("--framework", choices=["torch", "tensorflow", "none"], required=True)
    parser.add_argument("--output", required=True, metavar="DIRECTORY")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    arguments = parser.parse_args()
    host = socket.gethostname()
    name = "%s-%s-%d" % (arguments.framework, re.sub(r"[^\w.-]", "_", host), os.getpid())
    facts = {"version": VERSION, "framework": arguments.framework, "host": host}  # type: Dict[str, Any]
    facts.update(pid=os.getpid(), phases=[])
    os.makedirs(arguments.output, exist_ok=True)
    record = Record(os.path.join(arguments.output, name + ".json"), facts)
    stack = os.path.join(arguments.output, name + ".stack")
    record.arrive("start")
    child = os.fork()
    if not child:
        collect(record, arguments.framework, stack)
        return 0
    return finish(record, watch(child, arguments.timeout, stack), stack)


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    sys.exit(main())
