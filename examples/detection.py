"""Train a detector on images with different numbers of objects.

Each image has one to four bright rectangles. Their boxes are ragged: a list of arrays of different
lengths, which a job flips together with the images, as training on photographs does. The detector
divides the image into 8 x 8 cells and predicts for each cell whether the center of an object is in
it, and the object's box.
"""

import sys

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, SIZE, CELLS, MOST = 400, 16, 64, 8, 4
CELL = SIZE // CELLS
PICTURE = "detection.png"
HE = flow.variance_scaling_initializer(2.0, "fan_in", "truncated_normal")
IMAGES = tp.Numpy.Placeholder((BATCH, 1, SIZE, SIZE))


@flow.global_function(type="predict")
def flip(
    images: IMAGES,
    boxes: tp.ListListNumpy.Placeholder((BATCH, MOST, 4)),
    codes: tp.Numpy.Placeholder((BATCH,), dtype=flow.int8),
) -> tuple[tp.Numpy, tp.ListListNumpy]:
    """Flip the images whose code is 1 horizontally, and their boxes with them."""
    ragged = flow.tensor_list_to_tensor_buffer(boxes)
    sizes = flow.constant(SIZE, flow.int32, (BATCH, 2))
    flipped = flow.object_bbox_flip(ragged, sizes, codes)
    mirrored = flow.reverse(images, axis=3)
    chosen = flow.reshape(flow.cast(codes, flow.float), (BATCH, 1, 1, 1))
    images = images + (mirrored - images) * chosen
    return images, flow.tensor_buffer_to_tensor_list(flipped, (MOST, 4), flow.float)


def network(images):
    """Return for each cell a score, the center's offset and the logarithm of the size."""
    x = images
    for name, filters, stride in (("c1", 16, 2), ("c2", 32, 2), ("c3", 32, 2), ("c4", 64, 1)):
        x = flow.layers.conv2d(
            x, filters, 3, stride, "SAME", activation=flow.nn.relu, kernel_initializer=HE, name=name
        )
    return flow.layers.conv2d(x, 5, 3, 1, "SAME", kernel_initializer=HE, name="output")


@flow.global_function(type="train")
def train(
    images: IMAGES,
    objects: tp.Numpy.Placeholder((BATCH, 1, CELLS, CELLS)),
    boxes: tp.Numpy.Placeholder((BATCH, 4, CELLS, CELLS)),
) -> tp.Numpy:
    found = network(images)
    scores = flow.slice(found, [None, 0, None, None], [None, 1, None, None])
    places = flow.slice(found, [None, 1, None, None], [None, 4, None, None])
    score_loss = flow.nn.sigmoid_cross_entropy_with_logits(objects, scores)
    place_loss = flow.math.square(places - boxes) * objects
    loss = flow.math.reduce_mean(score_loss) + 5 * flow.math.reduce_mean(place_loss)
    flow.optimizer.Adam(3e-3, do_bias_correction=True).minimize(loss)
    return loss


@flow.global_function(type="predict")
def detect(images: IMAGES) -> tp.Numpy:
    return network(images)


def sample(rng):
    """Return an image and the boxes of its rectangles: xmin, ymin, xmax, ymax."""
    image = rng.normal(0, 0.1, (SIZE, SIZE)).astype(np.float32)
    count = rng.integers(1, MOST + 1)
    # Corners in different quadrants: the rectangles do not overlap.
    quadrants = rng.permutation(4)[:count]
    corner = np.stack([quadrants % 2, quadrants // 2], axis=1) * 32 + rng.integers(
        1, 12, (count, 2)
    )
    boxes = np.concatenate([corner, corner + rng.integers(8, 18, (count, 2))], axis=1)
    for left, top, right, bottom in boxes:
        image[top:bottom, left:right] += 1
    return image[np.newaxis], boxes.astype(np.float32)


def targets(boxes):
    """Return which cells have an object, and its offset and size, for each image's boxes."""
    objects = np.zeros((BATCH, 1, CELLS, CELLS), np.float32)
    places = np.zeros((BATCH, 4, CELLS, CELLS), np.float32)
    for number, rows in enumerate(boxes):
        center = (rows[:, :2] + rows[:, 2:]) / 2
        column, row = (center // CELL).astype(int).T
        objects[number, 0, row, column] = 1
        size = np.log((rows[:, 2:] - rows[:, :2]) / CELL)
        places[number, :, row, column] = np.concatenate([center / CELL % 1, size], axis=1)
    return objects, places


def decoded(found):
    """Return the boxes that a network's result means, for one image."""
    row, column = np.nonzero(found[0] > 0)
    offset, size = found[1:3, row, column].T, np.exp(found[3:, row, column].T) * CELL
    center = (np.stack([column, row], axis=1) + offset) * CELL
    return np.concatenate([center - size / 2, center + size / 2], axis=1)


def overlaps(boxes, others):
    """Return the intersection over union of all pairs."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(b[:, 2:] - b[:, :2], axis=1) for b in (boxes, others)]
    return both / (areas[0][:, None] + areas[1] - both)


def draw(images, results):
    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, parts = pyplot.subplots(1, 4, figsize=(8, 2.2), layout="constrained")
    for axes, image, result in zip(parts, images, results, strict=False):
        axes.imshow(image[0], cmap="gray")
        for left, top, right, bottom in decoded(result):
            size = right - left, bottom - top
            axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor="C1", linewidth=2))
        axes.axis("off")
    figure.savefig(PICTURE, dpi=55)  # noise compresses badly


def main():
    rng = np.random.default_rng(0)

    def batch():
        images, boxes = zip(*(sample(rng) for _ in range(BATCH)), strict=True)
        return np.stack(images), list(boxes)

    for _ in range(STEPS):
        images, boxes = batch()
        images, (boxes,) = flip(
            images, [[b[np.newaxis] for b in boxes]], rng.integers(0, 2, BATCH).astype(np.int8)
        )
        loss = train(images, *targets([b[0] for b in boxes]))
    right = wanted = claimed = 0
    for _ in range(8):
        images, boxes = batch()
        results = detect(images)
        for rows, result in zip(boxes, results, strict=True):
            found = decoded(result)
            wanted, claimed = wanted + len(rows), claimed + len(found)
            right += int((overlaps(rows, found).max(axis=1, initial=0) > 0.5).sum())
    draw(images, results)
    print(f"{STEPS} steps, loss {loss.item():.3f}")
    print(f"{right} of {wanted} objects found with an overlap above 0.5; {claimed} boxes predicted")
    return 0 if right > 0.8 * wanted and claimed < 1.1 * wanted else 1


if __name__ == "__main__":
    sys.exit(main())
