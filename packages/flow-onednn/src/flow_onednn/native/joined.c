// Updates by the rules of updates.py, of one variable or of several small ones. A row has a variable,
// its gradient and the states of the variable.

void update(int kind, void **x, const float *rate, const float *factor, const int64_t *step,
            double *sums, long n, int parts, const double *numbers) {
    UPDATES[kind](x, rate, factor, step, sums, n, parts, numbers);
}

// sizes: the number of elements of each row; sums: a pair of sums per row and part
void joined_updates(int kind, void **rows, const long *sizes, long count, long width,
                    const float *rate, const float *factor, const int64_t *step, double *sums,
                    int most, const double *numbers) {
    long all = 0;
    for (long k = 0; k < count; k++) all += sizes[k];
#pragma omp parallel for if (all > PARALLEL) schedule(dynamic)
    for (long k = 0; k < count; k++) {
        int parts = 1;  // the same rule as in threads.partition_count
        while (2 * parts <= most && 2 * parts * PARALLEL <= sizes[k]) parts *= 2;
        UPDATES[kind](rows + k * width, rate, factor, step, sums + 2 * k * most, sizes[k], parts,
                      numbers);
    }
}
