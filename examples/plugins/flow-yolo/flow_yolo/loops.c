// Included twice, with REAL defined as float and as double, and NAME(f) as f_f32 and f_f64.
// All arithmetic is in double. Boxes are (x, y, w, h), with the center at (x, y).

static double NAME(overlap)(const double *a, const double *b) {
    double w = fmin(a[0] + a[2] / 2, b[0] + b[2] / 2) - fmax(a[0] - a[2] / 2, b[0] - b[2] / 2);
    double h = fmin(a[1] + a[3] / 2, b[1] + b[3] / 2) - fmax(a[1] - a[3] / 2, b[1] - b[3] / 2);
    if (w < 0 || h < 0) return 0;
    return w * h / (a[2] * a[3] + b[2] * b[3] - w * h);
}

static void NAME(take)(const REAL *x, double *box) {
    for (int k = 0; k < 4; k++) box[k] = x[k];
}

// sizes: images, boxes, true boxes, anchors, anchors per cell, layer height and width, image height
// and width. match has one number per box.
void NAME(box_diff)(const REAL *bbox, const REAL *truth, const int32_t *labels,
                    const int32_t *counts, REAL *diff, int32_t *pos, int32_t *label, int32_t *neg,
                    int32_t *valid, float *statistics, int32_t *match, const int32_t *anchors,
                    const int32_t *mask, const long *sizes, double ignore, double accept) {
    long images = sizes[0], boxes = sizes[1], most = sizes[2], per_cell = sizes[4];
    double high = sizes[5], wide = sizes[6], image_high = sizes[7], image_wide = sizes[8];
    for (long image = 0; image < images; image++) {
        long count = counts[image] < 0 ? 0 : counts[image] > most ? most : counts[image];
        double sums[5] = {0}, box[4], other[4];
        for (long i = 0; i < boxes; i++) {
            long cell = i / per_cell, anchor = mask[i % per_cell];
            box[0] = (bbox[4 * i] + (double)(cell % sizes[6])) / wide;
            box[1] = (bbox[4 * i + 1] + (double)(cell / sizes[6])) / high;
            box[2] = exp(bbox[4 * i + 2]) * anchors[2 * anchor] / image_wide;
            box[3] = exp(bbox[4 * i + 3]) * anchors[2 * anchor + 1] / image_high;
            double best = 0;
            match[i] = -1;
            for (long j = 0; j < count; j++) {
                NAME(take)(truth + 4 * j, other);
                double found = NAME(overlap)(box, other);
                if (found > best) {
                    best = found;
                    match[i] = found <= ignore ? -1 : found > accept ? (int32_t)j : -2;
                }
            }
        }
        for (long j = 0; j < count; j++) {
            double best = 0, size[4] = {0, 0, truth[4 * j + 2], truth[4 * j + 3]};
            long nearest = -1;
            for (long k = 0; k < sizes[3]; k++) {
                double anchor[4] = {0, 0, anchors[2 * k] / image_wide,
                                    anchors[2 * k + 1] / image_high};
                double found = NAME(overlap)(size, anchor);
                if (found > best) best = found, nearest = k;
            }
            double column = floor(truth[4 * j] * wide), row = floor(truth[4 * j + 1] * high);
            int inside = column >= 0 && column < wide && row >= 0 && row < high;
            for (long k = 0; k < per_cell && inside; k++) {
                if (mask[k] != nearest) continue;
                long i = ((long)row * sizes[6] + (long)column) * per_cell + k;
                match[i] = (int32_t)j;
                box[0] = (bbox[4 * i] + column) / wide;
                box[1] = (bbox[4 * i + 1] + row) / high;
                box[2] = exp(bbox[4 * i + 2]) * anchors[2 * nearest] / image_wide;
                box[3] = exp(bbox[4 * i + 3]) * anchors[2 * nearest + 1] / image_high;
                NAME(take)(truth + 4 * j, other);
                double found = NAME(overlap)(box, other);
                sums[0] += found;
                sums[1] += found > 0.5;
                sums[2] += found > 0.75;
                sums[3] += 1;
                sums[4] += 1;
            }
        }
        for (int k = 0; k < 5; k++) statistics[k] = (float)sums[k];
        valid[0] = valid[1] = 0;
        for (long i = 0; i < boxes; i++) {
            long j = match[i], cell = i / per_cell, anchor = mask[i % per_cell];
            label[i] = pos[i] = neg[i] = -1;
            for (int k = 0; k < 4; k++) diff[4 * i + k] = 0;
            if (j == -1) neg[valid[1]++] = (int32_t)i;
            if (j < 0) continue;
            pos[valid[0]++] = (int32_t)i;
            label[i] = labels[j];
            NAME(take)(truth + 4 * j, other);
            double scale = 2 - other[2] * other[3];
            double wanted[4] = {other[0] * wide - (double)(cell % sizes[6]),
                                other[1] * high - (double)(cell / sizes[6]),
                                log(other[2] * image_wide / anchors[2 * anchor]),
                                log(other[3] * image_high / anchors[2 * anchor + 1])};
            for (int k = 0; k < 4; k++)
                diff[4 * i + k] = (REAL)(scale * (bbox[4 * i + k] - wanted[k]));
        }
        bbox += 4 * boxes, truth += 4 * most, labels += most, diff += 4 * boxes;
        pos += boxes, label += boxes, neg += boxes, valid += 2, statistics += 5;
    }
}

// sizes: images, boxes, classes
void NAME(prob_loss)(const REAL *object, const REAL *class, const int32_t *label,
                     const int32_t *pos, const int32_t *neg, const int32_t *valid, REAL *object_out,
                     REAL *class_out, const long *sizes) {
    long images = sizes[0], boxes = sizes[1], classes = sizes[2];
    for (long i = 0; i < images * boxes; i++) object_out[i] = 0;
    for (long i = 0; i < images * boxes * classes; i++) class_out[i] = 0;
    for (long image = 0; image < images; image++) {
        for (int wanted = 1; wanted >= 0; wanted--) {
            const int32_t *indices = wanted ? pos : neg;
            for (long k = 0; k < boxes && k < valid[1 - wanted]; k++) {
                long i = indices[k];
                if (0 <= i && i < boxes) object_out[i] = object[i] - wanted;
            }
        }
        for (long k = 0; k < boxes && k < valid[0]; k++) {
            long i = pos[k];
            for (long c = 0; 0 <= i && i < boxes && c < classes; c++)
                class_out[i * classes + c] = class[i * classes + c] - (c == label[i]);
        }
        object += boxes, class += boxes * classes, label += boxes, pos += boxes, neg += boxes;
        valid += 2, object_out += boxes, class_out += boxes * classes;
    }
}

// sizes: images, boxes, classes, most results, anchors, layer height and width, image height and
// width. Returns whether all pictures have a height and a width.
int NAME(detect)(const REAL *bbox, const REAL *probs, const int32_t *original, REAL *out_bbox,
                 REAL *out_probs, int32_t *valid, const int32_t *anchors, const long *sizes,
                 double threshold) {
    long boxes = sizes[1], columns = sizes[2] + 1, most = sizes[3], per_cell = sizes[4];
    double image_high = sizes[7], image_wide = sizes[8];
    for (long image = 0; image < sizes[0]; image++) {
        int64_t height = original[2 * image], width = original[2 * image + 1];
        if (height < 1 || width < 1) return 0;
        double high = image_high, wide = image_wide;
        if (image_wide / width < image_high / height)
            high = height * (int64_t)sizes[8] / width;
        else
            wide = width * (int64_t)sizes[7] / height;
        long found = 0;
        for (long i = 0; i < boxes && found < most; i++) {
            const REAL *prob = probs + i * columns, *x = bbox + 4 * i;
            long cell = i / per_cell;
            if (!(prob[0] > threshold)) continue;
            REAL *to = out_probs + found * columns, *box = out_bbox + 4 * found;
            to[0] = prob[0];
            for (long c = 1; c < columns; c++) {
                double product = (double)prob[c] * prob[0];
                to[c] = product > threshold ? (REAL)product : 0;
            }
            double left = (x[0] + (double)(cell % sizes[6])) / sizes[6];
            double top = (x[1] + (double)(cell / sizes[6])) / sizes[5];
            box[0] = (REAL)((left - (image_wide - wide) / 2 / image_wide) / (wide / image_wide));
            box[1] = (REAL)((top - (image_high - high) / 2 / image_high) / (high / image_high));
            box[2] = (REAL)(exp(x[2]) * anchors[2 * (i % per_cell)] / wide);
            box[3] = (REAL)(exp(x[3]) * anchors[2 * (i % per_cell) + 1] / high);
            found++;
        }
        valid[image] = (int32_t)found;
        for (long k = 4 * found; k < 4 * most; k++) out_bbox[k] = 0;
        for (long k = columns * found; k < columns * most; k++) out_probs[k] = 0;
        bbox += 4 * boxes, probs += columns * boxes;
        out_bbox += 4 * most, out_probs += columns * most;
    }
    return 1;
}

void NAME(nms)(const REAL *bbox, const REAL *probs, int8_t *keep, int8_t *dropped, long sets,
               long boxes, double threshold, long most) {
    double box[4], other[4];
    for (long set = 0; set < sets; set++) {
        long kept = 0;
        for (long i = 0; i < boxes; i++) keep[i] = dropped[i] = 0;
        for (long i = 0; i < boxes && kept < most && probs[0] != 0; i++) {
            if (dropped[i]) continue;
            keep[i] = 1;
            kept++;
            NAME(take)(bbox + 4 * i, box);
            for (long j = i + 1; j < boxes; j++) {
                NAME(take)(bbox + 4 * j, other);
                if (NAME(overlap)(box, other) > threshold) dropped[j] = 1;
            }
        }
        bbox += 4 * boxes, probs += boxes, keep += boxes;
    }
}
