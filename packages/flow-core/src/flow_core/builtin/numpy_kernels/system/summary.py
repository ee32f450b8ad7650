"""Kernels that write summaries to the event file of the process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec
from flow_core.summary import events
from flow_core.summary.messages import Fields


def text_of(array: Array) -> str:
    """Decode the bytes of an array as text, without trailing zero padding."""
    data: bytes = array.tobytes()
    return data.rstrip(b"\0").decode("utf-8", "replace")


def _create(ctx: BindContext) -> Launch:
    return partial(events.open_writer, ctx.attrs["logdir"])


def _tagged(made: Callable[[str, Any], Fields]) -> Callable[[BindContext], Launch]:
    def bind(ctx: BindContext) -> Launch:
        value, step, *tag = ctx.inputs
        return partial(_write, made, value, step, tag[0] if tag else None, ctx.attrs["tag_text"])

    return bind


def _write(
    made: Callable[[str, Any], Fields], value: Any, step: Array, tag: Any, text: str
) -> None:
    shown = text if tag is None else text_of(tag)
    events.writer().add(step.reshape(-1)[0], made(shown, value))


def _scalar(tag: str, value: Any) -> Fields:
    return events.scalar(tag, value.reshape(-1)[0])


def _pb(ctx: BindContext) -> Launch:
    value, step = ctx.inputs
    return lambda: events.writer().add(step.reshape(-1)[0], events.from_text(text_of(value)))


KERNELS: tuple[KernelSpec, ...] = (
    kernel("create_summary_writer", _create),
    kernel("flush_summary_writer", lambda _: lambda: events.writer().flush()),
    kernel("summary_write_scalar", _tagged(_scalar)),
    kernel("summary_write_histogram", _tagged(events.histogram)),
    kernel("summary_write_image", _tagged(events.images)),
    kernel("summary_write_pb", _pb),
)
