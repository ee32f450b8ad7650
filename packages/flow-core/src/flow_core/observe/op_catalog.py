"""The op catalog: every op type with its inputs, attributes, types, SBP rules and kernels.

The catalog is derived from the registry alone: from the op specs, from the results of their rules
on the samples of each op, and from the registered kernels.  Rules depend on attributes, shapes and
element types, with which the catalog states them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite

import numpy as np

import flow_core
from flow_core.base.dtypes import ALL, DType, as_dtype
from flow_core.base.errors import (
    DeviceUnavailableError,
    FlowError,
    GraphError,
    PluginError,
    nearest,
)
from flow_core.ir.graph import Attrs, AttrValue, TensorType, tensor_type
from flow_core.ops.build import complete_attrs
from flow_core.plugins.registry import ANY_OP, Registry, kernel_key
from flow_core.plugins.specs import (
    REQUIRED,
    InferContext,
    KernelQuery,
    KernelSpec,
    OpSpec,
    Sample,
    SbpContext,
)
from flow_core.sharding.sbp import Signatures

TYPES = tuple(dtype for dtype in ALL if dtype.name != "char")
"""The element types that the catalog tries on each op."""

SAMPLES = 8
"""Maximum number of samples on which element types are tried."""

SCHEMA = 1
"""The version of the JSON form, which changes with each change that a reader must know of."""


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A kernel of an op on a device type."""

    name: str
    plugin: str  # that registered the kernel
    priority: int
    selective: bool  # whether the kernel accepts only some types or attributes


@dataclass(frozen=True, slots=True)
class RuleCase:
    """The SBP rules of an op for the attributes, shapes and element types of a sample."""

    attributes: Mapping[str, AttrValue]  # all attributes of the op
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    # The least and greatest finite number of each input, None for truth values and for inputs
    # without elements; the op may refuse other numbers.
    ranges: tuple[tuple[float, float] | None, ...]
    overwrites: tuple[int, ...]  # the inputs that the op overwrites
    # The rules that hold on any number of devices, besides B for all inputs and outputs.
    rules: Signatures

    def to_json(self) -> dict[str, object]:
        rows = zip(self.inputs, self.ranges, strict=True)
        return {
            "attributes": {name: _json(value) for name, value in self.attributes.items()},
            "inputs": [{**_type(t), "range": bounds and list(bounds)} for t, bounds in rows],
            "outputs": [_type(t) for t in self.outputs],
            "overwrites": list(self.overwrites),
            "rules": [
                {"inputs": [*map(str, rule.inputs)], "outputs": [*map(str, rule.outputs)]}
                for rule in self.rules
            ],
        }


@dataclass(frozen=True, slots=True)
class OpEntry:
    """An op type."""

    type: str
    doc: str  # what the op computes, where its name does not tell
    # Names; ``?`` marks an optional one, ``*`` one that stands for any number.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # likewise
    # The default of each attribute as text, or "required" if the attribute has none.
    attrs: Mapping[str, str]
    # The element types that the floating point inputs of the op's samples may have; the types of
    # the samples themselves if none is floating point; empty for an op without samples.
    types: tuple[str, ...]
    gradient: bool  # whether it has one
    cases: tuple[RuleCase, ...]  # the SBP rules of the op's samples
    internal: bool  # whether only passes create the op
    host: bool  # whether the op always runs on the CPU
    view: bool  # whether the op returns a view of an input, so that it needs no kernel
    # The op's kernels by device type, in the order in which they are tried.
    kernels: Mapping[str, tuple[KernelEntry, ...]]

    def to_json(self) -> dict[str, object]:
        fields = asdict(replace(self, cases=()))
        return {**fields, "cases": [case.to_json() for case in self.cases]}

    def signatures(self) -> dict[str, tuple[RuleCase, ...]]:
        """Return the cases for which each rule of the op holds, by the text form of the rule."""
        found: dict[str, tuple[RuleCase, ...]] = {}
        for case in self.cases:
            for rule in dict.fromkeys(map(str, case.rules)):
                found[rule] = (*found.get(rule, ()), case)
        return found


def catalog_json(entries: Iterable[OpEntry]) -> dict[str, object]:
    """Return entries as JSON data, with the version of its form."""
    ops = [entry.to_json() for entry in entries]
    return {"schema": SCHEMA, "flow_core": flow_core.__version__, "ops": ops}


def catalog(registry: Registry) -> tuple[OpEntry, ...]:
    """Return all ops that plugins have registered, by name."""
    return tuple(op_entry(registry, type_) for type_ in sorted(registry.ops))


def op_entry(registry: Registry, type_: str) -> OpEntry:
    """Return the entry of an op type.

    Raises:
        GraphError: no plugin registers the op.
        PluginError: its samples or rules raise.
    """
    spec = registry.ops.get(type_)
    if spec is None:
        raise GraphError(
            f"looking up op {type_!r}",
            found="no plugin registers that op",
            hint=nearest(type_, registry.ops) or "`flow ops` lists all ops",
        )
    try:
        return _entry(registry, spec)
    except Exception as error:
        raise PluginError(
            f"describing op {type_!r} of {registry.origins['ops', type_]}",
            found=f"{type(error).__name__}: {error}",
            hint="fix the samples or rules of this op in its plugin, so that none raises",
        ) from error


def _entry(registry: Registry, spec: OpSpec) -> OpEntry:
    samples = tuple(_samples(spec))
    return OpEntry(
        type=spec.type,
        doc=spec.doc,
        inputs=spec.inputs,
        outputs=spec.outputs,
        attrs={name: _default(value) for name, value in spec.attrs.items()},
        types=tuple(_element_types(spec, samples)),
        gradient=spec.gradient is not None,
        cases=tuple(_cases(spec)),
        internal=spec.internal,
        host=spec.host,
        view=spec.is_view(len(spec.inputs)),
        kernels={
            device: found
            for device in registry.devices
            if (found := _kernels(registry, spec.type, device))
        },
    )


def check_device_type(registry: Registry, device_type: str) -> None:
    """Raise `DeviceUnavailableError` if no plugin registers a device type."""
    if device_type not in registry.devices:
        raise DeviceUnavailableError(
            f"looking up device type {device_type!r}",
            found="no plugin registers this type",
            allowed=", ".join(registry.devices),
            hint=nearest(device_type, registry.devices) or "run `flow doctor` to list the plugins",
        )


def device_types(registry: Registry, type_: str) -> dict[str, tuple[str, ...]]:
    """Return, for each device type with kernels, the element types that the op's kernels accept.

    Only the element types of the floating point inputs vary; see `OpEntry.types`.
    """
    spec = registry.ops[type_]
    samples = tuple(_samples(spec))
    return {
        device: tuple(dict.fromkeys(_accepted_types(registry, spec, samples, device)))
        for device in registry.devices
        if _kernels(registry, type_, device)
    }


def _accepted_types(
    registry: Registry, spec: OpSpec, samples: Sequence[Sample], device: str
) -> Iterator[str]:
    kernels = [k for k in registry.kernels(spec.type, device) if k.op != ANY_OP]
    for dtype in TYPES:
        for sample in samples:
            own = _input_types(sample, None)
            if not _free_inputs(sample) and dtype not in {t.dtype for t in own}:
                continue
            context = _inferred(spec, sample, dtype)
            if context is None:
                continue
            query = KernelQuery(spec.type, context.attrs, context.inputs, context.outputs)
            if any(k.accepts is None or k.accepts(query) for k in kernels):
                yield dtype.name
                break


def sample_types(registry: Registry, type_: str) -> str:
    """Return the types of the inputs and outputs of an op's first sample; empty if it has none."""
    spec = registry.ops[type_]
    for sample in _samples(spec):
        context = _inferred(spec, sample, None)
        if context is not None:
            inputs, outputs = (", ".join(map(str, t)) for t in (context.inputs, context.outputs))
            return f"{inputs} -> {outputs}".strip()
    return ""


def _default(value: object) -> str:
    return "required" if value is REQUIRED else repr(value)


def _kernels(registry: Registry, op: str, device: str) -> tuple[KernelEntry, ...]:
    return tuple(
        _kernel(registry, spec) for spec in registry.kernels(op, device) if spec.op != ANY_OP
    )


def _kernel(registry: Registry, spec: KernelSpec) -> KernelEntry:
    plugin = registry.origins["kernels", kernel_key(spec)].plugin
    return KernelEntry(spec.name or spec.op, plugin, spec.priority, spec.accepts is not None)


def _samples(spec: OpSpec, most: int | None = SAMPLES) -> Iterable[Sample]:
    found = () if spec.samples is None else spec.samples(np.random.default_rng(0))
    return itertools.islice(found, most)


def _input_types(sample: Sample, dtype: DType | None) -> tuple[TensorType, ...]:
    """Return a sample's input types, with ``dtype``, if given, for the free inputs."""
    arrays = [np.asarray(x) for x in sample.inputs]
    own = [as_dtype(x.dtype) for x in arrays]
    free = _free_inputs(sample) if dtype else ()
    return tuple(
        tensor_type(x.shape, dtype if dtype and i in free else own[i]) for i, x in enumerate(arrays)
    )


def _free_inputs(sample: Sample) -> tuple[int, ...]:
    """Return the numbers of the floating point inputs of a sample whose type may change."""
    arrays = enumerate(map(np.asarray, sample.inputs))
    return tuple(i for i, x in arrays if x.dtype.kind == "f" and i not in sample.fixed)


def _inferred(spec: OpSpec, sample: Sample, dtype: DType | None) -> SbpContext | None:
    """Return the types and attributes of a sample, or None if the op does not accept them."""
    types = _input_types(sample, dtype)
    try:
        attrs = complete_attrs(spec, sample.attrs, "sample")
        made = spec.infer(InferContext("sample", spec.type, types, attrs))
    except FlowError:
        return None
    return SbpContext(types, tuple(made), attrs)


def _element_types(spec: OpSpec, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the names of the element types that an op accepts."""
    accepted: set[str] = set()
    for sample in samples:
        if _free_inputs(sample):
            accepted |= {d.name for d in TYPES if _inferred(spec, sample, d) is not None}
        else:
            accepted |= {as_dtype(np.asarray(x).dtype).name for x in sample.inputs}
    yield from (d.name for d in ALL if d.name in accepted)


def _cases(spec: OpSpec) -> Iterator[RuleCase]:
    """Yield the rules of an op for each of its samples that differ in types or attributes."""
    known: set[tuple[tuple[TensorType, ...], Attrs]] = set()
    for sample in _samples(spec, None):
        context = _inferred(spec, sample, None)
        if context is None or (context.inputs, Attrs(context.attrs)) in known:
            continue
        known.add((context.inputs, Attrs(context.attrs)))
        given = len(context.inputs)
        yield RuleCase(
            attributes=context.attrs,
            inputs=context.inputs,
            outputs=context.outputs,
            ranges=tuple(map(_range, sample.inputs)),
            overwrites=tuple(i for i in spec.overwrites(context.attrs) if i < given),
            rules=spec.sbp(context),
        )


def _range(given: object) -> tuple[float, float] | None:
    array = np.asarray(given)
    if array.dtype.kind == "b":
        return None
    if array.dtype.kind not in "iu":
        array = array.astype(np.float64)
        array = array[np.isfinite(array)]
    return (array.min().item(), array.max().item()) if array.size else None


def _type(type_: TensorType) -> dict[str, object]:
    return {"shape": list(type_.shape), "dtype": type_.dtype.name}


def _json(value: AttrValue) -> object:
    """Return an attribute as JSON data, which has neither tuples nor infinities.

    >>> _json((1, float("-inf")))
    [1, {'float': '-inf'}]
    """
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return {"float": repr(value)} if isinstance(value, float) and not isfinite(value) else value
