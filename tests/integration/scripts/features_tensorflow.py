"""What becomes of each feature of Horovod with TensorFlow, on two ranks: a line of JSON from rank 0.

    python features_tensorflow.py

A feature whose result is right on both ranks is "works"; else it has what went wrong.
"""

import json

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd
import keras
import numpy as np
import tensorflow as tf

ALONE = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
hvd.init(process_sets=ALONE)
RANK, SIZE = hvd.rank(), hvd.size()
FEATURES = {}


def feature(name):
    def add(function):
        FEATURES[name] = [function]
        return function

    return add


def alike(values):
    """Whether values are the same on all ranks."""
    return len({str(one) for one in hvd.allgather_object(np.asarray(values).tolist())}) == 1


def allreduce_of(kind):
    def check():
        own = tf.cast(tf.ones(5), kind) if kind != tf.bool else tf.constant([True] * 5)
        total = hvd.allreduce(own, op=hvd.Sum, name=f"sum.{kind.name}")
        right = own if kind == tf.bool else own * tf.cast(SIZE, kind)
        return total.dtype == kind and bool(np.array_equal(total.numpy(), right.numpy()))

    return check


def moved_of(kind):
    def check():
        own = tf.cast(tf.constant([RANK == 0, RANK == 1, True]), kind)
        both = tf.cast(tf.constant([True, False, True, False, True, True]), kind).numpy()
        gathered = hvd.allgather(own, name=f"gather.{kind.name}")
        sent = hvd.broadcast(own, root_rank=1, name=f"broadcast.{kind.name}")
        return np.array_equal(gathered.numpy(), both) and np.array_equal(sent.numpy(), both[3:])

    return check


for group, kinds in {
    "float32, float64, float16": (tf.float32, tf.float64, tf.float16),
    "int32, int64": (tf.int32, tf.int64),
    "bfloat16": (tf.bfloat16,),
    "int8": (tf.int8,),
    "uint8": (tf.uint8,),
    "bool": (tf.bool,),
    "complex64": (tf.complex64,),
}.items():
    FEATURES[f"allreduce of {group}"] = [allreduce_of(kind) for kind in kinds]
for group in ("bfloat16", "uint8", "bool", "complex64"):
    FEATURES[f"allgather and broadcast of {group}"] = [moved_of(getattr(tf, group))]


@feature("reducescatter, alltoall")
def _():
    parts = hvd.reducescatter(tf.range(4.0), op=hvd.Sum)
    swapped = hvd.alltoall(tf.constant([float(RANK), float(RANK)]))
    swapped = swapped[0] if isinstance(swapped, (list, tuple)) else swapped
    return parts.numpy().tolist() == [[0.0, 2.0], [4.0, 6.0]][RANK] and swapped.numpy().tolist() == [0.0, 1.0]


@feature("SyncBatchNorm on CPUs")
def _():
    layer = hvd.SyncBatchNormalization()
    layer(tf.constant([[1.0, 2.0], [3.0, 4.0]]) + RANK, training=True)
    return alike(layer.moving_mean)


def weights_after(optimizer, **compile_words):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, loss="mse", **compile_words)
    before = model.get_weights()[0]
    x = np.full((4, 3), RANK + 1.0, "float32")
    model.fit(x, np.zeros((4, 2), "float32"), epochs=2, batch_size=2, verbose=0)
    return before, model.get_weights()[0]


def trained(optimizer=None, **words):
    before, after = weights_after(optimizer or keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), **words))
    return alike(after) and not np.array_equal(before, after)


@feature("sparse gradients")
def _():
    table = tf.Variable(tf.ones((4, 2)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [RANK, 2]))
    [gradient] = hvd.DistributedGradientTape(tape).gradient(loss, [table])
    table.scatter_sub(tf.IndexedSlices(gradient.values, gradient.indices))
    return isinstance(gradient, tf.IndexedSlices) and alike(table)


@feature("join")
def _():
    for step in range(1 + RANK):
        hvd.allreduce(tf.ones(1), name=f"join.{step}")
    return int(hvd.join()) == 1


@feature("process sets")
def _():
    own = tf.constant([float(RANK)])
    total = hvd.allreduce(own, op=hvd.Sum, name=f"alone.{RANK}", process_set=ALONE[RANK])
    return total.numpy().tolist() == [float(RANK)]


@feature("Adasum")
def _():
    total = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Adasum, name="adasum")
    return np.allclose(total.numpy(), [1.0, 2.0])  # of equal gradients the sum is one of them


@feature("Compression.fp16")
def _():
    return trained(compression=hvd.Compression.fp16)


@feature("Compression.bf16")
def _():
    return trained(compression=hvd.Compression.bf16)


def of_policy(name):
    keras.config.set_dtype_policy(name)
    try:
        return trained()
    finally:
        keras.config.set_dtype_policy("float32")


@feature("models in bfloat16")
def _():
    return of_policy("bfloat16")


@feature("mixed_bfloat16, mixed_float16")
def _():
    return of_policy("mixed_bfloat16") and of_policy("mixed_float16")


@feature("groups, backward_passes_per_step")
def _():
    return trained(groups=1) and trained(backward_passes_per_step=2)


@feature("XLA (jit_compile)")
def _():
    optimizer = keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    return alike(weights_after(optimizer, jit_compile=True)[1])


@feature("the state of elastic training")
def _():
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    state = keras_hvd.elastic.KerasState(model, step=RANK)
    state.sync()
    return state.step == 0 and alike(model.get_weights()[0])


def told(checks):
    """What becomes of a feature on this rank."""
    try:
        return "works" if all(check() for check in checks) else "wrong"
    except Exception as error:
        said = " ".join(str(error).split())
        return f"{type(error).__name__}: {said if len(said) < 600 else said[:300] + ' ... ' + said[-300:]}"


found = {}
for name, checks in FEATURES.items():
    said = {*hvd.allgather_object(told(checks))}
    found[name] = " | ".join(sorted(said))
if RANK == 0:
    print("FOUND " + json.dumps(found), flush=True)
