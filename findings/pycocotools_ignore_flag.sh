#!/usr/bin/env bash
# pycocotools 2.0.11: `COCOeval` reads the field `ignore` of a ground-truth annotation, and then
# overwrites it by `iscrowd` on the next line.  An object that a data set marks with "ignore": 1 is
# counted as missed; only "iscrowd": 1 leaves it out.  The overwritten value stays in the data set.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: average precision of a perfect detection of one
# of two objects, the other plain: 0.505; with "ignore": 1: 0.505; with "iscrowd": 1: 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycocotools==2.0.11 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import contextlib
import io

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

FOUND, MISSED = [10, 10, 30, 30], [60, 60, 30, 30]


def precision(**flags):
    """Return the average precision if one of two objects is found, and the other has flags."""
    same = {"image_id": 1, "category_id": 1, "area": 900, "iscrowd": 0}
    truth = COCO()
    truth.dataset = {
        "images": [{"id": 1, "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            same | {"id": 1, "bbox": FOUND},
            same | {"id": 2, "bbox": MISSED} | flags,
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes([{"image_id": 1, "category_id": 1, "bbox": FOUND, "score": 0.9}])
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return round(float(evaluation.stats[0]), 3), truth.anns[2]["ignore"]


seen = [precision(), precision(ignore=1), precision(iscrowd=1)]
print(seen)
assert seen == [(0.505, 0), (0.505, 0), (1.0, 1)]
print("as described")
END
