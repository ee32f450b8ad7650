"""Train a small residual network on 32 x 32 crops of two photographs.

The photographs, a temple and a flower, ship with scikit-learn, so nothing is downloaded. The
network decides from which of them a crop comes. It is tested on crops of the right third of each
photograph, of which it has seen no pixel.
"""

import sys

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_sample_images

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, SIZE = 250, 32, 32
PICTURE = "resnet.png"
HE = flow.variance_scaling_initializer(2.0, "fan_in", "truncated_normal")


def convolution(x, filters, size, stride, name, training):
    x = flow.layers.conv2d(
        x, filters, size, stride, "SAME", use_bias=False, kernel_initializer=HE, name=name
    )
    return flow.layers.batch_normalization(
        x, axis=1, momentum=0.9, training=training, name=f"{name}_norm"
    )


def block(x, filters, stride, name, training):
    """Two convolutions and a shortcut, which is a convolution where the shape changes."""
    y = flow.nn.relu(convolution(x, filters, 3, stride, f"{name}_1", training))
    y = convolution(y, filters, 3, 1, f"{name}_2", training)
    if stride > 1:
        x = convolution(x, filters, 1, stride, f"{name}_shortcut", training)
    return flow.nn.relu(x + y)


def network(images, training):
    x = flow.nn.relu(convolution(images, 16, 3, 1, "stem", training))
    for number, (filters, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
        x = block(x, filters, stride, f"block{number}", training)
    x = flow.math.reduce_mean(x, axis=[2, 3])
    return flow.layers.dense(x, 2, kernel_initializer=HE, name="output")


IMAGES = tp.Numpy.Placeholder((BATCH, 3, SIZE, SIZE))


@flow.global_function(type="train")
def train(images: IMAGES, labels: tp.Numpy.Placeholder((BATCH,), flow.int32)) -> tp.Numpy:
    logits = network(images, training=True)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    schedule = flow.optimizer.CosineScheduler(0.02, steps=STEPS)
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss


@flow.global_function(type="predict")
def predict(images: IMAGES) -> tp.Numpy:
    return flow.math.argmax(network(images, training=False))


def crops(photographs, rng):
    """Return a batch of normalized crops, and the numbers of their photographs."""
    labels = rng.integers(0, 2, BATCH).astype(np.int32)
    found = []
    for label in labels:
        photograph = photographs[label]
        top, left = (rng.integers(0, n - SIZE) for n in photograph.shape[:2])
        crop = photograph[top : top + SIZE, left : left + SIZE].astype(np.float32)
        # Neither color nor brightness tells the classes apart: only the texture does.
        gray = crop.mean(axis=2, keepdims=True)
        found.append(np.repeat((gray - gray.mean()) / (gray.std() + 1), 3, axis=2))
    return np.stack(found).transpose(0, 3, 1, 2), labels


def draw(losses, images, labels, found):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, *others) = pyplot.subplots(1, 5, figsize=(9, 2.2), layout="constrained")
    left.plot(losses, linewidth=0.8)
    left.set(xlabel="step", ylabel="cross entropy")
    for axes, image, label, guess in zip(others, images, labels, found, strict=False):
        axes.imshow(image[0], cmap="gray")
        axes.set_title(f"{('temple', 'flower')[guess]}{'' if guess == label else ' (wrong)'}")
        axes.axis("off")
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    photographs = load_sample_images().images
    border = photographs[0].shape[1] * 2 // 3
    seen, unseen = ([p[:, a:b] for p in photographs] for a, b in ((0, border), (border, None)))
    losses = [train(*crops(seen, rng)).mean() for _ in range(STEPS)]
    right = []
    for _ in range(16):
        images, labels = crops(unseen, rng)
        found = predict(images)
        right += list(found == labels)
    draw(losses, images, labels, found)
    print(f"{STEPS} steps, loss {np.mean(losses[-20:]):.3f}")
    print(f"accuracy on {len(right)} unseen crops: {100 * np.mean(right):.1f} %")
    return 0 if np.mean(right) > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
