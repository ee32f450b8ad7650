// Updates of several small variables by one rule; source.c precedes this file. A row has a
// gradient, a variable and the states of the variable. The loop for a single variable updates each
// row, so that the results have the same bits as those of separate updates.

enum { JOINED_SGD, JOINED_MOMENTUM, JOINED_ADAM, JOINED_LARS };

static void joined_row(int kind, void **r, long n, const float *rate, const float *factor,
                       const int64_t *step, float *change, double *sums, int parts,
                       const double *a) {
    switch (kind) {
        case JOINED_SGD: sgd(r[1], r[0], rate, factor, n, a[0], a[1], a[2], a[3]); break;
        case JOINED_MOMENTUM:
            momentum(r[1], r[0], r[2], rate, factor, n, a[0], a[1], a[2], a[3], a[4]);
            break;
        case JOINED_ADAM:
            adam(r[1], r[0], r[2], r[3], rate, factor, n, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
            break;
        case JOINED_LARS:
            lars(r[1], r[0], r[2], rate, factor, step, sums, n, parts, a[0], a[1], a[2], a[3], a[4],
                 a[5], a[6], a[7]);
            break;
        default:
            lamb(r[1], r[0], r[2], r[3], r[4], r[5], rate, factor, change, sums, n, parts, a[0],
                 a[1], a[2], a[3], a[4], a[5], a[6]);
    }
}

// sizes: for each row, its number of elements, and that of all rows before it; sums: a pair of sums
// per row and part
void joined_updates(int kind, void **rows, const long *sizes, long count, long width,
                    const float *rate, const float *factor, const int64_t *step, float *change,
                    double *sums, int most, const double *numbers) {
    long all = sizes[2 * count - 2] + sizes[2 * count - 1];
#pragma omp parallel for if (all > PARALLEL) schedule(dynamic)
    for (long k = 0; k < count; k++) {
        long n = sizes[2 * k];
        int parts = 1;  // the same rule as in threads.partition_count
        while (2 * parts <= most && 2 * parts * PARALLEL <= n) parts *= 2;
        joined_row(kind, rows + k * width, n, rate, factor, step, change + sizes[2 * k + 1],
                   sums + 2 * k * most, parts, numbers);
    }
}
