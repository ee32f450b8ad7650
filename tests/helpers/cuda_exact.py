"""Exact comparisons of device-only code with numpy, on a GPU or on a simulated one."""

from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.program import C_TYPES, make_kernel
from flow_cuda.device.launch import launch
from flow_cuda.driver.gpu import GpuDriver

PHILOX = """
EACH(i, n) {
    u64 words[4] = {first + (u64)i, second, third, 0};
    philox(words, seed);
    for (int k = 0; k < 4; k++) y[4 * i + k] = words[k];
}
"""


def on_device(driver: GpuDriver, values: Any) -> Any:
    """Return a copy of an array on the device."""
    made = driver.allocate(max(values.nbytes, 1)).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


def converted(driver: GpuDriver, values: Any, to: str) -> Any:
    """Return the values, converted to an element type by the device."""
    dtype = as_dtype(to)
    kinds = C_TYPES[as_dtype(values.dtype).name], C_TYPES[dtype.name]
    body = "EACH(i, n) store(y + i, load(x + i));"
    parameters = ((f"const {kinds[0]} *", "x"), (f"{kinds[1]} *", "y"), ("i64", "n"))
    x, y = on_device(driver, values), on_device(driver, np.zeros(values.shape, dtype.numpy))
    kernel = make_kernel("converted", parameters, body)
    launch(kernel, values.size, x, y, values.size)()
    return driver.copy_out(y)


def same(found: Any, wanted: Any) -> bool:
    """Whether two float arrays are equal bit by bit; NaN equals every NaN."""
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[found.itemsize]
    nan = np.isnan(wanted.astype(np.float64))
    equal = found.view(bits) == wanted.view(bits)
    return bool((equal | nan).all() and np.isnan(found.astype(np.float64))[nan].all())


@np.errstate(all="ignore")
def half_errors(driver: GpuDriver) -> list[str]:
    """Return the conversions of 16-bit types that differ from numpy, over all 65,536 patterns."""
    found = []
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for name in ("float16", "bfloat16"):
        halves = patterns.view(as_dtype(name).numpy)
        wide = halves.astype(np.float32)
        if not same(converted(driver, halves, "float32"), wide):
            found.append(f"{name} to float32")
        low = patterns[None, :].astype(np.uint32)
        tails = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], np.uint32)[:, None]
        near = ((low << 16) | tails).reshape(-1).view(np.float32)
        if not same(converted(driver, near, name), near.astype(halves.dtype)):
            found.append(f"float32 to {name}")
    return found


def integer_errors(driver: GpuDriver) -> list[str]:
    """Return the conversions to integers that differ from those of x86, in and out of range."""
    ends = [2.0**k for k in (7, 8, 15, 31, 32, 63, 64, 100)]
    values = [0.0, 0.5, 1.99, 127.5, *ends, *(e - 1 for e in ends), np.inf, np.nan]
    found = []
    for source in (np.float32, np.float64):
        x = np.array([*values, *(-v for v in values)], source)
        for to, bits in (("int8", 32), ("uint8", 32), ("int32", 32), ("int64", 64)):
            wanted = np.array([as_x86(float(v), bits) for v in x], np.int64).astype(to)
            if not np.array_equal(converted(driver, x, to), wanted):
                found.append(f"{np.dtype(source).name} to {to}")
    return found


def as_x86(value: float, bits: int) -> int:
    """Return a float as an integer of so many bits; the least one if it is out of range."""
    end = 2 ** (bits - 1)
    return int(value) if -end <= value < end else -end


def philox_errors(driver: GpuDriver, count: int, seed: int = 0x1234_5678_9ABC_DEF0) -> int:
    """Return the number of Philox blocks that differ from numpy's, of ``count``."""
    parameters = (
        ("u64 *", "y"), ("i64", "n"), ("u64", "first"), ("u64", "second"), ("u64", "third"),
        ("u64", "seed"),
    )  # fmt: skip
    kernel = make_kernel("philox_blocks", parameters, PHILOX, ("random.h",))
    y, start = on_device(driver, np.zeros((count, 4), np.uint64)), (1 << 63, 7, 3)
    launch(kernel, count, y, count, *start, seed)()
    wanted = np.random.Philox(key=seed, counter=np.array([start[0] - 1, 7, 3, 0], np.uint64))
    expected = wanted.random_raw(4 * count).reshape(count, 4)
    return int((driver.copy_out(y) != expected).any(axis=1).sum())
