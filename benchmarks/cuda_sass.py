"""Print a table of the machine code of kernels, and compare it with a budget; no GPU is needed.

    python benchmarks/cuda_sass.py [--architecture sm_90] [--update | --check] [NAME ...]

The kernels are those that take the most time in mlp, lenet, resnet50 and bert_base, bound to the
shapes of these networks.  NVRTC compiles them; cuobjdump and nvdisasm, from NVIDIA's wheels
(``nvidia-cuda-cuobjdump``, ``nvidia-cuda-nvdisasm``), read the code.  The columns of the table are:

* the registers of a thread, and the bytes of its stack;
* loads and stores of local memory, and calls (of divisions by variables, for example);
* the share of global loads and stores that move 16 bytes;
* the instructions of the kernel, and per element of a thread's vector;
* the occupancy, by registers, in blocks of 256 threads.

``--check`` returns status 1 if a number exceeds the goal in ``cuda_sass.json``, which is written by
hand: what a kernel must not exceed, and not what it happens to have.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
GOALS = HERE / "cuda_sass.json"
EVERY = "every kernel"
sys.path[:0] = [str(HERE.parent / "tests" / "helpers")]

from cuda_cases import Collector, CudaKit  # noqa: E402 - found by the line above
from cuda_simulator.hardware import HostMemory, Simulator  # noqa: E402

from flow_core.base.dtypes import as_dtype  # noqa: E402
from flow_core.ir.graph import tensor_type  # noqa: E402
from flow_core.plugins.specs import BindContext, InferContext, KernelQuery  # noqa: E402
from flow_cuda.codegen import nvrtc  # noqa: E402
from flow_cuda.codegen.program import Kernel, translation_unit  # noqa: E402
from flow_cuda.device.arrays import DeviceArray  # noqa: E402

REGISTERS, THREADS = 65536, 256


@dataclass(frozen=True)
class Use:
    """A kernel of a network.

    Attributes:
        name: name of the row.
        op: the op.
        inputs: shape and element type of each input.
        attrs: attributes.
    """

    name: str
    op: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Code:
    """The numbers of a kernel's machine code; see the module."""

    registers: int
    stack: int
    local: int
    calls: int
    vectors: float
    instructions: int
    per_element: float

    @property
    def occupancy(self) -> float:
        """The share of the threads of a multiprocessor that its registers allow."""
        blocks = REGISTERS // (max(self.registers, 24) * THREADS)
        return min(1.0, blocks * THREADS / 2048)


F, B, H = "float32", "bfloat16", "float16"
BERT, IMAGE = (64, 128, 768), (256, 64, 56, 56)
SCORES = (64, 12, 128, 128)
HEADS = (("perm", (0, 2, 1, 3)),)
POOL = (
    ("pool_size", (3, 3)), ("strides", (2, 2)), ("padding", "customized"),
    ("padding_before", (1, 1)), ("padding_after", (1, 1)), ("data_format", "channels_first"),
)  # fmt: skip
NHWC_POOL = (*POOL[:-1], ("data_format", "channels_last"))
USES = (
    Use("add float32", "broadcast_add", ((BERT, F), (BERT, F))),
    Use("add bfloat16", "broadcast_add", ((BERT, B), (BERT, B))),
    Use("cast float32 to bfloat16", "cast", ((BERT, F),), (("dtype", B),)),
    Use("cast bfloat16 to float32", "cast", ((BERT, B),), (("dtype", F),)),
    Use("bias float32", "bias_add", ((BERT, F), ((768,), F)), (("axis", 2),)),
    Use("bias of channels", "bias_add", ((IMAGE, F), ((64,), F)), (("axis", 1),)),
    Use("relu float32", "relu", ((IMAGE, F),)),
    Use("gelu bfloat16", "gelu", (((64, 128, 3072), B),)),
    Use("multiply float32", "multiply", ((BERT, F), (BERT, F))),
    Use("scale float32", "scalar_mul", ((BERT, F),), (("operand", 0.5),)),
    Use("transpose of heads, float32", "transpose", (((64, 128, 12, 64), F),), HEADS),
    Use("transpose of heads, bfloat16", "transpose", (((64, 128, 12, 64), B),), HEADS),
    Use("transpose to NHWC", "transpose", ((IMAGE, F),), (("perm", (0, 2, 3, 1)),)),
    Use("concat float32", "concat", (((64, 768), F), ((64, 768), F)), (("axis", 1),)),
    Use("softmax float32", "softmax", ((SCORES, F),)),
    Use("layer norm float32", "layer_norm", ((BERT, F), ((768,), F), ((768,), F)),
        (("begin_norm_axis", 2), ("begin_params_axis", 2))),
    Use("gradient of softmax, float32", "softmax_grad", ((SCORES, F), (SCORES, F))),
    Use("gradient of layer norm, float32", "layer_norm_grad",
        ((BERT, F), (BERT, F), (BERT[:2], F), (BERT[:2], F)),
        (("begin_norm_axis", 2), ("epsilon", 1e-5))),
    Use("loss of sparse labels, float32", "sparse_softmax_cross_entropy",
        (((1280, 30522), F), ((1280,), "int32")), (("depth", 30522),)),
    Use("dropout mask", "random_mask_like", ((BERT, F),), (("rate", 0.1),)),
    Use("max pool", "max_pool_2d", (((256, 64, 112, 112), F),), POOL),
    Use("max pool in NHWC, bfloat16", "max_pool_2d", (((256, 112, 112, 64), B),), NHWC_POOL),
    Use("gradient of max pool in NHWC, bfloat16", "max_pool_2d_grad",
        (((256, 112, 112, 64), B), ((256, 56, 56, 64), B), ((256, 56, 56, 64), B)), NHWC_POOL),
    Use("gather", "gather", (((30522, 768), F), ((64, 128), "int32")), (("axis", 0),)),
    Use("row sums", "reduce_sum", (((8192, 768), F),), (("axis", (1,)), ("keepdims", False))),
    Use("column sums", "reduce_sum", (((8192, 768), F),), (("axis", (0,)), ("keepdims", False))),
)  # fmt: skip


def kernels_of(use: Use) -> list[Kernel]:
    """Return the kernels to which a device binds an op, without memory for its arrays."""
    registry, collected = CudaKit.shared_registry(), Collector()
    compiler: Any = collected
    hardware = Simulator(compiler=compiler)
    hardware.threads, hardware.max_blocks = THREADS, 4096
    hardware.specializes = True
    spec = registry.ops[use.op]
    types = tuple(tensor_type(shape, as_dtype(kind)) for shape, kind in use.inputs)
    attrs = {**spec.attrs, **dict(use.attrs)}
    outputs = tuple(spec.infer(InferContext(use.op, use.op, types, attrs)))
    find = partial(registry.find_kernel, device_type="gpu")
    query = KernelQuery(use.op, attrs, types, outputs, find)
    kernel = registry.find_kernel(query, "gpu")
    next_address = 1 << 20

    def array(shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        nonlocal next_address
        made = DeviceArray(HostMemory(0, None, 0), next_address, shape, dtype, hardware)
        next_address += -(-made.nbytes // 256) * 256
        return made

    inputs = tuple(array(t.shape, t.dtype.numpy) for t in types)
    results = tuple(array(t.shape, t.dtype.numpy) for t in outputs)
    size = kernel.workspace(query) if kernel.workspace is not None else 0
    workspace = array((size,), np.dtype(np.uint8)) if size else None
    bind: Any = kernel.load
    made = bind(BindContext(query, inputs, results, workspace, np.zeros((), np.int64), 0))
    tuple(made) if isinstance(made, list | tuple) else made
    return list(collected.found.values())


def codes(use: Use, architecture: str) -> Iterator[tuple[str, Code]]:
    """Yield the name and the code of each kernel of an op."""
    found = kernels_of(use)
    for number, kernel in enumerate(found):
        name = use.name if len(found) == 1 else f"{use.name}, {number + 1}"
        yield name, code_of(kernel, architecture)


def code_of(kernel: Kernel, architecture: str) -> Code:
    """Compile a kernel and count its instructions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(nvrtc.compile_text(translation_unit([kernel]), architecture))
        usage = _run("cuobjdump", "-res-usage", str(file))
        text = _run("nvdisasm", "-c", str(file))
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", usage))
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", text)
    real = [line for line in lines if line != "NOP"]
    moved = [line for line in real if re.match(r"(LDG|STG)\b", line)]
    wide = [line for line in moved if ".128" in line]
    calls = [line for line in real if line.startswith("CALL")]
    local = [line for line in real if line.startswith(("LDL", "STL"))]
    per = max(map(int, re.findall(r"k < (\d+); k\+\+", kernel.body)), default=0)
    per = per or (4 if "u128" in kernel.parameters[0][0] else 1)
    vectors = re.search(r"_pool(?:_grad)?<\w+, (\d+)", kernel.body)
    per *= int(vectors[1]) if vectors else 1
    per *= 8 if kernel.name.startswith("random_mask_row") else 1
    return Code(
        int(numbers.get("REG", 0)), int(numbers.get("STACK", 0)), len(local), len(calls),
        round(len(wide) / max(1, len(moved)), 2), len(real), round(len(real) / per, 1),
    )  # fmt: skip


def tool(name: str) -> str | None:
    """Return the path of a tool: on the path, or from NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    wheels = [path for folder in folders for path in Path(folder).glob(f"*/bin/{name}")]
    return str(wheels[0]) if wheels else shutil.which(name)


def _run(name: str, *words: str) -> str:
    path = tool(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not installed: pip install nvidia-cuda-{name}")
    return subprocess.run([path, *words], capture_output=True, text=True, check=True).stdout


def exceeded(name: str, code: Code, goals: dict[str, dict[str, float]]) -> list[str]:
    """Return in which numbers a kernel misses its goal; registers may vary by a tenth."""
    if name not in goals:
        return [f"{name}: no goal"]
    wrong = []
    for key, most in {**goals.get(EVERY, {}), **goals[name]}.items():
        found = getattr(code, key)
        slack = 1.1 if key in ("registers", "instructions") else 1.0
        if found < most if key == "vectors" else found > most * slack:
            wrong.append(f"{name}: {key} {found}, goal {most}")
    return wrong


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(words)
    uses = [use for use in USES if not given.names or use.name in given.names]
    goals = json.loads(GOALS.read_text())
    wrong: list[str] = []
    print(f"{'kernel':34} regs stack local calls vectors instructions per element occupancy")
    for use in uses:
        for name, code in codes(use, given.architecture):
            print(
                f"{name:34} {code.registers:4} {code.stack:5} {code.local:5} {code.calls:5} "
                f"{code.vectors:7.0%} {code.instructions:12} {code.per_element:11} "
                f"{code.occupancy:9.0%}"
            )
            wrong += exceeded(name, code, goals)
    if given.check:
        print("\n".join(wrong) or "all goals are met")
        return int(bool(wrong))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
