"""Planted defects: plugins with one mistake each, which the kit of their kind must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from types import ModuleType
from typing import Any

import pytest

from flow_core.base.config import Settings
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import Kit


def kit_of(
    base: type[Kit],
    records: Mapping[str, Sequence[Any]],
    hooks: Mapping[str, Callable[..., Any]] = {},
    **attributes: Any,
) -> Kit:
    """Return a kit for a plugin with some records, by hook, and with other hooks."""
    module: Any = ModuleType("planted")
    module.FLOW_PLUGIN_API = "1.0"
    for hook, given in records.items():
        setattr(module, hook, _returns(given))
    for hook, call in hooks.items():
        setattr(module, hook, call)

    class Tested(base):  # type: ignore[misc, valid-type]  # the kit under test
        plugin = "planted"

        def registry(self) -> Registry:
            return load_plugins(Settings(plugins=(), plugin_strict=True), [module])

    for name, value in attributes.items():
        setattr(Tested, name, value)
    return Tested()


def _returns(given: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    return lambda: given


def failures(kit: Kit) -> Iterator[tuple[str, BaseException]]:
    """Yield each failing check of a kit with its error."""
    for name in dir(kit):
        test = getattr(kit, name)
        if not name.startswith("test_") or not callable(test):
            continue
        check, count = name.removeprefix("test_"), len(signature(test).parameters)
        for row in kit.parameters(check) if count else [()]:
            try:
                test(*row[:count])
            except pytest.skip.Exception:
                continue
            except (Exception, pytest.fail.Exception) as error:  # whatever pytest would report
                yield check, error
                break
