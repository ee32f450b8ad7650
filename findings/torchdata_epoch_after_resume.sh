#!/usr/bin/env bash
# torchdata 0.11.0: without workers, `StatefulDataLoader` resumes the rest of an epoch right, but not the epoch after it.  With
# `shuffle` and a generator, the next epoch has another order than in a run without a break.  With a `BatchSampler` over a
# random sampler, a loader resumed from the end of an epoch repeats the order of that epoch.  With one worker, the same
# programs give all epochs as without a break.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, numbers 0 to 5, seed 0.  Without a break, with a generator: 253014 and
# 135240; resumed after two: 3014 and 305421.  With a BatchSampler: 253014 and 305421; resumed after the first epoch: 253014.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import copy
from itertools import islice

import torch
from torch.utils.data import BatchSampler, SubsetRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader


def loader(form, workers):
    """Make a loader that is the same each time."""
    generator = torch.Generator().manual_seed(0)
    options = {"batch_size": 1, "shuffle": True, "generator": generator}
    if form == "sampler":
        options = {"batch_sampler": BatchSampler(SubsetRandomSampler(range(6), generator), 1, False)}
    return StatefulDataLoader([*range(6)], num_workers=workers, **options)


def epoch(batches):
    """Return the numbers of the batches as one word."""
    return "".join(str(batch.item()) for batch in batches)


def resumed(form, workers, count):
    """Return two epochs of a new loader with the state of one that has given `count` batches."""
    old = loader(form, workers)
    batches = iter(old)
    given = epoch(islice(batches, count))
    given += epoch(batches) if count == 6 else ""
    state = copy.deepcopy(old.state_dict())
    new = loader(form, workers)
    new.load_state_dict(state)
    return [given, epoch(new), epoch(new)]


if __name__ == "__main__":
    for form, count in (("generator", 2), ("sampler", 6)):
        for workers in (0, 1):
            whole = loader(form, workers)
            right = [epoch(whole) for _ in range(3)]
            found = resumed(form, workers, count)
            print(f"{form}, {workers} workers: {right}; resumed after {count}: {found}")
            if count == 2:
                assert found[0] + found[1] == right[0]
                assert (found[2] == right[1]) == bool(workers)
            else:
                assert found[0] == right[0] and len(set(right)) == 3
                assert found[1] == right[1 if workers else 0]
EOF
"$folder/venv/bin/python" -W ignore "$folder/program.py"
echo "as described"
