"""Ops that write event files."""

from __future__ import annotations

from typing import Any

from flow_core.base.dtypes import int8, int64, uint8
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec

CHANNELS = (1, 3, 4)


def _no_inputs(ctx: InferContext) -> tuple[TensorType, ...]:
    return ()


def _check_step(ctx: InferContext) -> None:
    step = ctx.inputs[1]
    ctx.check(step.dtype is int64 and step.size == 1, f"a step of type {step}", "int64[1]")


def _check_tag(ctx: InferContext) -> None:
    if len(ctx.inputs) < 3:
        ctx.check(ctx.attrs["tag_text"], "no tag", "a text, or the bytes of one in an int8 blob")
        return
    tag = ctx.inputs[2]
    fits = tag.dtype in (int8, uint8) and len(tag.shape) == 1
    ctx.check(fits, f"a tag of type {tag}", "the bytes of a text, an int8 blob of rank 1")


def _scalar(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_step(ctx)
    _check_tag(ctx)
    value = ctx.inputs[0]
    ctx.check(value.size == 1, f"a value of type {value}", "one number")
    return ()


def _histogram(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_step(ctx)
    _check_tag(ctx)
    return ()


def _image(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_step(ctx)
    _check_tag(ctx)
    x = ctx.inputs[0]
    fits = x.dtype is uint8 and len(x.shape) == 4 and x.shape[3] in CHANNELS
    ctx.check(fits, f"images of type {x}", "uint8[N,H,W,channels] with 1, 3 or 4 channels")
    return ()


def _pb(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_step(ctx)
    x = ctx.inputs[0]
    fits = x.dtype in (int8, uint8) and len(x.shape) == 1
    ctx.check(fits, f"a message of type {x}", "the bytes of its text, an int8 blob of rank 1")
    return ()


def _spec(type_: str, inputs: tuple[str, ...], infer: Any, doc: str, **attrs: AttrValue) -> OpSpec:
    return OpSpec(
        type=type_,
        inputs=inputs,
        outputs=(),
        infer=infer,
        attrs=attrs,
        effect=True,
        host=True,
        doc=doc,
    )


TAGGED = ("in", "step", "tag?")

OPS: tuple[OpSpec, ...] = (
    _spec("create_summary_writer", (), _no_inputs, "Open an event file.", logdir=REQUIRED),
    _spec("flush_summary_writer", (), _no_inputs, "Flush buffered events."),
    _spec("summary_write_scalar", TAGGED, _scalar, "Writes a number.", tag_text=""),
    _spec("summary_write_histogram", TAGGED, _histogram, "Writes a histogram.", tag_text=""),
    _spec("summary_write_image", TAGGED, _image, "Writes images.", tag_text=""),
    _spec("summary_write_pb", ("in", "step"), _pb, "Write a message in text form."),
)
