"""What elastic.py does, with Keras 3.

python elastic_keras.py FILE     the last of two ranks kills itself and makes FILE, unless that is there
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from horovod.tensorflow.keras import DistributedOptimizer

hvd.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = DistributedOptimizer(keras.optimizers.SGD(0.01))
optimizer.build(model.trainable_variables)
died = Path(sys.argv[1])


@hvd.elastic.run
def train(state):
    while state.step < 20:
        if state.step == 5 and (hvd.rank(), hvd.size()) == (1, 2) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((2, 4))))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        state.step += 1
        state.commit()
        print(f"step {state.step}: rank {hvd.rank()} of {hvd.size()}", flush=True)
        time.sleep(0.3)


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)
train(state)
print(f"end at {state.step}: rank {hvd.rank()} of {hvd.size()}", flush=True)
