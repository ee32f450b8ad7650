"""A test that leaves something behind fails, and what it has left is removed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
TESTS = {
    "processes": "os.posix_spawn(sys.executable, [sys.executable, '-c', SLEEP], os.environ)",
    "threads": "threading.Thread(target=END.wait, name='left').start()",
    "sockets": "KEPT.append(socket.socket())",
    "segments": "open('/dev/shm/flow-left-behind', 'w').close()",
    "files": "tempfile.mkstemp()",
    "environment": "os.environ['LEFT'] = 'x'",
    "environment *LANG=en, no LANG=de": "os.environ['LANG'] = 'en'",
    "environment no LANG=de": "del os.environ['LANG']",
    "program": "sys.modules['__main__'], sys.argv, sys.path[:0] = type(sys)('x'), ['x'], ['x']",
    "program no sys.path kept": "sys.path.remove('kept')",
    "folder": "os.chdir('/')",
    "folder a folder that has been deleted": "os.mkdir('x'); os.chdir('x'); os.rmdir('../x')",
    "filters": "warnings.simplefilter('ignore', UnicodeWarning)",
    "filters no": "warnings.resetwarnings()",
}
CONFTEST = """
import os, sys
import suite.leftovers
suite.leftovers.PATIENCE = 0.01
pytest_plugins = ['suite.leftovers']
os.environ["LANG"] = "de"
sys.path.append("kept")
"""
MODULE = """
import os, socket, sys, tempfile, threading, warnings
import pytest
KEPT, END, SLEEP = [], threading.Event(), "import time; time.sleep(1000)"
FOLDER = os.getcwd()

@pytest.fixture(scope="module", autouse=True)
def end():
    yield
    END.set()

def test_it():
    {}

def test_next():
    assert not os.path.exists("/dev/shm/flow-left-behind")
    assert not os.listdir(tempfile.gettempdir())
    assert "LEFT" not in os.environ
    assert os.environ["LANG"] == "de"
    assert os.getcwd() == FOLDER
    assert "kept" in sys.path
    assert ("ignore", None, UnicodeWarning, None, 0) not in warnings.filters
    assert "x" not in (sys.modules["__main__"].__name__, *sys.argv, *sys.path)
"""


@pytest.fixture(autouse=True)
def plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the plugin, with hardly any patience."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "helpers"))
    pytester.makeconftest(CONFTEST)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and /dev/shm")
def test_each_kind_fails_its_test_alone(pytester: pytest.Pytester) -> None:
    modules = {
        f"test_{number:02}": MODULE.format(code) for number, code in enumerate(TESTS.values())
    }
    pytester.makepyfile(**modules)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=2 * len(TESTS), errors=len(TESTS))
    done.stdout.fnmatch_lines([f"*the test has left {kind}*" for kind in TESTS])


def test_no_folder_is_left(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import tempfile\ndef test(): open('where', 'w').write(tempfile.tempdir)")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    assert not os.path.exists((pytester.path / "where").read_text())


def test_what_a_fixture_of_a_module_changes_may_be_restored_at_its_end(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import os, sys
        import pytest

        @pytest.fixture(scope="module")
        def changed():
            before = os.environ.pop("HOME"), os.getcwd(), sys.path[:]
            os.chdir("/")
            del sys.path[-1]
            yield
            os.environ["HOME"], folder, sys.path[:] = before
            os.chdir(folder)

        @pytest.mark.parametrize("turn", [1, 2])
        def test_it(changed, turn):
            assert os.getcwd() == "/"
            assert "HOME" not in os.environ
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
