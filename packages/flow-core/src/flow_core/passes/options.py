"""Options of passes: typed fields of their dataclasses, which settings of jobs set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from flow_core.base.errors import PluginResultError, nearest
from flow_core.passes.base import Pass

T = TypeVar("T")
P = TypeVar("P", bound=Pass)
_OPTION = "flow_core.option"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option of a pass."""

    name: str  # of the field that holds the option
    doc: str  # the option's effect
    # The name of the job's setting that sets the option; empty for the setting ``PASS.OPTION``,
    # named after the pass and the option.
    setting: str


def option(default: T, doc: str, setting: str = "") -> T:
    """Declare an option as a field of a pass's dataclass.

    >>> @dataclass(frozen=True)
    ... class Round:
    ...     math_mode: str = option("float32", "the type to round to", setting="math_mode")
    >>> Round().math_mode
    'float32'

    Args:
        default: the value of the option without a setting.
        doc: the option's effect.
        setting: the name of the setting of ``flow.function_config()`` that sets the option; by
            default ``PASS.OPTION``, named after the pass and the option.
    """
    found: T = field(default=default, metadata={_OPTION: (doc, setting)})
    return found


def options_of(item: object) -> Iterator[Option]:
    """Yield the options of a pass; none for passes that are not dataclasses."""
    if is_dataclass(item):
        for row in fields(item):
            if _OPTION in row.metadata:
                yield Option(row.name, *row.metadata[_OPTION])


def configured(item: P, settings: Mapping[str, Any], attempted: str) -> P:
    """Return a pass with the options that settings set.

    Args:
        settings: the values of all settings that passes may read, by name.

    Raises:
        PluginResultError: an option names a setting that does not exist.
    """
    values = {}
    for row in options_of(item):
        if row.setting and row.setting not in settings:
            raise PluginResultError(
                attempted,
                found=f"option {row.name!r} with setting {row.setting!r}",
                allowed=f"a setting that passes may read: {', '.join(sorted(settings))}",
                hint=nearest(row.setting, settings) or None,
            )
        key = row.setting or f"{item.name}.{row.name}"
        if key in settings:
            values[row.name] = settings[key]
    return replace(item, **values) if values else item  # type: ignore[type-var]
