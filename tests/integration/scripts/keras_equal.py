"""Train with Keras, other data in each rank, and alone with the data of all; rank 0 writes as JSON how they differ.

    python keras_equal.py FOLDER

For each case it is [the largest difference between ranks, that from training alone], or the error of rank 0. The Keras
is that of tf.keras; what is in OF_KERAS_3 is tried only with Keras 3.
"""

import json
import pathlib
import sys
import time
import warnings

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_tf_keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.elastic import TensorFlowKerasState

FOLDER = pathlib.Path(sys.argv[1])
BATCH, STEPS, EPOCHS = 16, 2, 3
hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras = tf.keras
is_3 = not keras.Model.__module__.startswith("tf_keras")
rng = np.random.default_rng(0)
x = rng.normal(size=(STEPS, BATCH, 4)).astype("float32")
y = (x @ rng.normal(size=(4, 1)) + rng.normal(size=(STEPS, BATCH, 1))).astype("float32")
ids = rng.integers(0, 6, size=(STEPS, BATCH, 4))
each = BATCH // hvd.size()
mine = slice(hvd.rank() * each, (hvd.rank() + 1) * each)
distributed = hvd_tf_keras.DistributedOptimizer


def model(seed=5, **options):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="relu", **options), keras.layers.Dense(1, **options)]
    return keras.Sequential([keras.Input((4,)), *layers])


def embedding():
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,), dtype="int32"), *layers])


def normalised(layer="BatchNormalization"):
    keras.utils.set_random_seed(5)
    layer = getattr(keras.layers, layer, None) or getattr(hvd, layer)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), layer(), keras.layers.Dense(1)])


def fit(net, optimizer, inputs, batch=BATCH, epochs=EPOCHS, callbacks=(), **options):
    """Of `inputs` a part of each batch where the optimizer is Horovod's, else all."""
    part = mine if callbacks or optimizer.__dict__.get("shared") else slice(None)
    rows = batch if part == slice(None) else batch * each // BATCH
    net.compile(optimizer, "mse", **options)
    data = (a[:, part].reshape(-1, a.shape[-1]) for a in (inputs, y))
    return net.fit(*data, batch_size=rows, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def shared(optimizer, wrap=distributed, **options):
    wrapped = wrap(optimizer, **options)
    wrapped.__dict__["shared"] = True
    return wrapped


def weights(net):
    return np.concatenate([value.ravel() for value in net.get_weights()])


def between_ranks(values):
    everyone = hvd.allgather(tf.constant(values[None], tf.float64)).numpy()
    return float(np.abs(everyone - everyone[0]).max())


def differ(net, alone, start=model):
    assert np.abs(weights(net) - weights(start())).max() > 1e-4, "untrained"
    return [between_ranks(weights(net)), float(np.abs(weights(net) - weights(alone)).max())]


def same(make, options=(), alone=None, alone_batch=BATCH, net=model, inputs=x, **compiled):
    """Whether it is the same to train together and alone."""

    def case():
        together, by_itself = net(), net()
        fit(together, shared(make(), **dict(options)), inputs, **compiled)
        fit(by_itself, (alone or make)(), inputs, alone_batch, **compiled)
        return differ(together, by_itself, net)

    return case


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.05, momentum=0.9, **options)


def trained_before():
    """An optimizer that has a state keeps it."""
    together, by_itself = model(), model()
    for net in (together, by_itself):
        fit(net, sgd()(), x)
    fit(together, shared(together.optimizer), x)
    fit(by_itself, by_itself.optimizer, x)
    return differ(together, by_itself)


def named(name):
    return lambda: getattr(keras.optimizers, name)(0.01)


def in_a_loop(reduce, apply, **compiled):
    """A loop of one's own; its steps, or with compiled= only the gradients, are a function."""

    def train(net, optimizer, part, reduce):
        def gradients(inputs, targets):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(net(inputs, training=True) - targets))
            return (reduce(tape) if reduce else tape).gradient(loss, net.trainable_variables)

        def step(inputs, targets):
            optimizer.apply_gradients(zip(found(inputs, targets), net.trainable_variables, strict=True))

        found = tf.function(gradients, **compiled) if compiled else gradients
        run = step if compiled else tf.function(step)
        for _ in range(EPOCHS):
            for inputs, targets in zip(x[:, part], y[:, part], strict=True):
                run(tf.constant(inputs), tf.constant(targets))
        return optimizer

    def case():
        together, by_itself = model(5 + hvd.rank()), model()
        hvd.broadcast_variables(together.variables, root_rank=0)
        optimizer = train(together, apply(keras.optimizers.Adam(0.01)), mine, reduce)
        assert int(optimizer.iterations) == STEPS * EPOCHS
        train(by_itself, keras.optimizers.Adam(0.01), slice(None), None)
        return differ(together, by_itself)

    return case


def grouped():
    together, by_itself = model(), model()
    variables = together.trainable_variables
    fit(together, shared(sgd()(), groups=[variables[:2], variables[2:]]), x)
    fit(by_itself, sgd()(), x)
    return differ(together, by_itself)


def normalisation():
    """Over the batch of all ranks; the layer of Horovod, and Keras' own alone."""
    together, by_itself = normalised("SyncBatchNormalization"), normalised()
    fit(together, shared(sgd()()), x)
    fit(by_itself, sgd()(), x)
    return differ(together, by_itself, normalised)


def train_on_a_batch():
    """Weights that are first made while the step is compiled, and sparse gradients that are summed."""
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True, "sparse_as_dense": True}
    nets = []
    for optimizer, part, times in ((shared(sgd()(), **passes), mine, 2), (sgd()(), slice(None), 1)):
        keras.utils.set_random_seed(5)
        layers = [keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
        nets.append(keras.Sequential(layers))
        nets[-1].compile(optimizer, "mse")
        for _ in range(times):
            nets[-1].train_on_batch(ids[0, part], y[0, part])
    return differ(*nets, start=embedding)


def by_hand(make, *others, **options):
    """Steps that are not compiled; the loss does not depend on `others`."""

    def case():
        together, by_itself = model(), model()
        passes = options.get("backward_passes_per_step", 1)
        for net, optimizer, part, times in (
            (together, distributed(make(), **options), mine, passes),
            (by_itself, make(), slice(None), 1),
        ):
            variables = [*net.trainable_variables, *map(keras.Variable, others)]
            for inputs, targets in [*zip(x[:, part], y[:, part], strict=True)] * EPOCHS:
                for _ in range(times):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(tf.square(net(inputs) - targets))
                    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            assert [float(variable) for variable in variables[4:]] == [*others]
        return differ(together, by_itself)

    return case


def local_layer():
    """The gradients of a local layer are divided by the number of ranks, and each rank's own."""
    together = model()
    optimizer = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.05), local_layers=together.layers[-1])
    fit(together, shared(optimizer, lambda one: one), x)
    (first, own) = (
        between_ranks(np.concatenate([v.ravel() for v in layer.get_weights()])) for layer in together.layers
    )
    assert own > 1e-3
    return [first, 0.0]


def local_layer_of_a_tape():
    together = model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(together(x[0, mine]) - y[0, mine]))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[together.layers[-1]])
    local, shared_ = tape.get_local_and_global_gradients(loss, together.trainable_variables)
    assert [len(local), len(shared_)] == [2, 2]
    assert between_ranks(local[0][1].numpy()) > 1e-3
    return [between_ranks(shared_[0][1].numpy()), 0.0]


def callbacks():
    """From weights of its own each rank comes to those of rank 0; the rates, and the losses of all on average."""
    together = model(5 + hvd.rank())
    rate = 0.05
    told = fit(
        together, shared(keras.optimizers.SGD(rate, momentum=0.9)), x, callbacks=[
            hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_tf_keras.callbacks.MetricAverageCallback(),
            hvd_tf_keras.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, momentum_correction=False),
            hvd_tf_keras.callbacks.LearningRateScheduleCallback(rate, 0.1, start_epoch=2, momentum_correction=False),
        ],
    ).history  # fmt: skip
    assert np.allclose(told["lr"][1:], [rate, rate]), told["lr"]
    assert all(type(loss) is float for loss in told["loss"])
    state = together.optimizer.variables
    values = [np.ravel(value) for value in (state() if callable(state) else state)]
    return [max(map(between_ranks, [weights(together), np.array(told["loss"]), *values])), 0.0]


def second_model():
    """A callback that has broadcast one model broadcasts the next one, too."""
    broadcast = hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    for seed in (5, 50):
        net = model(seed + hvd.rank())
        fit(net, shared(sgd()()), x, callbacks=[broadcast])
    return [between_ranks(weights(net)), 0.0]


def copied():
    """A copy of an optimizer is plain; the callback says so, of that and of no other."""
    broadcast, wrapped = hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0), shared(sgd()())
    said = []
    for optimizer in (wrapped, type(wrapped).from_config(wrapped.get_config())):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fit(model(), optimizer, x, callbacks=[broadcast], epochs=1)
        said.append(any("a copy of one is none" in str(one.message) for one in told))
    assert said == [False, True], said
    return [0.0, 0.0]


def loaded(suffix):
    """What is saved halfway is loaded with its state, by Horovod and without it."""

    def case():
        half, by_itself = model(), model()
        fit(half, shared(keras.optimizers.Adam(0.01)), x)
        file = str(FOLDER / f"model{suffix}")
        if hvd.rank() == 0:
            half.save(file)
        hvd.allreduce(tf.zeros(1), name="saved")
        assert type(keras.models.load_model(file).optimizer) is type(keras.optimizers.Adam())
        again = hvd_tf_keras.load_model(file)
        assert int(again.optimizer.iterations) == STEPS * EPOCHS
        data = (a[:, mine].reshape(-1, a.shape[-1]) for a in (x, y))
        again.fit(*data, batch_size=each, epochs=EPOCHS, shuffle=False, verbose=0)
        fit(by_itself, keras.optimizers.Adam(0.01), x, epochs=2 * EPOCHS)
        return differ(again, by_itself)

    return case


def state_of_elastic():
    """What is committed is restored, and rank 0's is everybody's."""
    net = model(5 + hvd.rank())
    optimizer = shared(keras.optimizers.Adam(0.01))
    fit(net, optimizer, x)
    state = TensorFlowKerasState(net, optimizer, epoch=hvd.rank())
    kept = weights(net)
    fit(net, optimizer, x)
    state.restore()
    assert np.array_equal(weights(net), kept)
    assert int(optimizer.iterations) == STEPS * EPOCHS
    state.sync()
    assert state.epoch == 0
    return [between_ranks(weights(net)), 0.0]


def overflow(wrap):
    """Infinity in one rank: all leave the step out, none waits for the other, and they go on."""

    def case():
        net = model(dtype="mixed_float16")
        bad = x.copy()
        bad[0, -1] = np.inf
        fit(net, wrap(), bad, auto_scale_loss=False)
        assert int(net.optimizer.iterations) == EPOCHS, "half of the steps"
        assert float(net.optimizer.dynamic_scale) == 2.0**15 / 2**EPOCHS
        assert np.isfinite(weights(net)).all()
        return [between_ranks(weights(net)), 0.0]

    return case


def scaled(optimizer):
    optimizer.__dict__["shared"] = True
    return optimizer


def refused(do, *words):
    """It has to end in an error that says so, in all ranks."""

    def case():
        try:
            do()
        except (ValueError, NotImplementedError) as error:
            assert all(word in str(error) for word in words), error
            return [0.0, 0.0]
        raise AssertionError("not refused")

    return case


def xla_is_off():
    """The callback turns XLA off, with a warning, before anything is compiled."""
    together, by_itself = model(), model()
    broadcast = hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(together, shared(sgd()()), x, callbacks=[broadcast], jit_compile=True)
    assert any("jit_compile is off" in str(one.message) for one in told)
    fit(by_itself, sgd()(), x)
    return differ(together, by_itself)


def optimizer_of_float8():
    variable = keras.Variable([1.0])
    variable.overwrite_with_gradient = True
    distributed(keras.optimizers.SGD(0.1)).apply([tf.ones(1)], [variable])


optimizers = keras.optimizers
CASES = {
    "Adam": same(named("Adam")),
    "momentum": same(sgd()),
    "clipnorm": same(sgd(clipnorm=0.1)),
    "global_clipnorm": same(sgd(global_clipnorm=0.1), run_eagerly=True),
    "schedule": same(lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.05, 1, 0.9))),
    "eagerly": same(sgd(), run_eagerly=True),
    "groups of variables": grouped,
    "two passes": same(sgd(), {"backward_passes_per_step": 2, "average_aggregated_gradients": True}, None, 2 * BATCH),
    "sparse": same(lambda: optimizers.SGD(0.05), net=embedding, inputs=ids),
    "batch normalisation": normalisation,
    "local layer": local_layer,
    "local layer of a tape": local_layer_of_a_tape,
    "tape": in_a_loop(hvd.DistributedGradientTape, lambda optimizer: optimizer),
    "callbacks": callbacks,
    "a second model": second_model,
    "load_model": loaded(".keras" if is_3 else ".h5"),
    "elastic": state_of_elastic,
}  # fmt: skip
OTHERS = "SGD AdamW Adamax Adafactor Adagrad Ftrl Lamb Lion Nadam RMSprop"
OF_KERAS_3 = {
    **{name: by_hand(named(name)) for name in OTHERS.split()},
    "Adadelta": by_hand(lambda: optimizers.Adadelta(1.0)),
    "sum": same(lambda: optimizers.SGD(0.05 / hvd.size()), {"op": hvd.Sum}, lambda: optimizers.SGD(0.05)),
    "steps_per_execution": same(sgd(), steps_per_execution=2),
    "predivide": by_hand(sgd(), gradient_predivide_factor=4.0),
    "two groups": by_hand(sgd(), groups=2),
    "two passes, summed": same(
        lambda: optimizers.SGD(0.05), {"backward_passes_per_step": 2}, lambda: optimizers.SGD(0.1), 2 * BATCH),
    "sparse as dense": same(lambda: optimizers.SGD(0.05), {"sparse_as_dense": True}, net=embedding, inputs=ids),
    "two passes, sparse as dense": train_on_a_batch,
    "without a gradient": by_hand(sgd(), 3.0),
    "two passes without a gradient": by_hand(
        sgd(), 3.0, backward_passes_per_step=2, average_aggregated_gradients=True),
    "clipvalue": by_hand(sgd(clipvalue=0.01)),
    "average of weights": same(sgd(weight_decay=0.01, use_ema=True, ema_overwrite_frequency=2)),
    "loss_scale_factor": same(sgd(loss_scale_factor=1024.0), run_eagerly=True),
    "accumulation": same(sgd(gradient_accumulation_steps=2)),
    "two passes in an execution": same(
        sgd(), {"backward_passes_per_step": 2, "average_aggregated_gradients": True}, None, 2 * BATCH,
        steps_per_execution=2),
    "trained before": trained_before,
    "own loop": in_a_loop(None, distributed),
    "own loop, gradients by XLA": in_a_loop(None, distributed, jit_compile=True),
    "overflow in fit": overflow(lambda: scaled(optimizers.LossScaleOptimizer(distributed(sgd()())))),
    "overflow, wrapped outside": overflow(lambda: shared(optimizers.LossScaleOptimizer(sgd()()))),
    "XLA": refused(lambda: fit(model(), shared(sgd()()), x, jit_compile=True), "XLA", "jit_compile=False"),
    "XLA, with the callback": xla_is_off,
    "a copy": copied,
    "twice": refused(lambda: distributed(distributed(sgd()())), "already"),
    "both accumulations": refused(
        lambda: distributed(sgd(gradient_accumulation_steps=2)(), backward_passes_per_step=2), "one of them"),
    "float8": refused(optimizer_of_float8, "float8"),
}  # fmt: skip


found = {}
only = sys.argv[2:]
for name, case in {**CASES, **(OF_KERAS_3 if is_3 else {})}.items():
    if only and name not in only:
        continue
    try:
        found[name] = case()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    if hvd.rank() == 0:
        print(f"{name}: {found[name]} ({time.process_time():.1f} s in all)", flush=True)
if hvd.rank() == 0:
    (FOLDER / "found.json").write_text(json.dumps({"keras": keras.Model.__module__, "found": found}))
