"""Tensors of changing shape between devices, in and out of a job: prints what comes of them."""

import numpy as np

import oneflow as flow
import oneflow.typing as tp

COUNT = 5


def moved(before: int, after: int, as_list: bool):
    """Instances that go from some devices to others, and come back as numbers."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((COUNT, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{before - 1}"):
            values = flow.tensor_to_tensor_buffer(x, instance_dims=1)
            if as_list:
                values = flow.tensor_buffer_to_tensor_list(values, (3,), flow.float)
        with flow.scope.placement("cpu", f"0:0-{after - 1}"):
            if as_list:
                values = flow.tensor_list_to_tensor_buffer(values)
            return flow.tensor_buffer_to_tensor(values, flow.float, (3,)) + 1.0

    return job


def lists():
    """Lists that are fed to devices, and fetched from them."""
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def job(x: tp.ListListNumpy.Placeholder((2, 3, 4))) -> tp.ListListNumpy:
        buffers = flow.tensor_list_to_tensor_buffer(x)
        return flow.tensor_buffer_to_tensor_list(buffers, (3, 4), flow.float)

    return job


def main() -> None:
    x = np.arange(3 * COUNT, dtype=np.float32).reshape(COUNT, 3)
    for before, after, as_list in ((2, 4, False), (4, 2, True), (1, 3, False), (3, 3, True)):
        job = moved(before, after, as_list)
        for step in range(3):
            result = job(x + step)
            np.testing.assert_array_equal(result, x + step + 1)
            print(result.sum())
        flow.clear_default_session()
    job, rng = lists(), np.random.default_rng(0)
    for _ in range(3):
        fed = [
            [rng.random((1, rows, 4), np.float32) for rows in rng.integers(1, 4, 2)] for _ in "ab"
        ]
        for given, taken in zip(fed, job(fed), strict=True):
            for a, b in zip(given, taken, strict=True):
                np.testing.assert_array_equal(a, b)
        print(sum(t.sum() for row in fed for t in row))


if __name__ == "__main__":
    main()
