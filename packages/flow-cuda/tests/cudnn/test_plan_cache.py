"""Plans compiled by cuDNN are loaded from disk at the second start after validation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_simulator.cudnn import ALIGN, MisuseError, SimulatedBench, SimulatedCudnn
from cuda_simulator.cudnn_engines import ENGINES, FakeEngine

from flow_core.base.disk_cache import DiskCache
from flow_core.base.dtypes import float16, float32
from flow_core.ir.graph import tensor_type
from flow_cuda.cudnn.attention import Attention, AttentionGrad, rows
from flow_cuda.cudnn.norm import Norm, NormGrad
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Choice, Problem, Search, convolution, tensor_layout

X = tensor_layout(tensor_type((2, 8, 3, 5), float32), "channels_first")
Q = rows(tensor_type((2, 2, 5, 8), float16))
MASK = rows(tensor_type((2, 1, 1, 5), float16))
PROBLEMS: dict[str, Problem] = {
    "norm": Norm(X, 1e-5, 0.9, True, True),
    "norm grad": NormGrad(X),
    "attention": Attention(Q, Q, Q, Q, 0.25, MASK, True),
    "attention grad": AttentionGrad(Q, Q, Q, Q, 0.25, MASK, True),
}


def start(
    folder: Path, engines: Sequence[FakeEngine] = ENGINES, architecture: str = "sm_90"
) -> tuple[DnnPlans, SimulatedCudnn]:
    """Return the plans of a new process and its library."""
    library = SimulatedCudnn(engines=engines)
    caches = DiskCache(folder / "cudnn", ".json"), DiskCache(folder / "cudnn", ".plan")
    bench = SimulatedBench(library)
    return DnnPlans(library, architecture, bench, caches[0], compiled=caches[1]), library


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cudnn").glob("*.plan"))


def chosen(plans: DnnPlans, problem: Problem) -> Choice:
    choice = plans.choose(problem, Search())
    assert choice is not None
    return choice


def results(plans: DnnPlans, problem: Problem) -> list[Any]:
    """Return the outputs of a problem for fixed inputs."""
    rng = np.random.default_rng(0)
    choice = chosen(plans, problem)
    tensors = (*problem.reads.values(), *problem.writes.values())
    memory = [np.empty(n + ALIGN, np.uint8) for n in (*(t.nbytes for t in tensors), 4096)]
    at = [m.ctypes.data + -m.ctypes.data % ALIGN for m in memory]
    for t, address, m in zip(tensors, at, memory, strict=False):
        view = m[address - m.ctypes.data :][: t.nbytes].view(t.dtype)
        view[...] = rng.uniform(0.5, 1.5, len(view))
    plans.queue(problem, choice.plan, at[:-1], at[-1], 0)
    made = zip(tensors, at, memory, strict=False)
    whole = [m[a - m.ctypes.data :][: t.nbytes].view(t.dtype).copy() for t, a, m in made]
    return whole[len(problem.reads) :]


@pytest.mark.parametrize("name", PROBLEMS)
def test_second_start_compiles_nothing(name: str, tmp_path: Path) -> None:
    first, library = start(tmp_path)
    expected = results(first, PROBLEMS[name])
    assert (library.compiled, len(kept(tmp_path))) == (1, 1)
    second, library = start(tmp_path)
    assert chosen(second, PROBLEMS[name]) == chosen(first, PROBLEMS[name])
    for have, want in zip(results(second, PROBLEMS[name]), expected, strict=True):
        np.testing.assert_array_equal(have, want)
    assert (library.compiled, library.calls) == (0, 1)


def test_plans_are_compiled_at_each_start_without_a_cache_folder(tmp_path: Path) -> None:
    for _ in range(2):
        library = SimulatedCudnn()
        cache = DiskCache(tmp_path / "c", ".json")
        plans = DnnPlans(library, "sm_90", SimulatedBench(library), cache)
        chosen(plans, PROBLEMS["norm"])
        assert library.compiled == 1
    assert not kept(tmp_path)


def test_only_compiled_plans_are_cached(tmp_path: Path) -> None:
    x, w = tensor_type((2, 4, 8, 8), float32), tensor_type((6, 4, 1, 1), float32)
    window = {"data_format": "channels_first", "strides": (1, 1), "padding_before": (0, 0)}
    types = x, w, tensor_type((2, 6, 8, 8), float32)
    plain = convolution("forward", types, {**window, "dilation_rate": (1, 1), "compute": ""})
    plans, library = start(tmp_path)
    assert chosen(plans, plain).plan == "eng0"
    assert (library.compiled, kept(tmp_path)) == (0, [])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(bytes(data))


def replaced(file: Path) -> None:
    """Store another problem's plan under this name."""
    base = file.parents[2] / "other"
    chosen(start(base)[0], PROBLEMS["norm grad"])
    (other,) = kept(base)
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("damage", "why"),
    [(cut, "incomplete"), (emptied, "incomplete"), (flipped, "digest"), (replaced, "digest")],
)
def test_invalid_entry_is_recreated(damage: Any, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    expected = results(start(folder)[0], PROBLEMS["norm"])
    (file,) = kept(folder)
    damage(file)
    plans, library = start(folder)
    with pytest.warns(RuntimeWarning, match=why):
        found = results(plans, PROBLEMS["norm"])
    assert library.compiled == 1
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(have, want)
    plans, library = start(folder)
    chosen(plans, PROBLEMS["norm"])
    assert library.compiled == 0, "the file was written again"


def test_plan_rejected_by_the_library_is_recreated(tmp_path: Path) -> None:
    """As after replacing a driver by an older one."""

    class Refuses(SimulatedCudnn):
        def pygraph(self, **settings: Any) -> Any:
            made = super().pygraph(**settings)
            made.deserialize = refuse
            return made

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH")

    chosen(start(tmp_path)[0], PROBLEMS["norm"])
    library = Refuses()
    caches = DiskCache(tmp_path / "cudnn", ".json"), DiskCache(tmp_path / "cudnn", ".plan")
    plans = DnnPlans(library, "sm_90", SimulatedBench(library), caches[0], compiled=caches[1])
    with pytest.warns(RuntimeWarning, match="ARCH_MISMATCH"):
        chosen(plans, PROBLEMS["norm"])
    assert library.compiled == 1


def test_devices_and_versions_have_separate_entries(tmp_path: Path) -> None:
    for architecture in ("sm_90 x 132", "sm_90 x 114"):
        plans, library = start(tmp_path, architecture=architecture)
        chosen(plans, PROBLEMS["norm"])
        assert library.compiled == 1

    class Newer(SimulatedCudnn):
        def backend_version(self) -> int:
            return 91000

    library = Newer()
    caches = DiskCache(tmp_path / "cudnn", ".json"), DiskCache(tmp_path / "cudnn", ".plan")
    plans = DnnPlans(
        library, "sm_90 x 132", SimulatedBench(library), *caches[:1], compiled=caches[1]
    )
    chosen(plans, PROBLEMS["norm"])
    assert (library.compiled, len(kept(tmp_path))) == (1, 3)


def test_unavailable_engine_is_replaced(tmp_path: Path) -> None:
    chosen(start(tmp_path)[0], PROBLEMS["attention"])
    renamed = [FakeEngine("eng77", e.notes, e.cost, e.takes, e.workspace, True)
               for e in ENGINES if e.name == "eng8"]  # fmt: skip
    plans, _ = start(tmp_path, renamed)
    with pytest.warns(RuntimeWarning, match="no engine eng8"):
        choice = chosen(plans, PROBLEMS["attention"])
    assert choice.plan == "eng77"


@pytest.mark.usefixtures("own_temporary_folder")
def test_plans_use_a_temporary_folder_if_the_cache_is_unusable(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    library = SimulatedCudnn()
    caches = DiskCache(tmp_path / "cudnn", ".json"), DiskCache(blocked / "cudnn", ".plan")
    plans = DnnPlans(library, "sm_90", SimulatedBench(library), caches[0], compiled=caches[1])
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        chosen(plans, PROBLEMS["norm"])
    assert list(caches[1].folder.glob("*.plan"))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"plan": "eng0_k30=0"}', "7"])
def test_damaged_choice_is_recreated(text: str, tmp_path: Path) -> None:
    first = chosen(start(tmp_path)[0], PROBLEMS["norm"])
    (file,) = (tmp_path / "cudnn").glob("*.json")
    whole = file.read_bytes()
    file.write_text(text)
    with pytest.warns(RuntimeWarning, match="will be replaced"):
        assert chosen(start(tmp_path)[0], PROBLEMS["norm"]) == first
    assert file.read_bytes() == whole


@pytest.mark.parametrize("text", ["{", "[1]", '{"plan": "eng0_k30=0"}', "7"])
def test_invalid_choice_is_recreated(text: str, tmp_path: Path) -> None:
    plans, _ = start(tmp_path)
    first = chosen(plans, PROBLEMS["norm"])
    rewrite_choice(plans, tmp_path, lambda _: text)
    assert chosen(start(tmp_path)[0], PROBLEMS["norm"]) == first


def test_choice_with_another_workspace_is_recreated(tmp_path: Path) -> None:
    plans, _ = start(tmp_path)
    first = chosen(plans, PROBLEMS["norm"])
    rewrite_choice(plans, tmp_path, lambda text: text.replace("128", "64"))
    assert chosen(start(tmp_path)[0], PROBLEMS["norm"]) == first


def rewrite_choice(plans: DnnPlans, folder: Path, edit: Callable[[str], str]) -> None:
    """Replace the content of a choice and update its digest."""
    cache = DiskCache(folder / "cudnn", ".json")
    key = repr(PROBLEMS["norm"]), repr(Search()), *plans._origin
    content = cache.read(key)
    assert content is not None
    edited = edit(content.decode())
    assert edited != content.decode()
    cache.write(key, edited.encode())


def test_calls_unsupported_on_a_loaded_graph(tmp_path: Path) -> None:
    library = SimulatedCudnn()
    types = library.data_type
    settings = dict.fromkeys(
        ("io_data_type", "intermediate_data_type", "compute_data_type"), types.FLOAT
    )
    handle = library.create_handle()
    graph = library.pygraph(**settings, handle=handle)
    with pytest.raises(MisuseError, match="without a plan"):
        graph.serialize()
    chosen(start(tmp_path)[0], PROBLEMS["norm"])
    data = kept(tmp_path)[0].read_bytes()
    for given in ((handle, data), (handle + 1, list(data))):
        with pytest.raises(MisuseError, match="not a handle"):
            graph.deserialize(*given)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="BAD_PARAM"):
        graph.deserialize(handle, list(data))


def test_unserializable_plan_is_not_cached(tmp_path: Path) -> None:
    class Silent(SimulatedCudnn):
        def pygraph(self, **settings: Any) -> Any:
            made = super().pygraph(**settings)
            made.serialize = refuse
            return made

    def refuse() -> None:
        raise RuntimeError("unavailable")

    library, cache = Silent(), DiskCache(tmp_path / "cudnn", ".plan")
    plans = DnnPlans(library, "sm_90", SimulatedBench(library), compiled=cache)
    assert chosen(plans, PROBLEMS["norm"]).plan == "eng0_k30=0"
    assert not kept(tmp_path)
