"""The changes of a job that ``flow plan --advise`` tries."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flow_core.base.errors import SourceLine
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.config.function_config import (
    MICRO_BATCHES,
    MIXED,
    FunctionConfig,
    default_placement,
    micro_batches,
)
from flow_core.frontend.config.precision import multiplies_half
from flow_core.frontend.job.forms.stages import common_placement
from flow_core.frontend.job.forms.table import MICRO, ON_ONE_DEVICE, STAGES, STATES
from flow_core.frontend.job.forms.table import Change as Setting
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Value
from flow_core.observe.advise.edits import Edit, text_of
from flow_core.observe.advise.statements import Source
from flow_core.sharding.topology import Placement

MOST_PARTS = 8
"""The largest factor on the number of micro-batches."""

MEGABYTES = (1, 4, 64)
"""The sizes of buckets of gradients that are tried."""

THREADS = (1, 2, 4)
"""The numbers of threads for the streams of a plan that are tried."""

BLOCKS, LINES = 4, 3
"""The largest number of recomputed blocks, and of lines with transfers that get hints."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one line."""

    kind: str
    name: str  # what it does
    edit: Edit
    # Sets the job's settings for it; None if it changes none.
    config: Callable[[FunctionConfig], object] | None = None
    # Changes the compile request; None if the program's source or its settings change.
    request: Callable[[CompileRequest], CompileRequest] | None = None
    same_loss: bool = False  # whether to drop the change if the job warns that its loss differs

    @property
    def edits_source(self) -> bool:
        """Whether functions of the program change."""
        return self.config is None and self.request is None


@dataclass(frozen=True)
class Program:
    """A job as it is, from which changes are made."""

    job: AnyJob
    build: JobBuild  # its traced graph
    compiled: Compiled  # its plan, for devices that share no memory

    def changes(self) -> Iterator[Change]:
        """Yield the changes that are applicable to the job and not made already."""
        if self.definition[0]:
            yield from self._micro_batches()
            yield from self._precision()
            yield from self._sharded()
            yield from self._stages()
            yield from self._buckets()
            yield from self._default_grid()
        yield from self._recomputed()
        yield from self._without_hints()
        yield from self._with_hints()
        yield from self._grids()
        yield from self._threads()

    @cached_property
    def definition(self) -> tuple[str, int, int]:
        """The file of the job function, empty if unreadable, and its first and last line."""
        function = inspect.unwrap(self.job.function)
        file = function.__code__.co_filename
        text = text_of(file)
        for node in ast.walk(ast.parse(text, file)):
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first == function.__code__.co_firstlineno:
                    return file, first, node.end_lineno or node.lineno
        return "", 0, 0

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The files of the program's ops."""
        lines = [line for name, line in self._lines() if name in self.forward]
        return {file: Source.read(file) for file in dict.fromkeys(line.file for line in lines)}

    @property
    def forward(self) -> frozenset[str]:
        """The names of the ops that the job function adds."""
        return self.build.forward or frozenset(self.build.builder.ops)

    def _lines(self) -> Iterator[tuple[str, SourceLine]]:
        graph = self.compiled.logical
        yield from ((name, line) for name, line in graph.lines.items() if name in graph.ops)

    @property
    def is_distributed(self) -> bool:
        """Whether some op runs on several devices."""
        return any(op.placement.size > 1 for op in self.build.builder.ops.values())

    # ----------------------------------------------------------------------------- settings

    def _setting(self, kind: str, name: str, setting: str, value: Any, text: str = "") -> Change:
        file, first, end = self.definition
        code = f"{self.job.name}.config.{setting}({text or repr(value)})"

        def change(config: FunctionConfig) -> None:
            found: Any = config
            for part in setting.split("."):
                found = getattr(found, part)
            found(value)

        edit = Edit("after", code, file, first, end)
        return Change(kind, name, edit, change, same_loss=setting == MICRO_BATCHES)

    def _micro_batches(self) -> Iterator[Change]:
        now = micro_batches(self.job.config, self.build.kind)
        for change in MICRO.levels:
            count = change.micro_batches
            if change.make(self.build) is not None and count <= MOST_PARTS:
                name = f"{now * count} micro-batches"
                yield self._setting(MICRO.name, name, MICRO_BATCHES, now * count)

    def _precision(self) -> Iterator[Change]:
        registry, ops = self.job.active_session().registry, self.build.builder.ops.values()
        if not self.job.config.get(MIXED) and multiplies_half(registry, ops):
            yield self._setting("precision", "mixed precision", MIXED, True)

    def _sharded(self) -> Iterator[Change]:
        changes: tuple[Setting, ...] = (ON_ONE_DEVICE, *STATES.levels)
        for change in changes:
            if change.setting is not None and change.make(self.build) is not None:
                yield self._setting("sharded states", change.name, *change.setting)

    def _stages(self) -> Iterator[Change]:
        """Yield stages for devices of their own; those of one host would compute in turn anyway."""
        placement, costs = common_placement(self.build), self.job.active_session().costs
        recording = self.compiled.request.options.recording
        if placement is None or costs.computes_on_host(placement.device_type, recording):
            return
        for change in STAGES.levels:
            if change.setting is not None and change.make(self.build) is not None:
                yield self._setting(STAGES.name, change.name, *change.setting)

    def _buckets(self) -> Iterator[Change]:
        entries = self.compiled.plan.ledger
        if sum("all_reduce" in entry.steps for entry in entries) < 2:
            return
        name = "enable_all_reduce_group"
        if self.job.config.get(name):
            yield self._setting("fusion", "all-reduces one by one", name, False)
            name = "all_reduce_group_min_mbyte"
            for size in MEGABYTES:
                if size != self.job.config.get(name):
                    yield self._setting("fusion", f"buckets of {size} MB", name, size)
        else:
            yield self._setting("fusion", "all-reduces in buckets", name, True)

    # -------------------------------------------------------------------------------- source

    def _source(self, kind: str, name: str, edits: Iterator[Edit]) -> Iterator[Change]:
        for edit in edits:
            yield Change(kind, name, edit)

    def _recomputed(self) -> Iterator[Change]:
        if self.build.kind != "train" or self.build.segments:
            return
        types = self.compiled.logical.types
        for file, source in self.sources.items():
            nbytes: dict[int, int] = {}
            for name, line in self._lines():
                if line.file == file and name in self.forward:
                    size = sum(t.nbytes for t in types[name])
                    nbytes[line.line] = nbytes.get(line.line, 0) + size
            edits = source.recomputed(nbytes, BLOCKS)
            yield from self._source("recomputation", "activations computed again", edits)

    def _without_hints(self) -> Iterator[Change]:
        """Yield changes for hints that the text of the program has."""
        for source in self.sources.values() if self.is_distributed else ():
            yield from self._source("hint", "the line without its hint", source.without_hints())

    def _with_hints(self) -> Iterator[Change]:
        """Yield hints for the lines whose values cause the largest transfers."""
        graph, lines = self.compiled.logical, dict[tuple[str, int], int]()
        made = (Value(op, i) for op, types in graph.types.items() for i in range(len(types)))
        values = {str(value): value for value in made}
        for entry in sorted(self.compiled.plan.ledger, key=lambda e: -e.seconds):
            value = values.get(entry.value)
            line = graph.lines.get(value.op) if value else None
            if value and line is not None and line.file in self.sources:
                lines.setdefault((line.file, line.line), len(graph.type_of(value).shape))
        for (file, number), rank in list(lines.items())[:LINES]:
            edits = self.sources[file].with_hints(number, rank)
            yield from self._source("hint", "a hint for what is transferred", edits)

    # ----------------------------------------------------------------------------- hierarchy

    def _grids(self) -> Iterator[Change]:
        """Yield grids in place of lists of devices, which the program names in the function."""
        for place in self._flat_placements():
            shapes = [*map(str, grids_of(place.size))]
            for source in self.sources.values():
                edits = source.grids(place.device_type, numbers_of(place), shapes)
                yield from self._source("hierarchy", "a grid of devices", edits)

    def _default_grid(self) -> Iterator[Change]:
        """Yield grids of the devices of ops outside any scope."""
        source = next((s for s in self.sources.values() if s.flow), None)
        place = self.build.default_placement
        if source is None or place not in self._flat_placements():
            return
        if default_placement(self.job.config) is not None:
            return
        for grid in grids_of(place.size):
            numbers = sorted(numbers_of(place))
            given = f"{source.flow}.scope.placement({place.device_type!r}, {numbers[0]!r}, {grid})"
            value = replace(place, hierarchy=grid)
            name = "default_placement_scope"
            yield self._setting("hierarchy", "a grid of devices", name, value, given)

    def _flat_placements(self) -> Sequence[Placement]:
        found = dict.fromkeys(op.placement for op in self.build.builder.ops.values())
        return [p for p in found if p.size > 1 and len(p.hierarchy) == 1 and p.device_type != "cpu"]

    def _threads(self) -> Iterator[Change]:
        options = self.compiled.request.options
        if len(self.compiled.plan.streams) < 2 or options.recording:
            return
        for count in THREADS:
            if count == self.compiled.plan.workers or count > options.budget.count:
                continue

            def request(old: CompileRequest, count: int = count) -> CompileRequest:
                return replace(old, options=replace(old.options, workers=count))

            edit = Edit("shell", f"export FLOW_STREAM_THREADS={count}")
            name = f"{count} thread{'s' if count > 1 else ''} for the streams"
            yield Change("threads", name, edit, request=request)


def grids_of(count: int) -> list[tuple[int, int]]:
    """Return the grids of a number of devices.

    >>> grids_of(8), grids_of(3)
    ([(2, 4), (4, 2)], [])
    """
    return [(a, count // a) for a in range(2, count) if count % a == 0]


def numbers_of(place: Placement) -> list[str]:
    """Return the texts that a program may give for devices of one machine with following numbers.

    >>> numbers_of(Placement("gpu", ((0, 0), (0, 1))))
    ['0:0-1']
    """
    machines = {machine for machine, _ in place.devices}
    indices = [index for _, index in place.devices]
    if len(machines) > 1 or indices != [*range(indices[0], indices[0] + len(indices))]:
        return []
    return [f"{machines.pop()}:{indices[0]}-{indices[-1]}"]
