"""Compile the loops in C on first use, and keep the library in the user's cache folder."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.base.errors import FlowError

FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-ffp-contract=off")
TYPES = {"float32": "float", "float64": "double"}
HEADER = "#include <math.h>\n#include <stdint.h>\n"
TWICE = "#define REAL {c}\n#define NAME(f) f##_{name}\n{loops}\n#undef REAL\n#undef NAME\n"


class CompileError(FlowError):
    """There is no C compiler, or it failed."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled loops.

    Raises:
        CompileError: the compiler that the environment variable ``CC`` names, or ``cc``, failed.
    """
    loops = resources.files(__package__).joinpath("loops.c").read_text()
    text = HEADER + "".join(TWICE.format(c=c, name=n, loops=loops) for n, c in TYPES.items())
    compiler = os.environ.get("CC", "cc")
    cache = DiskCache(user_folder("flow-yolo"), ".so")
    return ctypes.CDLL(str(cache.path((text, compiler, *FLAGS), lambda: _built(compiler, text))))


def _built(compiler: str, text: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch, "loops.c"), Path(scratch, "loops.so")
        source.write_text(text)
        command = [compiler, *FLAGS, str(source), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            found = f"{error.strerror}"
        else:
            if not done.returncode:
                return made.read_bytes()
            found = done.stderr.strip()[:2000]
        hint = "install gcc, or name a C compiler in the environment variable CC"
        raise CompileError(f"running {' '.join(command)}", found=found, hint=hint)


def function(name: str, dtype: Any, result: Any = None) -> Any:
    """Return a function of the loops for an element type."""
    found = getattr(library(), f"{name}_{dtype}")
    found.restype = result
    return found


def pointer(array: Any) -> ctypes.c_void_p:
    """Return the address of an array."""
    return ctypes.c_void_p(array.ctypes.data)
