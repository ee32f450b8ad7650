"""The statements of a program's functions, and changes of them: recomputation, hints and grids."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from flow_core.observe.advise.edits import Action, Edit, functions_of, text_of

SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
CASTS = ("parallel_cast", "hierarchical_parallel_cast")
REQUESTS = ("with_distribute", "with_nd_sbp")
KEYWORDS = {"dense": "model_distribute", "get_variable": "distribute"}
"""The functions that create weights, with the parameter that requests their distribution."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple statement on lines of its own, in a function."""

    node: ast.stmt
    function: str  # the name of the innermost function that has it
    calls: frozenset[str]  # the names of the functions that it calls

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line."""
        return self.node.lineno, self.node.end_lineno or self.node.lineno


@dataclass(slots=True)
class Source:
    """A file of the program."""

    file: str
    flow: str = ""  # the name that the file has for the module ``oneflow``; empty if it has none
    statements: list[Statement] = field(default_factory=list)  # simple statements of its functions
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))

    @classmethod
    def read(cls, file: str) -> Source:
        """Read a file; the result has no statements if it is not readable."""
        text = text_of(file)
        found = cls(file, tree=ast.parse(text, file))
        module = sys.modules.get("oneflow")
        names = (n for f in functions_of(file) for n, v in f.__globals__.items() if v is module)
        found.flow = next(names, "") if module is not None else ""
        rows = text.splitlines()
        found.statements = list(_simple(found.tree, "", rows))
        return found

    def at(self, line: int) -> Statement | None:
        """Return the statement that has a line."""
        return next((s for s in self.statements if s.lines[0] <= line <= s.lines[1]), None)

    def edit(self, statement: Statement, action: Action, code: str) -> Edit:
        """Return a change of a statement."""
        return Edit(action, code, self.file, *statement.lines)

    # ------------------------------------------------------------------------- recomputation

    def recomputed(self, nbytes: Mapping[int, int], most: int) -> Iterator[Edit]:
        """Yield blocks whose activations may be computed again, those that hold most bytes first.

        Args:
            nbytes: the bytes of the activations that the ops of each line compute.
        """
        if not self.flow:
            return
        held = self._held(nbytes)
        largest = sorted(
            (s for s in self.statements if held.get(id(s))), key=lambda s: -held[id(s)]
        )
        code = f"with {self.flow}.experimental.scope.config(checkpointing=True):"
        for statement in largest[:most]:
            if not _has_long_text(statement.node):
                yield self.edit(statement, "around", code)

    def _held(self, nbytes: Mapping[int, int]) -> dict[int, int]:
        """Return the bytes of each statement, with those of the functions that it calls."""
        functions: dict[str, int] = {}
        found: dict[int, int] = {}
        for _ in range(DEPTH):
            found = {
                id(s): sum(nbytes.get(line, 0) for line in range(s.lines[0], s.lines[1] + 1))
                + sum(functions.get(name, 0) for name in s.calls)
                for s in self.statements
            }
            functions = {}
            for s in self.statements:
                functions[s.function] = functions.get(s.function, 0) + found[id(s)]
        return found

    # ---------------------------------------------------------------------------------- hints

    def without_hints(self) -> Iterator[Edit]:
        """Yield the statements in which hints are written without these."""
        found = map(self._without_hint, self.statements)
        return (edit for edit in found if edit is not None)

    def _without_hint(self, statement: Statement) -> Edit | None:
        if not self.flow:
            return None
        code = ast.unparse(_Unhinted(self.flow).visit(copy.deepcopy(statement.node)))
        is_same = code == ast.unparse(statement.node)
        return None if is_same else self.edit(statement, "replace", code)

    def with_hints(self, line: int, rank: int) -> Iterator[Edit]:
        """Yield hints for the value and the weight of a statement that has none."""
        statement = self.at(line)
        if statement is None or not self.flow or self._without_hint(statement) is not None:
            return
        target = _target(statement.node)
        distribute = f"{self.flow}.distribute"
        ways = [f"{distribute}.split({axis})" for axis in range(min(rank, 2))]
        ways.append(f"{distribute}.broadcast()")
        for way in ways if target else ():
            yield self.edit(statement, "after", f"{target} = {target}.with_distribute({way})")
        for way in (f"{distribute}.split(0)", f"{distribute}.auto()"):
            visitor = _Hinted(way)
            code = ast.unparse(visitor.visit(copy.deepcopy(statement.node)))
            if visitor.count == 1:
                yield self.edit(statement, "replace", code)

    # ------------------------------------------------------------------------------ hierarchy

    def grids(self, device: str, numbers: Collection[str], shapes: list[str]) -> Iterator[Edit]:
        """Yield placements in a hierarchy in place of those without one.

        Args:
            numbers: texts for the devices, such as "0:0-3".
        """
        rows = text_of(self.file).splitlines()
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.Call) and _name(node) == "placement"):
                continue
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if node.keywords or given != [device, *given[1:]] or len(given) != 2:
                continue
            if given[1] in numbers and node.end_lineno == node.lineno:
                row, end = rows[node.lineno - 1], (node.end_col_offset or 0) - 1
                for shape in shapes:
                    code = f"{row[:end]}, {shape}{row[end:]}".strip()
                    yield Edit("replace", code, self.file, node.lineno, node.lineno)


DEPTH = 8
"""The largest depth of calls whose activations are attributed to a statement."""


def _simple(tree: ast.AST, function: str, rows: list[str]) -> Iterator[Statement]:
    for node in ast.iter_child_nodes(tree):
        inner = function
        if isinstance(node, ast.FunctionDef):
            inner = node.name
        elif isinstance(node, SIMPLE):
            if function and _stands_alone(node, rows):
                calls = (_name(n) for n in ast.walk(node) if isinstance(n, ast.Call))
                yield Statement(node, function, frozenset(calls))
            continue
        yield from _simple(node, inner, rows)


def _stands_alone(node: ast.stmt, rows: list[str]) -> bool:
    first, last = rows[node.lineno - 1], rows[(node.end_lineno or 0) - 1]
    rest = last.encode()[node.end_col_offset or 0 :].decode().strip()
    before = first.encode()[: node.col_offset].decode().strip()
    return not before and (not rest or rest.startswith("#"))


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _has_long_text(node: ast.AST) -> bool:
    """Return whether a statement has a text of several lines, which indentation would change."""
    return any(
        isinstance(n, ast.Constant | ast.JoinedStr) and (n.end_lineno or 0) > n.lineno
        for n in ast.walk(node)
    )


def _target(node: ast.stmt) -> str:
    """Return the only variable to which a statement assigns a value, or an empty text."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return getattr(node.targets[0], "id", "")
    return ""


class _Unhinted(ast.NodeTransformer):
    """Removes casts and requests, and replaces requested distributions of weights by auto()."""

    def __init__(self, flow: str) -> None:
        self._auto = ast.parse(f"{flow}.distribute.auto()", mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in REQUESTS:
            return node.func.value
        if _name(node) in CASTS and node.args:
            return node.args[0]
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS.values() and "auto()" not in ast.unparse(keyword.value):
                keyword.value = self._auto
        return node


class _Hinted(ast.NodeTransformer):
    """Adds a distribution to the functions that create weights."""

    def __init__(self, way: str) -> None:
        self._way, self.count = ast.parse(way, mode="eval").body, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        parameter = KEYWORDS.get(_name(node))
        if parameter:
            self.count += 1
            node.keywords.append(ast.keyword(parameter, self._way))
        return node
