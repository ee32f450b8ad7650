"""Check that cuBLASLt's ReLU masks have the bit order that our kernels use.

The forward product of a layer may run in cuBLASLt and the backward one in our kernels, or the other
way round, and the documentation of cuBLASLt does not specify the bit order of the mask.
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
    """Run one small product on the device and compare its mask with the expected bits."""
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
