"""Typed errors for users.

Every error names the attempted action and its line in *the user's* program, what was found, what
is allowed and a next step.  The parts are available as attributes for tools.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Self

_packages = [
    "flow_core", "oneflow", "flow_typing", "flow_data", "flow_cuda", "flow_dist", "flow_fit",
    "flow_onnx", "flow_serve", "flow_zoo", "numpy",
]  # fmt: skip
"""Packages whose frames are skipped, including numpy, which calls methods of flow's objects."""

_ZOO = "flow_zoo"
"""A skipped package whose lines errors and plans name as well, since each is a layer."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program.

    Attributes:
        file, line: the place.
        inner: the line of flow-zoo that the line calls; empty for other calls.

    >>> str(SourceLine("train.py", 12)), str(SourceLine("train.py", 3, "flow_zoo/resnet.py:70"))
    ('train.py:12', 'train.py:3 via flow_zoo/resnet.py:70')
    """

    file: str
    line: int
    inner: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" via {self.inner}" if self.inner else "")

    @classmethod
    def parsed(cls, text: str) -> SourceLine | None:
        """Return the line of a text that ``str`` made, or None for other texts."""
        found = re.fullmatch(rf"(.+?):(\d+)(?: via ({_ZOO}/\w+\.py:\d+))?", text)
        return found and cls(found[1], int(found[2]), found[3] or "")


_own_files: dict[str, bool] = {}


def _package_folders() -> tuple[str, ...]:
    files = (sys.modules[name].__file__ for name in _packages if name in sys.modules)
    return tuple(os.path.dirname(file) + os.sep for file in files if file)


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = tuple(
    f"{_STANDARD_LIBRARY}{name}{os.sep}" for name in ("site-packages", "dist-packages")
)


def _is_own(filename: str) -> bool:
    """Return whether a frame's file belongs to one of `_packages` or to Python itself."""
    own = _own_files.get(filename)
    if own is None:
        own = filename.startswith(("<frozen", *_package_folders())) or (
            filename.startswith(_STANDARD_LIBRARY) and not filename.startswith(_INSTALLED)
        )
        _own_files[filename] = own
    return own


def hide_frames(package: str) -> None:
    """Skip a package, such as a plugin with public functions, in the search for source lines."""
    if package not in _packages:
        _packages.append(package)
        _own_files.clear()


def _file_of(frame: FrameType) -> str:
    """Return a frame's file; that of its module for generated code."""
    file = frame.f_code.co_filename
    if file == "<string>":
        file = frame.f_globals.get("__file__") or file
    return file


def _is_own_frame(frame: FrameType) -> bool:
    """Return whether a frame is skipped; generated code counts as its globals' module."""
    return _is_own(_file_of(frame))


def called_by_flow(frame: FrameType | None) -> bool:
    """Return whether a frame is that of a function of `_packages`."""
    return frame is not None and _file_of(frame).startswith(_package_folders())


def _is_installed(frame: FrameType) -> bool:
    parts = _file_of(frame).split(os.sep)
    return "site-packages" in parts or "dist-packages" in parts


def raised_by_flow(error: BaseException) -> bool:
    """Return whether a traceback has no function of the program, but only installed ones."""
    traceback = error.__traceback__
    while traceback is not None:
        if not (_is_own_frame(traceback.tb_frame) or _is_installed(traceback.tb_frame)):
            return False
        traceback = traceback.tb_next
    return True


def user_line(depth: int = 1) -> SourceLine | None:
    """Return the innermost source line outside `_packages`, or None if there is none."""
    return _user_line_from(sys._getframe(depth))


def user_line_of_thread(thread: threading.Thread) -> SourceLine | None:
    """Return the innermost source line outside `_packages` that another thread executes."""
    return _user_line_from(sys._current_frames().get(thread.ident or 0))


def _user_line_from(frame: FrameType | None) -> SourceLine | None:
    inner = ""
    while frame is not None:
        if not _is_own_frame(frame):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, inner)
        if not inner and frame.f_globals.get("__name__", "").startswith(f"{_ZOO}."):
            inner = f"{_ZOO}/{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of a traceback outside `_packages`, or None if there is none."""
    line, traceback = None, error.__traceback__
    while traceback is not None:
        if not _is_own_frame(traceback.tb_frame):
            line = SourceLine(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def plugin_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of a traceback outside of core, numpy and Python's own library.

    This is the line of the plugin that failed or, for a file with a syntax error, the invalid line.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return SourceLine(error.filename, error.lineno or 1)
    core = (os.path.dirname(os.path.dirname(__file__)) + os.sep, *_numpy_folder())
    line, traceback = None, error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        library = file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)
        if not (library or file.startswith(("<frozen", *core))):
            line = SourceLine(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _numpy_folder() -> Iterator[str]:
    file = getattr(sys.modules.get("numpy"), "__file__", None)
    if file:
        yield os.path.dirname(file) + os.sep


def described(error: BaseException) -> str:
    """Return the type and text of an error, and its line in a plugin, for another error's message.

    >>> described(ValueError("no cubes"))
    'ValueError: no cubes'
    """
    line = plugin_line(error)
    return f"{type(error).__name__}: {error}" + (f" (at {line})" if line else "")


def visible(text: str) -> str:
    r"""Escape the control and invisible characters of a text.

    Line feeds and tabs are kept.

    >>> print(visible("red\x1b[31m \u202e\ud800 \u00e9"))
    red\x1b[31m \u202e\ud800 é
    """
    lines = text.split("\n")
    return "\n".join([line if line.isprintable() else _escaped_line(line) for line in lines])


def _escaped_line(line: str) -> str:
    return "".join([c if c.isprintable() or c == "\t" else _escaped(c) for c in line])


def shown(value: object, limit: int = 60) -> str:
    """Return a text for a value: its truncated ``repr``, or its type if ``repr`` fails.

    >>> shown("a" * 100, 8), shown(10**5000)
    ("'aaaaaaa", 'int of 16,610 bits')
    """
    try:
        return repr(value)[:limit]
    except Exception:  # noqa: BLE001 - whatever a foreign object raises
        size = f" of {value.bit_length():,} bits" if isinstance(value, int) else ""
        return f"{type(value).__name__}{size}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class FlowWarning(UserWarning):
    """Base of all warnings of flow."""


class BrokenJobWarning(FlowWarning):
    """A job that cannot be defined was excluded from an operation on all jobs."""


class PluginWarning(FlowWarning):
    """A plugin, or some of its records, is not used."""


class ZeroWeightsWarning(FlowWarning):
    """Weights of a train job start at zero and can never change."""


class CompatibilityWarning(FlowWarning):
    """A call that OneFlow accepts has no effect, or its arguments contradict its documentation."""


class LayoutWarning(FlowWarning):
    """The shape of images looks like another layout than the one that a call names."""


class HostFallbackWarning(FlowWarning):
    """Ops without a kernel for their devices run on the CPU."""


class HostExchangeWarning(FlowWarning):
    """Exchanges between devices go through host memory because a library is not available."""


def warn(text: str, category: type[FlowWarning], at: SourceLine | None) -> None:
    """Issue a warning at a line of the user's program."""
    place = at or SourceLine("<unknown>", 1)
    warnings.warn_explicit(visible(text), category, place.file, place.line)


class FlowError(Exception):
    """Base of all errors raised by flow.

    Args:
        attempted: the attempted action ("add two blobs").
        at: the user's line, if known.
        found: the value found.
        allowed: the accepted values.
        hint: the next step.
    """

    def __init__(
        self,
        attempted: str,
        *,
        at: SourceLine | None = None,
        found: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> None:
        self.attempted = attempted
        self.at = at
        self.found = found
        self.allowed = allowed
        self.hint = hint
        super().__init__(self._message())

    @classmethod
    def at_caller(
        cls,
        attempted: str,
        *,
        found: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> Self:
        """Return an error at the user's line that called flow."""
        return cls(attempted, at=user_line(2), found=found, allowed=allowed, hint=hint)

    def with_context(self, **parts: object) -> Self:
        r"""Replace parts of the error, such as ``at`` or ``hint``, with what a caller knows.

        >>> str(FlowError("adding", found="one").with_context(hint="add another"))
        'adding\n  found:   one\n  next:    add another'
        """
        for name, value in parts.items():
            setattr(self, name, value)
        self.args = (self._message(),)
        return self

    def _message(self) -> str:
        lines = [self.attempted if self.at is None else f"{self.attempted} (at {self.at})"]
        for label, value in (("found", self.found), ("allowed", self.allowed)):
            if value is not None:
                lines.append(f"  {label + ':':9}{value}")
        if self.hint:
            lines.append(f"  {'next:':9}{self.hint}")
        return visible("\n".join(lines))


@contextmanager
def located(line: SourceLine | None) -> Iterator[None]:
    """Add the user's line to errors of flow that the ``with`` block raises without one."""
    try:
        yield
    except FlowError as error:
        if error.at is None and line is not None:
            error.with_context(at=line)
        raise


class GraphError(FlowError):
    """The logical graph violates an invariant."""


class InferenceError(FlowError, ValueError):
    """An op does not accept its shapes, dtypes or attributes."""


class CallError(FlowError, TypeError):
    """The arguments of a call do not fit the called function or class."""


class JobError(FlowError):
    """Invalid definition or use of a job function."""


class OutsideJobError(JobError, NotImplementedError):
    """A function was called outside of job functions."""


class ForkError(JobError, RuntimeError):
    """A forked process used its parent's session, threads or devices."""


class NoValueError(JobError, TypeError):
    """Python code requested the data of a placeholder, which has none while a job is defined."""


class AnnotationError(JobError, TypeError):
    """A job function's annotation or return value is not usable."""


class FeedError(JobError, ValueError):
    """A fed array or argument does not match its placeholder."""


class ProcessesDifferError(JobError):
    """The processes of a program run different jobs, or the same jobs in different orders."""


class FeedsDifferError(ProcessesDifferError, FeedError):
    """The processes of a program feed a job different arrays."""


class VariableError(FlowError):
    """Two jobs disagree about a variable, or a variable does not exist."""


class ConfigError(FlowError, AttributeError):
    """An unknown or wrong setting."""


class DeviceUnavailableError(FlowError):
    """A program requested a device that does not exist."""


class OutOfMemoryError(FlowError):
    """A plan needs more memory than its device has; raised before the run.

    Attributes:
        nbytes: the bytes needed.
    """

    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelUser:
    """An op of a job that needs a missing kernel.

    Attributes:
        name: the name of the op in the logical graph.
        line: the user's line, if known.
        members: type, name and line of each op that was merged into it; empty if no op was.
    """

    name: str
    line: SourceLine | None = None
    members: tuple[tuple[str, str, SourceLine | None], ...] = ()


@dataclass(frozen=True, slots=True)
class MissingKernel:
    """An op type with concrete types for which a device type has no kernel.

    Attributes:
        op: type of the op.
        device_type: the device type.
        types: text of the types of inputs and outputs.
        reasons: why each registered kernel does not apply; empty if there are none.
        elsewhere: device types that have a kernel.
        users: the ops of the job that need it; empty for a lookup outside of compilation.
    """

    op: str
    device_type: str
    types: str
    reasons: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    users: tuple[KernelUser, ...] = ()

    @property
    def why(self) -> tuple[str, ...]:
        """The reasons, or a general reason if no kernel is registered."""
        return self.reasons or ("no kernel is registered for this op",)


class KernelNotFoundError(FlowError):
    """No registered kernel accepts an op on its device type with its types and attributes.

    Attributes:
        missing: the missing kernels: all of a job's if compilation raised the error.
    """

    missing: tuple[MissingKernel, ...] = ()


class PlanError(FlowError):
    """A plan cannot run, for example because of a possible deadlock or a bad offset."""


class NonFiniteError(FlowError, ArithmeticError):
    """A task of a step computed NaN or an infinity while such numbers were checked for.

    Attributes:
        op: name of the op; empty if a fed array or a variable was not finite before the step.
        step: number of the step.
        device: text of the device.
    """

    op: str = ""
    step: int = 0
    device: str = ""


class BudgetError(PlanError, AssertionError):
    """A plan moves more bytes than a test allows."""


class CheckpointError(FlowError):
    """A checkpoint could not be written or read, or does not match."""


class CheckpointReplacedError(CheckpointError):
    """Another process replaced a checkpoint while it was read; retry."""


class ReplayError(FlowError):
    """A recorded step could not be read or replayed."""


class DataError(FlowError):
    """Input data are missing or corrupt."""


class UnsupportedError(FlowError, NotImplementedError):
    """A program requested a documented feature that this version does not implement."""


class PluginError(FlowError):
    """Base of the errors of the plugin host."""


class PluginConflictError(PluginError):
    """Two plugins registered records under the same key."""


class PluginResultError(PluginError, TypeError):
    """A hook returned something of the wrong type."""


class PluginOrderError(PluginError):
    """The before/after constraints of passes form a cycle."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return a "did you mean" list for an unknown name; empty if no known name is similar.

    >>> nearest("relo", ["relu", "gelu", "conv"])
    'did you mean relu?'
    """
    import difflib

    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.6)
    return f"did you mean {', '.join(close)}?" if close else ""


def install_command(requirement: str) -> str:
    """Return the command that installs a package of flow from its checkout.

    There are no releases yet.  A checkout is found from this module if it is installed in
    editable form; other installations get a path relative to a checkout.

    Args:
        requirement: name of the distribution, with extras: "flow-dist[mpich]".

    >>> print(install_command("flow-dist[mpich]"))
    uv pip install '...packages/flow-dist[mpich]'...
    """
    packages = os.path.abspath(os.path.join(__file__, *[os.pardir] * 5))
    if os.path.isfile(os.path.join(packages, requirement.partition("[")[0], "pyproject.toml")):
        return f"uv pip install '{os.path.join(packages, requirement)}'"
    return f"uv pip install './packages/{requirement}' in a checkout of flow"
