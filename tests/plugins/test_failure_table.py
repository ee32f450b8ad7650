"""One broken plugin per row: its error names the record, the plugin and the user's line.

Each plugin is complete except for one function, and fails while a job that uses it runs.
"""

import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.annotations.records import FetchNone
from flow_core.authoring.backends import Launch
from flow_core.authoring.op_rules import like_input, split_all_axes
from flow_core.authoring.pass_api import PassContext, Rewriter
from flow_core.authoring.specs import (
    AnnotationSpec,
    Available,
    BindContext,
    BoxingSpec,
    CommSpec,
    DeviceSpec,
    ExporterSpec,
    FormatSpec,
    KernelQuery,
    KernelSpec,
    OpSpec,
    PassSpec,
    Signature,
    Split,
    tensor_type,
)
from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.base.errors import FlowError, PluginError, located, user_line
from flow_core.builtin.in_process import InProcessComm
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.frontend.session import session as sessions
from flow_core.frontend.trace.emit import emit
from flow_core.ir.graph import Attrs, Graph, Value
from flow_core.plugins import host
from flow_core.plugins.host import Candidate, Host
from flow_core.plugins.records import Origin

Hooks = dict[str, Callable[..., Any]]
OWNER = "plugin 'bad' of flow-bad 1.2"
REMEDY = "FLOW_DISABLE_PLUGINS=bad"
"""Every error has these two."""


def fails(*_: object, **__: object) -> Any:
    raise ValueError("no cubes today")


FAILURE = f"ValueError: no cubes today (at {__file__}:{fails.__code__.co_firstlineno + 1})"


def returns(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


def hook(records: list[Any]) -> Callable[[], list[Any]]:
    return lambda: records


def bind(ctx: BindContext) -> Launch:
    x, out = ctx.inputs[0], ctx.outputs[0]

    def launch() -> None:
        np.multiply(x, x * x, out=out)

    return launch


def cube_gradient(g: Any) -> list[Any]:
    return [g.grads[0]]


CUBE = OpSpec("cube", ("x",), like_input, sbp=split_all_axes, gradient=cube_gradient)
KERNEL = KernelSpec("cube", "cpu", bind, name="fast")
NAMED = "kernel 'fast' of op 'cube' on device type 'cpu'"


class ToyComm(InProcessComm):
    name = "toys"


TOY = DeviceSpec("toy", returns(Available(2)), NumpyDriver, kernels="cpu")
TOYS = CommSpec("toys", ("cpu", "toy"), returns(Available(1)), ToyComm)


def plugin(**hooks: Callable[..., Any]) -> types.ModuleType:
    """Return a plugin with an op, a kernel, a device type and a comm; hooks replace its own."""
    module = types.ModuleType("bad")
    vars(module).update(
        {
            "FLOW_PLUGIN_API": "1.0",
            "flow_register_ops": hook([CUBE]),
            "flow_register_kernels": hook([KERNEL]),
            "flow_register_devices": hook([TOY]),
            "flow_register_comms": hook([TOYS]),
            **hooks,
        }
    )
    return module


def op(**changes: Any) -> Hooks:
    return {"flow_register_ops": hook([replace(CUBE, **changes)])}


def kernel(**changes: Any) -> Hooks:
    return {"flow_register_kernels": hook([replace(KERNEL, **changes)])}


def device(**methods: Any) -> Hooks:
    driver = type("ToyDriver", (NumpyDriver,), methods)
    return {"flow_register_devices": hook([replace(TOY, driver=driver)])}


def comm(**methods: Any) -> Hooks:
    load = type("BadComm", (ToyComm,), methods)
    return {"flow_register_comms": hook([replace(TOYS, load=load)])}


def a_pass(apply: Callable[..., Any]) -> Hooks:
    made = types.SimpleNamespace(name="squash", apply=apply)
    return {"flow_register_passes": hook([PassSpec("squash", "logical", returns(made))])}


def changed(**parts: Any) -> Hooks:
    """A pass that replaces parts of the op ``cube``."""

    def apply(graph: Graph, context: PassContext) -> Graph:
        ops = {n: replace(op, **parts) if op.type == "cube" else op for n, op in graph.ops.items()}
        return replace(graph, ops=ops)

    return a_pass(apply)


def dropped(graph: Graph, context: PassContext) -> Graph:
    rewriter = Rewriter(graph)
    for op in graph.of_type("cube"):
        rewriter.drop(op)
    return rewriter.finish()


def cut(graph: Graph, context: PassContext) -> Graph:
    return replace(graph, ops={n: op for n, op in graph.ops.items() if op.type == "cube"})


def typeless(graph: Graph, context: PassContext) -> Graph:
    return replace(graph, types={n: t for n, t in graph.types.items() if n != "cube"})


def boxing(**changes: Any) -> Hooks:
    spec = BoxingSpec("detour", "*", "*", ("cpu", "toy"), returns(1.0), returns(()))
    return {"flow_register_boxing": hook([replace(spec, **changes)])}


def annotation(**changes: Any) -> Hooks:
    spec = AnnotationSpec("Cubes", lambda found: found is CUBE, None, returns(FetchNone()))
    return {"flow_register_annotations": hook([replace(spec, **changes)])}


def checkpoints(**changes: Any) -> Hooks:
    spec = FormatSpec("cubes", returns(True), returns({}))
    return {"flow_register_checkpoint_formats": hook([replace(spec, **changes)])}


def exporter(write: Any) -> Hooks:
    return {"flow_register_exporters": hook([ExporterSpec("onnx", write)])}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Hooks], None]]:
    """Return a function that makes a session with the plugin the default one."""
    before = list(sessions._default)
    opened: list[sessions.Session] = []

    def with_plugin(hooks: Hooks) -> None:
        candidate = Candidate(Origin("bad", "flow-bad", "1.2"), lambda: plugin(**hooks))
        monkeypatch.setattr(host, "_installed", lambda: iter([candidate]))
        registry = Host(Settings()).load()
        assert not registry.failures
        opened.append(sessions.Session(registry))
        sessions._default[:] = opened[-1:]

    yield with_plugin
    for session in opened:
        session.close()
    sessions._default[:] = before


X = flow.FixedTensorDef((4, 2))
ARRAY = np.ones((4, 2), np.float32)


def cube(x: Any) -> Any:
    return emit("cube", x)


CUBE_LINE = f"{__file__}:{cube.__code__.co_firstlineno + 1}"


def on_one_device(device_type: str = "cpu", devices: str = "0:0") -> None:
    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        with flow.scope.placement(device_type, devices):
            return cube(x)

    for _ in range(2):
        job(ARRAY).get()


def on_the_toy() -> None:
    on_one_device("toy")


def on_two_devices(device_type: str = "cpu") -> None:
    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        with flow.scope.placement(device_type, "0:0-1"):
            return cube(x.with_distribute(flow.distribute.split(0)))

    job(ARRAY).get()


def on_two_toys() -> None:
    on_two_devices("toy")


def training() -> None:
    @flow.global_function(type="train")
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        w = flow.get_variable("w", (4, 2), initializer=flow.ones_initializer())
        loss = cube(x * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    job(ARRAY).get()


def batching() -> None:
    registry = sessions._default[0].registry
    type_ = tensor_type((4, 2), float32)
    asked = KernelQuery("cube", {}, (type_,), (type_,))
    with located(user_line()):
        registry.find_kernel(asked, "cpu").batchable(asked, [asked])  # type: ignore[misc]


def annotated() -> None:
    @flow.global_function()
    def job(x: X) -> CUBE:  # type: ignore[no-untyped-def, valid-type]
        return cube(x)

    job(ARRAY)


def loading() -> None:
    flow.load_variables(flow.checkpoint.get(str(Path(__file__).parent)))


def saving(name: str = "saved") -> None:
    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        w = flow.get_variable("w", (4, 2), initializer=flow.ones_initializer())
        return cube(x * w)

    job(ARRAY).get()
    with tempfile.TemporaryDirectory() as folder:
        flow.checkpoint.save(f"{folder}/{name}", format="cubes")


def saving_a_file() -> None:
    saving("saved.cube")


def exporting() -> None:
    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        return cube(x)

    with tempfile.TemporaryDirectory() as folder:
        flow.checkpoint.save(f"{folder}/saved")
        flow.onnx.export(job, f"{folder}/saved", f"{folder}/job.onnx")


@dataclass(frozen=True)
class Row:
    """A broken plugin.

    Attributes:
        name: what is broken.
        hooks: the hooks that replace the plugin's own.
        attempted: what the error says was attempted.
        found: what it says was found.
        run: the program.
        at: the user's line, or its file.
    """

    name: str
    hooks: Hooks
    attempted: str
    found: str = FAILURE
    run: Callable[[], None] = on_one_device
    at: str = CUBE_LINE


def launching(launch: Callable[..., Any]) -> Callable[[BindContext], Launch]:
    return lambda ctx: lambda: launch(ctx)


def resizes(ctx: BindContext) -> None:
    ctx.outputs[0].resize((2, 2), refcheck=False)


def wrong_shape(ctx: BindContext) -> None:
    ctx.outputs[0][...] = np.ones((3, 5), np.float32)


def uses_numpy(ctx: BindContext) -> None:
    np.concatenate([ctx.inputs[0], np.ones(3)])


def other_file(folder: Path, variables: object) -> None:
    (folder / "cube.model").write_text("cubes")


SQUASHING = "running pass 'squash' on job 'job'"
SPLIT = Signature((Split(0),), (Split(0),))
ROWS = [
    Row("bind raises", kernel(load=fails), f"calling `load` of {NAMED}"),
    Row("bind returns an array", kernel(load=lambda ctx: ctx.outputs[0]), NAMED, "a ndarray"),
    Row("bind returns None", kernel(load=returns(None)), NAMED, "None (a NoneType)"),
    Row("bind returns arrays", kernel(load=lambda ctx: [ctx.outputs[0]]), NAMED, "a ndarray"),
    Row("no module", kernel(load="no_cubes:bind"), f"loading 'no_cubes:bind', load of {NAMED}",
        "ModuleNotFoundError: No module named 'no_cubes'"),
    Row("no attribute", kernel(load="math:cubes"), f"loading 'math:cubes', load of {NAMED}",
        "module 'math' has no attribute 'cubes'"),
    Row("a launch raises", kernel(load=launching(fails)), f"running cube 'cube' of job 'job' on "
        f"cpu:0:0, by {NAMED}"),
    Row("a launch raises in numpy", kernel(load=launching(uses_numpy)), f"by {NAMED}",
        "ValueError: all the input arrays must have same number of dimensions"),
    Row("a launch of another shape", kernel(load=launching(wrong_shape)), f"by {NAMED}",
        "could not broadcast input array from shape (3,5) into shape (4,2)"),
    Row("accepts raises", kernel(accepts=fails), f"calling `accepts` of {NAMED}"),
    Row("workspace raises", kernel(workspace=fails), f"calling `workspace` of {NAMED}"),
    Row("workspace returns text", kernel(workspace=returns("9")), NAMED, "'9' (a str)"),
    Row("workspace is negative", kernel(workspace=returns(-9)), NAMED, "-9 (a int)"),
    Row("workspace is a fraction", kernel(workspace=returns(1.5)), NAMED, "1.5 (a float)"),
    Row("batchable raises", kernel(batchable=fails), f"calling `batchable` of {NAMED}",
        run=batching, at=__file__),
    Row("infer raises", op(infer=fails), "calling `infer` of op 'cube'"),
    Row("infer returns None", op(infer=returns(None)), "`infer` of op 'cube'", "None"),
    Row("infer returns arrays", op(infer=returns([ARRAY])), "`infer` of op 'cube'", "a ndarray"),
    Row("infer returns nothing", op(infer=returns(())), "`infer` of op 'cube'", "0 types"),
    Row("sbp raises", op(sbp=fails), "calling `sbp` of op 'cube'", run=on_two_devices),
    Row("sbp returns text", op(sbp=returns("S(0)")), "`sbp` of op 'cube'", "'S(0)' (a str)",
        run=on_two_devices),
    Row("sbp of two inputs", op(sbp=returns([Signature((Split(0),) * 2, (Split(0),))])),
        "`sbp` of op 'cube'", "(S(0), S(0)) -> S(0)", run=on_two_devices),
    Row("sbp of no axis", op(sbp=returns([Signature((Split(7),), (Split(7),))])),
        "`sbp` of op 'cube'", "(S(7)) -> S(7)", run=on_two_devices),
    Row("localize raises", op(localize=fails), "calling `localize` of op 'cube'",
        run=on_two_devices),
    Row("localize sets no attribute", op(localize=returns({"side": 3})), "`localize` of op 'cube'",
        "{'side': 3}", run=on_two_devices),
    Row("gradient raises", op(gradient=fails), "calling `gradient` of op 'cube'", run=training),
    Row("gradient returns None", op(gradient=returns(None)), "`gradient` of op 'cube'", "None",
        run=training),
    Row("two gradients", op(gradient=returns([None, None])), "`gradient` of op 'cube'",
        "2 gradients", run=training),
    Row("a gradient is an array", op(gradient=returns([ARRAY])), "`gradient` of op 'cube'",
        "a ndarray", run=training),
    Row("work raises", op(work=fails), "calling `work` of op 'cube'", run=on_two_devices),
    Row("the driver raises", {"flow_register_devices": hook([replace(TOY, driver=fails)])},
        "calling `driver` of device 'toy'", run=on_the_toy, at=__file__),
    Row("the driver is a text", {"flow_register_devices": hook([replace(TOY, driver=str)])},
        "calling `driver` of device 'toy'", "'toy:0:0' (a str)", run=on_the_toy, at=__file__),
    Row("allocate raises", device(allocate=fails), "bytes by the driver of toy:0:0",
        run=on_the_toy, at=__file__),
    Row("allocate returns None", device(allocate=returns(None)), "bytes by the driver of toy:0:0",
        "None (a NoneType)", run=on_the_toy, at=__file__),
    Row("the arena is small",
        device(allocate=lambda self, nbytes: NumpyDriver.allocate(self, nbytes // 2)),
        "bytes by the driver of toy:0:0", "an arena of", run=on_the_toy, at=__file__),
    Row("an arena has no views",
        device(allocate=lambda self, nbytes: types.SimpleNamespace(nbytes=nbytes, view=fails)),
        "calling `view` of an arena of the driver of toy:0:0", run=on_the_toy, at=__file__),
    Row("a view of another shape",
        device(allocate=lambda self, n: types.SimpleNamespace(nbytes=n, view=returns(ARRAY.T))),
        "calling `view` of an arena of the driver of toy:0:0", "an array of shape (2, 4)",
        run=on_the_toy, at=__file__),
    Row("stream raises", device(stream=fails),
        "calling `stream('compute')` of the driver of toy:0:0", run=on_the_toy, at=__file__),
    Row("stream returns None", device(stream=returns(None)),
        "calling `stream('compute')` of the driver of toy:0:0", "None (a NoneType)",
        run=on_the_toy, at=__file__),
    Row("compile raises", device(compile=fails, compile_group="toys"),
        "calling `compile` of the driver of toy:0:0", run=on_the_toy, at=__file__),
    Row("compile returns the launches", device(compile=returns([]), compile_group="toys"),
        "calling `compile` of the driver of toy:0:0", "[] (a list)", run=on_the_toy, at=__file__),
    Row("the comm raises", {"flow_register_comms": hook([replace(TOYS, load=fails)])},
        "calling `load` of comm 'toys'", run=on_the_toy, at=__file__),
    Row("the comm is none", {"flow_register_comms": hook([replace(TOYS, load=returns(3))])},
        "calling `load` of comm 'toys'", "3 (a int)", run=on_the_toy, at=__file__),
    Row("bootstrap returns True",
        {"flow_register_comms": hook([replace(TOYS, bootstrap=returns(True))])},
        "calling `bootstrap` of comm 'toys'", "True (a bool)", run=on_the_toy, at=__file__),
    Row("bind of the comm raises", comm(bind=fails), "by comm 'toys'", run=on_the_toy),
    Row("bind of the comm returns None", comm(bind=returns(None)), "by comm 'toys'",
        "'NoneType' object is not iterable", run=on_the_toy),
    Row("bind of the comm returns arrays", comm(bind=returns([ARRAY])), "by comm 'toys'",
        "[array(", run=on_the_toy),
    Row("a launch of the comm raises", comm(bind=returns([fails])), "by comm 'toys'",
        run=on_the_toy),
    Row("a pass raises", a_pass(fails), "running pass 'squash' on job 'job'", at=__file__),
    Row("a pass returns None", a_pass(returns(None)), "running pass 'squash' on job 'job'", "None",
        at=__file__),
    Row("a pass drops a result", a_pass(dropped), SQUASHING, "result cube:0, of a dropped op",
        at=__file__),
    Row("a pass sets a dict", changed(attrs={}), SQUASHING, "attributes of type dict"),
    Row("a pass sets a list", changed(attrs=Attrs({"a": [1]})), SQUASHING, "attribute a=[1]"),
    Row("a pass sets an attribute", changed(attrs=Attrs({"side": 3})), SQUASHING,
        "attributes side (those of cube: none)"),
    Row("a pass sets a type", changed(type="cubic"), SQUASHING, "type 'cubic', which no plugin"),
    Row("a pass names an op", changed(name="other"), SQUASHING, "'other' filed under 'cube'"),
    Row("a pass sets texts as inputs", changed(inputs=("x:0",)), SQUASHING, "'x:0' of type str"),
    Row("a pass lists inputs", changed(inputs=[Value("Input_x", 0)]), SQUASHING, "of type list"),
    Row("a pass reads the op itself", changed(inputs=(Value("cube", 0),)), SQUASHING,
        "input cube:0 comes later or not at all"),
    Row("a pass reads no output", changed(inputs=(Value("Input_x", 5),)), SQUASHING,
        "input Input_x:5, but Input_x has 1 outputs"),
    Row("a pass orders after no op", changed(control=("gone",)), SQUASHING,
        "control predecessor gone comes later or not at all"),
    Row("a pass cuts inputs off", a_pass(cut), SQUASHING, "comes later or not at all"),
    Row("a pass loses types", a_pass(typeless), SQUASHING, "no types of its outputs"),
    Row("no pass", {"flow_register_passes": hook([PassSpec("squash", "logical", "math:P")])},
        "loading 'math:P', pass 'squash'", "has no attribute 'P'", at=__file__),
    Row("cost of a boxing raises", boxing(cost=fails), "calling `cost` of boxing 'detour'",
        run=on_two_toys, at=__file__),
    Row("cost of a boxing is a text", boxing(cost=returns("1 s")), "`cost` of boxing 'detour'",
        "'1 s' (a str)", run=on_two_toys, at=__file__),
    Row("stops of a boxing are a number", boxing(load=returns(3)), "`load` of boxing 'detour'",
        "3 (a int)", run=on_two_toys, at=__file__),
    Row("choosing a boxing raises", {"flow_choose_boxing": lambda: fails()},
        "calling hook flow_choose_boxing", run=on_two_toys, at=__file__),
    Row("matches raises", annotation(matches=fails), "calling `matches` of annotation 'Cubes'",
        run=annotated, at=__file__),
    Row("fetch raises", annotation(fetch=fails), "calling `fetch` of annotation 'Cubes'",
        run=annotated, at=__file__),
    Row("can_open raises", checkpoints(can_open=fails),
        "calling `can_open` of checkpoint format 'cubes'", run=loading, at=__file__),
    Row("a reader of checkpoints raises", checkpoints(reader=fails),
        "calling `reader` of checkpoint format 'cubes'", run=loading, at=__file__),
    Row("a reader of checkpoints returns arrays", checkpoints(reader=returns([ARRAY])),
        "calling `reader` of checkpoint format 'cubes'", "(a list)", run=loading, at=__file__),
    Row("a writer writes nothing", checkpoints(writer=returns(None)),
        "calling `writer` of checkpoint format 'cubes'", "no file", run=saving, at=__file__),
    Row("a writer writes another file", checkpoints(writer=other_file, file="model.cube"),
        "calling `writer` of checkpoint format 'cubes'", "cube.model", run=saving_a_file,
        at=__file__),
    Row("an exporter raises", exporter(fails), "calling `load` of exporter 'onnx'", run=exporting,
        at=__file__),
    Row("no exporter", exporter("math:write"), "loading 'math:write', load of exporter 'onnx'",
        "has no attribute 'write'", run=exporting, at=__file__),
    Row("an observer of plans raises", {"flow_plan_ready": lambda: fails()},
        "calling hook flow_plan_ready", at=__file__),
    Row("an observer of steps raises", {"flow_step_finished": lambda: fails()},
        "calling hook flow_step_finished", at=""),  # called by the thread that runs steps
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_failure_names_plugin_and_line(load: Callable[[Hooks], None], row: Row) -> None:
    load(row.hooks)
    with pytest.raises(FlowError) as caught:
        row.run()
    error = caught.value
    text = str(error)
    assert isinstance(error, PluginError)
    assert row.attempted in error.attempted
    assert row.found in str(error.found)
    assert OWNER in text
    assert row.at in str(error.at)
    if row.found == FAILURE:
        assert REMEDY in str(error.hint)
        assert isinstance(error.__cause__, ValueError)
    else:
        assert error.allowed or error.__cause__
