"""The jobs of search_forms.py: networks with the hints of forms that are written by hand.

The devices are null devices, which run nothing, on machines of 8.
"""

from dataclasses import dataclass, replace

import networks

import oneflow as flow
import oneflow.typing as tp

EACH = 8
"""The devices of a machine."""


@dataclass(frozen=True)
class Form:
    """A form written by hand.

    Attributes:
        grid: the hierarchy of the devices of a stage; empty for a job without hints.
        tensor: whether weights are divided over the last dimension of the grid.
        sequence: whether rows are divided over it outside of products.
        stages: the number of pipeline stages.
        micro_batches: the number of micro-batches.
        states: values of optimizer_placement_optimization_*, by name.
        again: whether activations are computed again in each layer.
    """

    grid: tuple = ()
    tensor: bool = False
    sequence: bool = False
    stages: int = 1
    micro_batches: int = 1
    states: tuple = ()
    again: bool = False

    def along(self, last, others):
        """Return a distribution over the grid; None without hints."""
        if not self.grid:
            return None
        head = [others] * (len(self.grid) - self.tensor)
        return [*head, last] if self.tensor else head

    def config(self):
        config = flow.function_config()
        config.sbp_selector("greedy" if self.grid else "auto")
        if self.micro_batches > 1:
            config.train.num_gradient_accumulation_steps(self.micro_batches)
        for name, value in self.states:
            getattr(config, f"optimizer_placement_optimization_{name}")(value)
        return config


NO_HINTS = Form()
"""What the search starts from."""

ZERO1 = (("mode", "distributed_split"),)
ZERO3 = (*ZERO1, ("ahead", 1))


def forms(devices, is_transformer):
    """Return the forms written by hand for a number of devices, by name."""
    found = {
        "data parallel": Form((devices,)),
        "ZeRO-1": Form((devices,), states=ZERO1),
        "ZeRO-3": Form((devices,), states=ZERO3),
    }
    halves = Form((devices // 2,), stages=2, micro_batches=8)
    found[f"2 stages of {devices // 2}"] = halves
    if not is_transformer:
        return found
    if devices <= 16:  # the heads
        found["Megatron"] = Form((devices,), tensor=True)
        found["Megatron, sequence"] = Form((devices,), tensor=True, sequence=True)
    for columns in (EACH, 2):
        grid = (devices // columns, columns)
        found[f"2-D, {grid[0]} x {columns}"] = Form(grid, tensor=True)
        found[f"2-D, {grid[0]} x {columns}, sequence, ZeRO-1"] = Form(
            grid, tensor=True, sequence=True, states=ZERO1
        )
    for stages in (2, 4):
        grid = (devices // stages // 2, 2)
        name = f"3-D, {stages} stages of {grid[0]} x 2"
        found[name] = Form(grid, tensor=True, stages=stages, micro_batches=8)
        more = replace(found[name], sequence=True, states=ZERO1)
        found[f"{name}, sequence, ZeRO-1"] = more
    return found


class Layers:
    """The layers of a network, with the hints of a form."""

    def __init__(self, form, devices):
        self.form, self.devices = form, devices

    def stage(self, i):
        """Return the scope of a stage of the pipeline."""
        each = self.devices // self.form.stages
        places = {}
        for machine, index in (divmod(d, EACH) for d in range(i * each, (i + 1) * each)):
            places.setdefault(machine, []).append(index)
        names = [f"{m}:{min(found)}-{max(found)}" for m, found in places.items()]
        return flow.scope.placement("null", names, self.form.grid or None)

    def variable(self, name, shape, last="B", **more):
        start = flow.random_normal_initializer(stddev=0.02)
        distribution = self.form.along(last, "B")
        return flow.get_variable(
            name, shape, initializer=start, parallel_distribution=distribution, **more
        )

    def cast(self, x, last):
        """Return rows, divided along the grid's first dimension and in some way along the last."""
        distribution = self.form.along(last, "S(0)")
        return x if distribution is None else flow.hierarchical_parallel_cast(x, distribution)

    def rows(self, x):
        """Return what lies between products: whole rows, or parts of them."""
        return self.cast(x, "S(0)" if self.form.sequence else "B")

    def norm(self, name, x):
        size = (x.shape[-1],)
        return flow.nn.layer_norm(
            x, gamma=self.variable(name + ".g", size), beta=self.variable(name + ".b", size),
            begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5,
        )  # fmt: skip

    def columns(self, name, x, units):
        y = flow.matmul(x, self.variable(name + ".w", (x.shape[-1], units), "S(1)"))
        return flow.nn.bias_add(y, self.variable(name + ".b", (units,), "S(0)"))

    def added(self, name, x, y):
        """Return x + the product of y, whose columns may be divided."""
        y = flow.matmul(y, self.variable(name + ".w", (y.shape[-1], x.shape[-1]), "S(0)"))
        return x + flow.nn.bias_add(self.rows(y), self.variable(name + ".b", (x.shape[-1],)))

    def block(self, name, x, mask, heads, shape):
        with flow.experimental.scope.config(checkpointing=self.form.again):
            y = self.cast(self.norm(name + "ln1", x), "B")
            width = x.shape[-1]
            q, k, v = (flow.reshape(self.columns(name + n, y, width), shape) for n in "qkv")
            mixed = flow.reshape(networks.attention(q, k, v, mask, heads), (-1, width))
            x = self.added(name + "o", x, mixed)
            y = self.cast(self.norm(name + "ln2", x), "B")
            y = flow.math.gelu(self.columns(name + "up", y, 4 * width))
            return self.added(name + "down", x, y)


@dataclass(frozen=True)
class Transformer:
    """The sizes of a transformer: layers, width, heads, samples per device, length, vocabulary."""

    layers: int
    width: int
    heads: int
    each: int
    length: int
    words: int

    def __call__(self, form, devices):
        """Return a training job that predicts tokens."""
        use, length = Layers(form, devices), self.length
        integers = tp.Numpy.Placeholder((self.each * devices, length), dtype=flow.int32)

        @flow.global_function(type="train", function_config=form.config())
        def job(ids: integers, labels: integers) -> tp.Numpy:
            count = ids.shape[0] * length
            with use.stage(0):
                table = use.variable("tok", (self.words, self.width))
                x = flow.gather(table, use.cast(ids, "B"))
                x = x + use.variable("pos", (length, self.width))
                x = use.rows(flow.reshape(x, (count, self.width)))
            for i in range(self.layers):
                stage = i * form.stages // self.layers
                with use.stage(stage):
                    mask = use.variable(f"mask{stage}", (1, 1, length, length), trainable=False)
                    x = use.block(f"{i}.", x, mask, self.heads, (-1, length, self.width))
            with use.stage(form.stages - 1):
                x = use.cast(use.norm("ln", x), "B")
                scores = flow.matmul(x, use.variable("head", (self.width, self.words), "S(1)"))
                labels = use.cast(flow.reshape(labels, (count,)), "B")
                loss = networks.cross_entropy(labels, use.cast(scores, "B"))
                flow.optimizer.Adam(1e-4, do_bias_correction=True).minimize(loss)
            return loss

        return job


@dataclass(frozen=True)
class Network:
    """A network of networks.py: its function, samples per device, and its inputs."""

    body: object
    each: int
    inputs: tuple

    def __call__(self, form, devices):
        """Return a training job."""
        config = form.config()
        if form.stages > 1:  # at cuts that the compiler chooses
            config.pipeline_stages(form.stages)
            form = replace(form, grid=(devices,), stages=1)
        use = Layers(form, devices)

        def body(*blobs):
            with use.stage(0):
                result = self.body(*(use.cast(blob, "B") for blob in blobs))
                flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(result)
            return result

        names = [f"x{i}" for i in range(len(self.inputs))]
        scope = {"body": body}
        exec(f"def job({', '.join(names)}): return body({', '.join(names)})", scope)
        scope["job"].__annotations__ = {
            name: tp.Numpy.Placeholder((self.each * devices, *shape), dtype=dtype)
            for name, (shape, dtype) in zip(names, self.inputs, strict=True)
        } | {"return": tp.Numpy}
        return flow.global_function(type="train", function_config=config)(scope["job"])


NETWORKS = {
    "gpt": Transformer(layers=24, width=2048, heads=16, each=4, length=1024, words=50304),
    "gpt_short": Transformer(
        layers=24, width=2048, heads=16, each=1, length=128, words=50304
    ),
    "bert": Transformer(layers=24, width=1024, heads=16, each=8, length=512, words=30522),
    "resnet50": Network(
        networks.resnet50, 32, (((3, 224, 224), flow.float), ((), flow.int32))
    ),
    "wide_deep": Network(
        networks.wide_deep, 1024,
        (((13,), flow.float), ((2,), flow.int32), ((26,), flow.int32), ((1,), flow.float)),
    ),
}  # fmt: skip
