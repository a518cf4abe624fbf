"""A Keras training as the tutorials write it: broadcast, metric average, warm-up; different data in each rank.

Writes one JSON file a rank into the folder named: rank, size, a digest of the weights, the losses, the rates.
"""

import hashlib
import json
import pathlib
import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(64, 8)).astype("float32")
y = rng.integers(0, 3, size=64)
tf.random.set_seed(hvd.rank())
layers = [tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)]
model = tf.keras.Sequential(layers)
rate = 0.05 * hvd.size()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=0.9))
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])


class Rates(tf.keras.callbacks.Callback):
    """Notes the learning rate at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


rates = Rates()
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3, verbose=0),
    rates,
]
history = model.fit(x, y, batch_size=16, epochs=4, callbacks=callbacks, verbose=0)
digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
facts = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "weights": digest,
    "loss": [float(loss) for loss in history.history["loss"]],
    "rates": rates.seen,
}
pathlib.Path(sys.argv[1], f"{hvd.rank()}.json").write_text(json.dumps(facts))
