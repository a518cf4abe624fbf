"""Give a Keras 3 optimizer to Horovod; prints what Horovod says, "trained" if it says nothing."""

import sys

import horovod.tensorflow.keras as hvd
import keras

hvd.init()
try:
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(0)
print("trained")
