"""A backend in one module: a device type "toy", its driver, and kernels of a dozen ops.

Its memory is one bytearray per plan, its only stream runs work when it is queued.
"""

from functools import partial

import numpy as np

from flow_core.authoring.specs import Available, DeviceSpec, KernelSpec

FLOW_PLUGIN_API = "1.0"


class Arena:
    """One allocation; arrays are views of it."""

    def __init__(self, nbytes):
        raw = np.frombuffer(bytearray(nbytes + 64), np.uint8)
        start = -raw.ctypes.data % 64
        self.nbytes, self._bytes = nbytes, raw[start : start + nbytes]

    def view(self, offset, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)


class Done:
    """An event of a stream on which everything has happened."""

    def wait(self):
        """Nothing to wait for."""


class Stream:
    """Work runs when it is queued."""

    def record(self):
        return Done()

    def wait_event(self, event):
        event.wait()

    def synchronize(self):
        """Nothing is pending."""


class Driver:
    """One toy device."""

    def __init__(self, device):
        self.device = device

    def allocate(self, nbytes):
        return Arena(nbytes)

    def stream(self, name):
        return Stream()

    def copy_in(self, target, source):
        np.copyto(target, source)

    def copy_out(self, source, target=None):
        target = np.empty(source.shape, source.dtype) if target is None else target
        np.copyto(target, source)
        return target

    def compile(self, launches):
        steps = tuple(launches)

        def run():
            with np.errstate(all="ignore"):
                for step in steps:
                    step()

        return run

    def memory(self):
        return 1 << 30


def is_float32(query):
    """Kernels say what they take; for all else there must be another kernel."""
    return all(t.dtype.name == "float32" for t in (*query.inputs, *query.outputs))


def ufunc(function):
    """A kernel that is one ufunc: bound once, it only runs the function on its arrays."""
    return lambda ctx: partial(function, *ctx.inputs, out=ctx.outputs[0])


def bind_relu(ctx):
    zero = np.zeros((), ctx.outputs[0].dtype)
    return partial(np.maximum, ctx.inputs[0], zero, out=ctx.outputs[0])


def bind_scalar_mul(ctx):
    factor = np.array(ctx.attrs["operand"], ctx.outputs[0].dtype)
    return partial(np.multiply, ctx.inputs[0], factor, out=ctx.outputs[0])


def bind_bias_add(ctx):
    (x, bias), (y,) = ctx.inputs, ctx.outputs
    shape = [1] * x.ndim
    shape[ctx.attrs["axis"]] = -1
    return partial(np.add, x, bias.reshape(shape), out=y)


def bind_matmul(ctx):
    """Two launches: the product into the workspace that the plan provides, then its scale."""
    (a, b), (y,) = ctx.inputs, ctx.outputs
    a = a.T if ctx.attrs["transpose_a"] else a
    b = b.T if ctx.attrs["transpose_b"] else b
    product = ctx.workspace[: y.nbytes].view(y.dtype).reshape(y.shape)
    scale = np.array(ctx.attrs["alpha"], y.dtype)
    return partial(np.matmul, a, b, out=product), partial(np.multiply, product, scale, out=y)


KERNELS = {
    "broadcast_add": ufunc(np.add),
    "broadcast_sub": ufunc(np.subtract),
    "broadcast_mul": ufunc(np.multiply),
    "multiply": ufunc(np.multiply),
    "negative": ufunc(np.negative),
    "square": ufunc(np.square),
    "sqrt": ufunc(np.sqrt),
    "tanh": ufunc(np.tanh),
    "relu": bind_relu,
    "scalar_mul": bind_scalar_mul,
    "bias_add": bind_bias_add,
    "matmul": bind_matmul,
}


def flow_register_kernels():
    for op, bind in KERNELS.items():
        workspace = (lambda query: query.outputs[0].nbytes) if op == "matmul" else None
        yield KernelSpec(op, "toy", bind, is_float32, 0, workspace, f"toy.{op}")


def flow_register_devices():
    return [DeviceSpec("toy", lambda: Available(2, "two bytearrays"), Driver)]


def flow_doctor():
    return ["toy: 2 devices"]
