"""``flow verify --matrix`` on programs in which nothing is wrong: each finding is a false alarm.

python benchmarks/matrix_programs.py [--every N] [PROGRAM...]

Each program is checked in a process of its own: jobs of the examples and networks of flow-zoo, or
those that arguments name, as ``script.py:job`` or a name of a network.  Each has every fourth form,
and others than the program before it in the list; every Nth form with ``--every N``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fit_memory

import flow_zoo
from flow_core.base import planning
from flow_core.cli.scripts import job_of
from flow_core.observe.matrix.matrix import verify_matrix
from flow_zoo.vision_transformer import ViTConfig

ROOT = Path(__file__).parent.parent
DEVICES, EVERY = 2, 4
ONE = "--one"
EXAMPLES = (
    "bert.py:pretrain", "bert.py:fine_tune", "bert.py:classify", "char_gpt.py:train",
    "char_gpt.py:validate", "detection.py:train", "digits.py:train_job", "gan.py:train_generator",
    "gan.py:train_discriminator", "pipeline.py:pipeline", "pipeline.py:single", "resnet.py:train",
    "resume.py:train", "tensor_parallel.py:data_parallel", "tensor_parallel.py:tensor_parallel",
    "wide_deep.py:train", "wide_deep.py:predict",
)  # fmt: skip
GPT = flow_zoo.GPT2Config(vocabulary=64, positions=8, width=16, layers=2, heads=2)
VIT = ViTConfig(patch=8, width=16, layers=2, heads=2, hidden=32)
IMAGES = {
    "small_resnet18": (flow_zoo.resnet18, 32, {}),
    "small_mobilenet": (flow_zoo.mobilenet_v2, 32, {}),
    "small_vision_transformer": (flow_zoo.vit, 16, {"config": VIT}),
}
NETWORKS = {
    **dict.fromkeys(IMAGES, lambda name: images(name, *IMAGES[name])),
    "small_gpt": lambda name: fit_memory.token_job(name, lambda x: flow_zoo.gpt2(x, GPT), 4, 8),
}
KNOWN = (*EXAMPLES, *NETWORKS)


def images(name, network, side, options):
    """Return a train job of a network for images."""
    return fit_memory.image_job(name, network, 4, side, classes=10, **options)


if len(sys.argv) == 2 and sys.argv[1] in NETWORKS:
    job = NETWORKS[sys.argv[1]](sys.argv[1])


def check(program, first, every):
    """Print what ``flow verify --matrix --steps 1 --json`` prints, for some of the forms."""
    os.environ.setdefault("ONEFLOW_EMULATE_GPUS", str(DEVICES))
    planning.begin()
    path = f"{ROOT}/examples/{program}" if program in EXAMPLES else program
    target, args = (path, ()) if ":" in program else (f"{__file__}:job", (program,))
    job = job_of(target, args)
    print(verify_matrix(job, DEVICES, steps=1, rows=slice(first, None, every)).to_json())


def checked(program, first, every):
    """Return what `check` prints in another process as data; None if it fails."""
    command = (sys.executable, "-W", "ignore", __file__, ONE, program, str(first), str(every))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.stdout else None


def main():
    """Print a line per program; exit with status 1 if one has a finding or cannot be checked."""
    print(
        f"{'program':36}{'forms':>7}{'refused':>9}{'ops':>6}{'own':>6}{'findings':>10}{'time':>8}"
    )
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("programs", nargs="*", default=KNOWN)
    args = parser.parse_args()
    alarms = 0
    for program in args.programs:
        started = time.monotonic()
        name = os.path.basename(program)
        place = KNOWN.index(name) if name in KNOWN else 0
        report = checked(program, place % args.every, args.every)
        if report is None:
            alarms += 1
            print(f"{program}: the command failed", flush=True)
            continue
        cells = report["cells"]
        found = [(c["form"], f) for c in cells for f in c["findings"]]
        done = [c for c in cells if not c["refused"]]
        ops, own = (max((c[key] for c in done), default=0) for key in ("ops", "own"))
        row = f"{len(cells):7}{len(cells) - len(done):9}{ops:6}{own:6.2f}{len(found):10}"
        took = f"{time.monotonic() - started:6.0f} s"
        print(f"{name:36}{row}{took}", flush=True)
        for form, finding in found:
            print(f"  {form}: {finding}")
        for text in sorted({c["refused"] for c in cells} - {""}):
            print(f"  refused: {text}")
        alarms += len(found)
    print(f"{len(args.programs)} programs, {alarms} alarms")
    return 1 if alarms else 0


if __name__ == "__main__":
    if ONE in sys.argv:
        _, _, name, *numbers = sys.argv
        check(name, *map(int, numbers))
    else:
        sys.exit(main())
