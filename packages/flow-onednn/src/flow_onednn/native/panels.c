// Products of few rows with weights that are packed once.
//
// Weights are stored in panels of PANEL columns, of which the last one has the remaining columns,
// rounded up to a multiple of UNIT. Each element of the result is one sum in the order of the rows of
// the weights: its bits depend neither on other rows of x nor on threads.

#define PANEL 64
#define UNIT 16
#define WIDE 4  // vectors of a block; blocks of more than FEW rows have half as many
#if defined(__AVX512F__)
#define FEW 6
#else
#define FEW 3  // there are half as many registers
#endif
#define ROWS (2 * FEW)  // rows of a block

typedef struct {
    long deep, columns, width;
    int relu;
} Panel;

// Write a block of the result: up to ROWS rows and `vectors` vectors of columns, of which `count`
// columns exist, from rows of x and columns of a panel.
INLINED void panel_block(const Panel *p, const float *x, const float *w, const float *bias,
                         float *y, long count, const int rows, const int vectors) {
    Vector sums[ROWS][WIDE] = {{{0}}};
    for (long k = 0; k < p->deep; k++, w += p->width) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            Vector right = *(const Vector *)(w + v * LANES);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) sums[i][v] += x[i * p->deep + k] * right;
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        long left = count - v * LANES;
        float added[LANES] = {0};
        if (bias && left > 0) memcpy(added, bias + v * LANES, 4 * (left < LANES ? left : LANES));
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            Vector sum = sums[i][v] + *(const Vector *)added;
            if (p->relu) sum = (Vector)((Mask)sum & ~(Mask)(sum < 0.0f));  // NaN is not below 0
            float *to = y + i * p->columns + v * LANES;
            if (left >= LANES) *(Vector *)to = sum;
            else
                for (long j = 0; j < left; j++) to[j] = sum[j];
        }
    }
}

#define BLOCK(rows, vectors) panel_block(p, x, w, bias, y, count, rows, vectors)
#define BLOCKS(rows) \
    case rows: \
        if (rows <= FEW && count > 3 * LANES) BLOCK(rows, 4); \
        else if (rows <= FEW && count > 2 * LANES) BLOCK(rows, 3); \
        else if (count > LANES) BLOCK(rows, 2); \
        else BLOCK(rows, 1); \
        break;

// Write `rows` rows of the `columns` columns of a panel.
static void panel_rows(const Panel *p, const float *x, const float *w, const float *bias, float *y,
                       long columns, long rows) {
    long wide = (rows > FEW ? WIDE / 2 : WIDE) * LANES;
    for (long j = 0; j < columns; j += wide, w += wide, y += wide) {
        long count = columns - j;
        switch (rows) {
            BLOCKS(1) BLOCKS(2) BLOCKS(3) BLOCKS(4) BLOCKS(5) BLOCKS(6)
#if FEW > 3
            BLOCKS(7) BLOCKS(8) BLOCKS(9) BLOCKS(10) BLOCKS(11) BLOCKS(12)
#endif
        }
        bias = bias ? bias + wide : 0;
    }
}

// Compute y = activation(x w + bias) for row-major x (rows, deep) and y (rows, columns).
void panels(const float *x, const float *w, const float *bias, float *y, long rows, long deep,
            long columns, int relu) {
    long count = (columns + PANEL - 1) / PANEL, blocks = (rows + ROWS - 1) / ROWS;
#pragma omp parallel for if (rows * deep * columns > 4 * PARALLEL) schedule(static)
    for (long u = 0; u < count * blocks; u++) {
        long first = u / blocks * PANEL, low = rows * (u % blocks) / blocks;
        long high = rows * (u % blocks + 1) / blocks, left = columns - first;
        long own = left < PANEL ? left : PANEL;
        Panel p = {deep, columns, (own + UNIT - 1) / UNIT * UNIT, relu};
        panel_rows(&p, x + low * deep, w + first * deep, bias ? bias + first : 0,
                   y + low * columns + first, own, high - low);
    }
}
