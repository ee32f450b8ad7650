"""Plans that are kept on disk, under the digests of the requests that they were compiled for.

A process that starts again, or another one, loads the plan of an equal request instead of
compiling it.  Only the plan and what later jobs must respect are kept; the graphs between the
stages, which reports show, are compiled again when they are needed.

A file is data: its digest and all its values are checked, and nothing in it is run.  A damaged file
is ignored with a warning and replaced.  Processes that start together may each write the same file;
the last one to be renamed remains.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from flow_core.base.decoding import INTEGERS, Decoder, Mismatch, parsed
from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.base.dtypes import BY_NAME
from flow_core.base.errors import GraphError, UnsupportedError
from flow_core.base.formats.columns import Columns, Leaf
from flow_core.base.garbage import gc_paused
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.digest import request_digest
from flow_core.compiler.limits import fits, has_faster
from flow_core.compiler.request import Compiled, CompileRequest, HostedOp, Limits, Stages
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.ir.graph import Attrs, TensorType, tensor_type
from flow_core.passes.optimizer_placement import Owned
from flow_core.plan import Plan, check_references
from flow_core.sharding.sbp import Sbp, parse_sbp
from flow_core.sharding.topology import Device, Placement

_log = logging.getLogger("flow_core")

FORMAT = "flow kept plan 3"
"""The name and version of the format, which are part of the keys."""


def folder() -> Path:
    """Return the folder of the plans."""
    return user_folder("flow-core") / "plans"


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """What is kept of a compiled job; see `flow_core.compiler.request.Compiled`.

    Attributes:
        plan, inputs, variables, shared, owners: those of the compiled job.
        hosted: the ops that run on the CPU for lack of a kernel, which compilation has found.
    """

    plan: Plan
    inputs: tuple[str, ...]
    variables: Mapping[str, TensorLayout]
    shared: Mapping[str, bool]
    owners: Mapping[str, Owned]
    hosted: Mapping[str, HostedOp]


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a request's plan on disk.

    Attributes:
        key: the key of the plan.
        plans: the cache of all plans.
    """

    request: CompileRequest
    key: tuple[str, ...]
    plans: DiskCache

    @classmethod
    def of(cls, request: CompileRequest, limit: int) -> Entry | None:
        """Return the entry of a request; None if its plan is not kept.

        Args:
            limit: the maximum size of all plans in bytes; 0 to keep none.
        """
        if not limit:
            return None
        try:
            key = (FORMAT, request_digest(request))
        except UnsupportedError:
            return None
        return cls(request, key, DiskCache(folder(), ".json", limit, by_path=False))

    def find(self) -> Compiled | None:
        """Return the compiled job; None if there is no plan, or if the limits ask for another."""
        kept = self.plans.decoded(self.key, decoded)
        if kept is None or not fits(kept.plan, self.request) or has_faster(kept.plan, self.request):
            return None
        request = replace(self.request, hosted=kept.hosted)
        return Compiled(
            request=request,
            plan=kept.plan,
            inputs=kept.inputs,
            variables=kept.variables,
            shared=kept.shared,
            owners=kept.owners,
            stages=cache(lambda: _stages(request, kept.plan)),
        )

    def keep(self, compiled: Compiled) -> None:
        """Write the plan of the compiled job; log a plan that cannot be written."""
        kept = KeptPlan(
            compiled.plan,
            compiled.inputs,
            compiled.variables,
            compiled.shared,
            compiled.owners,
            compiled.request.hosted,
        )
        try:
            content = encoded(kept)
        except TypeError as error:  # an attribute that a plugin's pass has made is no literal
            _log.warning("the plan of job %r is not kept: %s", self.request.job, error)
        else:
            self.plans.write(self.key, content)


def _stages(request: CompileRequest, plan: Plan) -> Stages:
    """Compile a job again, in the order of its plan, which is known to fit."""
    postpone = request.options.postpone and not any(arena.faster for arena in plan.arenas)
    options = replace(request.options, postpone=postpone)
    limits = Limits(request.limits.machines)
    return compile_plan(replace(request, options=options, limits=limits)).stages()


@gc_paused()
def encoded(kept: KeptPlan) -> bytes:
    """Return the content of a file."""
    return json.dumps(_COLUMNS.encode(kept), separators=(",", ":")).encode()


@gc_paused()
def decoded(content: bytes) -> KeptPlan:
    """Return what the content of a file represents; raises `Mismatch`."""
    kept: KeptPlan = _COLUMNS.decode(KeptPlan, parsed(content))
    check_references(kept.plan)
    return kept


_PARTS = Decoder()


def _tensor_type(data: object) -> TensorType:
    name, shape = _PARTS.decode(tuple[str, tuple[int, ...]], data)
    if name not in BY_NAME or min(shape, default=0) < 0 or prod(shape) << 4 not in INTEGERS:
        raise Mismatch(f"{data!a:.60}", "an element type and sizes of 0 or more")
    return tensor_type(shape, BY_NAME[name])


def _attrs(data: object) -> Attrs:
    return Attrs(_PARTS.decode(Mapping[str, Any], data))


_PLACEMENT = tuple[str, tuple[tuple[int, int], ...], tuple[int, ...]]


def _placement(data: object) -> Placement:
    try:
        parts = _PARTS.decode(_PLACEMENT, data)
        return Placement(*parts)
    except GraphError:
        raise Mismatch(f"{data!a:.60}", "a placement") from None


def _device(data: object) -> Device:
    try:
        return Device.parse(_PARTS.decode(str, data))
    except GraphError:
        raise Mismatch(f"{data!a:.60}", "a device") from None


def _sbp(data: object) -> Sbp:
    try:
        return parse_sbp(_PARTS.decode(str, data))
    except GraphError:
        raise Mismatch(f"{data!a:.60}", "an SBP") from None


_COLUMNS = Columns(
    leaves={
        TensorType: Leaf(lambda type_: [type_.dtype.name, type_.shape], _tensor_type),
        Attrs: Leaf(lambda attrs: attrs.literals, _attrs),
        Placement: Leaf(lambda p: [p.device_type, p.devices, p.hierarchy], _placement),
        Device: Leaf(str, _device),
        Sbp: Leaf(str, _sbp),
    },
    kinds={"Task.attrs": Attrs, "Plan.settings": Attrs},
)
