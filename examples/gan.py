"""Train a generative adversarial network (GAN) on handwritten digits.

Two train jobs share the variables of both networks. Each of them updates the variables of one
network: the variables of the other one are not trainable in that job.
"""

import sys

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, NOISE = 2500, 64, 16
PICTURE = "gan.png"
INIT = flow.glorot_uniform_initializer()


def dense(x, width, activation, name, trainable):
    return flow.layers.dense(
        x, width, activation, kernel_initializer=INIT, trainable=trainable, name=name
    )


def leaky(x):
    return flow.nn.leaky_relu(x, 0.2)


def generator(noise, trainable):
    x = dense(noise, 128, flow.nn.relu, "generator1", trainable)
    x = dense(x, 128, flow.nn.relu, "generator2", trainable)
    return dense(x, 64, flow.math.tanh, "generator3", trainable)


def discriminator(images, trainable):
    x = dense(images, 128, leaky, "discriminator1", trainable)
    x = dense(x, 64, leaky, "discriminator2", trainable)
    return dense(x, 1, None, "discriminator3", trainable)


def adam():
    return flow.optimizer.Adam(5e-4, beta1=0.5, do_bias_correction=True)


NOISES = tp.Numpy.Placeholder((BATCH, NOISE))


@flow.global_function(type="train")
def train_discriminator(noise: NOISES, real: tp.Numpy.Placeholder((BATCH, 64))) -> tp.Numpy:
    images = flow.concat([real, generator(noise, trainable=False)], axis=0)
    logits = discriminator(images, trainable=True)
    truth = [flow.constant(value, flow.float, (BATCH, 1)) for value in (0.9, 0.0)]
    loss = flow.nn.sigmoid_cross_entropy_with_logits(flow.concat(truth, axis=0), logits)
    adam().minimize(loss)
    return loss


@flow.global_function(type="train")
def train_generator(noise: NOISES) -> tp.Numpy:
    logits = discriminator(generator(noise, trainable=True), trainable=False)
    loss = flow.nn.sigmoid_cross_entropy_with_logits(flow.ones_like(logits), logits)
    adam().minimize(loss)
    return loss


@flow.global_function(type="predict")
def generate(noise: NOISES) -> tp.Numpy:
    return generator(noise, trainable=False)


def nearest(images, others):
    """Return the mean distance of images to the most similar of other images."""
    squares = (images**2).sum(1)[:, None] + (others**2).sum(1) - 2 * images @ others.T
    return np.sqrt(np.maximum(squares.min(axis=1), 0)).mean()


def draw(made):
    mpl.use("Agg")
    from matplotlib import pyplot

    digits = np.pad(made[:40].reshape(-1, 8, 8), [(0, 0), (1, 1), (1, 1)], constant_values=-1)
    grid = digits.reshape(4, 10, 10, 10).transpose(0, 2, 1, 3).reshape(40, 100)
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    axes.imshow(-grid, cmap="gray")
    axes.set_title("Generated digits")
    axes.axis("off")
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    real = (load_digits().data / 8 - 1).astype(np.float32)
    known, held_out = real[:1400], real[1400:]

    def noise():
        return rng.normal(size=(BATCH, NOISE)).astype(np.float32)

    for _ in range(STEPS):
        train_discriminator(noise(), known[rng.integers(0, len(known), BATCH)])
        train_generator(noise())
    made = np.concatenate([generate(noise()) for _ in range(6)])
    draw(made)
    ratio = nearest(made, known) / nearest(held_out, known)
    print(f"{STEPS} steps; distance of generated digits to the nearest real one: {ratio:.2f} times")
    print("that of unseen real digits")
    return 0 if ratio < 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
