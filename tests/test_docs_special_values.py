"""The outcomes in the table of docs/special-values.md are correct."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError

PAGE = Path(__file__).parent.parent / "docs" / "special-values.md"
DTYPES = {"float32": flow.float32, "int32": flow.int32, "int64": flow.int64}
nan, inf = np.nan, np.inf


def rows() -> dict[str, str]:
    """The first two columns of the table: program and outcome."""
    lines = [x for x in PAGE.read_text().splitlines() if x.startswith("| `")]
    cells = [re.findall(r"`([^`]*)`", line) for line in lines]
    return {row[0]: row[1] for row in cells}


def floats(*values: Any) -> Any:
    return np.array(values, np.float32)


def integers(*values: Any) -> Any:
    return np.array(values, np.int32)


def run(function: Callable[..., Any], *fed: Any, dtype: str | None = None) -> str:
    """Run a job with placeholders of the shapes and types of the feeds."""

    def job(*given: Any) -> Any:
        return function(*given)

    names = [f"x{i}" for i in range(len(fed))]
    scope: dict[str, Any] = {"job": job}
    exec(f"def named({', '.join(names)}): return job({', '.join(names)})", scope)
    named = scope["named"]
    for name, x in zip(names, fed, strict=True):
        kind = DTYPES[dtype or str(x.dtype)]
        named.__annotations__[name] = tp.Numpy.Placeholder(x.shape, dtype=kind)
    named.__annotations__["return"] = tp.Numpy
    return str(flow.global_function()(named)(*fed).reshape(-1))


def trained(function: Callable[[Any], Any], start: Any, rate: float = 1.0) -> Any:
    """Return a variable after a step of SGD on a function."""

    @flow.global_function("train")
    def job() -> tp.Numpy:
        zeros = flow.zeros_initializer()
        variable = flow.get_variable("variable", shape=start.shape, initializer=zeros)
        loss = flow.math.reduce_sum(function(variable))
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
        flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    job.compile()  # raises where loading variables would only warn
    flow.load_variables({"variable": start})
    job()
    return np.asarray(flow.get_all_variables()["variable"].numpy())


def gradient(function: Callable[[Any], Any], at: Any) -> str:
    """Return the gradient of a function, recovered from the change of a variable."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(at.shape)) -> tp.Numpy:
        zero = flow.get_variable("zero", shape=at.shape, initializer=flow.zeros_initializer())
        y = function(x + zero)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [-1.0])
        flow.optimizer.SGD(schedule, momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    job(at)
    return str(np.asarray(flow.get_all_variables()["zero"].numpy()).reshape(-1))


def pooled(x: Any) -> Any:
    return flow.nn.max_pool2d(flow.reshape(x, (1, 1, 2, 2)), 2, 2, "VALID")


def both(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Callable[[], str]:
    return lambda: run(function, x, y)


def one(function: Callable[[Any], Any], x: Any) -> Callable[[], str]:
    return lambda: run(function, x)


def half(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compute a function in float16."""
    return lambda x: flow.cast(function(flow.cast(x, flow.float16)), flow.float)


SOME, ZEROS, PAIR = integers(1, -1, 0), integers(0, 0, 0), floats(1, 2)
PROGRAMS: dict[str, Callable[[], str]] = {
    "gather([1, 2], [5, 1])": both(flow.gather, PAIR, integers(5, 1)),
    "gather([1, 2], [-1, 1])": both(flow.gather, PAIR, integers(-1, 1)),
    "gather_nd([1, 2], [[5], [1]])": both(flow.gather_nd, PAIR, integers([5], [1])),
    "dim_gather([1, 2], [5, 1])": both(
        lambda x, i: flow.dim_gather(x, 0, i), PAIR, integers(5, 1)
    ),
    "scatter_nd([[5], [1]], [1, 3], [3])": both(
        lambda i, x: flow.scatter_nd(i, x, [3]), integers([5], [1]), floats(1, 3)
    ),
    "unsorted_segment_sum([1, 2, 3], [5, -1, 1], 2)": both(
        lambda x, i: flow.math.unsorted_segment_sum(x, i, num_segments=2),
        floats(1, 2, 3), integers(5, -1, 1),
    ),
    "one_hot([5], depth=2)": one(lambda i: flow.one_hot(i, depth=2), integers(5)),
    "sparse_softmax_cross_entropy(label=5) of two classes": both(
        flow.nn.sparse_softmax_cross_entropy_with_logits, integers(5), floats([1, 2])
    ),
    "int32: [1, -1, 0] / 0": both(lambda x, y: x / y, SOME, ZEROS),
    "int32: [1, -1, 0] // 0": both(lambda x, y: x // y, SOME, ZEROS),
    "int32: [1, -1, 0] % 0": both(lambda x, y: x % y, SOME, ZEROS),
    "int32: -2147483648 // -1": both(lambda x, y: x // y, integers(-(2**31)), integers(-1)),
    "int32: 2147483647 + 1": both(lambda x, y: x + y, integers(2**31 - 1), integers(1)),
    "float32: [1, -1, 0] / 0": both(lambda x, y: x / y, floats(1, -1, 0), floats(0, 0, 0)),
    "feed 1e300 as float32": lambda: run(flow.identity, np.array([1e300]), dtype="float32"),
    "feed 1.5 as int32": lambda: run(flow.identity, np.array([1.5]), dtype="int32"),
    "feed a masked array": one(flow.identity, np.ma.masked_equal(PAIR, 2)),
    "constant(1.5, int32)": one(lambda x: flow.constant(1.5, flow.int32, (1,)), PAIR),
    "constant(300, int8)": one(lambda x: flow.constant(300, flow.int8, (1,)), PAIR),
    "constant(nan, int32)": one(lambda x: flow.constant(nan, flow.int32, (1,)), PAIR),
    "cast([nan, inf, 3e10], int32)": one(
        lambda x: flow.cast(x, flow.int32), floats(nan, inf, 3e10)
    ),
    "cast(bfloat16 [nan, inf, 3e10], int32)": one(
        lambda x: flow.cast(flow.cast(x, flow.bfloat16), flow.int32), floats(nan, inf, 3e10)
    ),
    "cast(int32 300, int8)": one(lambda x: flow.cast(x, flow.int8), integers(300)),
    "cast([1.7, -1.7], int32)": one(lambda x: flow.cast(x, flow.int32), floats(1.7, -1.7)),
    "cast(70000, float16)": one(lambda x: flow.cast(x, flow.float16), floats(70000)),
    "SGD at a rate of nan, then the variable": lambda: str(
        trained(lambda w: w * 2, floats(1), nan)
    ),
    "relu([nan, -inf, inf])": one(flow.nn.relu, floats(nan, -inf, inf)),
    "gradient of relu(nan)": lambda: gradient(flow.nn.relu, floats(nan)),
    "max_pool2d([[nan, 1], [2, 3]])": one(pooled, floats(nan, 1, 2, 3)),
    "max_pool2d([[-inf, -inf], [-inf, -inf]])": one(pooled, floats(*[-inf] * 4)),
    "gradient of max_pool2d([[1, nan], [2, nan]])": lambda: gradient(
        pooled, floats(1, nan, 2, nan)
    ),
    "softmax([nan, 1, 2])": one(flow.nn.softmax, floats(nan, 1, 2)),
    "softmax([inf, 1, 2])": one(flow.nn.softmax, floats(inf, 1, 2)),
    "softmax([-inf, 0, 0])": one(flow.nn.softmax, floats(-inf, 0, 0)),
    "reduce_max([1, nan, 3])": one(flow.math.reduce_max, floats(1, nan, 3)),
    "reduce_mean of 4096 float16 numbers of 100": one(
        half(flow.math.reduce_mean), floats(*[100] * 4096)
    ),
    "reduce_std of float16 [1000, -1000]": one(half(flow.math.reduce_std), floats(1000, -1000)),
    "int32: reduce_mean([2147483647, 2147483645])": one(
        flow.math.reduce_mean, integers(2**31 - 1, 2**31 - 3)
    ),
    "reduce_logsumexp([-inf, -inf])": one(flow.math.reduce_logsumexp, floats(-inf, -inf)),
    "reduce_logsumexp([inf, 1])": one(flow.math.reduce_logsumexp, floats(inf, 1)),
    "gradient of reduce_logsumexp([-inf, -inf])": lambda: gradient(
        flow.math.reduce_logsumexp, floats(-inf, -inf)
    ),
    "gradient of reduce_logsumexp([inf, 1])": lambda: gradient(
        flow.math.reduce_logsumexp, floats(inf, 1)
    ),
    "gradient of reduce_euclidean_norm([0, 0])": lambda: gradient(
        flow.math.reduce_euclidean_norm, floats(0, 0)
    ),
    "gradient of reduce_std([2, 2])": lambda: gradient(flow.math.reduce_std, floats(2, 2)),
    "reduce_euclidean_norm([1e20, 0])": one(flow.math.reduce_euclidean_norm, floats(1e20, 0)),
    "gradient of sqrt(0)": lambda: gradient(flow.math.sqrt, floats(0)),
    "gradient of asin(1)": lambda: gradient(flow.math.asin, floats(1)),
    "gradient of atan2(x, 0) at 0": lambda: gradient(
        lambda x: flow.math.atan2(x, flow.zeros_like(x)), floats(0)
    ),
    "gradient of x ** y for y = 0 at 0": lambda: gradient(
        lambda x: flow.math.pow(x, flow.zeros_like(x)), floats(0)
    ),
    "maximum([nan, 1], [1, nan])": both(flow.math.maximum, floats(nan, 1), floats(1, nan)),
    "clip_by_value([nan, inf], -1, 1)": one(
        lambda x: flow.clip_by_value(x, -1, 1), floats(nan, inf)
    ),
    "argmax([1, nan, 3])": one(flow.math.argmax, floats(1, nan, 3)),
    "sort([1, nan, -inf, 3])": one(flow.sort, floats(1, nan, -inf, 3)),
    "equal(nan, nan)": both(flow.math.equal, floats(nan), floats(nan)),
    "log([0, -1])": one(flow.math.log, floats(0, -1)),
}  # fmt: skip


def test_each_row_has_a_program() -> None:
    message = "the table of docs/special-values.md has the keys of PROGRAMS, in their order"
    assert list(rows()) == list(PROGRAMS), message


@pytest.mark.filterwarnings("ignore:flow.constant.* fractions are dropped")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_outcome_is_that_of_the_table(program: str) -> None:
    flow.clear_default_session()
    try:
        found = PROGRAMS[program]()
    except FlowError as error:
        found = type(error).__name__
    assert found == rows()[program]
