"""Compare the search for a form under a memory limit with forms written by hand.

    python search_forms.py gpt:16 gpt:64 bert:16 resnet50:16 wide_deep:16     # network:devices
    python search_forms.py --layers 4 gpt:16

All forms are compiled for one device of each class and simulated with the links and devices of
cluster.toml below, on machines of 8 devices with 32 GiB each.  The table has the time of a step,
the bytes per device, and the time divided by that of the search; forms that do not fit are marked.
Each form by hand is tried without and with activations computed again in each layer, and the
cheaper of those that fit counts.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

TOPOLOGY = """
name = "machines of 8"
source = "data sheets"
algorithms = ["direct", "ring", "tree", "hierarchical"]

[devices.gpu]
flops = 6e13
bandwidth = 1.5e12
held = 1e-13
launch = 5e-6

[[links]]
name = "nvlink"
joins = "machine"
latency = 3e-6
bandwidth = 1.3e11

[[links]]
name = "network"
joins = "all"
latency = 1e-5
bandwidth = 1.2e10
uplink = 5e10
"""
_folder = tempfile.TemporaryDirectory()
Path(_folder.name, "cluster.toml").write_text(TOPOLOGY)
os.environ.setdefault("FLOW_TOPOLOGY", str(Path(_folder.name, "cluster.toml")))
os.environ.setdefault("ONEFLOW_EMULATE_GPUS", "8")
os.environ.setdefault("FLOW_PLAN_CACHE", "0")

import networks  # noqa: E402 - the settings above precede it
from networks import cross_entropy  # noqa: E402

import oneflow as flow  # noqa: E402
import oneflow.typing as tp  # noqa: E402
from flow_core.base.errors import FlowError  # noqa: E402
from flow_core.frontend.job.compile_request import compile_request  # noqa: E402
from flow_core.frontend.job.forms.search import Search, Steps  # noqa: E402
from flow_core.frontend.job.forms.table import GRIDS, LAYOUTS, RECOMPUTED, STATES  # noqa: E402
from flow_core.frontend.job.host_fallback import compile_with_fallback  # noqa: E402

LIMIT = 32 << 30
EACH = 8
"""The devices of a machine."""


@dataclass(frozen=True)
class Hand:
    """A form written by hand.

    Attributes:
        grid: the hierarchy of the devices of a stage; the last dimension is that of tensor
            parallelism if `tensor` is set.
        tensor: whether weights are divided over the last dimension.
        sequence: whether rows are divided over the last dimension outside of products.
        stages: the number of pipeline stages.
        micro: the number of micro-batches.
        states: values of optimizer_placement_optimization_*, if states are sharded.
        again: whether activations are computed again in each layer.
    """

    grid: tuple = ()
    tensor: bool = False
    sequence: bool = False
    stages: int = 1
    micro: int = 1
    states: tuple = ()
    again: bool = False

    def along(self, last, others):
        """Return a distribution over the grid."""
        if not self.grid:
            return None
        head = [others] * (len(self.grid) - self.tensor)
        return [*head, last] if self.tensor else head

    def config(self):
        config = flow.function_config()
        config.sbp_selector("greedy" if self.grid else "auto")
        if self.micro > 1:
            config.train.num_gradient_accumulation_steps(self.micro)
        for name, value in self.states:
            getattr(config, f"optimizer_placement_optimization_{name}")(value)
        return config


FREE = Hand()
"""No hint at all: what the search starts from."""
ZERO1 = (("mode", "distributed_split"),)
ZERO3 = (*ZERO1, ("ahead", 1))


def hands(devices, tensor, pipeline):
    """Return the forms by hand for a number of devices, by name."""
    grid = (devices // EACH, EACH)
    found = {
        "data parallel": Hand((devices,)),
        "ZeRO-1": Hand((devices,), states=ZERO1),
        "ZeRO-3": Hand((devices,), states=ZERO3),
    }
    if not tensor:
        return found
    if devices <= 16:
        found["Megatron"] = Hand((devices,), tensor=True)
        found["Megatron, sequence"] = Hand((devices,), tensor=True, sequence=True)
    found["2-D"] = Hand(grid, tensor=True)
    found["2-D, sequence"] = Hand(grid, tensor=True, sequence=True)
    found["2-D, ZeRO-1"] = Hand(grid, tensor=True, states=ZERO1)
    if pipeline:
        part = (devices // EACH // 2, EACH)
        found["3-D"] = Hand(part, tensor=True, stages=2, micro=8)
        found["3-D, ZeRO-1"] = Hand(part, tensor=True, stages=2, micro=8, states=ZERO1)
    return found


# ------------------------------------------------------------------------------------- networks


class Layers:
    """The layers of a transformer, with the hints of a form."""

    def __init__(self, hand, devices):
        self.hand, self.devices = hand, devices

    def stage(self, i):
        """Return the scope of a stage of the pipeline."""
        each = self.devices // self.hand.stages
        numbers = [divmod(d, EACH) for d in range(i * each, (i + 1) * each)]
        places = {}
        for machine, index in numbers:
            places.setdefault(machine, []).append(index)
        names = [f"{m}:{min(found)}-{max(found)}" for m, found in places.items()]
        return flow.scope.placement("gpu", names, self.hand.grid or None)

    def variable(self, name, shape, last="B"):
        init = flow.random_normal_initializer(stddev=0.02)
        dist = self.hand.along(last if self.hand.tensor else "B", "B")
        more = {} if dist is None else {"parallel_distribution": dist}
        return flow.get_variable(name, shape, initializer=init, **more)

    def cast(self, x, last):
        dist = self.hand.along(last, "S(0)")
        return x if dist is None else flow.hierarchical_parallel_cast(x, dist)

    def rows(self, x):
        """Return what lies between the products: whole rows, or a part of them."""
        return self.cast(x, "S(0)" if self.hand.sequence else "B")

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
        y = flow.nn.bias_add(self.rows(y), self.variable(name + ".b", (x.shape[-1],)))
        return x + y

    def block(self, name, x, mask, heads, shape):
        with flow.experimental.scope.config(checkpointing=self.hand.again):
            y = self.cast(self.norm(name + "ln1", x), "B")
            width = x.shape[-1]
            q, k, v = (flow.reshape(self.columns(name + n, y, width), shape) for n in "qkv")
            mixed = flow.reshape(networks.attention(q, k, v, mask, heads), (-1, width))
            x = self.added(name + "o", x, mixed)
            y = self.cast(self.norm(name + "ln2", x), "B")
            return self.added(
                name + "down", x, flow.math.gelu(self.columns(name + "up", y, 4 * width))
            )


def transformer(hand, devices, layers, width, heads, batch, length, vocabulary):
    """Return a job of a transformer that predicts tokens."""
    use = Layers(hand, devices)
    ints = tp.Numpy.Placeholder((batch, length), dtype=flow.int32)

    @flow.global_function(type="train", function_config=hand.config())
    def job(ids: ints, labels: ints) -> tp.Numpy:
        rows = ids.shape[0] * length
        with use.stage(0):
            ids = use.cast(ids, "B")
            tokens = use.variable("tok", (vocabulary, width))
            x = flow.gather(tokens, ids) + use.variable("pos", (length, width))
            x = use.rows(flow.reshape(x, (rows, width)))
        for i in range(layers):
            with use.stage(i * hand.stages // layers):
                mask = use.variable(f"mask{i}", (1, 1, length, length))
                x = use.block(f"{i}.", x, mask, heads, (-1, length, width))
        with use.stage(hand.stages - 1):
            head = use.variable("head", (width, vocabulary), "S(1)" if hand.tensor else "B")
            logits = flow.matmul(use.cast(use.norm("ln", x), "B"), head)
            labels = use.cast(flow.reshape(labels, (rows,)), "B")
            loss = cross_entropy(labels, use.cast(logits, "B"))
            flow.optimizer.Adam(1e-4, do_bias_correction=True).minimize(loss)
        return loss

    return job


def of_images(hand, devices):
    """Return a job of ResNet-50 with 32 images per device."""
    return plain(hand, devices, networks.resnet50, ((3, 224, 224), flow.float), ((), flow.int32))


def of_clicks(hand, devices):
    """Return a job of a wide and deep network with 1,024 rows per device."""
    return plain(
        hand, devices, networks.wide_deep, ((13,), flow.float), ((2,), flow.int32),
        ((26,), flow.int32), ((1,), flow.float), each=1024,
    )  # fmt: skip


def plain(hand, devices, network, *inputs, each=32):
    """Return a job of a network that has no hints of its own."""
    use = Layers(hand, devices)

    def body(*blobs):
        with use.stage(0):
            result = network(*(use.cast(blob, "B") for blob in blobs))
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(result)
        return result

    names = [f"x{i}" for i in range(len(inputs))]
    scope = {"body": body}
    exec(f"def job({', '.join(names)}): return body({', '.join(names)})", scope)
    scope["job"].__annotations__ = {
        name: tp.Numpy.Placeholder((each * devices, *shape), dtype=dtype)
        for name, (shape, dtype) in zip(names, inputs, strict=True)
    } | {"return": tp.Numpy}
    return flow.global_function(type="train", function_config=hand.config())(scope["job"])


SIZES = {"gpt": (24, 2048, 16, 4, 1024, 50304), "bert": (24, 1024, 16, 8, 512, 30522)}
"""Layers, width, heads, samples per device, length and vocabulary of transformers."""


def network_of(name, layers):
    """Return a function that makes the job of a form, and whether it has tensor parallelism."""
    if name in SIZES:
        depth, width, heads, each, length, words = SIZES[name]

        def job(hand, devices):
            batch = each * devices
            return transformer(hand, devices, layers or depth, width, heads, batch, length, words)

        return job, True
    return {"resnet50": of_images, "wide_deep": of_clicks}[name], False


# ------------------------------------------------------------------------------------- the table


def searched(make, hand, devices, kinds=(), seconds=0.0):
    """Return the search for forms of a job, which has compiled the job as it is."""
    flow.clear_default_session()
    flow.config.machine_num(max(1, devices // EACH))
    flow.config.gpu_device_num(min(devices, EACH))
    job = make(hand, devices)
    variant = job.traced_with(job.config)

    def request(source):
        found = compile_request(source.build, source.values, source.inputs, devices=())
        limits = replace(found.limits, memory=lambda d: LIMIT if d.type == "gpu" else None)
        return replace(found, limits=limits, share_replicas=False)

    retrace = lambda parts: variant.in_micro_batches(parts).source  # noqa: E731
    search = Search(variant.source, Steps(retrace, request, compile_with_fallback))
    search.run(kinds, seconds)
    return search


def by_hand(make, hand, devices):
    """Return the cheaper of a form and of one with activations computed again that fit."""
    found = []
    for form in (hand, replace(hand, again=True)):
        (tried,) = searched(make, form, devices).tried
        found.append(tried)
        if tried.fits or make in (of_images, of_clicks):
            break
    return min(found, key=lambda form: (not form.fits, form.seconds))


def row(name, form, note=""):
    fits = "" if form.fits else " (does not fit)"
    return f"| {name}{note} | {form.seconds * 1e3:,.1f} ms | {form.nbytes / 2**30:.1f} GiB{fits} |"


def compare(case, layers, seconds):
    name, devices = case.split(":")
    make, tensor = network_of(name, layers)
    count = int(devices)
    started = time.perf_counter()
    kinds = (GRIDS, LAYOUTS, STATES, RECOMPUTED)
    search = searched(make, FREE, count, kinds, seconds)
    spent = time.perf_counter() - started
    best = search.fitting[0] if search.fitting else search.tried[0]
    print(f"\n{name} on {count} devices: {len(search.tried)} forms in {spent:.0f} s\n")
    print("| form | step | memory | by the search's |\n|---|---|---|---|")
    print(f"{row('search: ' + best.name, best)} 1.00 |", flush=True)
    for title, hand in hands(count, tensor, count >= 2 * EACH).items():
        try:
            form = by_hand(make, hand, count)
        except FlowError as error:
            print(f"| {title} | {str(error).splitlines()[0]} | | |", flush=True)
        else:
            print(f"{row(title, form)} {form.seconds / best.seconds:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", default=["gpt:16", "bert:16", "resnet50:16", "wide_deep:16"]
    )
    parser.add_argument("--layers", type=int, help="layers of transformers")
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of the search")
    options = parser.parse_args()
    for case in options.cases:
        compare(case, options.layers, options.seconds)


if __name__ == "__main__":
    main()
