"""Conformance kits."""

from flow_core.testing import Deviation, DeviceKit, Gap, KernelKit

ZERO = "of 0 and -0, torch may return either"
PADDING = "oneDNN does not multiply padding, so that no infinite or NaN weight meets a 0"
AGAIN = "torch finds the maxima of x again; the kit changes x, but not the maxima in y"
LAST = "of several NaN in a window, torch returns the place of the last one"
POSITIVE = "torch passes gradients where y is NaN"
NO_DECAY = "without weight decay, the model is not multiplied by 0 times an infinite rate"


class Torch:
    """The plugin under test."""

    plugin = "torch"
    device_type = "torch"

    def address(self, array):
        return array.tensor.data_ptr()


class TestKernels(Torch, KernelKit):
    dtypes = ("float32", "float64")
    tiles = stretches = False
    gaps = (
        Gap(
            "torch_max_pool_2d_grad",
            "never",
            "torch does not check indices, which are always those of torch_max_pool_2d",
            ("special_values",),
        ),
    )
    deviations = (
        Deviation("relu", ("zero_sign",), ZERO),
        Deviation("broadcast_minimum", ("zero_sign",), ZERO, everywhere=False),
        Deviation("broadcast_maximum", ("zero_sign",), ZERO, everywhere=False),
        Deviation("relu_grad", ("finite", "infinity", "nan"), POSITIVE),
        Deviation("conv2d", ("lost", "nan"), PADDING, everywhere=False),
        Deviation("torch_conv2d", ("lost", "nan"), PADDING, everywhere=False),
        Deviation("max_pool_2d_grad", ("finite", "infinity", "nan", "lost"), AGAIN),
        Deviation("torch_max_pool_2d", ("finite",), LAST),
        Deviation("momentum_update", ("nan",), NO_DECAY),
    )


class TestDevice(Torch, DeviceKit):
    pass
