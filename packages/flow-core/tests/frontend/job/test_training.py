"""Training graphs: the ops added by `build_training` against float64 formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from flow_core.api.array import regularizers
from flow_core.api.optim import optimizer as api
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError, JobError
from flow_core.builtin.numpy_kernels.training import optim, schedules
from flow_core.builtin.ops_plugin import flow_register_ops
from flow_core.frontend.job.train import TrainVariable, build_training
from flow_core.ir.graph import Attrs, Graph, GraphBuilder, Op, Value, tensor_type, verify
from flow_core.ir.initializers import generate
from flow_core.ops.build import Emitter
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import CPU, run_kernel

SPECS = {spec.type: spec for spec in flow_register_ops()}
KERNELS = {kernel.op: kernel for kernel in (*optim.KERNELS, *schedules.KERNELS)}
RATE = api.PiecewiseConstantScheduler([], [0.1])
SHAPES = {"hidden-weight": (3, 5), "hidden-bias": (5,), "out-weight": (5, 2)}


class Net:
    """sum((sin(x @ w + b) @ v) ** 2), its variables, and their values from step to step."""

    def __init__(
        self, dtype: str = "float32", regularizer: Any = None, frozen: tuple[str, ...] = ()
    ) -> None:
        self.builder = GraphBuilder()
        self.emitter = Emitter(self.builder, SPECS)
        self.dtype = dtype
        self.penalty = None if regularizer is None else regularizer.to_attr()
        self.frozen = frozen
        self.values = {name: self._variable(name, shape) for name, shape in SHAPES.items()}
        self.x = self._input("x", (4, 3), dtype)
        self.step = self._input("step", (), "int64")
        self.product = self._add("matmul", self.x, self.values["hidden-weight"])
        biased = self._add("bias_add", self.product, self.values["hidden-bias"], axis=1)
        self.hidden = self._add("sin", biased)
        self.out = self._add("matmul", self.hidden, self.values["out-weight"])
        self.loss = self._add("square", self.out)

    def _add(self, type_: str, *inputs: Value, **attrs: Any) -> Value:
        return self.emitter.emit(type_, inputs, attrs, placement=CPU)[0]

    def _input(self, name: str, shape: tuple[int, ...], dtype: str) -> Value:
        op = Op(name, "input", (), Attrs({"shape": shape, "dtype": dtype}), CPU)
        self.builder.add(op, (tensor_type(shape, as_dtype(dtype)),))
        return op.output()

    def _variable(self, name: str, shape: tuple[int, ...]) -> Value:
        attrs = {"shape": shape, "dtype": self.dtype, "initializer": ("random_normal", 0.0, 0.5)}
        attrs |= {"trainable": name not in self.frozen, "regularizer": self.penalty}
        return self.emitter.emit("variable", (), attrs, placement=CPU, name=name)[0]

    def train(self, optimizer: Any, **changes: Any) -> dict[Value, Value]:
        """Add training to the graph."""
        ops = self.builder.ops
        variables = [
            TrainVariable(
                name,
                value,
                self.builder.type_of(value),
                ops[name].attrs["trainable"],
                ops[name].attrs["regularizer"],
                CPU,
            )
            for name, value in self.values.items()
        ]
        arguments = {"losses": [self.loss], "optimizer": optimizer, "variables": variables}
        arguments |= {"step": self.step, "placement": CPU, "line": None}
        return build_training(self.emitter, **(arguments | changes))

    def memory(self) -> dict[str, Any]:
        """Return the initial values of all variables by name."""
        return {
            name: generate(op.attrs["initializer"], op.attrs["shape"], op.attrs["dtype"], seed)
            for seed, (name, op) in enumerate(self.builder.ops.items())
            if op.type == "variable"
        }

    def run(self, memory: dict[str, Any], x: Any, step: int) -> dict[Value, Any]:
        """Run one step: update ``memory`` and return all values."""
        graph = self.builder.build()
        verify(graph)
        feeds = {"x": x.astype(as_dtype(self.dtype).numpy), "step": np.array(step, np.int64)}
        with np.errstate(all="ignore"):
            return execute(graph, {**memory, **feeds})

    def gradients(self, memory: Mapping[str, Any], x: Any) -> dict[str, Any]:
        """Return the analytical gradients of the summed loss."""
        w, b, v = (memory[name].astype(np.float64) for name in SHAPES)
        z = x @ w + b
        dout = 2 * (np.sin(z) @ v)
        dz = (dout @ v.T) * np.cos(z)
        return dict(zip(SHAPES, (x.T @ dz, dz.sum(axis=0), np.sin(z).T @ dout), strict=True))


def execute(graph: Graph, feeds: Mapping[str, Any]) -> dict[Value, Any]:
    values: dict[Value, Any] = {}
    for name, op in graph.ops.items():
        inputs = [values[v] for v in op.inputs]
        spec = SPECS[op.type]
        if name in feeds:
            results: Any = (feeds[name],)
        elif spec.mutates:
            query = KernelQuery(op.type, op.attrs, graph.input_types(op), graph.types[name])
            results = run_kernel(KERNELS[op.type], query, inputs)
        else:
            assert spec.reference is not None
            results = spec.reference(*inputs, **op.attrs)
        results = results if isinstance(results, tuple) else (results,)
        for i, (result, type_) in enumerate(zip(results, graph.types[name], strict=True)):
            values[Value(name, i)] = np.asarray(result, type_.dtype.numpy)
            assert values[Value(name, i)].shape == type_.shape
    return values


Memory = dict[str, Any]
Formula = Callable[[Memory, str, Any, int], None]


def averages(memory: Memory, name: str, g: Any, b1: float, b2: float) -> tuple[Any, Any]:
    m, v = (memory.setdefault(f"{name}-{s}", np.zeros_like(g)) for s in ("m", "v"))
    m += (1 - b1) * (g - m)
    v += (1 - b2) * (g * g - v)
    return m, v


def sgd(memory: Memory, name: str, g: Any, step: int) -> None:
    memory[name] -= 0.1 * g


def momentum(memory: Memory, name: str, g: Any, step: int) -> None:
    m = memory.setdefault(f"{name}-momentum", np.zeros_like(g))
    m *= 0.8
    m -= 0.1 * g
    memory[name] += m


def sgdw(memory: Memory, name: str, g: Any, step: int) -> None:
    decay = 0.1 * 0.05 * memory[name] if name.endswith("weight") else 0.0
    momentum(memory, name, g, step)
    memory[name] -= decay


def adam(memory: Memory, name: str, g: Any, step: int) -> None:
    m, v = averages(memory, name, g, 0.9, 0.999)
    memory[name] -= 0.1 * m / (np.sqrt(v) + 1e-8)


def corrected_adam(memory: Memory, name: str, g: Any, step: int) -> None:
    m, v = averages(memory, name, g, 0.9, 0.99)
    rate = 0.1 * np.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    memory[name] -= rate * m / (np.sqrt(v) + 1e-6)


def adamw(memory: Memory, name: str, g: Any, step: int) -> None:
    decay = 0.0 if "bias" in name else 0.1 * 0.05 * memory[name]
    adam(memory, name, g, step)
    memory[name] -= decay


def rmsprop(memory: Memory, name: str, g: Any, step: int) -> None:
    s = memory.setdefault(f"{name}-mean_square", np.zeros_like(g))
    s += 0.1 * (g * g - s)
    memory[name] -= 0.1 * g / np.sqrt(s + 1e-8)


def centered_rmsprop(memory: Memory, name: str, g: Any, step: int) -> None:
    s = memory.setdefault(f"{name}-mean_square", np.zeros_like(g))
    mean = memory.setdefault(f"{name}-mean_gradient", np.zeros_like(g))
    s += 0.1 * (g * g - s)
    mean += 0.1 * (g - mean)
    memory[name] -= 0.1 * g / np.sqrt(s - mean * mean + 1e-8)


def adagrad(memory: Memory, name: str, g: Any, step: int) -> None:
    s = memory.setdefault(f"{name}-sum_of_squares", np.zeros_like(g))
    s += g * g
    memory[name] -= 0.1 * (g / (np.sqrt(s) + 1e-10) + 0.05 * memory[name])


def lion(memory: Memory, name: str, g: Any, step: int) -> None:
    m = memory.setdefault(f"{name}-m", np.zeros_like(g))
    memory[name] -= 0.1 * np.sign(0.9 * m + 0.1 * g)
    m += 0.01 * (g - m)


def lars(memory: Memory, name: str, g: Any, step: int) -> None:
    m = memory.setdefault(f"{name}-momentum", np.zeros_like(g))
    w = memory[name]
    local = 0.1 * 0.02 * np.sqrt(np.mean(w * w)) / (1e-9 + np.sqrt(np.mean(g * g)))
    m *= 0.9
    m -= local * g
    memory[name] += m


def lamb(memory: Memory, name: str, g: Any, step: int) -> None:
    m, v = averages(memory, name, g, 0.9, 0.999)
    for beta, value in (("beta1_t", 0.9), ("beta2_t", 0.999)):
        memory[f"{name}-{beta}"] = memory.get(f"{name}-{beta}", np.array([value])) * value
    change = m / (1 - memory[f"{name}-beta1_t"])
    change = change / np.sqrt(v / (1 - memory[f"{name}-beta2_t"]) + 1e-6)
    memory[name] -= 0.1 * np.linalg.norm(memory[name]) / np.linalg.norm(change) * change


CASES: dict[str, tuple[Any, Formula]] = {
    "SGD": (api.SGD(RATE, momentum=0), sgd),
    "SGD with momentum": (api.SGD(RATE, momentum=0.8), momentum),
    "SGDW": (
        api.SGDW(RATE, momentum=0.8, weight_decay=0.05, weight_decay_includes="weight"),
        sgdw,
    ),
    "Adam": (api.Adam(RATE), adam),
    "corrected Adam": (
        api.Adam(RATE, beta2=0.99, epsilon=1e-6, do_bias_correction=True),
        corrected_adam,
    ),
    "LazyAdam": (api.LazyAdam(RATE, beta2=0.99, epsilon=1e-6), corrected_adam),
    "AdamW": (api.AdamW(RATE, weight_decay=0.05, weight_decay_excludes=["bias$"]), adamw),
    "RMSProp": (api.RMSProp(RATE, decay_rate=0.9), rmsprop),
    "centered RMSProp": (api.RMSProp(RATE, decay_rate=0.9, centered=True), centered_rmsprop),
    "Adagrad": (api.Adagrad(RATE, weight_decay=0.05), adagrad),
    "Lion": (api.Lion(RATE), lion),
    "LARS": (api.LARS(RATE, lars_coefficient=0.02), lars),
    "LAMB": (api.LAMB(RATE), lamb),
}


def inputs() -> list[Any]:
    return [np.random.default_rng(step).normal(size=(4, 3)) for step in range(3)]


def compare(memory: Memory, wide: Memory, tolerance: float = 2e-4) -> None:
    assert set(memory) == set(wide)
    for name, value in memory.items():
        np.testing.assert_allclose(
            value.astype(np.float64), wide[name], tolerance, tolerance, err_msg=name
        )


def widened(memory: Memory) -> Memory:
    return {name: memory[name].astype(np.float64) for name in SHAPES}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_three_steps(case: str, dtype: str) -> None:
    optimizer, formula = CASES[case]
    net = Net(dtype)
    net.train(optimizer)
    memory = net.memory()
    wide = widened(memory)
    for step, x in enumerate(inputs()):
        net.run(memory, x, step)
        for name, g in net.gradients(wide, x).items():
            formula(wide, name, g / 8, step)
    compare(memory, wide)
    assert {f"{name}_optimizer" for name in SHAPES} <= set(net.builder.ops)


def one_step(net: Net, optimizer: Any, change: Callable[[Memory, Memory], Memory]) -> None:
    """Compare an SGD step with one on the gradients returned by ``change(gradients, memory)``."""
    net.train(optimizer)
    memory, x = net.memory(), inputs()[0]
    wide = widened(memory)
    net.run(memory, x, 0)
    gradients = {name: g / 8 for name, g in net.gradients(wide, x).items()}
    for name, g in change(gradients, wide).items():
        wide[name] -= 0.1 * g
    compare({name: memory[name] for name in SHAPES}, wide)


def penalty(l1: float, l2: float) -> Callable[[Memory, Memory], Memory]:
    return lambda g, w: {n: g[n] + l1 * np.sign(w[n]) + l2 * w[n] for n in g}


def clipped(limit: float) -> Callable[[Memory, Memory], Memory]:
    def change(g: Memory, _: Memory) -> Memory:
        norm = np.sqrt(sum((x * x).sum() for x in g.values()))
        return {name: x * min(1.0, limit / norm) for name, x in g.items()}

    return change


def plain(momentum: float = 0, **options: Any) -> Any:
    return api.SGD(RATE, momentum=momentum, **options)


@pytest.mark.parametrize("regularizer", [regularizers.l1(0.2), regularizers.l1_l2(0.1, 0.3)])
def test_regularizers(regularizer: Any) -> None:
    one_step(Net(regularizer=regularizer), plain(), penalty(regularizer.l1, regularizer.l2))


@pytest.mark.parametrize("limit", [0.01, 0.5, 1e6])
def test_clipping(limit: float) -> None:
    one_step(Net(), plain(grad_clipping=api.grad_clipping.by_global_norm(limit)), clipped(limit))


def test_clipping_follows_regularizers_and_loss_scale() -> None:
    clip = api.grad_clipping.by_global_norm(0.3)
    optimizer = plain(grad_clipping=clip, loss_scale_factor=16.0)
    net = Net(regularizer=regularizers.l1_l2(0.1, 0.3))
    one_step(net, optimizer, lambda g, w: clipped(0.3)(penalty(0.1, 0.3)(g, w), w))


def test_static_loss_scale_applies_to_watched_gradients() -> None:
    net = Net()
    gradients = net.train(plain(loss_scale_factor=64.0), watched=[net.hidden, net.loss])
    memory, x = net.memory(), inputs()[0]
    weights = widened(memory)["out-weight"]
    values = net.run(memory, x, 0)
    np.testing.assert_array_equal(values[gradients[net.loss]], np.full((4, 2), 64.0))
    wanted = 64.0 * 2 * values[net.out] @ weights.T
    np.testing.assert_allclose(values[gradients[net.hidden]], wanted, 1e-4)


def test_static_loss_scale_does_not_change_the_step() -> None:
    one_step(Net(), plain(loss_scale_factor=64.0), lambda g, _: g)


@pytest.mark.parametrize("clip", [None, api.grad_clipping.by_global_norm(0.5)])
def test_dynamic_loss_scale(clip: Any) -> None:
    policy = api.loss_scale.dynamic_loss_scale(1024.0, 2, 4.0)
    net = Net()
    net.train(api.SGD(RATE, momentum=0.5, loss_scale_policy=policy, grad_clipping=clip), job="f")
    memory = net.memory()
    scale, steps = (
        memory[f"System-Train-DynamicLossScale-f-{name}"]
        for name in ("LossScale", "GoodStepCounter")
    )
    first, second, third = inputs()
    plain_net = Net()
    plain_net.train(api.SGD(RATE, momentum=0.5, grad_clipping=clip))
    wanted = plain_net.memory()
    net.run(memory, first, 0)
    plain_net.run(wanted, first, 0)
    assert (scale.item(), steps.item()) == (1024.0, 1)
    before = {name: value.copy() for name, value in memory.items()}
    net.run(memory, second * np.inf, 1)
    assert (scale.item(), steps.item()) == (256.0, 0)
    for name in wanted:
        np.testing.assert_array_equal(memory[name], before[name])
    for step, x in enumerate((second, third)):
        net.run(memory, x, step)
        plain_net.run(wanted, x, step)
    assert (scale.item(), steps.item()) == (1024.0, 0)
    for name in wanted:
        np.testing.assert_allclose(memory[name], wanted[name], 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_variables_keep_float32_states(dtype: str) -> None:
    net = Net(dtype)
    clip = api.grad_clipping.by_global_norm(0.5)
    net.train(api.Adam(RATE, grad_clipping=clip, loss_scale_factor=8.0))
    memory, x = net.memory(), inputs()[0]
    wide = widened(memory)
    net.run(memory, x, 0)
    gradients = {name: g / 8 for name, g in net.gradients(wide, x).items()}
    for name, g in clipped(0.5)(gradients, wide).items():
        adam(wide, name, g, 0)
    assert memory["out-weight-m"].dtype == np.float32
    compare(memory, wide, 4e-2)


def test_frozen_variables_are_not_updated() -> None:
    net = Net(frozen=("out-weight",))
    net.train(plain(0.9))
    memory = net.memory()
    before = memory["out-weight"].copy()
    net.run(memory, inputs()[0], 0)
    np.testing.assert_array_equal(memory["out-weight"], before)
    assert "out-weight-momentum" not in memory


def test_schedules_follow_the_step() -> None:
    scheduler = api.PiecewiseConstantScheduler([4], [0.5, 0.25], api.warmup.linear(4, 0.0))
    net = Net()
    net.train(api.SGD(scheduler, momentum=0))
    found = []
    for step in range(8):
        values = net.run(net.memory(), inputs()[0], step)
        found.append(float(values[Value("System-Train/learning_rate_schedule", 0)]))
    assert found == [0.0, 0.125, 0.25, 0.375, 0.5, 0.25, 0.25, 0.25]


def test_custom_schedule_and_step_are_blobs() -> None:
    net = Net()
    net._input("rate", (1,), "float32")
    scheduler = api.CustomScheduler("rate/out")
    net.train(api.LazyAdam(scheduler, train_step_lbn="step"))
    op = net.builder.ops["System-Train/adam_bias_correction_learning_rate"]
    assert op.inputs == (Value("rate", 0), net.step)


@pytest.mark.parametrize(("blob", "message"), [("step", "int64"), ("rat/out", "no blob")])
def test_custom_schedule_of_wrong_type_is_rejected(blob: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Net().train(api.SGD(api.CustomScheduler(blob)))


def test_two_losses_are_summed() -> None:
    net = Net()
    other = net._add("abs", net.out)
    net.train(plain(), losses=[net.loss, other])
    memory, x = net.memory(), inputs()[0]
    values = {name: value.copy() for name, value in memory.items()}
    net.run(memory, x, 0)
    w, b, v = values.values()
    hidden = np.sin(x @ w + b)
    out = hidden @ v
    wanted = v - 0.1 * hidden.T @ (2 * out + np.sign(out)) / 8
    np.testing.assert_allclose(memory["out-weight"], wanted, 1e-4, 1e-5)


def test_losses_of_two_shapes() -> None:
    net = Net()
    with pytest.raises(JobError, match="reduce_mean"):
        net.train(plain(), losses=[net.loss, net.hidden])


def test_no_losses() -> None:
    with pytest.raises(JobError, match="no loss"):
        Net().train(plain(), losses=[])


def test_one_loss_twice() -> None:
    net = Net()
    with pytest.raises(JobError, match="twice"):
        net.train(plain(), losses=[net.loss, net.loss])


def test_loss_may_be_a_variable() -> None:
    net = Net()
    weight = net.values["out-weight"]
    gradients = net.train(plain(), losses=[weight])
    memory = net.memory()
    before = memory["out-weight"].copy()
    values = net.run(memory, inputs()[0], 0)
    np.testing.assert_array_equal(values[gradients[weight]], np.ones((5, 2)))
    np.testing.assert_allclose(memory["out-weight"], before - 0.01, 1e-5)


def test_nothing_to_train() -> None:
    with pytest.raises(JobError, match="trainable"):
        Net(frozen=tuple(SHAPES)).train(plain())


def test_two_optimizers_may_share_variables() -> None:
    net = Net()
    net.train(plain(0.9))
    net.train(plain(0.9), losses=[net._add("abs", net.out)])
    assert "out-weight_optimizer_1" in net.builder.ops
    assert len(net.memory()) == 6


WRONG: dict[str, Callable[[], Any]] = {
    "text instead of a scheduler": lambda: api.SGD("0.1"),  # type: ignore[arg-type]
    "values": lambda: api.PiecewiseConstantScheduler([10], [0.1]),
    "scales": lambda: api.PiecewiseScalingScheduler(0.1, [10, 20], [0.5]),
    "falling boundaries": lambda: api.PiecewiseConstantScheduler([20, 10], [0.1, 0.2, 0.3]),
    "no steps": lambda: api.CosineScheduler(0.1, 0),
    "multiplier": lambda: api.warmup.constant(10, 1.0),
    "clip_norm": lambda: api.grad_clipping.by_global_norm(0.0),
    "two loss scales": lambda: api.SGD(
        RATE, loss_scale_factor=2.0, loss_scale_policy=api.loss_scale.static_loss_scale(2.0)
    ),
    "loss scale multiplier": lambda: api.loss_scale.dynamic_loss_scale(multiplier=1.0),
    "includes and excludes": lambda: api.AdamW(
        RATE, weight_decay=0.1, weight_decay_includes="w", weight_decay_excludes="b"
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_reported_at_the_line_of_the_user(what: str) -> None:
    with pytest.raises(InferenceError) as caught:
        WRONG[what]()
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert caught.value.allowed


def test_minimize_outside_of_a_job() -> None:
    with pytest.raises(JobError, match="minimize"):
        plain().minimize(None)  # type: ignore[arg-type]


def test_misspelt_name_is_supported() -> None:
    with pytest.warns(DeprecationWarning, match="PolynomialScheduler"):
        scheduler = api.PolynomialSchduler(0.1, 10)
    assert scheduler.schedule() == api.PolynomialScheduler(0.1, 10).schedule()


def test_loss_scales_can_be_written_into_a_configuration() -> None:
    class Configuration:
        loss_scale_factor: Any = None
        dynamic_loss_scale_policy: Any = None

    conf = Configuration()
    api.loss_scale.static_loss_scale(8.0).SetLossScaleFieldsInTrainConf(conf)
    api.loss_scale.dynamic_loss_scale(8.0).SetLossScaleFieldsInTrainConf(conf)
    assert conf.loss_scale_factor == 8.0
    assert conf.dynamic_loss_scale_policy.initial == 8.0
