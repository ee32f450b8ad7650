"""Check that cuBLASLt's ReLU masks have the bit order that flow-cuda's kernels use.

The forward product of a layer may run in cuBLASLt and the backward product in flow-cuda's kernels,
or vice versa; cuBLASLt's documentation does not specify the bit order of the mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.hardware import Hardware, Product
from flow_cuda.device.launch import ProductLaunch
from flow_cuda.driver.gpu import GpuDriver

M, N, K = 8, 136, 16


def masks_match(hardware: Hardware) -> bool:
    """Return whether the mask of one small product on the device has the expected bits."""
    driver, rng = GpuDriver(hardware), np.random.default_rng(0)
    product = Product(M, N, K, False, False, "float32", epilogue="relu_bias_saved")
    a, b, bias = (rng.normal(size=s).astype(np.float32) for s in ((M, K), (K, N), (N,)))
    c, mask = np.zeros((M, N), np.float32), np.zeros((M, product.saved_lead // 8), np.uint8)
    given = [_upload(driver, x) for x in (a, b, c, bias, mask)]
    ProductLaunch(hardware, product, *given)()
    value = driver.copy_out(given[2])
    found = np.unpackbits(driver.copy_out(given[4]), axis=1, bitorder="little")[:, :N]
    return bool(np.array_equal(found, value > 0))


def _upload(driver: Any, values: Any) -> DeviceArray:
    array: DeviceArray = driver.allocate(values.nbytes).view(0, values.shape, values.dtype)
    driver.copy_in(array, values)
    return array
