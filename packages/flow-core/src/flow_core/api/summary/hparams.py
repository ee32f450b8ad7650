"""Messages for ``flow.summary.pb``: texts and hyperparameters."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flow_core.base.errors import FlowError
from flow_core.summary.messages import Fields, Message, encoded

__all__ = ["Hparam", "IntegerRange", "Metric", "RealRange", "ValueSet", "hparams", "text"]


class SummaryError(FlowError, ValueError, TypeError):
    """The error for a hyperparameter, range or metric of an unsupported type or value."""


def _check(ok: object, what: str, found: object, allowed: object) -> None:
    if not ok:
        raise SummaryError.at_caller(f"flow.summary.{what}", found=found, allowed=allowed)


def _is(value: object, *kinds: type) -> bool:
    """Return whether a value is of one of some types, where booleans do not count as numbers."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _check_ends(what: str, ends: tuple[float, float], kind: type, allowed: str) -> None:
    _check(all(_is(x, kind) for x in ends), what, ends, allowed)
    _check(ends[0] <= ends[1], what, ends, "the smaller number first")


class IntegerRange:
    """Integers from ``min_value`` to ``max_value``.

    Args:
        min_value, max_value: the bounds, both included; also attributes.

    Raises: SummaryError: the bounds are not integers, or in the wrong order.

    >>> flow.summary.IntegerRange(1, 8).max_value
    8
    """

    def __init__(self, min_value: int, max_value: int) -> None:
        _check_ends("IntegerRange", (min_value, max_value), int, "whole numbers")
        self.min_value, self.max_value = min_value, max_value


class RealRange:
    """Numbers from ``min_value`` to ``max_value``.

    Args:
        min_value, max_value: the bounds, both included; also attributes.

    Raises: SummaryError: the bounds are not floats, or in the wrong order.

    >>> flow.summary.RealRange(0.0, 1.0).max_value
    1.0
    """

    def __init__(self, min_value: float, max_value: float) -> None:
        _check_ends("RealRange", (min_value, max_value), float, "floats")
        self.min_value, self.max_value = min_value, max_value


class ValueSet:
    """A sorted set of values of one type.

    Args:
        values: the values.
        dtype: int, float, bool or str; by default the type of the first value.  Also an attribute.

    Raises: SummaryError: the type is not supported, or values have several types.

    >>> flow.summary.ValueSet(["sgd", "adam"]).values
    ['adam', 'sgd']
    """

    def __init__(self, values: Sequence[Any], dtype: type | None = None) -> None:
        found = list(values)
        kind = dtype or (type(found[0]) if found else None)
        _check(kind in (int, float, bool, str), "ValueSet", f"type {kind}", "int, float, bool, str")
        self.dtype: type = kind or str
        _check(all(isinstance(v, self.dtype) for v in found), "ValueSet", found, f"all {kind}")
        self._values = sorted(found)

    @property
    def values(self) -> list[object]:
        """Return the sorted values."""
        return list(self._values)


class Hparam:
    """A hyperparameter.

    Args:
        name: the name that is shown; also an attribute.
        dtype: the range or set of its values; None allows any value.  Also an attribute.

    Raises: SummaryError: ``dtype`` is neither a range nor a set of values.

    >>> flow.summary.Hparam("rate", flow.summary.RealRange(1e-4, 1e-1)).name
    'rate'
    """

    def __init__(self, name: str, dtype: object = None) -> None:
        known = dtype is None or isinstance(dtype, IntegerRange | RealRange | ValueSet)
        _check(known, "Hparam", f"dtype {dtype!r:.60}", "IntegerRange, RealRange, ValueSet or None")
        self.name = name
        self.dtype = dtype


class Metric:
    """A training result that is reported with the hyperparameters.

    Args:
        name: the name that is shown; also an attribute.
        dtype: int or float (the default).  Also an attribute.

    Raises: SummaryError: ``dtype`` is neither int nor float.

    >>> flow.summary.Metric("accuracy", float).name
    'accuracy'
    """

    def __init__(self, name: str, dtype: type | None = None) -> None:
        kind = dtype or float
        _check(kind in (int, float), "Metric", f"dtype {dtype!r:.60}", "int or float")
        self.name = name
        self.dtype: type = kind


def text(text: Sequence[str], tag: str | None = None) -> Message:
    """Return a message with some texts, for `flow.summary.pb`.

    Args:
        text: a list or tuple of texts.
        tag: the name that TensorBoard shows, "text" by default.

    Returns: A message, for `flow.summary.pb`.

    Raises: SummaryError: ``text`` contains a value that is not a text.

    >>> type(flow.summary.text(["a note"], "notes")).__name__
    'Message'
    """
    some = isinstance(text, list | tuple) and text and all(isinstance(t, str) for t in text)
    _check(some, "text", f"{text!r:.60}", "a list of one or more texts")
    tensor = {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": len(text)}]},
        "string_val": list(text),
    }
    value = {
        "tag": tag if isinstance(tag, str) else "text",
        "metadata": {"plugin_data": {"plugin_name": "text"}},
        "tensor": tensor,
    }
    return Message("Summary", {"value": [value]})


def hparams(hparams: Mapping[object, object]) -> Message:
    """Return a message with hyperparameters and metrics, for `flow.summary.pb`.

    Args:
        hparams: dict from an `Hparam`, a `Metric` or a name to its value.

    Raises: SummaryError: a value is not a str, bool, int or float, or a metric is not a number.
    """
    given, metrics = _by_name(hparams)
    words = json.dumps(given, sort_keys=True, separators=(",", ":"))
    started = {
        "hparams": [{"key": k, "value": _scalar(given[k])} for k in sorted(given)],
        "group_name": hashlib.sha256(words.encode()).hexdigest(),
        "start_time_secs": time.time(),
        "metrics": [{"key": k, "value": _scalar(v)} for k, v in metrics.items()],
    }
    content = encoded("HParamsPluginData", {"version": 0, "session_start_info": started})
    value = {
        "tag": "_hparams_/session_start_info",
        "metadata": {"plugin_data": {"plugin_name": "hparams", "content": content}},
        "tensor": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 0}]}},
    }
    return Message("Summary", {"value": [value]})


def _by_name(hparams: Mapping[object, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dicts: the hyperparameters by name, and the metrics by name."""
    given: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for key, value in hparams.items():
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(key, Metric):
            _check(_is(plain, int, float), "hparams", f"metric {key.name}={value!r}", "a number")
            metrics[key.name] = plain
            continue
        name = key.name if isinstance(key, Hparam) else str(key)
        fits = isinstance(plain, str | bool | int | float)
        _check(fits, "hparams", f"{name}={value!r:.60}", "str, bool, int or float")
        _check(name not in given, "hparams", f"{name!r} twice", "each name once")
        given[name] = plain
    return given, metrics


def _scalar(value: Any) -> Fields:
    if isinstance(value, str):
        return {"string_value": value}
    return {"bool_value": value} if isinstance(value, bool) else {"number_value": float(value)}
