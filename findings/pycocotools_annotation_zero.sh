#!/usr/bin/env bash
# pycocotools 2.0.11: a ground-truth annotation whose id is 0 never counts as found.  `COCOeval`
# stores the id of the annotation that a detection matches, and takes 0 for "no match", so that a
# perfect detection is a false positive.  Nothing is printed.  Data sets that number their annotations
# from 0 (the format asks for unique ids only) get a precision that is too low by one object.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: average precision of one perfect box: id 0: 0.0,
# id 1: 1.0, id 7: 1.0
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

BOX = [10, 10, 30, 30]


def precision(number):
    """Return the average precision of a perfect detection of one object with this id."""
    truth = COCO()
    truth.dataset = {
        "images": [{"id": 1, "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": number, "image_id": 1, "category_id": 1, "bbox": BOX, "area": 900, "iscrowd": 0}
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes([{"image_id": 1, "category_id": 1, "bbox": BOX, "score": 0.9}])
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return round(float(evaluation.stats[0]), 3)


seen = {number: precision(number) for number in (0, 1, 7)}
print(seen)
assert seen == {0: 0.0, 1: 1.0, 7: 1.0}
print("as described")
END
