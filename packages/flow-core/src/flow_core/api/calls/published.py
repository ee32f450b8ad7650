"""Turn the functions and classes of a namespace into ones that explain wrong calls.

A function is replaced by one that passes its arguments on, in the namespace and in the module that
defines it, so that it can still be pickled; ``__wrapped__`` keeps its signature visible.  A class
stays the same object: its ``__init__`` and its public methods are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, NoReturn

from flow_core.api.calls.documented import complete
from flow_core.base.errors import FlowError

_published: dict[FunctionType, FunctionType] = {}
_names: dict[Any, str] = {}
"""The shortest public name of each function and class."""


def publish(namespace: dict[str, Any]) -> None:
    """Explain wrong calls of all public functions and classes of a module of ``oneflow``.

    Names that the module does not have raise an error that tells what there is instead.

    Args:
        namespace: ``globals()`` of the module.
    """
    namespace["__getattr__"] = partial(_missing, namespace)
    module = namespace["__name__"].replace("oneflow", "flow", 1)
    module = module.removesuffix("._names").removesuffix("._from_data")
    for name, value in list(namespace.items()):
        if name.startswith("_") or not _is_own(value):
            continue
        public = f"{module}.{name}"
        if isinstance(value, FunctionType):
            namespace[name] = _replaced(value, public)
        elif isinstance(value, type):
            _publish_class(value, public)


def _missing(namespace: dict[str, Any], name: str) -> NoReturn:
    from flow_core.api.compat.eager_names import unknown

    raise unknown(namespace["__name__"], name, namespace, sys._getframe(1))


def _is_own(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith(("flow_", "oneflow"))


def _add_name(value: object, public: str) -> None:
    known = _names.get(value, public)
    _names[value] = min(known, public, key=lambda name: (name.count("."), len(name)))


def _replaced(function: FunctionType, public: str) -> FunctionType:
    """Return the explaining form of a function, also for the module that defines it."""
    plain: Any = vars(function)["__wrapped__"] if _is_published(function) else function
    _add_name(plain, public)
    found = _published.get(plain)
    if found is None:
        found = _published[plain] = _explaining(plain)
        home, name = vars(sys.modules[plain.__module__]), plain.__name__
        if home.get(name) is plain:
            home[name] = found
    return found


def _explaining(function: Callable[..., Any], owner: type | None = None, member: str = "") -> Any:
    """Return a function that calls another one, and explains its errors.

    A method has an owner, the class that defines it, and its name as ``member``.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FlowError:
            raise
        except Exception as error:
            from flow_core.api.calls.explained import explanation

            name = _names[function] if owner is None else f"{_class_name(args, owner)}{member}"
            wrong = explanation(name, function, args, kwargs, error)
            if wrong is None:
                raise
            raise wrong from error

    if owner is None:
        complete(function)
    return update_wrapper(call, function)


def _class_name(args: tuple[Any, ...], owner: type) -> str:
    """Return the public name of the class of a method's first argument, or of its owner."""
    first = args[0] if args else None
    kind = first if isinstance(first, type) else type(first)
    known = (_names[base] for base in (*kind.__mro__, owner) if base in _names)
    return next(known, owner.__name__)


_CODE = next(c for c in _explaining.__code__.co_consts if getattr(c, "co_name", "") == "call")


def _is_published(function: object) -> bool:
    return getattr(function, "__code__", None) is _CODE


def _publish_class(kind: type, public: str) -> None:
    if issubclass(kind, Enum):  # its metaclass finds members
        return
    is_new = kind not in _names
    _add_name(kind, public)
    if is_new:
        complete(kind)
        for base in kind.__mro__:
            if _is_own(base):
                _publish_members(base, public)
        if not _is_published(kind.__init__) and not _is_published(kind.__new__):
            setattr(kind, "__init__", _explaining(_constructor(kind), kind))  # noqa: B010


def _publish_members(kind: type, public: str) -> None:
    for name, value in list(vars(kind).items()):
        if name.startswith("_") and name not in ("__init__", "__new__"):
            continue
        made = isinstance(value, staticmethod | classmethod)
        function = value.__func__ if made else value
        if isinstance(function, type) and _is_own(function):
            _publish_class(function, f"{public}.{name}")
        elif isinstance(function, FunctionType) and not _is_kept(function):
            method = _explaining(function, kind, "" if name.startswith("_") else f".{name}")
            setattr(kind, name, type(value)(method) if made else method)


def _is_kept(function: FunctionType) -> bool:
    return _is_published(function) or getattr(function, "__isabstractmethod__", False)


def _constructor(kind: Any) -> Callable[..., None]:
    """Return an ``__init__`` for a class that inherits it from Python's own classes."""
    inherited = kind.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        super(kind, self).__init__(*args, **kwargs)

    def bare(self: Any) -> None: ...

    shown = bare if inherited is object.__init__ else inherited
    update_wrapper(initialize, shown)
    initialize.__doc__ = inherited.__doc__
    return initialize
