"""The measurements with TensorFlow and its Keras."""

import functools
import importlib
import sys
from typing import Any, Callable, Dict, List

from .collectives import Collectives, measure_collectives, numbers
from .record import Record
from .training import FEATURES, LEARNING_RATE, SAMPLES, STEPS, problem, trained
from .values import Arrays, Values, measure_values


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


def collectives_on(hvd: Any, tf: Any, where: str) -> Collectives:
    def make(values: List[float], kind: str) -> Any:
        with tf.device("/%s:0" % where.upper()):
            return tf.constant(values, dtype=getattr(tf, kind))

    return Collectives(hvd, make, beginning(hvd, tf, where), where)


def beginning(hvd: Any, tf: Any, where: str) -> Callable[..., Callable[[], Any]]:
    """One operation after the other: eager ones of one type share a name, and Horovod has one at a time of a name."""

    def begin(call: str, *given: Any, **options: Any) -> Callable[[], Any]:
        with tf.device("/%s:0" % where.upper()):
            result = getattr(hvd, call)(*given, **options)
        return lambda: result

    return begin


def values_on(hvd: Any, tf: Any, where: str) -> Values:
    """NumPy's arrays, made tensors on a device."""
    numpy = sys.modules["numpy"]

    def given(array: Any) -> Any:
        with tf.device("/%s:0" % where.upper()):
            return tf.constant(array)

    arrays = Arrays(
        counting=lambda count: numpy.arange(count, dtype="int64"),
        cast=lambda array, kind: array.astype(getattr(tf, kind).as_numpy_dtype),
        empty=lambda count, kind: numpy.empty(count, getattr(tf, kind).as_numpy_dtype),
        plus=lambda array, number, out: numpy.add(array, number, out=out),
        equal=numpy.array_equal,
        places=lambda mask: mask.nonzero()[0],
        given=given,
        got=lambda tensor: tensor.numpy(),
        in_place=False,
    )
    return Values(hvd, arrays, beginning(hvd, tf, where), where)


def tensorflow_training(hvd: Any, tf: Any) -> Dict[str, Any]:
    """Plain TensorFlow: broadcast_variables, then STEPS steps through DistributedGradientTape, both in functions.

    That is how programs train, too. AutoGraph, which has nothing to convert here, would rewrite Horovod's own source
    first, which takes seconds.
    """
    task = problem(hvd.rank())
    inputs, targets = tf.constant(task["inputs"]), tf.constant([[target] for target in task["targets"]])
    weights = tf.Variable([[value] for value in task["own"]])

    def broadcast() -> None:
        hvd.broadcast_variables([weights], root_rank=0)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - targets))
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        weights.assign_sub(LEARNING_RATE * gradient)

    tf.function(broadcast, autograph=False)()
    started = numbers(weights)
    graph = tf.function(step, autograph=False)
    for _ in range(STEPS):
        graph()
    return trained(task, started, numbers(weights))


def keras_implementation(tf: Any) -> Dict[str, Any]:
    module = tf.keras.Model.__module__
    package = module.split(".")[0]
    version = getattr(tf.keras, "__version__", None) or sys.modules[package].__version__
    return {"implementation": package, "version": str(version), "module": module}


def keras_fit(tf: Any, task: Any, start: List[float], optimizer: Any, epochs: int, *callbacks: Any) -> Any:
    """A one-layer model that was trained from `start`, one batch per epoch, and its history."""
    layers = tf.keras.layers
    tf.keras.backend.set_floatx("float32")  # what is right is reckoned in, whatever ~/.keras/keras.json says
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


def measure(record: Record, hvd: Any) -> None:
    tf = sys.modules["tensorflow"]
    sys.dont_write_bytecode = True  # of the files that AutoGraph makes in the folder for temporary ones, and removes
    gpus = record.state("gpus", tensorflow_gpus, tf)
    on_gpu = bool(gpus and gpus["count"] and hvd.nccl_built())
    if on_gpu:
        record.state("device", tensorflow_device, tf, gpus, hvd.local_rank())
    for where in ("cpu", "gpu") if on_gpu else ("cpu",):
        measure_collectives(record, collectives_on(hvd, tf, where))
        measure_values(record, functools.partial(values_on, hvd, tf, where), where)
    record.state("training_tensorflow", tensorflow_training, hvd, tf)
    record.state("keras", keras_implementation, tf)
    record.state("training_keras", keras_training, hvd, tf)
    record.state("broadcast_callback", broadcast_callback, hvd, tf)
    record.state("metric_callback", metric_callback, hvd, tf)
    record.state("warmup_callback", warmup_callback, hvd, tf)
