"""The kit for gradient rules: subclass `GradientKit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from flow_core.base.dtypes import float64
from flow_core.base.errors import UnsupportedError
from flow_core.plugins.specs import OpSpec, Sample
from flow_core.testing.checks import build_gradient, cast_sample, check_gradient, input_name, query
from flow_core.testing.kit import Exceptions, Kit, Parameters, floating_inputs


class GradientKit(Kit):
    """Tests that gradient rules agree with central differences of the references, in float64.

    Attributes:
        no_gradient: deliberate exceptions with their reasons.  An entry ``"op"`` is an op with
            floating point inputs and outputs whose gradient rule is missing or raises
            `UnsupportedError`; an entry ``"op.input"`` is an input that the rule treats as a
            constant.  Tests fail for entries that are not needed.
    """

    no_gradient: ClassVar[Exceptions] = {}

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the ops of the plugin under test that are not internal."""
        specs = self.shared_registry().ops
        return ((op,) for op in self.own_ops() if not specs[op].internal)

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin has ops."""
        assert self.own_ops(), f"plugin {self.plugin!r} registers no ops"

    def test_has_a_gradient(self, name: str) -> None:
        """Check that an op with floating point inputs and outputs has a rule or is an exception."""
        spec = self.shared_registry().ops[name]
        if name in self.no_gradient:
            assert spec.gradient is None or self._refuses(spec), (
                f"{name} has a gradient, but is listed as an exception: {self.no_gradient[name]!r}"
            )
        elif spec.gradient is None:
            found = [sample for sample in self.drawn_or_none(name) if _maps_floats(spec, sample)]
            assert not found, (
                f"{name} maps floating point inputs to floating point outputs without a gradient: "
                "add a rule, or list it in `no_gradient` with a reason"
            )

    def test_gradient(self, name: str) -> None:
        """Check that a rule is correct where samples are smooth, and returns the inputs' types."""
        registry = self.shared_registry()
        spec = registry.ops[name]
        if spec.gradient is None or name in self.no_gradient:
            pytest.skip("this op deliberately has no gradient")
        prefix = f"{name}."
        constant = [n.removeprefix(prefix) for n in self.no_gradient if n.startswith(prefix)]
        for sample in self.drawn(name):
            if sample.gradient and floating_inputs(sample):
                check_gradient(registry.ops, spec, sample, constant=constant)
            else:
                build_gradient(registry.ops, spec, cast_sample(sample, float64), sample.attrs)

    def test_exceptions_are_known(self) -> None:
        """Check that the ops and inputs in ``no_gradient`` exist."""
        ops = self.shared_registry().ops
        known = set(self.own_ops())
        known |= {
            f"{op}.{input_name(ops[op], i)}" for op in self.own_ops()
            for i in range(len(ops[op].inputs))
        }  # fmt: skip
        assert set(self.no_gradient) <= known, sorted(set(self.no_gradient) - known)

    def _refuses(self, spec: OpSpec) -> bool:
        """Return whether the op's gradient rule raises `UnsupportedError`."""
        sample = next(sample for sample in self.drawn(spec.type) if floating_inputs(sample))
        ops = self.shared_registry().ops
        try:
            build_gradient(ops, spec, cast_sample(sample, float64), sample.attrs)
        except UnsupportedError:
            return True
        return False


def _maps_floats(spec: OpSpec, sample: Sample) -> bool:
    if not floating_inputs(sample):
        return False
    types = query(spec, cast_sample(sample, float64), sample.attrs).outputs
    return any(t.dtype.is_floating for t in types)
