"""The machine code of kernels, where NVRTC and NVIDIA's disassembler are installed."""

import sys
from pathlib import Path

import pytest

from flow_cuda.codegen import nvrtc

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
import cuda_sass

NAMES = (
    "add float32", "bias float32", "concat float32", "dropout mask", "gather",
    "layer norm float32", "max pool", "max pool in NHWC, bfloat16", "row sums",
    "softmax float32", "transpose of heads, float32",
)  # fmt: skip


def without_tools() -> str:
    """Return what is missing, or an empty string; goals are those of CUDA 13."""
    missing = [name for name in ("cuobjdump", "nvdisasm") if cuda_sass.tool(name) is None]
    try:
        major, _ = nvrtc.version()
    except nvrtc.NvrtcError:
        return "NVRTC is not installed"
    if major != 13:
        return f"goals are those of CUDA 13, not {major}"
    return f"not installed: {', '.join(missing)}" if missing else ""


MISSING = without_tools()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_machine_code_meets_its_goals(capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels use vectors, no local memory and no calls of division or other routines."""
    status = cuda_sass.main(["--check", *NAMES])
    assert status == 0, capsys.readouterr().out


def test_every_kernel_has_a_goal() -> None:
    goals = cuda_sass.json.loads(cuda_sass.GOALS.read_text())
    names = {name for use in cuda_sass.USES for name in (use.name, f"{use.name}, 1")}
    assert len(names & set(goals)) == len(cuda_sass.USES)
    assert goals[cuda_sass.EVERY] == {"stack": 0, "local": 0, "calls": 0}


def test_what_misses_a_goal_is_reported() -> None:
    code = cuda_sass.Code(40, 0, 3, 0, 0.5, 100, 25.0)
    goals = {
        cuda_sass.EVERY: {"local": 0},
        "x": {"registers": 38, "vectors": 1.0, "instructions": 90},
    }
    assert cuda_sass.exceeded("x", code, goals) == [
        "x: local 3, goal 0", "x: vectors 0.5, goal 1.0", "x: instructions 100, goal 90"
    ]  # fmt: skip
    assert cuda_sass.exceeded("y", code, goals) == ["y: no goal"]


def test_kernels_are_bound_to_the_shapes_of_networks() -> None:
    heads = next(use for use in cuda_sass.USES if use.name == "transpose of heads, float32")
    (kernel,) = cuda_sass.kernels_of(heads)
    assert kernel.parameters[0] == ("const u128 *", "x")
    assert dict(kernel.constants) == {"from": "0ll", "first": "0ll"}
