// Products of few rows with transposed weights, whose rows are read once, as they lie.  The library
// copies such weights to another layout first, which takes longer than the product.

// Multiply `rows` rows of x by 4 rows of w, and write the columns of the result from `from` on.
//
// All columns are computed in blocks of 4: for other numbers, compilers choose other contractions of
// products and sums, and the bits of a column would depend on where it lies.
static inline __attribute__((always_inline)) void few_rows_block(
    const float *x, const float *w, const float *bias, float *y, long deep, long columns,
    const int rows, int from, float alpha, int relu) {
    Vector sums[2][4] = {{{0}}};
    long whole = deep / LANES * LANES;
    for (long k = 0; k < whole; k += LANES) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            Vector right = *(const Vector *)(w + j * deep + k);
#pragma GCC unroll 2
            for (int i = 0; i < rows; i++) sums[i][j] += *(const Vector *)(x + i * deep + k) * right;
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            float sum = 0.0f;
            for (int l = 0; l < LANES; l++) sum += sums[i][j][l];
            for (long k = whole; k < deep; k++) sum += x[i * deep + k] * w[j * deep + k];
            sum = alpha * sum + (bias ? bias[j] : 0.0f);
            if (j >= from) y[i * columns + j] = relu && sum < 0.0f ? 0.0f : sum;
        }
    }
}

// Compute y = activation(alpha x w' + bias) for row-major x (rows, deep), with 1 or 2 rows, and
// w (columns, deep), with at least 4 columns.  The last block begins earlier if it would end behind
// the last column.
void few_rows(const float *x, const float *w, const float *bias, float *y, long rows, long deep,
              long columns, float alpha, int relu) {
#pragma omp parallel for if (deep * columns > PARALLEL) schedule(static)
    for (long first = 0; first < columns; first += 4) {
        long j = first + 4 <= columns ? first : columns - 4;
        const float *b = w + j * deep, *c = bias ? bias + j : 0;
        if (rows == 1)
            few_rows_block(x, b, c, y + j, deep, columns, 1, first - j, alpha, relu);
        else
            few_rows_block(x, b, c, y + j, deep, columns, 2, first - j, alpha, relu);
    }
}
