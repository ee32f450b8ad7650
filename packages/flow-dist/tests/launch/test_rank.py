"""``flow-dist run SCRIPT ARGS`` compared with ``python SCRIPT ARGS``: environment and exit."""

import os
import re
import shutil
import sys
import zipapp
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from py_compile import compile as compile_file

import processes
import pytest

COMMAND = str(Path(sys.executable).with_name("flow-dist"))

PROBE = '''"""The doc of the script."""
import sys
main = sys.modules["__main__"]
for name in sorted(globals()):
    value = globals()[name]
    print(name, type(value).__name__, "" if name in ("__loader__", "main") else repr(value))
print(main.__dict__ is globals(), type(__loader__).__name__, getattr(__loader__, "path", None))
print(sys.argv, sys.orig_argv, sys.path, sys.executable)
print(sys.flags, sys.warnoptions, sys._xoptions, __debug__, sys.dont_write_bytecode)
print(sys.excepthook is sys.__excepthook__, sys.exc_info())

import dataclasses, inspect, multiprocessing, os, pickle, queue, warnings
print(os.getcwd(), os.path.basename(queue.__file__))
print([entry for entry in warnings.filters if "numpy" not in str(entry)])
@dataclasses.dataclass
class Point:
    x: int
    y: "int"
def later(x: int) -> undefined if sys.argv is None else None: ...
print([field.type for field in dataclasses.fields(Point)], later.__annotations__)
print(pickle.loads(pickle.dumps(Point(1, 2))), pickle.dumps(Point).hex())
print(inspect.getsource(Point) if not __file__.endswith("pyc") else "")
print(eval("later.__code__.co_flags"), compile("0", "", "eval").co_flags)
'''

SPAWNING = """
import multiprocessing, sys
class Point:
    def __init__(self, x): self.x = x
    def twice(self): return Point(2 * self.x)
def work(point): return point.twice().x, __name__, sys.argv, sys.path[0], sys.flags.optimize
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [Point(3), Point(4)]), flush=True)
else:
    print("child", __name__, flush=True)  # the pool kills its processes
"""


def both(
    folder: Path, options: Sequence[str], argv: Sequence[str], env: Mapping[str, str]
) -> list[processes.Completed[str]]:
    """Run a program under Python and as the only rank of ``flow-dist run``."""
    return [
        processes.run(
            [sys.executable, *options, *launcher, *argv], cwd=folder, env={**os.environ, **env}
        )
        for launcher in ((), (COMMAND, "run", "-n", "1"))
    ]


def as_file(folder: Path) -> str:
    path = folder / "elsewhere" / "probe.py"
    path.parent.mkdir()
    path.write_text(PROBE)
    return str(path)


def relative(folder: Path) -> str:
    return os.path.join(".", os.path.relpath(as_file(folder), folder))


def linked(folder: Path) -> str:
    link = folder / "link.py"
    link.symlink_to(as_file(folder))
    return "link.py"


def beside_own_modules(folder: Path) -> str:
    """Modules of the script's own folder come before Python's, also those that we have loaded."""
    path = Path(as_file(folder))
    (path.parent / "asyncio.py").write_text("mine = True\n")
    path.write_text(PROBE + "import asyncio\nprint(asyncio.mine)\n")
    return str(path)


def in_a_folder(folder: Path) -> str:
    path = Path(as_file(folder))
    path.rename(path.with_name("__main__.py"))
    return "elsewhere"


def archived(folder: Path) -> str:
    in_a_folder(folder)
    zipapp.create_archive(folder / "elsewhere", folder / "probe.pyz")
    return "probe.pyz"


def compiled(folder: Path) -> str:
    source = as_file(folder)
    compile_file(source, f"{source}c")
    return f"{source}c"


def spawning(folder: Path) -> str:
    path = Path(as_file(folder))
    path.write_text(SPAWNING)
    return str(path)


slow = pytest.mark.slow
FORMS: list[tuple[Callable[[Path], str], Sequence[str], dict[str, str]]] = [
    (as_file, (), {}),
    (relative, ("-OX", "dev", "-Wignore", "-Xmine=1"), {}),
    (linked, ("-P",), {"PYTHONWARNINGS": "ignore"}),
    (beside_own_modules, ("-b", "-s", "-B"), {"PYTHONOPTIMIZE": "2"}),
    (as_file, ("-I",), {}),
    (as_file, ("-E", "-q"), {"PYTHONOPTIMIZE": "2"}),
    (relative, (), {"PYTHONSAFEPATH": "1", "PYTHONPATH": "/somewhere"}),
    (in_a_folder, (), {}),
    (in_a_folder, ("-P",), {}),
    (archived, (), {}),
    (compiled, (), {}),
    (spawning, ("-O",), {}),
]


@pytest.mark.representative("options0-|spawning", "a script, and one that starts processes")
@pytest.mark.parametrize(
    ("form", "options", "env"),
    [pytest.param(*case, marks=[slow] if n not in (1, 9) else []) for n, case in enumerate(FORMS)],
)
def test_a_script_sees_what_it_sees_under_python(
    tmp_path: Path, form: Callable[[Path], str], options: Sequence[str], env: dict[str, str]
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('of the working directory')\n")
    argv = [form(tmp_path), "--n", "2", "-O", "a b", ""]
    plain, ours = both(tmp_path, options, argv, env)
    assert (plain.returncode, plain.stderr) == (0, ""), plain.stderr
    assert _without_numbers(ours.stdout) == _without_numbers(plain.stdout)
    assert (ours.returncode, ours.stderr) == (0, "")


def _without_numbers(text: str) -> list[str]:
    """Lines without the addresses of objects."""
    return re.sub("0x[0-9a-f]+", "#", text).splitlines()


ENDS = {
    "nothing": "",
    "zero": "sys.exit(0)",
    "none": "sys.exit(None)",
    "three": "atexit.register(print, 'at exit')\nsys.exit(3)",
    "text": "sys.exit('the disk is full')",
    "number": "sys.exit(3.5)",
    "true": "sys.exit(True)",
    "negative": "sys.exit(-1)",
    "a multiple of 256": "sys.exit(512)",
    "long": "sys.exit(2**40 + 7)",
    "too long": "sys.exit(2**70)",
    "subclass": "class Ends(SystemExit): ...\nraise Ends(4)",
    "raised": "def inner():\n    raise ValueError('wrong')\ninner()",
    "cause": "try:\n    {}[1]\nexcept KeyError as error:\n    raise ValueError('x') from error",
    "group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "not text": "raise ValueError('\\ud800')",
    "interrupted": "raise KeyboardInterrupt",
    "at exit": "atexit.register(lambda: 1 / 0)",
    "hook": "sys.excepthook = lambda k, e, t: print('hook', k, e, t.tb_lineno, t.tb_next)\n1 / 0",
    "does not compile": "def f(:\n    pass",
    "no letter": "x = \u20ac1",
    "future": "from __future__ import annotations",
    "warning": "import warnings\nwarnings.warn('careful')",
    "in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    "status 5": "os._exit(5)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "os.abort()",
}
SAMPLE = ("three", "text", "raised", "interrupted", "terminated")


@pytest.mark.slow
@pytest.mark.representative(r"\[(three|raised)\]", "a status and an error")
@pytest.mark.parametrize("end", [pytest.param(e, marks=() if e in SAMPLE else slow) for e in ENDS])
def test_a_script_ends_as_under_python(tmp_path: Path, end: str) -> None:
    script = tmp_path / "end.py"
    script.write_text(f"import atexit, os, signal, sys\nprint('here', flush=True)\n{ENDS[end]}\n")
    plain, ours = both(tmp_path, (), ["end.py"], {})
    shell = 128 - plain.returncode if plain.returncode < 0 else plain.returncode
    assert ours.returncode == shell, ours.stderr
    assert ours.stdout == plain.stdout
    told = ours.stderr.partition("flow-dist: ")[0]
    assert _without_numbers(told) == _without_numbers(plain.stderr)
    assert ("flow-dist: rank 0 of 1" in ours.stderr) == (shell != 0)


@pytest.mark.representative("three", "a status of the script's own, which the supervisor passes on")
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("text", 1, "the disk is full\n"),
        pytest.param("three", 3, "", marks=slow),
        pytest.param("raised", 1, "in inner\n    raise ValueError('wrong')\n", marks=slow),
        pytest.param("a multiple of 256", 0, "", marks=slow),
    ],
)
def test_a_rank_ends_as_under_python(tmp_path: Path, end: str, status: int, said: str) -> None:
    """One of two that others wait for: its status is that of the command."""
    script = tmp_path / "end.py"
    script.write_text(
        "import atexit, os, sys\nfrom flow_dist.control import channel as control\n"
        f"if control.current().membership.rank:\n{_indented(ENDS[end])}\n"
    )
    ours = processes.run([sys.executable, COMMAND, "run", "-n", "2", "end.py"], cwd=tmp_path)
    assert ours.returncode == status, ours.stderr
    assert said in ours.stderr
    assert "flow_dist" not in ours.stderr
    assert "flow_core" not in ours.stderr
    assert ours.stderr.count(said) <= 1 or not said


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("arrange", [shutil.rmtree, lambda path: None])
def test_a_folder_that_is_no_script(tmp_path: Path, arrange: Callable[[Path], object]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    arrange(folder)
    ours = processes.run([sys.executable, COMMAND, "run", "-n", "1", "folder"], cwd=tmp_path)
    assert ours.returncode == 1
    assert "no such file" in ours.stderr or "without a __main__.py" in ours.stderr
