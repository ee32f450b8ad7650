"""The bindings pass arguments where NCCL expects them; also with the real library if installed."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import ALL
from flow_core.plugins.specs import Available, Unavailable
from flow_dist import plugin
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.nccl import comm as nccl
from flow_dist.nccl import library as library_module
from flow_dist.nccl import library as nccl_library
from flow_dist.nccl.library import (
    ITEMSIZES,
    PRIMITIVES,
    CupyNccl,
    Nccl4py,
    NcclStatus,
    load_library,
    statuses,
)
from flow_dist.nccl.types import DTYPES, MAX, op_of


class StatusError(Exception):
    """What a binding raises."""

    def __init__(self, status: int) -> None:
        super().__init__(f"result {status}")
        self.status = status


# What each function of the bindings takes, by their documentation.
IN_NCCL4PY = {
    "all_reduce": "send receive count dtype op comm stream",
    "reduce_scatter": "send receive count dtype op comm stream",
    "reduce": "send receive count dtype op root comm stream",
    "broadcast": "send receive count dtype root comm stream",
    "all_gather": "send receive count dtype comm stream",
    "allto_all": "send receive count dtype comm stream",
    "send": "send count dtype peer comm stream",
    "recv": "receive count dtype peer comm stream",
}
IN_CUPY = {
    "allReduce": "send receive count dtype op stream",
    "reduceScatter": "send receive count dtype op stream",
    "reduce": "send receive count dtype op root stream",
    "broadcast": "send receive count dtype root stream",
    "allGather": "send receive count dtype stream",
    "send": "send count dtype peer stream",
    "recv": "receive count dtype peer stream",
}
THEIRS = {"all_to_all": "allto_all", "receive": "recv"}
IN_CUPY_NAMES = {
    "all_reduce": "allReduce",
    "reduce_scatter": "reduceScatter",
    "all_gather": "allGather",
    "receive": "recv",
}
GIVEN = {
    "send": 1000, "receive": 2000, "count": 5, "dtype": 7, "op": 2, "root": 1, "peer": 3,
    "stream": 99, "comm": "comm",
}  # fmt: skip


class Recorder:
    """Functions that take note of their arguments, by name."""

    def __init__(self, signatures: dict[str, str]) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for name, signature in signatures.items():
            setattr(self, name, self._function(name, signature.split()))

    def _function(self, name: str, names: list[str]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self.calls.append((name, dict(zip(names, arguments, strict=True))))

        return call


def nccl4py(version: int = 23203) -> tuple[Nccl4py, Recorder]:
    module = Recorder(IN_NCCL4PY)
    functions = {name: lambda *a: None for name in ("comm_abort", "comm_destroy")}
    vars(module).update(
        functions,
        get_version=lambda: version,
        NCCLError=StatusError,
        group_start=lambda: module.calls.append(("start", {})),
        group_end=lambda: module.calls.append(("end", {})),
        comm_count=lambda comm: 2,
    )
    return Nccl4py(module, "0.6.0"), module


def cupy() -> tuple[CupyNccl, Recorder]:
    comm = Recorder(IN_CUPY)
    vars(comm).update(size=lambda: 2)
    module = SimpleNamespace(
        get_version=lambda: 22800,
        NcclError=StatusError,
        groupStart=lambda: comm.calls.append(("start", {})),
        groupEnd=lambda: comm.calls.append(("end", {})),
        get_unique_id=lambda: bytes(128),
        NcclCommunicator=lambda *a: comm,
    )
    return CupyNccl(module, "14.2.0"), comm


def values(name: str) -> list[Any]:
    return [GIVEN[k] for k in (*PRIMITIVES[name], "stream")]


class CupyError(Exception):
    """CuPy's exception, as of 14.2: results 7 and 8 are missing in its table of texts."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__({1: "NCCL_ERROR_UNHANDLED_CUDA_ERROR"}[status])


def raises_status(code: int) -> None:
    raise CupyError(code)


@pytest.mark.parametrize("code", [1, 7, 8])
def test_results_that_cupy_has_no_text_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    nccl = SimpleNamespace(
        ncclGetErrorString=TextOf(lambda code: f"result {code} of NCCL".encode()),
        ncclGetLastError=TextOf(lambda comm: b"a cable was pulled"),
    )
    monkeypatch.setattr(library_module, "_nccl", lambda: nccl)
    library, _ = cupy()
    library.error = (CupyError, KeyError)
    comm = SimpleNamespace(check_async_error=lambda: raises_status(code))
    assert library.async_error(comm) == code
    assert library.last_error(comm) == "a cable was pulled"
    with pytest.raises(NcclStatus) as caught, statuses(library):
        raises_status(code)
    assert caught.value.code == code
    own = "NCCL_ERROR_UNHANDLED_CUDA_ERROR" if code == 1 else f"result {code} of NCCL"
    assert caught.value.text == own


def test_results_without_a_library_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("libnccl.so.2: no such file")

    monkeypatch.setattr(library_module, "_nccl", missing)
    assert library_module.error_text(7) == "no text: libnccl.so.2: no such file"
    assert library_module.last_error_text() == ""


class TextOf:
    """A function of a C library that returns a text."""

    restype: Any = None

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, value: Any) -> Any:
        return self._call(value)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_arguments_of_nccl4py(name: str) -> None:
    library, module = nccl4py()
    library.primitive(name, "comm")(*values(name))
    ((called, arguments),) = module.calls
    assert called == THEIRS.get(name, name)
    assert arguments == {k: GIVEN[k] for k in arguments}
    assert {*arguments} == {*PRIMITIVES[name], "comm", "stream"}


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if name != "all_to_all"])
def test_arguments_of_cupy(name: str) -> None:
    library, comm = cupy()
    library.primitive(name, comm)(*values(name))
    ((called, arguments),) = comm.calls
    assert called == IN_CUPY_NAMES.get(name, name)
    assert arguments == {k: GIVEN[k] for k in (*PRIMITIVES[name], "stream")}


@pytest.mark.parametrize("binding", ["nccl4py", "cupy"])
def test_all_to_all_without_one(binding: str) -> None:
    """Old libraries, and CuPy's binding, have none: the parts go by pairs, in a group."""
    library, calls = nccl4py(22700) if binding == "nccl4py" else cupy()
    library.primitive("all_to_all", calls)(1000, 2000, 5, 7, 99)
    names = [name for name, _ in calls.calls]
    assert names == ["start", "send", "recv", "send", "recv", "end"]
    sent = [(a["send"], a["count"], a["peer"]) for name, a in calls.calls if name == "send"]
    taken = [(a["receive"], a["count"], a["peer"]) for name, a in calls.calls if name == "recv"]
    assert sent == [(1000, 5, 0), (1020, 5, 1)]
    assert taken == [(2000, 5, 0), (2020, 5, 1)]


def test_errors_have_their_number() -> None:
    library, _ = nccl4py()
    with pytest.raises(NcclStatus) as caught, statuses(library):
        raise StatusError(6)
    assert (caught.value.code, caught.value.text) == (6, "result 6")


def test_types_and_operations() -> None:
    assert {dtype.name for dtype in ALL} == set(DTYPES)
    for dtype in ALL:
        assert ITEMSIZES[DTYPES[dtype.name]] == dtype.itemsize, dtype
    rng = np.random.default_rng(0)
    some, other = (rng.integers(0, 2, 50).astype(bool) for _ in range(2))
    as_bytes = np.maximum(some.view(np.uint8), other.view(np.uint8))
    assert op_of("sum", next(d for d in ALL if d.kind == "b")) == MAX
    np.testing.assert_array_equal(as_bytes.view(bool), some + other)


# ---------------------------------------------------------------------------------- finding


def without(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """Only some distributions are installed."""

    def version(name: str) -> str:
        if name in installed:
            return "1.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)


def test_no_binding_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    with pytest.raises(LaunchError, match="neither nccl4py nor CuPy"):
        load_library()
    found = nccl.bootstrap()
    assert isinstance(found, Unavailable)
    assert "flow-dist[cu12]" in found.hint
    assert nccl_library.probe_nccl() == Unavailable(
        "neither nccl4py nor CuPy, the bindings of NCCL, is installed", nccl_library.INSTALL
    )


def test_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "nccl4py")
    found = nccl_library.probe_nccl()
    assert isinstance(found, Unavailable)
    assert found.reason == "the library of NCCL is not installed, although nccl4py 1.0 is"


def test_the_first_binding_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "nccl4py", "cupy-cuda12x", "nvidia-nccl-cu12")
    module = SimpleNamespace(
        **vars(cupy()[1]),
        get_version=lambda: 22800,
        NcclError=StatusError,
        groupStart=None,
        groupEnd=None,
        get_unique_id=None,
        NcclCommunicator=None,
    )

    def load(name: str) -> Any:
        if name.startswith("nccl"):
            raise ImportError("libcudart.so.12: cannot open shared object file")
        return module

    monkeypatch.setattr(importlib, "import_module", load)
    assert load_library().name == "CuPy 1.0"
    assert nccl.bootstrap() == Available(1, "nccl4py 1.0, nvidia-nccl-cu12 1.0")
    module.get_version = lambda: 21200
    with pytest.raises(LaunchError, match=r"2\.12\.0[\s\S]*2\.18\.0 or later"):
        load_library()


def test_the_plugin_registers_it() -> None:
    from flow_core.base.config import Settings

    comms = {spec.name: spec for spec in plugin.flow_register_comms(Settings())}
    assert comms["nccl"].device_types == ("gpu",)
    assert comms["nccl"].world is None
    emulated = plugin.flow_register_comms(Settings(emulate_gpus=2))
    assert [spec.name for spec in emulated] == ["mpi", "mpi_staged"]


# -------------------------------------------------------------------------- the real library


@pytest.mark.skipif(
    importlib.util.find_spec("nccl") is None,
    reason=f"nccl4py is not installed: {nccl_library.INSTALL}",
)
class TestNccl4py:
    """What can be asked of NCCL without a GPU."""

    def test_it_says_its_version(self) -> None:
        library = load_library()
        assert library.name.startswith("nccl4py ")
        assert library.version > 22000

    def test_ids_differ(self) -> None:
        library = load_library()
        some = [library.unique_id() for _ in range(3)]
        assert [len(one) for one in some] == [128] * 3
        assert len(set(some)) == 3

    def test_functions_take_what_we_give(self) -> None:
        """By the signatures that the binding documents."""
        module = importlib.import_module("nccl.bindings.nccl")
        for ours, names in IN_NCCL4PY.items():
            signature = getattr(module, ours).__doc__
            given = [part.split()[-1] for part in signature[len(ours) + 1 : -1].split(", ")]
            words = {"buff": "", "sendbuff": "send", "recvbuff": "receive", "datatype": "dtype"}
            words |= {"sendcount": "count", "recvcount": "count"}
            assert [words.get(word, word) for word in given] == names.split(), signature

    def test_groups_may_be_empty(self) -> None:
        library = load_library()
        library.group_start()
        library.group_end()

    def test_no_gpu_is_a_predictable_error(self) -> None:
        library = load_library()
        if os.path.exists("/dev/nvidiactl"):
            pytest.skip("there is a GPU")
        with pytest.raises(NcclStatus, match="cuda") as caught, statuses(library):
            library.join(1, library.unique_id(), 0)
        assert caught.value.code == 1


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
class TestCupy:
    """The other binding, as far as it goes without a GPU."""

    def library(self) -> CupyNccl:
        return CupyNccl(importlib.import_module("cupy.cuda.nccl"), "")

    def test_it_says_its_version(self) -> None:
        assert self.library().version > 21800

    def test_functions_take_what_we_give(self) -> None:
        """By the signatures that the binding documents."""
        kind = importlib.import_module("cupy.cuda.nccl").NcclCommunicator
        words = {"sendbuf": "send", "recvbuf": "receive", "sendbuff": "send", "datatype": "dtype"}
        words |= {"recvbuff": "receive", "recvcount": "count"}
        for ours, names in IN_CUPY.items():
            signature = getattr(kind, ours).__doc__.partition("(")[2].rstrip(")")
            given = [part.split()[-1] for part in signature.split(", ")[1:]]
            assert [words.get(word, word) for word in given] == names.split(), signature

    def test_no_gpu_is_a_predictable_error(self) -> None:
        library = self.library()
        if os.path.exists("/dev/nvidiactl"):
            pytest.skip("there is a GPU")
        unique_id = library.unique_id()
        assert len(unique_id) == 128
        with pytest.raises(NcclStatus, match="cuda") as caught, statuses(library):
            library.join(1, unique_id, 0)
        assert caught.value.code == 1
