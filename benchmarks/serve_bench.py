"""Throughput and latency of `flow serve` beside ONNX Runtime behind the same server.

    python serve_bench.py --workload mlp,resnet50 --clients 1,8

Four servers run at the same time, and are loaded in turn, so that other load on the machine affects
all of them: flow and ONNX Runtime, with and without batches.  Their workers compute the same
network with the same random weights; the process that answers requests and forms batches is the
same program.  Clients are connections of one other process, each of which sends its next request
when it has the answer to the last one.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from predict_bench import SHAPES, feeds, predict_job

ROWS = 8
SECONDS = 3.0
SHOWN = ("p50_ms", "p99_ms", "cpu_ms")


# ----------------------------------------------------------------------------- models and workers


def make_models(workload, folder):
    """Save the same network as a saved model and as an ONNX model of an open batch size."""
    import oneflow as flow

    arrays = feeds(workload, ROWS)
    job = predict_job(workload, arrays)
    job(*arrays)
    builder = flow.saved_model.ModelBuilder(f"{folder}/flow/{workload}").Version(1)
    builder.AddFunction(job)
    builder.Save()
    path = Path(folder, "onnxruntime", workload, "1", "model.onnx")
    path.parent.mkdir(parents=True)
    flow.checkpoint.save(f"{folder}/weights")
    shape = {"x": ("batch", *SHAPES[workload])}
    flow.onnx.export(job, f"{folder}/weights", str(path), shape_override=shape)


def load_onnx(source, batching, device):
    """Load a model in a worker of ONNX Runtime."""
    import numpy as np
    import onnxruntime

    from flow_serve.info import ModelInfo, TensorInfo

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    path = str(Path(source.folder, "model.onnx"))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def tensors(values):
        return tuple(TensorInfo(v.name, "FP32", (-1, *v.shape[1:])) for v in values)

    ins, outs = tensors(session.get_inputs()), tensors(session.get_outputs())
    names = [t.name for t in ins]

    def run(arrays):
        return session.run(None, dict(zip(names, arrays, strict=True)))

    for rows in batching.sizes:
        run([np.zeros(t.sized(rows), np.float32) for t in ins])
    shared = (source.name, source.version, source.platform, ins, outs)
    return ModelInfo(*shared, batching.rows, True), run


def serve_onnx(folder, batch):
    """Serve by the program of `flow serve`, with workers of ONNX Runtime."""
    from flow_serve.pool import Setup
    from flow_serve.server import bind, serve
    from flow_serve.settings import Batching

    command = (sys.executable, __file__, "worker")
    setup = Setup((), Batching(batch), command=command)

    def told(line):
        print(line, flush=True)

    with bind("127.0.0.1", 0) as listener:
        asyncio.run(serve(Path(folder), setup, listener, "", 1, told))


def start(kind, folder, batch, threads):
    """Start a server; return its process and port."""
    program = (
        (sys.executable, "-m", "flow_core.cli", "serve", f"{folder}/flow", "--port", "0",
         "--max-batch", str(batch))
        if kind == "flow"
        else (sys.executable, __file__, "serve", f"{folder}/onnxruntime", str(batch))
    )  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env)
    for line in process.stdout:
        if line.startswith("serving"):
            return process, int(re.search(r":(\d+)$", line)[1])
    raise SystemExit(f"the server of {kind} has ended with status {process.wait()}")


# ----------------------------------------------------------------------------------------- clients


def request_of(workload):
    """Return the bytes of an HTTP request with one row in the binary form."""
    (array,) = feeds(workload, 1)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(array.shape)}
    tensor["parameters"] = {"binary_data_size": array.nbytes}
    content = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text, data = json.dumps(content).encode(), array.tobytes()
    head = (
        f"POST /v2/models/{workload}/infer HTTP/1.1\r\nhost: localhost\r\n"
        f"inference-header-content-length: {len(text)}\r\n"
        f"content-length: {len(text) + len(data)}\r\n\r\n"
    )
    return head.encode() + text + data


async def client(port, request, until, times):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        await reader.readexactly(int(re.search(rb"\r\ncontent-length: (\d+)", head)[1]))
        times.append(time.perf_counter() - started)
    writer.close()


async def load(port, request, clients, seconds):
    """Return the latencies of all requests of a round."""
    until, times = time.perf_counter() + seconds, []
    await asyncio.gather(*(client(port, request, until, times) for _ in range(clients)))
    return times


def work():
    """Load servers; each line of standard input is a round."""
    for line in sys.stdin:
        workload, port, clients, seconds = json.loads(line)
        started = time.perf_counter()
        times = asyncio.run(load(port, request_of(workload), clients, seconds))
        spent = time.perf_counter() - started
        print(json.dumps({"times": times, "seconds": spent}), flush=True)


def cpu_seconds(pid):
    """Return the CPU time of a process and its children, on Linux."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu_seconds, map(int, children)))


# ------------------------------------------------------------------------------------------ tables


def compare(workload, counts, rounds, threads, seconds):
    """Return a record per number of clients and setting of batches."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        make = [sys.executable, __file__, "models", workload, folder]
        subprocess.run(make, check=True)
        cells = [(kind, rows) for rows in (1, ROWS) for kind in ("flow", "onnxruntime")]
        servers = {cell: start(cell[0], folder, cell[1], threads) for cell in cells}
        worker = [sys.executable, __file__, "work"]
        clients = subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def measured(cell, count, seconds):
            process, port = servers[cell]
            before = cpu_seconds(process.pid)
            print(json.dumps((workload, port, count, seconds)), file=clients.stdin, flush=True)
            found = json.loads(clients.stdout.readline())
            return found | {"cpu": cpu_seconds(process.pid) - before}

        for count in counts:
            times, rates, cpu = ({cell: [] for cell in cells} for _ in range(3))
            for cell in cells:
                measured(cell, count, 0.5)
            for _ in range(rounds):
                for cell in cells:
                    result = measured(cell, count, seconds)
                    times[cell] += result["times"]
                    rates[cell].append(len(result["times"]) / result["seconds"])
                    cpu[cell].append(result["cpu"] / len(result["times"]))
            for rows in (1, ROWS):
                record = {"workload": workload, "clients": count, "batch": rows}
                for kind in ("flow", "onnxruntime"):
                    ordered = sorted(times[kind, rows])
                    record[kind] = {
                        "per_s": statistics.median(rates[kind, rows]),
                        "p50_ms": 1e3 * ordered[len(ordered) // 2],
                        "p99_ms": 1e3 * ordered[int(len(ordered) * 0.99)],
                        "cpu_ms": 1e3 * min(cpu[kind, rows]),
                    }
                found.append(record)
        clients.communicate()
        for process, _ in servers.values():
            process.terminate()
            process.wait()
            process.stdout.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="mlp,resnet50")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the records to this file, too")
    args = parser.parse_args()
    found = []
    print("| network | clients | rows of a batch | requests/s: flow | ONNX Runtime | ratio "
          "| p50, ms: flow | ONNX Runtime | p99, ms: flow | ONNX Runtime "
          "| CPU, ms: flow | ONNX Runtime |")  # fmt: skip
    print("|---" * 12 + "|")
    for workload in args.workload.split(","):
        counts = list(map(int, args.clients.split(",")))
        for record in compare(workload, counts, args.rounds, args.threads, args.seconds):
            found.append(record)
            flow, ort = record["flow"], record["onnxruntime"]
            cells = [f"`{workload}`", record["clients"], record["batch"]]
            cells += [f"{flow['per_s']:.1f}", f"{ort['per_s']:.1f}"]
            cells.append(f"{flow['per_s'] / ort['per_s']:.2f}")
            cells += [f"{each[k]:.2f}" for k in SHOWN for each in (flow, ort)]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    command = sys.argv[1:2]
    if command == ["work"]:
        work()
    elif command == ["models"]:
        make_models(*sys.argv[2:])
    elif command == ["serve"]:
        serve_onnx(sys.argv[2], int(sys.argv[3]))
    elif command == ["worker"]:
        from flow_serve.worker import main as run_worker

        run_worker(load_onnx, sys.argv[1:])
    else:
        main()
