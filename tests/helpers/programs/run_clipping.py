"""Clip gradients whose squares overflow float32, over two devices; print the weights' bits."""

import numpy as np

import oneflow as flow
import oneflow.typing as tp

LIMIT, SHAPE = 0.5, (8, 6)


def train(x: np.ndarray, split: bool, micro_batches: int) -> np.ndarray:
    flow.clear_default_session()
    settings = flow.function_config()
    settings.train.num_gradient_accumulation_steps(micro_batches)

    @flow.global_function("train", settings)
    def job(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            layout = flow.distribute.split(0) if split else flow.distribute.auto()
            zeros = flow.zeros_initializer()
            w = flow.get_variable("w", SHAPE[1:], initializer=zeros, distribute=layout)
            loss = flow.math.reduce_sum(x * w)
            clip = flow.optimizer.grad_clipping.by_global_norm(LIMIT)
            flow.optimizer.SGD(1.0, momentum=0, grad_clipping=clip).minimize(loss)
            return loss

    job(x)
    return flow.get_all_variables()["w"].numpy()


def main() -> None:
    x = (1e25 * np.random.default_rng(0).normal(size=SHAPE)).astype(np.float32)
    gradient = x.astype(np.float64).sum(0)
    expected = -LIMIT * gradient / np.linalg.norm(gradient)
    for split in (False, True):
        for micro_batches in (1, 2):
            found = train(x, split, micro_batches)
            np.testing.assert_allclose(found, expected, rtol=2e-6)
            print(split, micro_batches, found.tobytes().hex())


main()
