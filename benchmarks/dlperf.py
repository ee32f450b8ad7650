"""Compare simulated steps with the throughput that DLPerf has published for OneFlow on V100.

    python dlperf.py                                  # all rows
    python dlperf.py --cases resnet50 --devices 1,8   # some of them

DLPerf (github.com/Oneflow-Inc/DLPerf) trained ResNet-50 v1.5 with 128 images and BERT-base with 32
sequences of 128 tokens per device, in float32 and data-parallel, on 1 to 4 servers of 8 Tesla
V100-SXM2-16GB.  The jobs have the networks, losses and optimizers of the scripts of
github.com/Oneflow-Inc/OneFlow-Benchmark, without their loaders; ResNet-50 without the smoothing of
labels and the decay of weights, which are a small part of its step.  ResNet-50 is in the mirrored
view, so that batch norms have the statistics of a device.  The simulator has one set of constants,
those of v100.toml; its devices are null devices, which run nothing.  The script prints a table, and
the rows that differ by more than 20 %.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("FLOW_TOPOLOGY", str(Path(__file__).parent / "v100.toml"))
os.environ.setdefault("FLOW_PLAN_CACHE", "0")

import flow_zoo
import oneflow as flow
import oneflow.typing as tp
from flow_core.costs.clock import simulate_step
from flow_core.costs.task_costs import TaskCosts

PUBLISHED = {
    "resnet50": {1: 384.9, 8: 2969.5, 16: 5906.6, 32: 11711.2},
    "bert_base": {1: 145.2, 8: 1043.0, 16: 1890.3, 32: 3715.1},
}
"""The published samples per second by number of devices."""

GOAL = 0.2
EACH = 8
"""The devices of a server."""


def integers(*shape):
    return tp.Numpy.Placeholder(shape, dtype=flow.int32)


def loss_of(scores, labels):
    losses = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return flow.math.reduce_mean(losses)


def resnet50(config, devices):
    batch = 128 * devices
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, 3, 224, 224)), y: integers(batch)) -> tp.ListNumpy:
        loss = loss_of(flow_zoo.resnet50(x), y)
        flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    return job, batch


def bert_base(config, devices):
    batch, length, masked = 32 * devices, 128, 20
    config.sbp_selector("greedy")  # data parallel

    @flow.global_function(type="train", function_config=config)
    def job(
        ids: integers(batch, length),
        segments: integers(batch, length),
        mask: integers(batch, length),
        positions: integers(batch, masked),
        words: integers(batch, masked),
        weights: tp.Numpy.Placeholder((batch, masked)),
        follows: integers(batch),
    ) -> tp.Numpy:
        x = flow_zoo.bert(ids, flow_zoo.BERT_BASE, segments, mask)
        picked = flow.gather(x, positions, axis=1, batch_dims=1)
        scores = flow.reshape(flow_zoo.bert_words(picked), (batch * masked, -1))
        losses = flow.nn.sparse_softmax_cross_entropy_with_logits(
            flow.reshape(words, (-1,)), scores
        )
        lost = flow.math.reduce_sum(flow.reshape(losses, (batch, masked)) * weights)
        start = flow.truncated_normal_initializer(stddev=0.02)
        pairs = flow.layers.dense(flow_zoo.bert_pooled(x), 2, kernel_initializer=start, name="pair")
        loss = lost / (flow.math.reduce_sum(weights) + 1e-5) + loss_of(pairs, follows)
        flow.optimizer.AdamW(
            flow.optimizer.PolynomialScheduler(
                1e-4, 200, 0.0, warmup=flow.optimizer.warmup.linear(20, 0)
            ),
            epsilon=1e-6,
            do_bias_correction=False,
            weight_decay=0.01,
            weight_decay_excludes=["bias", "LayerNorm"],
            grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0),
        ).minimize(loss)
        return loss

    return job, batch


def simulated(network, devices):
    """Return the samples per second of a data-parallel job in the simulator."""
    flow.clear_default_session()
    machines, each = -(-devices // EACH), min(devices, EACH)
    flow.config.machine_num(machines)
    config = flow.function_config()
    names = [f"{machine}:0-{each - 1}" for machine in range(machines)]
    config.default_placement_scope(flow.scope.placement("null", names))
    job, batch = {"resnet50": resnet50, "bert_base": bert_base}[network](config, devices)
    session, compiled = job.active_session(), job.compile_classes()
    recording = compiled.request.options.recording
    costs = TaskCosts(compiled.plan, session.registry.ops, session.costs, recording)
    return batch / simulate_step(costs).seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(PUBLISHED))
    parser.add_argument("--devices", default="1,8,16,32")
    options = parser.parse_args()
    print("| network | devices | published | simulated | simulated / published |")
    print("|---|---|---|---|---|")
    far = []
    for network in options.cases.split(","):
        for devices in map(int, options.devices.split(",")):
            published, found = PUBLISHED[network][devices], simulated(network, devices)
            ratio = found / published
            row = f"| {network} | {devices} | {published:,.1f} | {found:,.1f} | {ratio:.2f} |"
            print(row, flush=True)
            if abs(ratio - 1) > GOAL:
                far.append(f"{network} on {devices}")
    print(f"\nnot within {GOAL:.0%}: {', '.join(far) or 'none'}")


if __name__ == "__main__":
    main()
