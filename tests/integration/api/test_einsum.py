"""``flow.einsum`` gives what numpy gives, its gradient, and numpy's errors at the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, InferenceError

Shapes = tuple[tuple[int, ...], ...]

EQUATIONS: dict[str, Shapes] = {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "ij,jk": ((3, 4), (4, 5)),
    "ba": ((2, 3),),
    " i j , j k -> k i ": ((2, 3), (3, 4)),
    "ij->ij": ((2, 3),),
    "ij->ji": ((2, 3),),
    "ij->j": ((2, 3),),
    "ij->": ((2, 3),),
    "ii": ((4, 4),),
    "ii->i": ((4, 4),),
    "iji->ij": ((3, 2, 3),),
    "iii->i": ((3, 3, 3),),
    "iijj->ij": ((2, 2, 3, 3),),
    "ii,ij->j": ((3, 3), (3, 2)),
    "i,i->": ((3,), (3,)),
    "i,j->ij": ((3,), (4,)),
    "ij,kl->lkji": ((2, 3), (4, 5)),
    "ij,ij->ij": ((2, 3), (2, 3)),
    "ij,j->ij": ((2, 3), (3,)),
    "ij,ik->": ((2, 3), (2, 4)),
    "ij,ij->i": ((2, 3), (2, 3)),
    "ijk,jil->kl": ((3, 4, 5), (4, 3, 2)),
    "bqhd,bkhd->bhqk": ((2, 3, 4, 5), (2, 6, 4, 5)),
    "bhqk,bkhd->bqhd": ((2, 4, 3, 6), (2, 6, 4, 5)),
    "...ij,...jk->...ik": ((2, 1, 3, 4), (5, 4, 6)),
    "...ij,jk": ((2, 3, 4), (4, 5)),
    "a...,...b->b...a": ((2, 3, 4), (3, 4, 5)),
    "...,...": ((2, 1), (3,)),
    "i...->...": ((2, 3, 4),),
    "ij,jk->ik: broadcast": ((3, 1), (4, 5)),
    "ij,jk->ik: ones": ((3, 1), (1, 5)),
    "i,j,k->": ((2,), (3,), (4,)),
    "ij,jk,kl,lm->im": ((2, 3), (3, 4), (4, 2), (2, 5)),
    "ab,bc,cd,de,ef,fg,ga->": ((1, 2), (2, 3), (3, 1), (1, 2), (2, 3), (3, 1), (1, 1)),
    "abc,bd,ce,a->de": ((2, 3, 4), (3, 5), (4, 2), (2,)),
    "ij,ij,ij->ij": ((2, 3), (2, 3), (2, 3)),
    "ii->i: one": ((1, 1),),
}


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def arrays(shapes: Shapes) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def computed(equation: str, given: list[Any], devices: str = "0:0") -> Any:
    def job(xs: Any) -> Any:
        with flow.scope.placement("cpu", devices):
            return flow.einsum(equation, *xs)

    places = [tp.Numpy.Placeholder(x.shape, dtype=flow.double) for x in given]
    job.__annotations__ = {"xs": tuple[*places], "return": tp.Numpy}
    return flow.global_function()(job)(tuple(given))


def expected(equation: str, given: list[Any]) -> Any:
    return np.atleast_1d(np.einsum(equation, *given))


@pytest.mark.parametrize("key", EQUATIONS)
def test_sums_are_those_of_numpy(key: str) -> None:
    equation, given = key.partition(":")[0], arrays(EQUATIONS[key])
    found, wanted = computed(equation, given), expected(equation, given)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


FEW = ["ij,jk->ik", "iji->ij", "bqhd,bkhd->bhqk", "...ij,...jk->...ik", "ij,jk,kl,lm->im"]


@pytest.mark.parametrize("key", FEW)
def test_four_devices_give_the_same(key: str) -> None:
    given = arrays(EQUATIONS[key])
    found = computed(key, given, "0:0-3")
    np.testing.assert_allclose(found, expected(key, given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", [*FEW, "ii", "i,j->ij", "ij,jk->ik: broadcast", "a...,...b->b...a"])
def test_gradients_are_sums_of_the_other_operands(key: str) -> None:
    """The gradient of sum(c * einsum(x, ...)) is a difference quotient: einsum is linear in x."""
    equation, given = key.partition(":")[0], arrays(EQUATIONS[key])
    factor = np.random.default_rng(1).normal(size=expected(equation, given).shape)
    found = {}

    @flow.global_function("train")
    def job(c: tp.Numpy.Placeholder(factor.shape, dtype=flow.double)) -> tp.Numpy:
        weights = []
        for i, x in enumerate(given):
            w = flow.get_variable(f"w{i}", x.shape, flow.double, flow.zeros_initializer())
            flow.watch_diff(w, lambda blob, i=i: found.update({i: blob.numpy()}))
            weights.append(w)
        loss = flow.math.reduce_sum(c * flow.einsum(equation, *weights))
        flow.optimizer.SGD(0.0).minimize(loss)
        return loss

    flow.load_variables({f"w{i}": x for i, x in enumerate(given)})
    job(factor)
    for i, x in enumerate(given):
        wanted = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            one = np.zeros_like(x)
            one[at] = 1
            operands = [*given[:i], one, *given[i + 1 :]]
            wanted[at] = (factor * expected(equation, operands)).sum()
        np.testing.assert_allclose(found[i], wanted, rtol=1e-9, atol=1e-9)


def test_sums_of_infinities_are_those_of_numpy() -> None:
    x = np.array([[np.inf, 1.0], [np.nan, -np.inf]])
    y = np.array([[1.0, 0.0], [2.0, 3.0]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(computed("ij,jk->ik", [x, y]), x @ y)


def test_rows_may_be_of_any_number() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3)), w: tp.Numpy.Placeholder((3, 2, 2))) -> tp.Numpy:
        return flow.einsum("bi,ijk->bkj", x, w)

    w = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    for rows in (4, 1, 3):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_array_equal(job(x, w), np.einsum("bi,ijk->bkj", x, w))


def test_each_device_sums_its_own_part_in_the_mirrored_view() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.einsum("ij,ij->i", x, y)

    x, y = (a.astype(np.float32) for a in arrays(((4, 3), (4, 3))))
    np.testing.assert_allclose(job(x, y), (x * y).sum(1), rtol=1e-6)


def test_the_cheapest_order_is_traced() -> None:
    """A vector at the end of a chain of matrices makes all products those of a vector."""

    @flow.global_function()
    def job(
        a: tp.Numpy.Placeholder((50, 60)),
        b: tp.Numpy.Placeholder((60, 70)),
        v: tp.Numpy.Placeholder((70,)),
    ) -> tp.Numpy:
        return flow.einsum("ij,jk,k->i", a, b, v)

    graph = job.compile().logical
    products = [op for op in graph.ops.values() if op.type == "matmul"]
    sizes = [graph.type_of(op.output()).size for op in products]
    assert sizes == [60, 50]


WRONG: dict[str, tuple[Shapes, str]] = {
    "ij,jk->ik": (((3, 4), (5, 5)), "'j' for operand 1 (4) does not match previous terms (5)"),
    "ij->ijk": (((2, 3),), "Output character k did not appear in the input"),
    "ij->ii": (((2, 3),), "Output character i appeared more than once"),
    "ij": (((2,),), "does not contain the correct number of indices for operand 0"),
    "ij,jk": (((2, 3),), "must be equal to the number of operands"),
    "ii->i": (((1, 3),), "sizes 1 and 3 of the axes 'i' of one operand"),
    "i.j->": (((2, 3),), "Invalid Ellipses"),
    "i1,1j": (((2, 2), (2, 2)), "Character 1 is not a valid symbol"),
    "...i->i": (((2, 3),), "a result without ..., which operands have"),
}


@pytest.mark.parametrize("equation", WRONG)
def test_wrong_equations_are_refused_at_the_user_s_line(equation: str) -> None:
    shapes, text = WRONG[equation]
    with pytest.raises(InferenceError) as error:
        computed(equation, arrays(shapes))
    assert text in str(error.value)
    assert "test_einsum.py" in str(error.value)
    assert error.value.allowed


def test_operands_are_blobs_of_one_type() -> None:
    @flow.global_function()
    def mixed(
        x: tp.Numpy.Placeholder((2,)), y: tp.Numpy.Placeholder((2,), flow.double)
    ) -> tp.Numpy:
        return flow.einsum("i,i->i", x, y)

    with pytest.raises(FlowError, match="float32 and float64"):
        mixed(np.ones(2, np.float32), np.ones(2))
