"""Images per second of training on made-up images: TensorFlow with Horovod.

    mpirun -np 4 python tf_synthetic.py       (or srun, or horovodrun)

On GPUs it is ResNet-50 with images of 224 x 224 by default; on CPUs a small network.
An unpatched Horovod 0.28.1 needs TF_USE_LEGACY_KERAS=1 with TensorFlow 2.16 and later.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def parse(argv=None):
    parser = argparse.ArgumentParser(description="Images per second on made-up images, Horovod.")
    parser.add_argument("--batch-size", type=int, help="of each rank; 32 on GPUs, 8 on CPUs")
    parser.add_argument("--epochs", type=int, default=10, help="measurements; the first one is left out")
    parser.add_argument("--steps", type=int, default=10, help="in each measurement")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def small():
    layers = tf.keras.layers
    convolutions = [
        layers.Conv2D(width, 3, strides=2, activation="relu", padding="same") for width in (32, 64, 128, 256)
    ]
    return tf.keras.Sequential([*convolutions, layers.GlobalAveragePooling2D(), layers.Dense(1000)])


def measure(step, images, args):
    """Return the images per second of this rank in each measurement."""
    speeds = []
    for _ in range(args.epochs):
        began = time.perf_counter()
        for _ in range(args.steps):
            loss = step()
        loss.numpy()  # waits for the GPU
        speeds.append(len(images) * args.steps / (time.perf_counter() - began))
    return speeds[1:] or speeds


def tell(name, speeds):
    """Say what all ranks have measured."""
    everyone = hvd.allgather(tf.constant([speeds], dtype=tf.float64), name=name).numpy()
    total = everyone.sum(axis=0)
    if hvd.rank() == 0:
        each = ", ".join(f"{speed:.1f}" for speed in everyone.mean(axis=1))
        spread = f" +- {1.96 * np.std(total, ddof=1):.1f}" if len(total) > 1 else ""
        print(f"{name}: images/s per rank: {each}; in all {total.mean():.1f}{spread}")


def main(argv=None):
    args = parse(argv)
    hvd.init()
    tf.keras.utils.set_random_seed(args.seed)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:  # a GPU for each rank; some schedulers show a rank its own alone
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    side = 224 if gpus else 64
    batch = args.batch_size or (32 if gpus else 8)
    images = tf.random.normal((batch, side, side, 3))
    labels = tf.random.uniform((batch,), maxval=1000, dtype=tf.int64)
    if hvd.rank() == 0:
        network, device = ("ResNet-50", "gpu") if gpus else ("a small network", "cpu")
        print(f"{network}, {hvd.size()} ranks on {device}, batch {batch} each, images of {side} x {side}")

    model = tf.keras.applications.ResNet50(weights=None, classifier_activation=None) if gpus else small()
    model(images[:1])  # makes the weights
    optimizer = tf.keras.optimizers.SGD(args.lr)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            output = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output))
        tape = hvd.DistributedGradientTape(tape)  # averages the gradients of all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    tell("Horovod", measure(step, images, args))


if __name__ == "__main__":
    main()
