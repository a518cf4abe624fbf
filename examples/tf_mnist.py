"""MNIST with TensorFlow, Keras and Horovod.

    mpirun -np 4 python tf_mnist.py --data DIR       (or srun, or horovodrun)

DIR has the four files of MNIST: train-images-idx3-ubyte.gz and so on. Copy this file as a start of your own.
An unpatched Horovod 0.28.1 needs TF_USE_LEGACY_KERAS=1 with TensorFlow 2.16 and later.
"""

import argparse
import gzip
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def parse(argv=None):
    parser = argparse.ArgumentParser(description="MNIST with TensorFlow, Keras and Horovod.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the files of MNIST")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.01, help="of one rank; it grows with their number")
    parser.add_argument("--warmup-epochs", type=float, default=1.0, help="how long it takes to grow")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written after each epoch; goes on from there")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def read_idx(path):
    """Read a file of bytes in the IDX format: 2 zeros, the type, the number of dimensions, the dimensions, the data."""
    content = gzip.decompress(path.read_bytes())
    dimensions = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(dimensions)


def load(folder, part):
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").astype(np.float32)[..., None] / 255
    return images, read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64)


def batches(number, size, seed):
    """Yield the images of this rank for each step. In each step the ranks together have the same ones, whatever their
    number: a part of one order that all know."""
    order = np.random.default_rng(seed).permutation(number)
    whole = size * hvd.size()
    for first in range(0, number - whole + 1, whole):
        yield order[first : first + whole][hvd.rank() :: hvd.size()]


def network():
    layers = tf.keras.layers
    return tf.keras.Sequential([
        tf.keras.Input((28, 28, 1)),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ])  # fmt: skip


def evaluate(model, images, labels):
    """Return loss and accuracy over the images of all ranks: sums are added up, so that unequal shares are right."""
    sums = np.zeros(3)
    for first in range(0, len(labels), 500):
        output = model(images[first : first + 500], training=False)
        wanted = labels[first : first + 500]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, output).numpy()
        sums += [losses.sum(), (output.numpy().argmax(1) == wanted).sum(), len(wanted)]
    loss, right, number = hvd.allreduce(tf.constant(sums), op=hvd.Sum, name="metrics").numpy()
    return loss / number, right / number


def save(path, variables, epoch):
    """Write under another name, then rename: who reads it, or is killed, never meets half a file."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        np.savez(stream, *[variable.numpy() for variable in variables], epoch=epoch)
    part.replace(path)


def restore(path, variables):
    """Read a checkpoint into the variables; return the epochs that are done."""
    with np.load(path) as state:
        for number, variable in enumerate(variables):
            variable.assign(state[f"arr_{number}"])
        return int(state["epoch"])


def main(argv=None):
    args = parse(argv)
    hvd.init()
    tf.keras.utils.set_random_seed(args.seed)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:  # a GPU for each rank; some schedulers show a rank its own alone
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    images, labels = load(args.data, "train")
    test_images, test_labels = (part[hvd.rank() :: hvd.size()] for part in load(args.data, "t10k"))
    model = network()
    optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
    optimizer.build(model.trainable_variables)
    variables = [*model.variables, *optimizer.variables]
    first_epoch = 0
    if args.checkpoint and hvd.rank() == 0 and args.checkpoint.exists():
        first_epoch = restore(args.checkpoint, variables)
    # Rank 0 has the checkpoint, and the others get it from there, as they get the first weights.
    first_epoch = int(hvd.broadcast(tf.constant(first_epoch), root_rank=0))
    hvd.broadcast_variables(variables, root_rank=0)

    @tf.function
    def train(images, labels):
        with tf.GradientTape() as tape:
            output = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output))
        tape = hvd.DistributedGradientTape(tape)  # averages the gradients of all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    if hvd.rank() == 0:
        note = args.data / "GENERATED.txt"
        print("data: " + (note.read_text().splitlines()[0] if note.exists() else str(args.data)))
        device = "gpu" if gpus else "cpu"
        print(f"{hvd.size()} ranks, {len(images)} images, batch {args.batch_size} x {hvd.size()}, on {device}")
    steps = len(images) // (args.batch_size * hvd.size())
    for epoch in range(first_epoch, args.epochs):
        losses = []
        for step, chosen in enumerate(batches(len(images), args.batch_size, [args.seed, epoch])):
            done = epoch + step / steps
            grown = min(1.0, done / args.warmup_epochs) if args.warmup_epochs else 1.0
            optimizer.learning_rate.assign(args.lr * (1 + (hvd.size() - 1) * grown))
            losses.append(train(images[chosen], labels[chosen]))
        train_loss = float(hvd.allreduce(tf.reduce_mean(losses), name="loss"))
        test_loss, accuracy = evaluate(model, test_images, test_labels)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {train_loss:.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.4f}")
            if args.checkpoint:
                save(args.checkpoint, variables, epoch + 1)
    return model


if __name__ == "__main__":
    main()
