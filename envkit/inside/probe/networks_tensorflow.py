"""The networks of `throughput.py` in plain TensorFlow, which every version of Keras leaves alone."""

from typing import Any, Callable, Dict, List

from .throughput import LEARNING_RATE


class Weights:
    """Weights made on first use, in the order in which the network asks for them."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf
        self.made = []  # type: List[Any]
        self.next = 0

    def take(self, shape: List[int], start: str = "random") -> Any:
        if self.next == len(self.made):
            fans = shape[0] if len(shape) < 3 else shape[0] * shape[1] * shape[2]
            values = self.tf.random.normal(shape, stddev=(2.0 / fans) ** 0.5)
            values = {"random": values, "ones": self.tf.ones(shape), "zeros": self.tf.zeros(shape)}[start]
            self.made.append(self.tf.Variable(values))
        self.next += 1
        return self.made[self.next - 1]


def mlp(tf: Any, weights: Weights, model: Dict[str, Any], samples: Any) -> Any:
    for _ in range(model["layers"]):
        samples = tf.nn.relu(dense(tf, weights, samples, model["width"]))
    return dense(tf, weights, samples, model["classes"])


def dense(tf: Any, weights: Weights, samples: Any, units: int) -> Any:
    return tf.matmul(samples, weights.take([samples.shape[-1], units])) + weights.take([units], "zeros")


def resnet(tf: Any, weights: Weights, model: Dict[str, Any], images: Any) -> Any:
    """ResNet-50 for images of 3 channels, the channels last."""
    images = tf.nn.relu(convolution(tf, weights, images, model["width"], 7, 2))
    images = tf.nn.max_pool2d(images, 3, 2, "SAME")
    for stage, blocks in enumerate(model["blocks"]):
        for block in range(blocks):
            inner, stride = model["width"] * 2**stage, 2 if stage and not block else 1
            images = bottleneck(tf, weights, images, inner, stride)
    return dense(tf, weights, tf.reduce_mean(images, [1, 2]), model["classes"])


def bottleneck(tf: Any, weights: Weights, images: Any, inner: int, stride: int) -> Any:
    main = tf.nn.relu(convolution(tf, weights, images, inner, 1, 1))
    main = tf.nn.relu(convolution(tf, weights, main, inner, 3, stride))
    main = convolution(tf, weights, main, 4 * inner, 1, 1)
    same = images.shape[-1] == 4 * inner
    return tf.nn.relu(main + (images if same else convolution(tf, weights, images, 4 * inner, 1, stride)))


def convolution(tf: Any, weights: Weights, images: Any, filters: int, kernel: int, stride: int) -> Any:
    """A convolution and the normalisation over the batch that follows it."""
    images = tf.nn.conv2d(images, weights.take([kernel, kernel, images.shape[-1], filters]), stride, "SAME")
    scale, offset = weights.take([filters], "ones"), weights.take([filters], "zeros")
    return tf.compat.v1.nn.fused_batch_norm(images, scale, offset, is_training=True)[0]


def training_step(tf: Any, hvd: Any, model: Dict[str, Any]) -> Callable[[], None]:
    """One step on data that stay where they are, through Horovod's DistributedGradientTape."""
    image = model.get("image")
    shape = [image, image, 3] if image else [model["width"]]
    samples = tf.random.normal([model["batch"]] + shape)
    labels = tf.random.uniform([model["batch"]], maxval=model["classes"], dtype=tf.int32)
    weights = Weights(tf)
    network = resnet if image else mlp

    def logits() -> Any:
        weights.next = 0
        return network(tf, weights, model, samples)

    logits()
    hvd.broadcast_variables(weights.made, root_rank=0)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits()))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights.made)
        for weight, gradient in zip(weights.made, gradients):
            weight.assign_sub(LEARNING_RATE * gradient)
        return loss

    graph = tf.function(step, autograph=False)
    return lambda: graph().numpy()
