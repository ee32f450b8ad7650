// Products of few rows with weights that are packed once.
//
// Weights are stored in panels of PANEL columns, of which the last one has the remaining columns,
// rounded up to a multiple of UNIT. Each element of the result is one sum in the order of the rows of
// the weights: its bits depend neither on other rows of x nor on threads.

#define PANEL 128
#define UNIT 16
#define DEEP 256  // rows of a panel that stay in the cache while all columns are multiplied
#define ROWS 8
// The largest numbers of rows for which there are registers for 8, 4 and 2 vectors of columns.
#if defined(__AVX512F__)
enum { ROWS_8 = 3, ROWS_4 = 6, ROWS_2 = ROWS };
#else
enum { ROWS_8 = 1, ROWS_4 = 3, ROWS_2 = 5 };
#endif

// Add the products of rows of x and of vectors of columns of a panel to a block of sums.
INLINED void panel_block(const float *x, long stride, const float *w, long width, long deep,
                         float *to, const int rows, const int vectors) {
    Vector sums[ROWS][8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sums[i][v] = *(Vector *)(to + i * PANEL + v * LANES);
    for (long k = 0; k < deep; k++, w += width) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            Vector right = *(const Vector *)(w + v * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) sums[i][v] += x[i * stride + k] * right;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) *(Vector *)(to + i * PANEL + v * LANES) = sums[i][v];
}

#define BLOCK(rows, vectors) \
    { \
        panel_block(x, stride, w + j, width, deep, sums + j, rows, vectors); \
        j += vectors * LANES; \
    }
#define BLOCKS(rows) \
    case rows: \
        if (rows <= ROWS_8 && columns - j > 7 * LANES) BLOCK(rows, 8) \
        else if (rows <= ROWS_4 && columns - j > 3 * LANES) BLOCK(rows, 4) \
        else if (rows <= ROWS_2 && columns - j > LANES) BLOCK(rows, 2) \
        else BLOCK(rows, 1) \
        break;

// Do the same for all columns.
static void panel_rows(const float *x, long stride, const float *w, long width, long deep,
                       float *sums, long columns, long rows) {
    for (long j = 0; j < columns;)
        switch (rows) {
            BLOCKS(1) BLOCKS(2) BLOCKS(3) BLOCKS(4) BLOCKS(5) BLOCKS(6) BLOCKS(7) BLOCKS(8)
        }
}

// Compute y = activation(x w + bias) for row-major x (rows, deep) and y (rows, columns). Threads
// compute strips of columns.
void panels(const float *x, const float *w, const float *bias, float *y, long rows, long deep,
            long columns, int relu) {
    long blocks = (rows + ROWS - 1) / ROWS, strip = PANEL, threads = omp_get_max_threads();
    while (strip > UNIT && blocks * ((columns + strip - 1) / strip) < threads) strip /= 2;
    long strips = (columns + strip - 1) / strip;
#pragma omp parallel for if (rows * deep * columns > 4 * PARALLEL) schedule(static)
    for (long u = 0; u < strips * blocks; u++) {
        long first = u / blocks * strip, panel = first / PANEL * PANEL, left = columns - panel;
        long low = rows * (u % blocks) / blocks, count = rows * (u % blocks + 1) / blocks - low;
        long width = left < PANEL ? (left + UNIT - 1) / UNIT * UNIT : PANEL;
        long own = columns - first < strip ? columns - first : strip;
        const float *from = x + low * deep, *part = w + panel * deep + (first - panel);
        float sums[ROWS * PANEL] = {0}, *to = y + low * columns + first;
        for (long k = 0; k < deep; k += DEEP) {
            long run = deep - k < DEEP ? deep - k : DEEP;
            panel_rows(from + k, deep, part + k * width, width, run, sums, own, count);
        }
        for (long i = 0; i < count; i++)
#pragma omp simd
            for (long j = 0; j < own; j++) {
                float sum = sums[i * PANEL + j] + (bias ? bias[first + j] : 0.0f);
                to[i * columns + j] = relu && sum < 0.0f ? 0.0f : sum;
            }
    }
}
