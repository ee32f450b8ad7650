"""Latency of predict jobs beside ONNX Runtime and OpenVINO, on the same exported networks.

    python predict_bench.py --workload mlp,resnet50 --batch 1,8 > table.md
    python predict_bench.py --precision bfloat16 --workload resnet50,mobilenet,bert_base
    python predict_bench.py --precision int8 --workload resnet50,mobilenet

Each program is a process; the processes take turns, so that other load on the machine affects all
of them. All compute in float32, or with ``--precision bfloat16`` in bfloat16, which ONNX Runtime
does not do on a CPU, or with ``--precision int8`` in int8: flow after
`flow.quantization.calibrate`, and the others on the network that ONNX Runtime's static
quantization makes, with one scale per output channel. OpenVINO is left out if it is not installed,
and ``--openvino`` names the Python interpreter of another environment that has it.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {
    "mlp": (784,), "lenet": (1, 28, 28), "resnet50": (3, 224, 224), "mobilenet": (3, 224, 224),
}  # fmt: skip
HINTS = {"float32": {"INFERENCE_PRECISION_HINT": "f32"},
         "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"}, "int8": {}}  # fmt: skip
"""OpenVINO's settings for each precision."""
SHOWN = ("p50_ms", "p99_ms", "least_ms", "cpu_ms")
CALLS = {"mlp": 1000, "lenet": 300, "resnet50": 12, "mobilenet": 40, "bert_base": 10}
"""Calls per round with batch 1."""


def feeds(workload, batch):
    import data
    import numpy as np

    rng = np.random.default_rng(0)
    if workload in SHAPES:
        return [rng.random((batch, *SHAPES[workload]), np.float32)]
    shape = (batch, data.SEQUENCE)
    ids = rng.integers(0, data.VOCABULARY, shape).astype(np.int32)
    positions = np.tile(np.arange(data.PREDICTIONS, dtype=np.int32), (batch, 1))
    return [ids, rng.integers(0, 2, shape).astype(np.int32), np.ones(shape, np.int32), positions]


def predict_job(workload, arrays, precision="float32"):
    """Return a job whose result are the logits of a network with random weights."""
    import data
    import networks

    import oneflow as flow
    import oneflow.typing as tp

    normal = flow.random_normal_initializer(stddev=0.03)
    networks.variable = lambda name, shape, trainable=True: flow.get_variable(
        name, shape, initializer=normal, trainable=trainable
    )
    networks.cross_entropy = lambda labels, logits: logits
    networks.norm = lambda name, x: flow.layers.batch_normalization(
        x, axis=1, momentum=0.9, epsilon=1e-5, name=name, training=False, trainable=False
    )

    def input_of(array):
        return tp.Numpy.Placeholder(array.shape, dtype=getattr(flow, array.dtype.name))

    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(precision == "bfloat16")
    if workload in SHAPES:

        @flow.global_function(function_config=config)
        def predict(x: input_of(arrays[0])) -> tp.Numpy:
            return getattr(networks, workload)(x, None)

        return predict
    ids_, segments_, mask_, positions_ = map(input_of, arrays)

    @flow.global_function(function_config=config)
    def predict_text(
        ids: ids_, segments: segments_, mask: mask_, positions: positions_
    ) -> tp.Numpy:
        config = networks.BERT[workload]
        return networks.bert(config, data.VOCABULARY, ids, segments, mask, positions, positions)

    return predict_text


def quantize(path, arrays):
    """Write a network in int8, calibrated by one call, in place of the network in float32."""
    import onnxruntime
    from onnxruntime import quantization

    class Feeds(quantization.CalibrationDataReader):
        def __init__(self):
            names = [i.name for i in onnxruntime.InferenceSession(path).get_inputs()]
            self.left = [dict(zip(names, arrays, strict=True))]

        def get_next(self):
            return self.left.pop() if self.left else None

    feeds = Feeds()
    quantization.quant_pre_process(path, path, skip_symbolic_shape=True)  # folds norms
    unsigned = quantization.QuantType.QUInt8  # with signed activations, int8 takes twice as long
    quantization.quantize_static(path, path, feeds, per_channel=True, activation_type=unsigned)


def export(workload, batch, path, precision):
    """Export a network, and save the arrays that all programs are fed."""
    import numpy as np

    import oneflow as flow

    arrays = feeds(workload, batch)
    np.savez(path + ".npz", *arrays)
    job = predict_job(workload, arrays)
    job(*arrays)
    with tempfile.TemporaryDirectory() as folder:
        flow.checkpoint.save(folder + "/saved")
        flow.onnx.export(job, folder + "/saved", path)
    if precision == "int8":
        quantize(path, arrays)


def caller(kind, workload, path, threads, precision):
    """Return a function that makes one prediction."""
    import numpy as np

    arrays = list(np.load(path + ".npz").values())
    if kind == "flow":
        import oneflow

        job = predict_job(workload, arrays, precision)
        if precision == "int8":
            job = oneflow.quantization.calibrate(job, [tuple(arrays)])
        return lambda: job(*arrays)
    if kind == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        fed = dict(zip([i.name for i in session.get_inputs()], arrays, strict=True))
        return lambda: session.run(None, fed)
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads})
    hints = {"PERFORMANCE_HINT": "LATENCY", **HINTS[precision]}
    request = core.compile_model(path, "CPU", hints).create_infer_request()
    return lambda: request.infer(dict(enumerate(arrays)))


def work(kind, workload, path, threads, precision):
    """Time rounds of calls; each line of standard input is the number of calls of a round."""
    call = caller(kind, workload, path, int(threads), precision)
    call()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(3):
            call()
        times, used = [], time.process_time()
        for _ in range(int(line)):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        used = (time.process_time() - used) / len(times)
        print(json.dumps({"times": times, "cpu": used}), flush=True)


def compare(workload, batch, pythons, rounds, threads, precision="float32"):
    """Return a record per program."""
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        env[name] = str(threads)
    calls = CALLS[workload] // batch + 3
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "network.onnx"))
        command = [sys.executable, __file__, "export", workload, str(batch), path, precision]
        subprocess.run(command, check=True)
        running = {
            kind: subprocess.Popen(
                [python, __file__, "work", kind, workload, path, str(threads), precision],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            )
            for kind, python in pythons.items()
        }  # fmt: skip
        times, cpu = {kind: [] for kind in running}, {kind: [] for kind in running}
        for process in running.values():
            process.stdout.readline()
        for _ in range(rounds):
            for kind, process in running.items():
                print(calls, file=process.stdin, flush=True)
                found = json.loads(process.stdout.readline())
                times[kind] += found["times"]
                cpu[kind].append(found["cpu"])
        for process in running.values():
            process.communicate()
    records = []
    for kind in running:
        found = sorted(times[kind])
        seconds = [found[len(found) // 2], found[int(len(found) * 0.99)], found[0], min(cpu[kind])]
        records.append(
            {"workload": workload, "batch": batch, "program": kind, "precision": precision}
            | dict(zip(SHOWN, (1e3 * t for t in seconds), strict=True))
        )
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default=",".join(CALLS))
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=HINTS, default="float32")
    parser.add_argument("--openvino", help="a Python interpreter whose environment has OpenVINO")
    parser.add_argument("--json", type=Path, help="write the records to this file, too")
    args = parser.parse_args()
    kinds = ("flow",) if args.precision == "bfloat16" else ("flow", "onnxruntime")
    pythons = dict.fromkeys(kinds, sys.executable)
    if args.openvino or importlib.util.find_spec("openvino"):
        pythons["openvino"] = args.openvino or sys.executable
    print("| network | batch | program | p50, ms | p99, ms | least, ms | CPU time per call, ms |")
    print("|---|---|---|---|---|---|---|")
    records = []
    for workload in args.workload.split(","):
        for batch in map(int, args.batch.split(",")):
            found = compare(workload, batch, pythons, args.rounds, args.threads, args.precision)
            records += found
            for each in found:
                cells = [f"`{workload}`", str(batch), each["program"]]
                cells += [f"{each[name]:.3f}" for name in SHOWN]
                print(f"| {' | '.join(cells)} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(records))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    elif sys.argv[1:2] == ["export"]:
        export(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main()
