"""The machine code of kernels, where NVRTC and NVIDIA's disassembler are installed."""

import sys
from pathlib import Path

import pytest

from flow_cuda.codegen import nvrtc

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
import cuda_sass

NAMES = (
    "add float32", "bias float32", "concat float32", "dropout mask", "gather", "row sums",
    "transpose of heads, float32",
)  # fmt: skip


def without_tools() -> str:
    """Return what is missing, or an empty string; budgets are those of CUDA 13."""
    missing = [name for name in ("cuobjdump", "nvdisasm") if cuda_sass.tool(name) is None]
    try:
        major, _ = nvrtc.version()
    except nvrtc.NvrtcError:
        return "NVRTC is not installed"
    if major != 13:
        return f"budgets are those of CUDA 13, not {major}"
    return f"not installed: {', '.join(missing)}" if missing else ""


MISSING = without_tools()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_machine_code_is_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """Moves and elementwise kernels use vectors, no local memory and no division by variables."""
    status, update = cuda_sass.main(["--check", *NAMES]), "python benchmarks/cuda_sass.py --update"
    assert status == 0, f"{capsys.readouterr().out}run, if more is accepted: {update}"


def test_every_kernel_has_a_budget() -> None:
    budget = cuda_sass.json.loads(cuda_sass.BUDGET.read_text())
    names = {name for use in cuda_sass.USES for name in (use.name, f"{use.name}, 1")}
    assert len(names & set(budget)) == len(cuda_sass.USES)
    assert not any(row["local"] for row in budget.values())


def test_more_than_the_budget_is_reported() -> None:
    code = cuda_sass.Code(40, 0, 3, 0, 0.5, 100, 25.0)
    budget = {"x": {"registers": 38, "local": 0, "vectors": 1.0, "instructions": 90}}
    assert cuda_sass.exceeded("x", code, budget) == [
        "x: local 3, budget 0", "x: vectors 0.5, budget 1.0", "x: instructions 100, budget 90"
    ]  # fmt: skip
    assert cuda_sass.exceeded("y", code, budget) == ["y: not in the budget"]


def test_kernels_are_bound_to_the_shapes_of_networks() -> None:
    heads = next(use for use in cuda_sass.USES if use.name == "transpose of heads, float32")
    (kernel,) = cuda_sass.kernels_of(heads)
    assert kernel.parameters[0] == ("const u128 *", "x")
    assert dict(kernel.constants) == {"from": "0ll", "first": "0ll"}
