"""Compare data-parallel LeNet on two processes with one two-threaded process and DDP on gloo.

    python benchmarks/bench_ddp.py --torch PYTHON       # optional: an interpreter with torch

All variants train the same network from the same weights on the same global batch, in one run: all
of them start at the beginning, and then each runs a few steps in turn while the others sleep.  A
step starts with a batch in ordinary memory and ends when the caller has the loss; the loss of a DDP
rank is that of its own half of the batch.  `mpiexec` is taken from the folder of the interpreter.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

BATCH, ROUNDS, STEPS, WARM = 100, 12, 6, 4
RATE = 0.1
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Group:
    """A group of processes that train together, controlled through pipes.

    Args:
        folder: folder of the command and reply pipes, one pair per rank.
        name: name of the group.
        kind: the program that its ranks run.
        commands: the start commands, with additional environment variables.
        ranks: number of ranks.
        threads: threads per rank.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        kind: str,
        commands: list[tuple[list[str], dict[str, str]]],
        ranks: int,
        threads: int,
    ) -> None:
        self.name, self.ranks = name, ranks
        self.folder = folder / name.replace(" ", "-")
        self.folder.mkdir()
        for rank in range(ranks):
            for pipe in ("orders", "answers"):
                os.mkfifo(self.folder / f"{pipe}{rank}")
        settings = {
            **os.environ,
            **dict.fromkeys(THREADS, str(threads)),
            "FLOW_STREAM_THREADS": "1",
        }
        self.processes = [
            subprocess.Popen(
                [*command, __file__, "--rank", kind, str(self.folder)],
                env={**settings, **more},
                stdout=sys.stderr,
            )
            for command, more in commands
        ]
        self.orders = [open(self.folder / f"orders{r}", "w") for r in range(ranks)]  # noqa: SIM115
        self.answers = [open(self.folder / f"answers{r}") for r in range(ranks)]  # noqa: SIM115

    def turn(self, steps: int) -> list[float]:
        """Run some steps; return rank 0's seconds per step and last loss."""
        for orders in self.orders:
            print(steps, file=orders, flush=True)
        rows = [[float(word) for word in answers.readline().split()] for answers in self.answers]
        return rows[0]

    def end(self) -> None:
        """Terminate the processes."""
        for orders in self.orders:
            orders.close()
        for process in self.processes:
            process.wait(30)


def serve(folder: Path, rank: int, step: Callable[[int], float]) -> None:
    """Run as many steps as each command requests; reply with their seconds and the last loss."""
    with open(folder / f"orders{rank}") as orders, open(folder / f"answers{rank}", "w") as answers:
        number = 0
        for line in orders:
            times = []
            for _ in range(int(line)):
                started = time.perf_counter()
                loss = step(number)
                times.append(time.perf_counter() - started)
                number += 1
            print(*times, loss, file=answers, flush=True)


# ----------------------------------------------------------------------------------- the ranks


def flow_rank(folder: Path, devices: str) -> None:
    """Run a rank of flow, or flow's only process."""
    from networks import lenet

    import oneflow as flow
    import oneflow.typing as tp

    batch = np.load(folder.parent / "batch.npz")
    images, labels = batch["images"], batch["labels"]

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, 1, 28, 28)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            loss = lenet(x, y)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [RATE])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    flow.load_variables(dict(np.load(folder.parent / "weights.npz")))
    rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    pool = len(images)
    serve(folder, rank, lambda n: float(job(images[n % pool], labels[n % pool]).reshape(-1)[0]))


def torch_rank(folder: Path, channels_last: bool) -> None:
    """Run a rank of DDP on its half of the batch."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    layers = {
        "conv1": nn.Conv2d(1, 32, 5, padding=2), "conv2": nn.Conv2d(32, 64, 5, padding=2),
        "fc1": nn.Linear(3136, 512), "fc2": nn.Linear(512, 10),
    }  # fmt: skip
    with torch.no_grad(), np.load(folder.parent / "weights.npz") as weights:
        for name, layer in layers.items():
            weight = weights[name + ".w"]
            layer.weight.copy_(torch.from_numpy(weight.T if weight.ndim == 2 else weight))
            layer.bias.copy_(torch.from_numpy(weights[name + ".b"]))
    pooled = [nn.ReLU(), nn.MaxPool2d(2, 2)]
    net: nn.Module = nn.Sequential(
        layers["conv1"], *pooled, layers["conv2"], *pooled, nn.Flatten(), layers["fc1"], nn.ReLU(),
        nn.Dropout(0.5), layers["fc2"],
    )  # fmt: skip
    form = torch.channels_last if channels_last else torch.contiguous_format
    net = nn.parallel.DistributedDataParallel(net.to(memory_format=form))
    optimizer = torch.optim.SGD(net.parameters(), RATE, fused=True)
    batch = np.load(folder.parent / "batch.npz")
    images, labels = batch["images"], batch["labels"]
    half = slice(rank * BATCH // size, (rank + 1) * BATCH // size)

    def step(number: int) -> float:
        x = torch.from_numpy(images[number % len(images)][half]).contiguous(memory_format=form)
        y = torch.from_numpy(labels[number % len(labels)][half]).long()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    serve(folder, rank, step)


KINDS: dict[str, Callable[[Path], None]] = {
    "one": lambda folder: flow_rank(folder, "0:0"),
    "two": lambda folder: flow_rank(folder, "0:0-1"),
    "ddp": lambda folder: torch_rank(folder, False),
    "ddp-last": lambda folder: torch_rank(folder, True),
}


# ----------------------------------------------------------------------------------- the run


def groups(folder: Path, torch: str | None) -> Iterator[Group]:
    """Yield the groups that can be started on this machine."""
    mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", sys.executable]
    yield Group(folder, "flow, 1 process", "one", [([sys.executable], {})], 1, 2)
    yield Group(folder, "flow, 2 processes", "two", [(mpiexec, {})], 2, 1)
    if torch is None:
        return
    for name, kind in (("DDP, gloo", "ddp"), ("DDP, gloo, channels last", "ddp-last")):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = str(found.getsockname()[1])
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        yield Group(folder, name, kind, [([torch], {**told, "RANK": r}) for r in "01"], 2, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--torch", help="Python interpreter with torch")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        KINDS[args.rank[0]](Path(args.rank[1]))
        return
    import data

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "weights.npz", **data.parameters("lenet"))
        pool = data.batches("lenet")
        images, labels = (np.stack(x) for x in zip(*pool, strict=True))
        np.savez(folder / "batch.npz", images=images, labels=labels)
        report(list(groups(folder, args.torch)))


def report(running: list[Group]) -> None:
    """Let all groups take turns, and print their step times."""
    times: dict[str, list[float]] = {group.name: [] for group in running}
    for group in running:
        print(
            f"{group.name}: losses {group.turn(1)[-1]:.4f}, {group.turn(WARM)[-1]:.4f}", flush=True
        )
    for _ in range(ROUNDS):
        for group in running:
            times[group.name] += group.turn(STEPS)[:-1]
    for group in running:
        group.end()
    ours = times["flow, 2 processes"]
    print(f"{'LeNet, batch ' + str(BATCH):28}{'minimum':>9}{'median':>9}{'2 processes / this':>28}")
    for name, seconds in times.items():
        least, usual = min(seconds) * 1e3, median(seconds) * 1e3
        ratios = f"{min(ours) / min(seconds):.2f} and {median(ours) / median(seconds):.2f}"
        print(f"{name:28}{least:6.2f} ms{usual:6.2f} ms{ratios:>28}")


if __name__ == "__main__":
    main()
