"""Compare simulated steps with the throughput that DLPerf has published for OneFlow on V100.

    python dlperf.py                        # all rows
    python dlperf.py --cases resnet50:128   # those of a network and a batch size per device

DLPerf (github.com/Oneflow-Inc/DLPerf, reports of OneFlow 0.1.9 of 2020-08-21 and 2020-08-22)
trained ResNet-50 v1.5 and BERT-base in float32 on up to 4 servers of 8 Tesla V100-SXM2-16GB.  The
simulator has one set of constants for all rows, the data sheets in v100.toml.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("FLOW_TOPOLOGY", str(Path(__file__).parent / "v100.toml"))
os.environ.setdefault("ONEFLOW_EMULATE_GPUS", "8")
os.environ.setdefault("FLOW_PLAN_CACHE", "0")

import networks

import oneflow as flow
import oneflow.typing as tp
from flow_core.costs.clock import simulate_step
from flow_core.costs.task_costs import TaskCosts

PUBLISHED = {
    ("resnet50", 128): {1: 384.9, 8: 2969.5, 16: 5906.6, 32: 11711.2},
    ("bert", 96): {1: 149.8, 8: 1158.5, 16: 2257.7, 32: 4456.0},
    ("bert", 64): {1: 149.8, 8: 1138.9, 16: 2189.3, 32: 4310.4},
    ("bert", 32): {1: 145.2, 8: 1043.0, 16: 1890.3, 32: 3715.1},
    ("bert", 24): {1: 140.4, 8: 986.1, 16: 1697.8},
}
"""Samples per second by network, batch size per device and number of devices."""

BERT_BASE = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072}
VOCABULARY, LENGTH, PREDICTIONS = 30522, 128, 20
EACH = 8
"""The GPUs of a server."""


def whole(*shape):
    return tp.Numpy.Placeholder(shape, dtype=flow.int32)


def resnet50(batch):
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())  # batch norms of each device

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, 3, 224, 224)), y: whole(batch)) -> tp.ListNumpy:
        loss = networks.resnet50(x, y)
        flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    return job


def bert(batch):
    @flow.global_function(type="train")
    def job(
        ids: whole(batch, LENGTH),
        segments: whole(batch, LENGTH),
        mask: whole(batch, LENGTH),
        positions: whole(batch, PREDICTIONS),
        labels: whole(batch, PREDICTIONS),
    ) -> tp.Numpy:
        loss = networks.bert(BERT_BASE, VOCABULARY, ids, segments, mask, positions, labels)
        flow.optimizer.Adam(1e-4, do_bias_correction=True).minimize(loss)
        return loss

    return job


def simulated(network, batch, devices):
    """Return the samples per second of a data-parallel job in the simulator."""
    flow.clear_default_session()
    flow.config.machine_num(max(1, devices // EACH))
    flow.config.gpu_device_num(min(devices, EACH))
    job = {"resnet50": resnet50, "bert": bert}[network](batch * devices)
    compiled = job.compile_classes() if network == "bert" else job.compile()
    session, options = job.active_session(), compiled.request.options
    costs = TaskCosts(compiled.plan, session.registry.ops, session.costs, options.recording)
    return batch * devices / simulate_step(costs).seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(f"{n}:{b}" for n, b in PUBLISHED))
    cases = [case.split(":") for case in parser.parse_args().cases.split(",")]
    print("| network | per device | devices | published | simulated | ratio |")
    print("|---|---|---|---|---|---|")
    for network, batch in cases:
        for devices, published in PUBLISHED[network, int(batch)].items():
            found = simulated(network, int(batch), devices)
            print(
                f"| {network} | {batch} | {devices} | {published:,.1f} | {found:,.1f} "
                f"| {found / published:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
