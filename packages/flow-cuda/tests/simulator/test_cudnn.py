"""The simulated cuDNN checks the order of calls, tensors and executions."""

from typing import Any

import numpy as np
import pytest
from cuda_simulator.cudnn import MisuseError, NotSupportedError, SimulatedCudnn


def graph(library: SimulatedCudnn) -> Any:
    """Build an unvalidated graph of a channel product."""
    types = library.data_type
    made = library.pygraph(
        io_data_type=types.FLOAT, intermediate_data_type=types.FLOAT,
        compute_data_type=types.FLOAT, handle=library.create_handle(),
    )  # fmt: skip
    x = made.tensor(name="x", dim=(1, 2, 3, 3), stride=(18, 9, 3, 1), data_type=types.FLOAT, uid=1)
    w = made.tensor(name="w", dim=(4, 2, 1, 1), stride=(2, 1, 1, 1), data_type=types.FLOAT, uid=2)
    y = made.conv_fprop(
        image=x, weight=w, pre_padding=[0, 0], post_padding=[0, 0], stride=[1, 1], dilation=[1, 1],
        compute_data_type=types.FLOAT,
    )  # fmt: skip
    y.set_uid(3).set_output(True).set_data_type(types.FLOAT)
    y.set_dim((1, 4, 3, 3)).set_stride((36, 9, 3, 1))
    return made


def aligned(nbytes: int) -> tuple[Any, int]:
    kept = np.zeros(nbytes + 16, np.uint8)
    return kept, kept.ctypes.data + -kept.ctypes.data % 16


def test_call_order_is_checked() -> None:
    made = graph(SimulatedCudnn())
    with pytest.raises(MisuseError, match="build_operation_graph"):
        made.build_operation_graph()
    made.validate()
    with pytest.raises(MisuseError, match="create_execution_plans"):
        made.create_execution_plans(["A"])
    made.build_operation_graph()
    with pytest.raises(MisuseError, match="filter"):
        made.deselect_numeric_notes([])
    made.create_execution_plans(["A"])
    with pytest.raises(MisuseError, match="not built"):
        made.get_workspace_size_plan_at_index(0)


@pytest.mark.parametrize("wrong", ["strides", "sizes", "number"])
def test_tensors_are_checked(wrong: str) -> None:
    made = graph(SimulatedCudnn())
    (y,) = made.nodes[-1].outputs
    if wrong == "strides":
        y.set_stride((36, 8, 3, 1))
    elif wrong == "sizes":
        y.set_dim((1, 4, 3, 2))
    else:
        y.set_uid(1)
    with pytest.raises((MisuseError, NotSupportedError)):
        made.validate()


@pytest.mark.parametrize("wrong", ["alignment", "tensors", "handle", "workspace"])
def test_executions_are_checked(wrong: str) -> None:
    library = SimulatedCudnn()
    made = graph(library)
    made.validate()
    made.build_operation_graph()
    made.create_execution_plans(["A"])
    made.build_plan_at_index(0)
    kept = [aligned(n) for n in (72, 32, 144, 4096)]
    x, w, y, workspace = (address for _, address in kept)
    pack = {1: x, 2: w, 3: y + 4 * (wrong == "alignment")}
    if wrong == "tensors":
        del pack[3]
    handle = 2 if wrong == "handle" else 1
    with pytest.raises(MisuseError):
        made.execute_plan_at_index(pack, 0 if wrong == "workspace" else workspace, 0, handle)
