"""The frozen records that plugin hooks return.

Heavy parts are lazy ``"package.module:attribute"`` strings (or callables, in small plugins and
tests), so that registration imports no kernels and touches no hardware.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flow_core.base.arrays import DeviceArray
from flow_core.base.dtypes import DType
from flow_core.base.errors import InferenceError, PluginError, SourceLine
from flow_core.base.thread_budget import NOT_DIVIDED, Cores
from flow_core.ir.graph import NO_ATTRS, Attrs, AttrValue, Graph, TensorType, Value
from flow_core.sharding.sbp import Region, Signatures, region_shape
from flow_core.sharding.topology import Placement

Lazy = str | Callable[..., Any]


def load(target: Lazy) -> Any:
    """The object a lazy target names.

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
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"loading {target!r}", found=f"{type(error).__name__}: {error}"
        ) from error
    return value


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Default of an attribute that every op of a type must give."""


@dataclass(frozen=True, slots=True)
class InferContext:
    """What shape and dtype inference sees of an op.

    Attributes:
        op: name of the op.
        type: type of the op.
        inputs: types of its inputs.
        attrs: attributes, defaults filled in.
        line: the user's line.
    """

    op: str
    type: str
    inputs: tuple[TensorType, ...]
    attrs: Mapping[str, AttrValue]
    line: SourceLine | None = None

    def fail(self, found: object, allowed: object = None, hint: str | None = None) -> NoReturn:
        """Raises `InferenceError` about this op at the user's line."""
        raise InferenceError(
            f"{self.type} {self.op!r}", at=self.line, found=found, allowed=allowed, hint=hint
        )

    def check(
        self, ok: object, found: object, allowed: object = None, hint: str | None = None
    ) -> None:
        """`fail` unless ``ok``."""
        if not ok:
            self.fail(found, allowed, hint)


@dataclass(frozen=True, slots=True)
class SbpContext:
    """What an op's SBP rules see.

    Attributes:
        inputs, outputs: types, as the hierarchy dimensions before this one have left them.
        attrs: attributes, localized to the first device of these dimensions.
        parts: devices of this hierarchy dimension; None asks for the rules that hold for any
            number.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    attrs: Mapping[str, AttrValue]
    parts: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A logical tensor and the box of it that one device holds.

    P and B hold the whole.

    >>> from flow_core.base.dtypes import float32
    >>> part = Part(TensorType((7, 2), float32), ((3, 5), (0, 2)))
    >>> part.shape, part.is_whole(0), part.is_whole(1)
    ((2, 2), False, True)
    """

    type: TensorType
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the box."""
        return region_shape(self.region)

    def is_whole(self, axis: int) -> bool:
        """Whether the box has the full extent of an axis."""
        return self.region[axis] == (0, self.type.shape[axis])


@dataclass(frozen=True, slots=True)
class LocalContext:
    """What `OpSpec.localize` sees: a logical op's attributes, and one device's parts."""

    attrs: Mapping[str, AttrValue]
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]


def local_shape(ctx: LocalContext) -> Mapping[str, AttrValue]:
    """The default of `OpSpec.localize`: an attribute ``shape`` is the shape of output 0."""
    return {"shape": ctx.outputs[0].shape} if "shape" in ctx.attrs else {}


@dataclass(frozen=True, slots=True)
class Sample:
    """One concrete case for the kits: host arrays and attributes.

    Attributes:
        inputs: arrays (float ones are cast to each dtype under test).
        attrs: attributes.
        gradient: whether finite differences make sense here (no kinks or ties).
        note: what the case is about.
    """

    inputs: tuple[Any, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    gradient: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """An op type: schema, inference, SBP rules, gradient.  Nothing about devices.

    Attributes:
        type: unique name.
        inputs: names of inputs; ``"x?"`` (trailing) is optional, ``"x*"`` (last) takes any number.
        outputs: names of outputs, ``"out*"`` when inference decides how many.
        attrs: default per attribute, `REQUIRED` for none.
        infer: output types from an `InferContext`.
        sbp: rules for one hierarchy dimension, all but the always valid all-broadcast one.
        localize: the attributes that say something else about one device's part of the op than
            about the whole, from a `LocalContext`.  It is asked only where something is split.
        gradient: builds the gradient of each input (None where there is none) from a
            `flow_core.ops.build.GradContext`; None when the op has no gradient at all.
        reference: numpy semantics ``reference(*inputs, **attrs)``: array or tuple of arrays.
            Given float64 inputs it computes in float64.  None for ops with effects.
        samples: ``samples(rng)`` yields `Sample`s for the kits.
        elementwise: output element i depends on elements i (after broadcasting) only.
        alias: output 0 is the same bytes as this input (reshape, identity).
        inplace: output 0 may overwrite one of these inputs while it is computed.
        mutates: inputs (variables) that the op overwrites.
        mutates_if: name of an attribute without which it overwrites none of them; see `overwrites`.
        effect: kept although nobody may read its outputs; never merged with another op.
        random: needs seed and step; never merged, never folded.
        spread: "inputs" or "outputs" when these are one value per device, each on its own
            device of the op's placement, in order; the other side lies on all of them in the
            layout of the attribute ``sbp``.  On several devices such an op stands for no work.
        work: floating point operations of one device, given the types that it has; None for
            ops that do little more than read and write their elements.
        host: runs on the CPU of its devices' machines, whatever the scope says.  Only such ops
            take or make values whose elements are objects (`flow_core.base.dtypes.OBJECTS`).  A
            source of theirs that has an attribute ``region`` is split on axis 0.
    """

    type: str
    inputs: tuple[str, ...]
    infer: Callable[[InferContext], Sequence[TensorType]]
    outputs: tuple[str, ...] = ("out",)
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    sbp: Callable[[SbpContext], Signatures] = lambda _: ()
    localize: Callable[[LocalContext], Mapping[str, AttrValue]] = local_shape
    gradient: Callable[[Any], Sequence[Any]] | None = None
    reference: Callable[..., Any] | None = None
    samples: Callable[[Any], Any] | None = None
    elementwise: bool = False
    alias: int | None = None
    inplace: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    mutates_if: str | None = None
    effect: bool = False
    random: bool = False
    spread: str | None = None
    work: Callable[[SbpContext], float] | None = None
    host: bool = False
    doc: str = ""

    def overwrites(self, attrs: Mapping[str, AttrValue]) -> tuple[int, ...]:
        """The inputs that an op with these attributes overwrites."""
        keeps = self.mutates_if is not None and not attrs[self.mutates_if]
        return () if keeps else self.mutates

    def spreads(self, placement: Placement, side: str | None = None) -> bool:
        """Whether values of one side (of some side) lie on one device each."""
        return self.spread is not None and placement.size > 1 and side in (None, self.spread)

    def input_placement(self, placement: Placement, index: int) -> Placement:
        """Where an input of an op on ``placement`` is read."""
        return placement.only(index) if self.spreads(placement, "inputs") else placement

    def output_placement(self, placement: Placement, index: int) -> Placement:
        """Where an output of an op on ``placement`` lies."""
        return placement.only(index) if self.spreads(placement, "outputs") else placement


def local_attrs(spec: OpSpec, ctx: LocalContext) -> Mapping[str, AttrValue]:
    """All attributes of one device's part of an op."""
    parts = (*ctx.inputs, *ctx.outputs)
    if all(part.is_whole(i) for part in parts for i in range(len(part.region))):
        return ctx.attrs
    changed = spec.localize(ctx)
    return Attrs({**ctx.attrs, **changed}) if changed else ctx.attrs


@dataclass(frozen=True, slots=True)
class KernelQuery:
    """What a kernel is asked about: one op with concrete types.

    Attributes:
        op: type of the op.
        attrs: its attributes.
        inputs, outputs: types of inputs and outputs.
        find: finds the kernel of another query on the same device, for kernels of ``fused``
            groups, which are made of their members' kernels.
        settings: what session and job ask of kernels, as the plan has it; what is not there is not
            asked for.  ``enable_tensor_float_32_compute``: whether float32 products may be rounded
            to 10 bits of mantissa.  ``mixed_precision_data_type``: the half type of a job that
            computes in one.
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
    """What a kernel is bound to, once per plan.

    Attributes:
        query: the op with its types and attributes.
        inputs, outputs: device arrays at their final addresses; outputs are not initialised and
            may be the same memory as an input that the op's spec lists as ``inplace``.
        workspace: uint8 device array of the size that the kernel asked for, or None.
        step: 0-d int64 host array that holds the number of the running step.
        seed: 64-bit seed of the op, derived from the job's seed and the op's name.
        stream: where to queue the work.
        cores: how the plan divides the cores of the process.  Kernels need not look at it: when
            they are looked up, bound and run, the thread's OpenMP and numpy's BLAS are sized.
    """

    query: KernelQuery
    inputs: tuple[DeviceArray, ...]
    outputs: tuple[DeviceArray, ...]
    workspace: DeviceArray = None
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
        op: type of the op; "*" takes any op.
        device: device type.
        load: lazy ``bind(BindContext)`` which returns a launch or a sequence of launches.
        accepts: predicate on a `KernelQuery` (dtypes, attributes, shapes).
        priority: the highest accepting kernel wins; numpy's have 0.
        workspace: ``workspace(KernelQuery)`` in bytes.
        name: shown in plans and conflicts.
        rows: ``rows(whole, parts)``: whether a launch on the rows of several arrays, one after the
            other along axis 0, makes the bits that a launch on each of them makes.  Inputs that
            are the same in ``whole`` and in the parts are one array for all of them.  None
            promises that of elementwise ops only.
        cuts: why its launches cannot be part of a step that the driver records and replays; empty
            where they can.
    """

    op: str
    device: str
    load: Lazy
    accepts: Callable[[KernelQuery], bool] | None = None
    priority: int = 0
    workspace: Callable[[KernelQuery], int] | None = None
    name: str = ""
    rows: Callable[[KernelQuery, Sequence[KernelQuery]], bool] | None = None
    cuts: str = ""


@dataclass(frozen=True, slots=True)
class Available:
    """A probe's good news: how many devices there are."""

    count: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A probe's bad news, in words the user can act on."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device type.

    Attributes:
        type: "cpu", "gpu" ...
        probe: lazy ``probe() -> Available | Unavailable``; may touch hardware.
        driver: lazy ``driver(index) -> flow_core.device.Driver``.
        kernels: device type whose kernels also run here ("cpu" for emulated devices).
        records: whether its driver records the launches of a step and replays them as one: plans
            then say what cuts the record.
    """

    type: str
    probe: Lazy
    driver: Lazy
    kernels: str | None = None
    records: bool = False


@dataclass(frozen=True, slots=True)
class CommSpec:
    """A communication library.

    Attributes:
        name: unique name.
        device_types: devices that it joins, of one type or mixed.
        bootstrap: lazy ``bootstrap() -> Available | Unavailable``: joins the processes of this
            program, asked once; `Unavailable` where the program was not started for it.
        load: lazy ``load(devices) -> flow_core.device.Comm``, with the text forms of all devices
            of a plan.
        priority: of several that are available, the highest joins a plan's devices; the one
            within a process has 0.
        world: lazy ``world() -> flow_core.device.World``, the same object at each call: the
            processes that it joins; None where it joins the devices of one process only.
        meet: lazy ``meet(machines, used, port) -> World | None``, asked when ``flow.env.machine``
            names several machines in a program that no launcher has started: joins processes
            that were started by hand, one on each machine; None where this is not one of them.
        shares_memory: whether all devices are this process's and read one another's memory, if
            it is of one kind.  They then have what is the same on all of them once: arrays of an
            exchange may be one array, see `Comm.bind`.
    """

    name: str
    device_types: tuple[str, ...]
    bootstrap: Lazy
    load: Lazy
    priority: int = 0
    world: Lazy | None = None
    shares_memory: bool = False
    meet: Lazy | None = None


@dataclass(frozen=True, slots=True)
class BoxingSpec:
    """A way to get from one SBP to another, in steps that core can do.

    Attributes:
        name: unique name.
        source, target: SBP that it is for: as text, ``"S(0)"`` or ``"(S(0), B)"``; as letters,
            ``"P"`` or ``"(S, B)"``; with ``*`` for any text.
        device_types: the types of devices that it is for.
        cost: lazy ``cost(tensor, source, target)`` in seconds, of a `TensorType` and two
            (`Placement`, n-D SBP) pairs; the cheapest way is taken, unless a plugin chooses.
        load: lazy ``load(tensor, source, target)``: the layouts to go through in between, in
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
    """A format of files of records, for ``flow.data.record_reader(name, files)`` of flow-data.

    Attributes:
        name: unique name.
        load: lazy text of a class ``Files(paths, skip)`` with ``place``, ``read`` and ``origin``,
            as `flow_data.records.framed.Files` describes it.
    """

    name: str
    load: Lazy


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder of fields, for ``flow.data.record_decoder(records, field, name, ...)``.

    Attributes:
        name: unique name.
        load: lazy text of ``decode(data: bytes) -> numpy.ndarray``; what it raises is reported
            with file and number of the record.
    """

    name: str
    load: Lazy


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
        stage: "logical", "train" and "lower" passes see the logical graph, in this order;
            "physical" ones see the graph with an op per device.
        before, after: names of passes of the same stage.
        default: whether jobs run it.
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
        can_open: ``can_open(path) -> bool``, cheap.
        reader: lazy ``reader(path) -> Mapping[str, ndarray]`` (arrays may load on access).
        writer: lazy ``writer(path, Mapping[str, ndarray])``; writes into a fresh folder.
        file: name of the only file that ``writer`` makes, if it makes one: a save to a path that
            ends as this name does puts the file there, in place of a folder.
    """

    name: str
    can_open: Callable[[Any], bool]
    reader: Lazy
    writer: Lazy | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """A predict job with its weights, as exporters get it.

    Attributes:
        name: the job's.
        graph: what its results need, as traced: one logical op each, no boxing.  It also has the
            ops that overwrite variables.
        inputs: the values that are fed, by the parameter's name (and the place in it, for
            parameters that are tuples or dicts), in the order in which they are fed.
        variables: arrays by the names of the graph's ``variable`` ops; each may be read from a
            file when it is asked for.
        specs: of all ops.
        at: the user's line that exports.
    """

    name: str
    graph: Graph
    inputs: Mapping[str, Value]
    variables: Mapping[str, Any]
    specs: Mapping[str, OpSpec]
    at: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """A format of files in which other programs run a predict job.

    Attributes:
        name: unique name; ``flow.onnx.export`` looks for "onnx".
        load: lazy ``write(job: ExportedJob, path: str, **options)``; leaves a whole file or, where
            it raises, none that was not there before.
    """

    name: str
    load: Lazy
