"""Ops that write event files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flow_core.base.dtypes import int8, int64, uint8
from flow_core.ops.declare import Attributes, OpDef, Types, specs
from flow_core.plugins.specs import REQUIRED, InferContext

CHANNELS = (1, 3, 4)


def _value(ctx: InferContext) -> None:
    ctx.check(ctx.inputs[0].size == 1, f"a value of type {ctx.inputs[0]}", "one number")


def _image(ctx: InferContext) -> None:
    x = ctx.inputs[0]
    fits = x.dtype is uint8 and len(x.shape) == 4 and x.shape[3] in CHANNELS
    ctx.check(fits, f"images of type {x}", "uint8[N,H,W,channels] with 1, 3 or 4 channels")


def _text(ctx: InferContext, index: int, name: str, of: str) -> None:
    x = ctx.inputs[index]
    fits = x.dtype in (int8, uint8) and len(x.shape) == 1
    ctx.check(fits, f"a {name} of type {x}", f"the bytes of {of} text, an int8 blob of rank 1")


@dataclass(frozen=True, slots=True)
class Summary(OpDef):
    """An op that writes to an event file, and the check of its first input."""

    type: str
    doc: str
    inputs: tuple[str, ...] = ()
    attrs: Attributes = field(default_factory=dict)
    check: Callable[[InferContext], None] = lambda _: None
    outputs = ()
    effect = True
    host = True

    def infer(self, ctx: InferContext) -> Types:
        if self.inputs:
            step = ctx.inputs[1]
            ctx.check(step.dtype is int64 and step.size == 1, f"a step of type {step}", "int64[1]")
        if len(ctx.inputs) > 2:
            _text(ctx, 2, "tag", "a")
        elif "tag?" in self.inputs:
            hint = "a text, or the bytes of one in an int8 blob"
            ctx.check(ctx.attrs["tag_text"], "no tag", hint)
        self.check(ctx)
        return ()


TAGGED = ("in", "step", "tag?"), {"tag_text": ""}

OPS = specs(
    Summary("create_summary_writer", "Open an event file.", attrs={"logdir": REQUIRED}),
    Summary("flush_summary_writer", "Flush buffered events."),
    Summary("summary_write_scalar", "Writes a number.", *TAGGED, _value),
    Summary("summary_write_histogram", "Writes a histogram.", *TAGGED),
    Summary("summary_write_image", "Writes images.", *TAGGED, _image),
    Summary(
        "summary_write_pb",
        "Write a message in text form.",
        ("in", "step"),
        check=lambda ctx: _text(ctx, 0, "message", "its"),
    ),
)
