"""The frozen records that plugin hooks return.

Expensive parts are lazy ``"package.module:attribute"`` strings (or callables, in small plugins and
tests), so registration imports no kernels and accesses no hardware.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from flow_core.base.alignment import ALIGNMENT
from flow_core.base.dtypes import DType
from flow_core.base.errors import InferenceError, PluginError, SourceLine, described
from flow_core.base.thread_budget import NOT_DIVIDED, Cores
from flow_core.ir.graph import NO_ATTRS, Attrs, AttrValue, TensorType
from flow_core.sharding.sbp import Region, Signatures, region_shape
from flow_core.sharding.topology import Placement

if TYPE_CHECKING:  # without numpy, for `flow --help`
    from flow_core.base.arrays import DriverArray

Lazy = str | Callable[..., Any]


def load(target: Lazy, owner: str = "") -> Any:
    """Import the object that a lazy target names.

    Raises `PluginError` with the text ``owner``, which describes the target's record and plugin.

    >>> load("math:sqrt")(4.0)
    2.0
    """
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        raise PluginError(
            f"loading {target!r}" + (f", {owner}" if owner else ""), found=described(error)
        ) from error
    return value


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Default of an attribute that has no default: every op must set it."""


@dataclass(frozen=True, slots=True)
class InferContext:
    """The argument of `OpSpec.infer`: one op during shape and dtype inference.

    Attributes:
        op: name of the op.
        type: type of the op.
        inputs: types of its inputs.
        attrs: attributes, including defaults.
        line: the user's line.
    """

    op: str
    type: str
    inputs: tuple[TensorType, ...]
    attrs: Mapping[str, AttrValue]
    line: SourceLine | None = None

    def fail(self, found: object, allowed: object = None, hint: str | None = None) -> NoReturn:
        """Raise `InferenceError` for this op at the user's line."""
        raise InferenceError(
            f"{self.type} {self.op!r}", at=self.line, found=found, allowed=allowed, hint=hint
        )

    def check(
        self, ok: object, found: object, allowed: object = None, hint: str | None = None
    ) -> None:
        """Call `fail` unless ``ok``."""
        if not ok:
            self.fail(found, allowed, hint)


@dataclass(frozen=True, slots=True)
class SbpContext:
    """The argument of `OpSpec.sbp`: one op on one hierarchy dimension.

    Attributes:
        inputs, outputs: types after the splits of all earlier hierarchy dimensions.
        attrs: attributes, localized to the first device of those dimensions.
        parts: number of devices of this dimension; None requests the rules that hold for any
            number.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    attrs: Mapping[str, AttrValue]
    parts: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A logical tensor and its region on one device.

    For P and B, the region is the whole tensor.

    >>> from flow_core.base.dtypes import float32
    >>> part = Part(TensorType((7, 2), float32), ((3, 5), (0, 2)))
    >>> part.shape, part.is_whole(0), part.is_whole(1)
    ((2, 2), False, True)
    """

    type: TensorType
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the region."""
        return region_shape(self.region)

    def is_whole(self, axis: int) -> bool:
        """Return whether the region has the full extent of an axis."""
        return self.region[axis] == (0, self.type.shape[axis])


@dataclass(frozen=True, slots=True)
class LocalContext:
    """The argument of `OpSpec.localize`: a logical op's attributes and one device's tensors."""

    attrs: Mapping[str, AttrValue]
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]


def local_shape(ctx: LocalContext) -> Mapping[str, AttrValue]:
    """Return output 0's local shape if the op has ``shape``; the default of `OpSpec.localize`."""
    return {"shape": ctx.outputs[0].shape} if "shape" in ctx.attrs else {}


def no_rules(_: SbpContext) -> Signatures:
    """Return no signatures; the default of `OpSpec.sbp`."""
    return ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One test case for the kits: host arrays and attributes.

    Attributes:
        inputs: arrays; floating point arrays are cast to each dtype under test.
        attrs: attributes.
        gradient: whether finite differences are meaningful (no kinks or ties).
        note: description of the case.
        fixed: indices of floating point inputs that keep their dtype, such as learning rates.
    """

    inputs: tuple[Any, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    gradient: bool = True
    note: str = ""
    fixed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OpSpec:
    """An op type, independent of devices: schema, inference, SBP rules, gradient.

    Attributes:
        type: unique name.
        inputs: names of inputs; ``"x?"`` (trailing) is optional, ``"x*"`` (last) takes any number.
        outputs: names of outputs; ``"out*"`` if inference determines their number.
        attrs: default value of each attribute; `REQUIRED` for an attribute without one.
        infer: computes the output types from an `InferContext`.
        sbp: valid signatures for one hierarchy dimension, except all-broadcast, which is always
            valid.
        localize: returns the attributes whose values differ between one device's part of the op and
            the logical op, from a `LocalContext`; called only if a tensor is split.
        gradient: builds the gradient of each input (or None) from a
            `flow_core.ops.build.GradContext`; None if the op has no gradient.
        reference: numpy semantics: ``reference(*inputs, **attrs)`` returns one array or a tuple of
            arrays: the outputs, then, for each given input in `mutates` (in that order), its value
            after the op, even if unchanged.  The function computes in float64 if the inputs are
            float64, and must not modify its arguments.  None for ops whose results are not in
            memory, such as files.
        samples: ``samples(rng)`` yields `Sample`s for the kits.
        elementwise: whether output element i depends only on input elements i, after broadcasting.
        alias: the input whose bytes output 0 shares (reshape, identity).
        inplace: inputs that output 0 may overwrite while it is computed.
        mutates: inputs (variables) that the op overwrites.
        mutates_if: attribute that enables `mutates`; see `overwrites`.
        numbers: inputs with one element, such as learning rates and step numbers, that kernels of
            some device types read in host memory; see `DeviceSpec.host_numbers`.
        effect: whether the op has a side effect; such an op is never removed, and never merged.
        random: whether the op needs a seed and the step number; it is never merged or folded.
        per_device: "inputs" or "outputs" if that side has one value for each device of the op's
            placement, in order; values of the other side are on all devices, with the layout in the
            attribute ``sbp``.  On several devices, such an op does no work.
        work: number of floating-point operations on one device, given its local types; None for ops
            that do little more than read and write their elements.
        host: whether the op runs on the CPUs of its devices' machines, regardless of the scope.
            Only such ops read or write objects (`flow_core.base.dtypes.OBJECTS`).  A host op
            without inputs that has an attribute ``region`` is split on axis 0.
        internal: whether only passes create the op, in graphs that are already differentiated and
            split into one op per device.  Such an op has neither a gradient nor SBP rules.
    """

    type: str
    inputs: tuple[str, ...]
    infer: Callable[[InferContext], Sequence[TensorType]]
    outputs: tuple[str, ...] = ("out",)
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    sbp: Callable[[SbpContext], Signatures] = no_rules
    localize: Callable[[LocalContext], Mapping[str, AttrValue]] = local_shape
    gradient: Callable[[Any], Sequence[Any]] | None = None
    reference: Callable[..., Any] | None = None
    samples: Callable[[Any], Any] | None = None
    elementwise: bool = False
    alias: int | None = None
    inplace: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    mutates_if: str | None = None
    numbers: tuple[int, ...] = ()
    effect: bool = False
    random: bool = False
    per_device: str | None = None
    work: Callable[[SbpContext], float] | None = None
    host: bool = False
    doc: str = ""
    internal: bool = False

    def __post_init__(self) -> None:
        if self.internal and not (self.gradient is None and self.sbp is no_rules):
            raise PluginError(
                f"defining op {self.type!r}",
                found="`internal=True` with a gradient or SBP rules, which nothing would use",
                hint="remove `gradient` and `sbp`, or set `internal=False`",
            )

    def overwrites(self, attrs: Mapping[str, AttrValue]) -> tuple[int, ...]:
        """Return the inputs that an op with these attributes overwrites."""
        keeps = self.mutates_if is not None and not attrs[self.mutates_if]
        return () if keeps else self.mutates

    def is_view(self, inputs: int) -> bool:
        """Return whether output 0 of an op with that many inputs is a view, without a kernel."""
        return self.alias is not None and self.alias < inputs

    def is_per_device(self, placement: Placement, side: str | None = None) -> bool:
        """Return whether each value of a side (None: of either side) is on a single device."""
        applies = self.per_device is not None and side in (None, self.per_device)
        return applies and placement.size > 1

    def input_placement(
        self, placement: Placement, index: int, host_numbers: Set[str] = frozenset()
    ) -> Placement:
        """Return the placement of an input of an op; ``host_numbers`` are device types."""
        if index in self.numbers and placement.device_type in host_numbers:
            return placement.on_host()
        return placement.only(index) if self.is_per_device(placement, "inputs") else placement

    def output_placement(self, placement: Placement, index: int) -> Placement:
        """Return the placement of an output of an op on ``placement``."""
        return placement.only(index) if self.is_per_device(placement, "outputs") else placement


def local_attrs(spec: OpSpec, ctx: LocalContext) -> Mapping[str, AttrValue]:
    """Return all attributes of one device's part of an op."""
    parts = (*ctx.inputs, *ctx.outputs)
    if all(part.is_whole(i) for part in parts for i in range(len(part.region))):
        return ctx.attrs
    changed = spec.localize(ctx)
    return Attrs({**ctx.attrs, **changed}) if changed else ctx.attrs


@dataclass(frozen=True, slots=True)
class KernelQuery:
    """The argument of `KernelSpec.accepts`: one op with concrete types.

    Attributes:
        op: type of the op.
        attrs: its attributes.
        inputs, outputs: types of inputs and outputs.
        find: returns the kernel for another query on the same device; kernels of ``fused`` groups
            use it to look up the kernels of the group's members.
        settings: settings of the session and the job for kernels; unset keys are absent.
            ``enable_tensor_float_32_compute``: whether float32 products may be rounded to 10
            mantissa bits.  ``mixed_precision_data_type``: the 16-bit type of a mixed-precision job.
    """

    op: str
    attrs: Mapping[str, AttrValue]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    find: Callable[[KernelQuery], KernelSpec] | None = field(
        default=None, compare=False, repr=False
    )
    settings: Mapping[str, AttrValue] = NO_ATTRS

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Element types of inputs, then outputs."""
        return tuple(t.dtype for t in (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class BindContext:
    """The argument of `KernelSpec.load`: arrays and settings of one op, bound once per plan.

    Attributes:
        query: the op with its types and attributes.
        inputs, outputs: device arrays at their final addresses; outputs are uninitialized and may
            share memory with an input that the op's spec lists as ``inplace``.  With
            `DeviceSpec.host_numbers`, inputs of `OpSpec.numbers` are host arrays of one element, to
            be read when a launch is called, not later.
        workspace: uint8 device array of the size that `KernelSpec.workspace` returned, or None.
        step: 0-d int64 host array with the number of the current step.
        seed: 64-bit seed of the op, derived from the job's seed and the op's name.
        stream: the `flow_core.device.Stream` of the device, on which launches enqueue.
        cores: the plan's division of the process's cores.  Most kernels ignore this: the OpenMP and
            BLAS thread counts are already set during lookup, binding and launches.
    """

    query: KernelQuery
    inputs: tuple[DriverArray, ...]
    outputs: tuple[DriverArray, ...]
    workspace: DriverArray = None
    step: Any = None
    seed: int = 0
    stream: Any = None
    cores: Cores = NOT_DIVIDED

    @property
    def attrs(self) -> Mapping[str, AttrValue]:
        """The op's attributes."""
        return self.query.attrs


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel of one op on one device type.

    Attributes:
        op: type of the op; "*" matches any op.
        device: device type.
        load: lazy ``bind(BindContext)`` that returns a launch or a sequence of launches.
        accepts: predicate on a `KernelQuery` (dtypes, attributes, shapes).
        priority: among the kernels that accept a query, the one with the highest priority runs;
            the numpy kernels of core have priority 0.
        workspace: ``workspace(KernelQuery)`` returns the size of the workspace in bytes.
        name: name of the kernel in plans and in errors about conflicts.
        batchable: ``batchable(whole, parts)``: whether one launch on several arrays, concatenated
            along axis 0, is bitwise equal to one launch per array.  Inputs of equal types in
            ``whole`` and in all parts are shared by the parts.  None means never, even for
            elementwise ops; their kernels may set
            `flow_core.plugins.batchable.elementwise_batchable`.
        unrecordable: why a recording driver must not replay the launches; empty if it may.
    """

    op: str
    device: str
    load: Lazy
    accepts: Callable[[KernelQuery], bool] | None = None
    priority: int = 0
    workspace: Callable[[KernelQuery], int] | None = None
    name: str = ""
    batchable: Callable[[KernelQuery, Sequence[KernelQuery]], bool] | None = None
    unrecordable: str = ""


@dataclass(frozen=True, slots=True)
class Available:
    """Result of a probe that found devices: the number of devices."""

    count: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Result of a probe that found no devices: the reason, and what the user can do."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device type.

    Attributes:
        type: "cpu", "gpu" ...
        probe: lazy ``probe() -> Available | Unavailable``; may access hardware.
        driver: lazy ``driver(device) -> flow_core.device.Driver``, with a
            `flow_core.sharding.topology.Device`.
        kernels: device type whose kernels also run on this one ("cpu" for emulated devices).
        records_launches: whether the driver records the work that launches enqueue, and replays
            it in later steps; plans then report the kernels that prevent it.
        alignment: alignment in bytes, a power of two and at least 64, of arenas and of the offsets
            of workspaces and values (except rows of `KernelSpec.batchable`, which are adjacent).
        host_numbers: whether kernels read the inputs of `OpSpec.numbers` in host memory.  Step
            counters, learning rates and loss scales are then computed on the CPU; numbers that the
            device computes, such as the norm of all gradients, are copied in each step.
        host_fallback: whether ops without a kernel for the device run on the CPU if neither the
            job nor the session says so, one of `flow_core.base.config.HOST_FALLBACK`.
    """

    type: str
    probe: Lazy
    driver: Lazy
    kernels: str | None = None
    records_launches: bool = False
    alignment: int = ALIGNMENT
    host_numbers: bool = False
    host_fallback: str = "off"


ANY_DEVICE_TYPE = "*"
"""Device type of a comm that connects devices of all types."""


@dataclass(frozen=True, slots=True)
class CommSpec:
    """A communication library.

    Attributes:
        name: unique name.
        device_types: device types that the library connects, alone or mixed; ``("*",)`` for all.
        bootstrap: lazy ``bootstrap() -> Available | Unavailable``: connects the processes of this
            program; called once.  `Unavailable` if no launcher of this library started the program.
        load: lazy ``load(devices) -> flow_core.device.Comm``, with the
            `flow_core.sharding.topology.Device` objects of a plan.
        priority: the available library with the highest priority connects a plan's devices; core's
            in-process libraries have priorities 0 (for CPUs) and -100 (for all device types).
        world: lazy ``world() -> flow_core.device.World``, the same object at each call: the
            processes that the library connects; None if it connects only devices of one process, or
            uses another library's world.  With ``device_types=("*",)``, None means one process.
        static_bootstrap: lazy ``connect(machines, used, port) -> World | None``, called if
            ``flow.env.machine`` names several machines and no launcher started the program:
            connects one manually started process per machine; returns None if this process is not
            one of them.
        shares_memory: whether all devices belong to this process, and devices of the same type can
            read one another's memory.  Replicated tensors are then stored once, and several inputs
            or outputs of an exchange may be the same array; see `Comm.bind`.
        binds_parts: whether each process may bind a plan that has, besides its own devices, one of
            each class only: `Comm.bind` must need the processes of an exchange alone, and of its
            blocks those of the local devices alone.
    """

    name: str
    device_types: tuple[str, ...]
    bootstrap: Lazy
    load: Lazy
    priority: int = 0
    world: Lazy | None = None
    shares_memory: bool = False
    static_bootstrap: Lazy | None = None
    binds_parts: bool = False


@dataclass(frozen=True, slots=True)
class BoxingSpec:
    """A boxing (resharding) from one SBP to another, as a sequence of steps that core implements.

    Attributes:
        name: unique name.
        source, target: the SBPs to which it applies: text such as ``"S(0)"`` or ``"(S(0), B)"``,
            kinds without axes such as ``"P"`` or ``"(S, B)"``, or text with the wildcard ``*``.
        device_types: device types to which it applies.
        cost: lazy ``cost(tensor, source, target)``, which returns seconds for a `TensorType` and
            two (`Placement`, n-D SBP) pairs; the planner uses the cheapest boxing unless a plugin
            chooses another.
        load: lazy ``load(tensor, source, target)``, which returns the intermediate layouts, in
            order, as such pairs.
    """

    name: str
    source: str
    target: str
    device_types: tuple[str, ...]
    cost: Lazy
    load: Lazy


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """A record file format, for ``flow.data.record_reader(name, files)`` of flow-data.

    Attributes:
        name: unique name.
        load: import string of a class ``Files(paths, skip)`` with methods ``place``, ``read`` and
            ``origin``; see `flow_data.records.framed.Files`.
    """

    name: str
    load: str


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder of fields, for ``flow.data.record_decoder(records, field, name, ...)``.

    Attributes:
        name: unique name.
        load: import string of ``decode(data: bytes) -> numpy.ndarray``; its exceptions are
            reported with the file and the number of the record.
    """

    name: str
    load: str


@dataclass(frozen=True, slots=True)
class AnnotationSpec:
    """An annotation of job functions.

    Attributes:
        name: unique name, such as "Numpy".
        matches: ``matches(annotation) -> bool``.
        placeholder: lazy ``placeholder(annotation) -> PlaceholderSpec`` for parameters.
        fetch: lazy ``fetch(annotation) -> Fetch`` for results.
    """

    name: str
    matches: Callable[[Any], bool]
    placeholder: Lazy | None = None
    fetch: Lazy | None = None


@dataclass(frozen=True, slots=True)
class PassSpec:
    """A graph pass: ``load`` names a frozen dataclass with ``name`` and ``apply``.

    Attributes:
        name: unique name.
        stage: "logical", "train", "lower" and "legalize" passes run on the logical graph, in this
            order; those of "legalize" replace or move ops for which their devices have no kernel.
            "physical" passes run on the graph with one op per device.
        before, after: names of passes of the same stage before, or after, which this pass runs.
        default: whether every job runs the pass; if not, only jobs whose settings request it do.
    """

    name: str
    stage: str
    load: Lazy
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    default: bool = True


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """A checkpoint format.

    Attributes:
        name: unique name.
        can_open: ``can_open(path) -> bool``; must be cheap.
        reader: lazy ``reader(path) -> Mapping[str, ndarray]`` (arrays may load on access).
        writer: lazy ``writer(path, Mapping[str, ndarray])``; writes files into an empty folder.
        file: for single-file formats, the name of the file that ``writer`` creates: a save to a
            path with the same suffix moves the file there instead of the folder.
    """

    name: str
    can_open: Callable[[Any], bool]
    reader: Lazy
    writer: Lazy | None = None
    file: str | None = None
