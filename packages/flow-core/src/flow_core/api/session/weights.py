"""Published weights: ``flow.weights.load``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from flow_core.api.session.train import is_state, opened
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType
from flow_core.base.errors import (
    CheckpointError,
    CheckpointReplacedError,
    FlowError,
    SourceLine,
    described,
    located,
    nearest,
    shown,
    user_line,
)
from flow_core.base.host_arrays import host_array
from flow_core.base.planning import end_script
from flow_core.frontend.session.rank_zero import load_collectively
from flow_core.frontend.session.session import default_session
from flow_core.ir.graph import TensorType

__all__ = ["Report", "Rule", "load"]


SHOWN = 30
"""How many rows of a report a notebook shows."""

ANY, NONE = r"(?s:.*)", r"(?!)"
"""Regular expressions that match all names, and none."""


@dataclass(frozen=True, slots=True)
class Rule:
    r"""What becomes of the arrays whose names match a pattern.

    Attributes:
        to: the name of the variable, in which ``\1`` stands for the first group of the pattern;
            with ``split``, the names of several variables.
        transpose: the order of the axes, or None to keep it.
        split: the axis along which the (transposed) array is divided among several variables, in
            the order of ``to`` and by their sizes.

    Raises: CheckpointError: an attribute has another type.
    """

    to: str | Sequence[str]
    transpose: Sequence[int] | None = None
    split: int | None = None

    def __post_init__(self) -> None:
        parts = {"to": _are(str, [self.to] if isinstance(self.to, str) else self.to)}
        parts["transpose"] = self.transpose is None or _are(int, self.transpose)
        parts["split"] = self.split is None or _are(int, [self.split])
        wrong = next((name for name, good in parts.items() if not good), None)
        if wrong:
            found = f"{wrong}={shown(getattr(self, wrong))}"
            allowed = "a name or several as to, numbers of axes as transpose, an axis as split"
            raise CheckpointError.at_caller("flow.weights.Rule", found=found, allowed=allowed)


def _are(kind: type, values: object) -> bool:
    """Return whether an object is a sequence of a type's instances."""
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        return False
    allowed = (int, np.integer) if kind is int else kind
    return all(isinstance(value, allowed) for value in values)


Names = Mapping[str, str | Rule | None] | Callable[[str], str | None] | None


@dataclass(slots=True)
class Report:
    """What a load did.

    Attributes:
        loaded: for each variable, the name of the array that it was loaded from.
        missing: variables that no array matched, without states of optimizers.
        unused: names of arrays that belong to no variable, or that are skipped.
    """

    loaded: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} variables loaded"]
        lines += [f"  {name} from {source}" for name, source in self.loaded.items()]
        for what, names in (("missing", self.missing), ("unused", self.unused)):
            lines += [f"{len(names)} {what}", *(f"  {name}" for name in names)] if names else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what is missing or unused, and the first variables, for notebooks."""
        from flow_core.base.formats.html_table import html_table

        rows = [("missing", name, "") for name in self.missing]
        rows += [("unused", "", name) for name in self.unused]
        rows += [("loaded", *pair) for pair in self.loaded.items()]
        more = len(rows) - SHOWN
        return html_table(
            f"{len(self.loaded)} variables loaded, {len(self.missing)} missing, "
            f"{len(self.unused)} arrays unused",
            rows[:SHOWN],
            ("", "variable", "array"),
            note=f"and {more:,} more: print() shows all" if more > 0 else "",
        )


def load(
    source: str | PathLike[str] | Mapping[str, object],
    names: Names = None,
    *,
    strict: bool = False,
    required: str | None = None,
) -> Report:
    """Load variables from weights of another program, and report what matched.

    Args:
        source: a file or folder of any checkpoint format: ``.safetensors``, an index
            ``.safetensors.index.json`` or a folder with one, a file of ``torch.save``, an ONNX
            model (with flow-onnx), a checkpoint of flow; or arrays or tensors by name.
        names: how the names of the source become names of variables: a dict from regular
            expressions, which must match a whole name, to replacements or `Rule` records, or to
            None to skip the array, of which the first match counts; or a function that returns a
            name or None.  Names without a rule are those of variables.
        strict: whether to fail if a variable or an array remains without a counterpart.
        required: a regular expression; the load fails if a variable whose whole name matches it
            remains without an array.

    Returns: The report. Variables without an array keep their values.

    Raises:
        CheckpointError: the source cannot be read, a rule is wrong, no name matches, two arrays
            are for one variable, shapes differ, a number does not fit into its variable's type, or
            ``strict`` or ``required`` is violated.  Nothing is loaded then.
    """
    attempted, at = "flow.weights.load", user_line(2)
    end_script(attempted)
    session = default_session()
    wanted = session.types()

    def wrong(found: str, allowed: str) -> CheckpointError:
        return CheckpointError(attempted, at=at, found=found, allowed=allowed)

    rule = _rules(names, wrong)
    needed = _pattern(
        ANY if strict else NONE if required is None else required, wrong, "as required"
    )

    def read() -> tuple[dict[str, Array], Report]:
        with located(at):
            found = source if isinstance(source, Mapping) else opened(source)
            return _Matching(wanted, found, attempted, at).run(rule, needed, strict)

    if session.world is None or isinstance(source, Mapping):
        values, report = read()
    else:
        report = Report()

        def first() -> dict[str, Array]:
            arrays, made = read()
            report.loaded, report.missing, report.unused = made.loaded, made.missing, made.unused
            return arrays

        values = dict(load_collectively(session.world, first))
        report.loaded = report.loaded or dict.fromkeys(values, "")
    session.assign(values)
    return report


@dataclass(slots=True)
class _Matching:
    """Matches the arrays of a source with variables.

    Attributes:
        wanted: the types of the variables.
        found: the arrays by name; reading one may read a file.
        attempted, at: for errors.
        problems: one line for each problem.
        values: the new values of variables.
        report: what matched.
    """

    wanted: Mapping[str, TensorType]
    found: Mapping[str, Any]
    attempted: str
    at: SourceLine | None
    problems: list[str] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def run(
        self, rule: Callable[[str], Rule | None], needed: re.Pattern[str], strict: bool
    ) -> tuple[dict[str, Array], Report]:
        """Return the values of variables and the report, or raise `CheckpointError`."""
        for name in self.found:
            if not isinstance(name, str):
                found, allowed = f"the name {shown(name)}", "arrays by name, which is a text"
                raise CheckpointError(self.attempted, at=self.at, found=found, allowed=allowed)
            self._match(name, rule(name))
        report = self.report
        left = [name for name in self.wanted if name not in self.values]
        report.missing = [name for name in left if not is_state(name, self.wanted)]
        lost = [name for name in report.missing if needed.fullmatch(name)]
        self.problems += [self._missing(name) for name in lost]
        if strict:
            self.problems += [f"unused     {name!r}" for name in report.unused]
        if not self.values and not self.problems:
            self.problems += [self._missing(name) for name in report.missing[:20]]
        if self.problems or not self.values:
            raise CheckpointError(
                self.attempted,
                at=self.at,
                found="".join(f"\n    {line}" for line in self.problems) or "no arrays",
                allowed="arrays with the shapes of variables",
                hint="map names and shapes: pass names={pattern: name or flow.weights.Rule(...)}",
            )
        return self.values, report

    def _missing(self, name: str) -> str:
        close = nearest(name, self.report.unused, count=1)
        return f"missing    {name!r}, {self.wanted[name]}" + (f"; {close}" if close else "")

    def _match(self, name: str, rule: Rule | None) -> None:
        targets = () if rule is None else (rule.to,) if isinstance(rule.to, str) else rule.to
        known = [target for target in targets if target in self.wanted]
        if rule is None or not known:
            self.report.unused.append(name)
            return
        if len(known) < len(targets):
            odd = next(target for target in targets if target not in self.wanted)
            self.problems.append(f"unknown    {odd!r}, for a part of {name!r}")
            return
        try:
            array = host_array(self.found[name])
        except CheckpointReplacedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a foreign object raises
            what = error.found if isinstance(error, FlowError) else described(error)
            self.problems.append(f"unreadable {name!r}: {what}")
            return
        if rule.transpose is not None:
            if sorted(rule.transpose) != list(range(array.ndim)):
                self.problems.append(f"transpose  {tuple(rule.transpose)} of {name!r}{array.shape}")
                return
            array = array.transpose(rule.transpose)
        for target, part in zip(targets, self._parts(array, targets, rule), strict=False):
            self._assign(target, part, name)

    def _parts(self, array: Array, targets: Sequence[str], rule: Rule) -> list[Array]:
        if rule.split is None or not -array.ndim <= rule.split < array.ndim:
            return [array] * len(targets)
        axis = rule.split % array.ndim
        sizes = [(*self.wanted[t].shape, *[0] * array.ndim)[axis] for t in targets]
        if sum(sizes) != array.shape[axis]:
            return [array] * len(targets)  # reported as a wrong shape
        return np.split(array, np.cumsum(sizes)[:-1].tolist(), axis)

    def _assign(self, target: str, array: Array, name: str) -> None:
        kind, given = self.wanted[target], f"{name!r} is {array.dtype}{list(array.shape)}"
        if target in self.values:
            self.problems.append(f"twice      {target!r}: {self.report.loaded[target]!r}, {name!r}")
        elif array.shape != kind.shape:
            self.problems.append(f"misshapen  {target!r}: {given}, wanted {kind}")
        elif not _is_like(array, kind.dtype):
            self.problems.append(f"mistyped   {target!r}: {given}, wanted {kind}")
        elif odd := _overflow(array, kind.dtype):
            self.problems.append(f"overflow   {target!r}: {given} with {odd}, wanted {kind}")
        else:
            self.values[target] = np.ascontiguousarray(array, kind.dtype.numpy).reshape(kind.shape)
            self.report.loaded[target] = name


def _is_like(array: Array, dtype: DType) -> bool:
    """Return whether both an array and a type have floating-point numbers, or both integers."""
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return floating if dtype.is_floating else array.dtype.kind in "biu"


def _overflow(array: Array, dtype: DType) -> str | None:
    """Return a number of an array that a type cannot hold, or None."""
    if not array.size or np.can_cast(array.dtype, dtype.numpy):
        return None
    if dtype.is_floating:
        with np.errstate(over="ignore"):
            lost = np.isinf(array.astype(dtype.numpy)) & ~np.isinf(array)
        return f"{array[lost][0]}" if lost.any() else None
    limits = np.iinfo(dtype.numpy) if dtype.is_integer else None
    low, high = (limits.min, limits.max) if limits else (0, 1)
    extremes = (int(array.min()), int(array.max()))
    return next((f"{n}" for n in extremes if not low <= n <= high), None)


Wrong = Callable[[str, str], CheckpointError]


def _rules(names: Names, wrong: Wrong) -> Callable[[str], Rule | None]:
    """Return the function from an array's name to what becomes of it; None skips the array."""
    if names is None:
        return Rule
    if callable(names):

        def called(name: str) -> Rule | None:
            target = names(name)
            if not isinstance(target, str | None):
                found = f"{shown(target)}, which names({name!r:.60}) returned"
                raise wrong(found, "a name, or None to skip the array")
            return None if target is None else Rule(target)

        return called
    if not isinstance(names, Mapping):
        raise wrong(f"names={shown(names)}", "a dict from patterns to names, or a function")
    patterns = [_compiled(pattern, given, wrong) for pattern, given in names.items()]

    def matched(name: str) -> Rule | None:
        for pattern, rule in patterns:
            match = pattern.fullmatch(name)
            if match is not None:
                return None if rule is None else _expanded(match, rule, wrong)
        return Rule(name)

    return matched


def _compiled(pattern: object, given: object, wrong: Wrong) -> tuple[re.Pattern[str], Rule | None]:
    if not isinstance(given, str | Rule | None):
        found = f"{shown(given)} for the pattern {shown(pattern)}"
        raise wrong(found, "a name, a flow.weights.Rule, or None to skip the array")
    rule = Rule(given) if isinstance(given, str) else given
    return _pattern(pattern, wrong, "as keys of names"), rule


def _pattern(pattern: object, wrong: Wrong, where: str) -> re.Pattern[str]:
    try:
        compiled: re.Pattern[Any] = re.compile(pattern)
        compiled.fullmatch("")
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        found = f"the pattern {shown(pattern)}: {error}"
        raise wrong(found, f"regular expressions {where}") from None
    return compiled


def _expanded(match: re.Match[str], rule: Rule, wrong: Wrong) -> Rule:
    """Return a rule with the groups of a match in its names."""
    try:
        if isinstance(rule.to, str):
            return Rule(match.expand(rule.to), rule.transpose, rule.split)
        return Rule([match.expand(text) for text in rule.to], rule.transpose, rule.split)
    except (re.error, IndexError) as error:
        found = f"{shown(rule.to)} for the pattern {shown(match.re.pattern)}: {error}"
        raise wrong(found, "names with groups of their pattern") from None
