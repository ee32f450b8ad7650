"""User-defined ops with kernels in Python: ``flow.experimental.custom_op_module``.

As in OneFlow, such an op is a folder with the op's name and three files: ``*_py_api.py`` with the
functions that programs call, ``*_py_kernel.py`` with the functions ``forward`` and ``backward``,
and ``*_cpp_def.cpp`` with the declarations of the ops.  The declarations are parsed, not compiled:
they name the inputs and outputs of each op, and the op that computes its gradients.  Shapes and
element types are those of the results that the kernels return.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from flow_core.base.errors import DataError, UnsupportedError
from flow_core.ops.system.python_kernel import Backward, Bound, PythonOp, known

__all__ = ["custom_op_module"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STATEMENT = re.compile(r'REGISTER_(?:CPU_ONLY_)?USER_OP(_GRAD)?\s*\(\s*"(\w+)"\s*\)')
_INPUT = re.compile(r'\.Input\(\s*"(\w+)"')
_OUTPUT = re.compile(r'\.Output\(\s*"(\w+)"')
_ATTR = re.compile(r'\.Attr\s*<[^>]*>+\s*\(\s*"(\w+)"')
_TYPE = re.compile(r'\.OpTypeName\(\s*"(\w+)"')
_BIND = re.compile(
    r'\.InputBind\(\s*"(\w+)"\s*,\s*ctx->FwOp\(\)\.(input|output|output_grad)\(\s*"(\w+)"\s*,\s*0'
)
_GRADIENT = re.compile(r'InputGradBind\(\s*(?:user_op::)?OpArg\(\s*"(\w+)"\s*,\s*0')
_RESULT = re.compile(r'GetOp\([^)]*\)\s*\.output\(\s*"(\w+)"\s*,\s*0')


class custom_op_module:
    """A user-defined op in a folder with the op's name.

    Call ``py_api().cpp_def().py_kernel().build_load()``, then the functions of ``api`` in jobs.

    Args:
        op_module_name: the op's name.
        module_path: parent of the op's folder, by default the current directory.

    Attributes:
        api: the module of the functions that programs call; None before `py_api` is called.
    """

    def __init__(self, op_module_name: str, module_path: str = "") -> None:
        self.name = op_module_name
        self.api: Any = None
        self._folder = Path(module_path or ".") / op_module_name
        self._declared: str | None = None
        self._kernel: ModuleType | None = None

    def py_api(self) -> custom_op_module:
        """Import the functions that programs call.

        Raises:
            DataError: the file does not exist.
        """
        self.api = self._imported("py_api")
        return self

    def cpp_def(self) -> custom_op_module:
        """Read the declarations of the ops.

        Raises:
            DataError: the file does not exist.
        """
        self._declared = _COMMENT.sub("", self._file("cpp_def", "cpp").read_text("utf-8"))
        return self

    def py_kernel(self) -> custom_op_module:
        """Import the kernels.

        Raises:
            DataError: the file does not exist.
        """
        self._kernel = self._imported("py_kernel")
        return self

    def cpp_kernel(self) -> NoReturn:
        """Raise an `UnsupportedError`: kernels in C++ cannot be built."""
        self._refuse("cpp_kernel")

    def gpu_kernel(self) -> NoReturn:
        """Raise an `UnsupportedError`: kernels in CUDA cannot be built."""
        self._refuse("gpu_kernel")

    def build_load(self) -> custom_op_module:
        """Register the ops for `flow.user_op_builder`.

        Raises:
            DataError: the declarations or kernels are missing or cannot be read.
        """
        if self._declared is None or self._kernel is None:
            raise self._unreadable("neither" if self._kernel is None else "kernels only",
                                   "preceding calls of cpp_def() and py_kernel()")  # fmt: skip
        for op in self._ops(self._declared, self._kernel):
            known[op.name] = op
        return self

    def _ops(self, text: str, kernel: ModuleType) -> list[PythonOp]:
        found = list(_STATEMENT.finditer(text))
        ends = [*(m.start() for m in found[1:]), len(text)][: len(found)]
        bodies = [(m[1], m[2], text[m.end() : end]) for m, end in zip(found, ends, strict=True)]
        backward = {name: self._backward(name, body) for grad, name, body in bodies if grad}
        made = [
            PythonOp(
                name,
                tuple(_INPUT.findall(body)),
                tuple(_OUTPUT.findall(body)),
                self._function(name, kernel),
                tuple(_ATTR.findall(body)),
                backward.get(name),
            )
            for grad, name, body in bodies
            if not grad
        ]
        if not made:
            raise self._unreadable("no declarations", 'REGISTER_USER_OP("...")')
        return made

    def _function(self, op: str, kernel: ModuleType) -> Any:
        """Return the kernel of an op: the function that has the last part of the op's name."""
        wanted = op.removeprefix(f"{self.name}_")
        function = getattr(kernel, wanted, None)
        if function is None:
            raise self._unreadable(f"no function {wanted!r}", f"a kernel of {op!r}")
        return function

    def _backward(self, op: str, body: str) -> Backward:
        types, inputs, results = (p.findall(body) for p in (_TYPE, _GRADIENT, _RESULT))
        if len(types) != 1 or len(results) not in (1, len(inputs)) or not inputs:
            raise self._unreadable(
                f"a gradient of {op!r} by {len(types)} ops", "one op, and an output per gradient"
            )
        binds = {slot: Bound(kind, name) for slot, kind, name in _BIND.findall(body)}
        outputs = results * len(inputs) if len(results) == 1 else results
        return Backward(types[0], binds, dict(zip(inputs, outputs, strict=True)))

    def _file(self, what: str, ending: str) -> Path:
        path = self._folder / f"{self.name}_{what}.{ending}"
        if not path.is_file():
            raise self._unreadable(f"no file {path}", "a folder with the op's three files")
        return path

    def _imported(self, what: str) -> ModuleType:
        path = self._file(what, "py")
        spec = importlib.util.spec_from_file_location(f"{self.name}_{what}", path)
        if spec is None or spec.loader is None:
            raise self._unreadable(f"{path}, which is no module", "a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _unreadable(self, found: str, allowed: str) -> DataError:
        attempted = f"custom_op_module({self.name!r})"
        return DataError.at_caller(attempted, found=found, allowed=allowed)

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError.at_caller(
            f"custom_op_module({self.name!r}).{what}()",
            found="a kernel that must be compiled",
            allowed="kernels in Python, and those of plugins",
            hint="call py_kernel(), or write a plugin: docs/architecture.md, Add an op",
        )
