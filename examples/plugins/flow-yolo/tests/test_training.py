"""The ops in jobs: gradients, and the name of the library that they replace."""

import numpy as np
import pytest
from flow_yolo.specs import ANCHORS, SMALL

import oneflow as flow
import oneflow.typing as tp


@pytest.fixture(autouse=True)
def session():
    flow.clear_default_session()
    yield
    flow.clear_default_session()


def build(op, inputs, outputs, **attrs):
    builder = flow.user_op_builder(op).Op(op)
    for name, blob in inputs.items():
        builder = builder.Input(name, [blob])
    for name in outputs:
        builder = builder.Output(name)
    for name, value in attrs.items():
        builder = builder.Attr(name, value)
    return builder.Build().InferAndTryRun().RemoteBlobList()


def assigned(bbox, truth, labels, count):
    inputs = {"bbox": bbox, "gt_boxes": truth, "gt_labels": labels, "gt_valid_num": count}
    outputs = ("bbox_loc_diff", "pos_inds", "pos_cls_label", "neg_inds", "valid_num",
               "statistics_info")  # fmt: skip
    thresholds = {"ignore_thresh": 0.5, "truth_thresh": 1.0}
    return build("yolo_box_diff", inputs, outputs, **SMALL, **thresholds,
                 anchor_boxes=ANCHORS, box_mask=(0, 1, 2))  # fmt: skip


def test_the_library_of_oneflow_yolov3_needs_no_loading():
    flow.config.load_library("/anywhere/liboneflow_yolov3.so")


def test_a_layer_learns_the_true_boxes():
    """A rate of 1 moves each assigned box to its true box; other probabilities go to 0."""

    @flow.global_function(type="train")
    def job(
        truth: tp.Numpy.Placeholder((1, 2, 4)),
        labels: tp.Numpy.Placeholder((1, 2), dtype=flow.int32),
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        def variable(name, *shape):
            return flow.get_variable(name, shape, initializer=flow.constant_initializer(0.25))

        count = flow.constant(2, dtype=flow.int32, shape=(1, 1))
        bbox = variable("bbox", 1, 18, 4)
        diff, pos, label, neg, valid, statistics = assigned(bbox, truth, labels, count)
        objects, classes = variable("objects", 1, 18, 1), variable("classes", 1, 18, 5)
        inputs = {
            "bbox_objness": build("logistic", {"in": objects}, ("out",))[0],
            "bbox_clsprob": classes, "pos_inds": pos, "pos_cls_label": label, "neg_inds": neg,
            "valid_num": valid,
        }  # fmt: skip
        outputs = ("bbox_objness_out", "bbox_clsprob_out")
        found = build("yolo_prob_loss", inputs, outputs, num_classes=5)
        loss = sum(flow.math.reduce_sum(x) for x in (diff, *found))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return diff, pos, valid, statistics, label

    # boxes of the size of anchors 0 and 2, at the centers of cells (1, 0) and (2, 1)
    truth = np.array(
        [[[0.25, 0.5, 8 / 32, 12 / 48], [0.75, 2.5 / 3, 30 / 32, 40 / 48]]], np.float32
    )
    labels = np.array([[4, 2]], np.int32)
    diff, pos, valid, statistics, label = job(truth, labels)
    boxes = [(1 * 2 + 0) * 3 + 0, (2 * 2 + 1) * 3 + 2]
    assert valid[0, 0] == 2
    assert pos[0, :2].tolist() == boxes
    assert label[0, boxes].tolist() == [4, 2]
    assert statistics[0, 3] == 2
    scale = 2 - truth[0, :, 2] * truth[0, :, 3]
    wanted = scale[:, None] * (0.25 - np.array([0.5, 0.5, 0, 0]))
    np.testing.assert_allclose(diff[0, boxes], wanted, atol=1e-6)
    assert not np.delete(diff[0], boxes, 0).any()
    variables = {name: x.numpy()[0] for name, x in flow.get_all_variables().items()}
    np.testing.assert_allclose(variables["bbox"][boxes], 0.25 - wanted, atol=1e-6)
    hot = np.eye(5)[[4, 2]]
    np.testing.assert_allclose(variables["classes"][boxes], hot, atol=1e-6)
    sigmoid = 1 / (1 + np.exp(-0.25))
    chosen = variables["objects"][boxes, 0]
    np.testing.assert_allclose(chosen, 0.25 - (sigmoid - 1), atol=1e-6)
