// Optimizer updates.  W: the variable, G: its gradient, S: states.  Scalars are multiplied in
// double first, so that a rate of 6 times a scale of 1/6 is 1.

struct Terms { double scale, l1, l2, decay; };

template <class V, class G>
FN V slope(const G *g, V w, i64 i, double scale, const Terms &t) {
    return (V)load(g + i) * (V)scale + sign_(w) * (V)t.l1 + w * (V)t.l2;
}

#define SCALE (factor ? terms.scale * (double)load(factor) : terms.scale)
#define UNLESS_SKIPPED if (skip && *skip) return;

// The threads that share a variable: all, or some blocks of a launch that updates many.
struct Part { i64 first, step; };
FN Part whole() {
    Part part = {first_item(), all_threads()};
    return part;
}
FN Part whole_blocks() {
    Part part = {(i64)blockIdx.x, (i64)gridDim.x};
    return part;
}
#define EACH_OF(part, i, count) for (i64 i = part.first; i < (count); i += part.step)

// Row ``t`` of a table has the first block of a variable, then its arguments of 8 bytes each.
FN const u64 *row_of_block(const u64 *table, i64 rows, i64 words) {
    i64 low = 0, high = rows - 1;
    while (low < high) {
        i64 middle = (low + high + 1) / 2;
        if ((i64)table[middle * words] <= (i64)blockIdx.x) low = middle; else high = middle - 1;
    }
    return table + low * words;
}
FN Part part_of_block(const u64 *row, i64 words, i64 rows, const u64 *table) {
    i64 own = (row - table) / words, first = (i64)row[0];
    i64 stop = own + 1 < rows ? (i64)row[words] : (i64)gridDim.x;
    Part part = {(i64)blockIdx.x - first, stop - first};
    return part;
}
FN Part threads_of(Part blocks) {
    Part part = {blocks.first * BLOCK + threadIdx.x, blocks.step * BLOCK};
    return part;
}

template <class W, class G, class F>
FN void sgd(W *w, const G *g, const float *rate, const F *factor, const i64 *skip, i64 n, Terms terms, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i);
        store(w + i, now * (V)(1 - lr * terms.decay) - (V)lr * slope(g, now, i, scale, terms));
    }
}

template <class W, class G, class S, class F>
FN void momentum(W *w, const G *g, S *m, const float *rate, const F *factor, const i64 *skip, i64 n,
                 Terms terms, double beta, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms);
        V next = (V)load(m + i) * (V)beta - (V)lr * step;
        store(m + i, next);
        store(w + i, now * (V)(1 - lr * terms.decay) + next);
    }
}

template <class W, class G, class S, class F>
FN void adam(W *w, const G *g, S *m, S *v, const float *rate, const F *factor, const i64 *skip, i64 n,
             Terms terms, double beta1, double beta2, double epsilon, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms);
        V first = (V)load(m + i) * (V)beta1 + step * (V)(1 - beta1);
        V second = (V)load(v + i) * (V)beta2 + step * step * (V)(1 - beta2);
        store(m + i, first);
        store(v + i, second);
        V change = first / (sqrt_(second) + (V)epsilon);
        store(w + i, now * (V)(1 - lr * terms.decay) - (V)lr * change);
    }
}

template <class W, class G, class S, class F>
FN void rmsprop(W *w, const G *g, S *square, S *mean, const float *rate, const F *factor,
                const i64 *skip, i64 n, Terms terms, double decay, double epsilon, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms);
        V variance = (V)load(square + i) * (V)decay + step * step * (V)(1 - decay);
        store(square + i, variance);
        if (mean) {
            V average = (V)load(mean + i) * (V)decay + step * (V)(1 - decay);
            store(mean + i, average);
            variance = max_(variance - average * average, (V)0);
        }
        V change = step / sqrt_(variance + (V)epsilon);
        store(w + i, now * (V)(1 - lr * terms.decay) - (V)lr * change);
    }
}

template <class W, class G, class S, class F>
FN void adagrad(W *w, const G *g, S *squares, const float *rate, const F *factor, const i64 *skip,
                i64 n, Terms terms, double epsilon, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms);
        V total = (V)load(squares + i) + step * step;
        store(squares + i, total);
        V change = step / (sqrt_(total) + (V)epsilon);
        store(w + i, now * (V)(1 - lr * terms.decay) - (V)lr * change);
    }
}

template <class W, class G, class S, class F>
FN void lion(W *w, const G *g, S *m, const float *rate, const F *factor, const i64 *skip, i64 n,
             Terms terms, double beta1, double beta2, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, lr = *rate;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms), average = (V)load(m + i);
        V change = sign_(average * (V)beta1 + step * (V)(1 - beta1));
        store(m + i, average * (V)beta2 + step * (V)(1 - beta2));
        store(w + i, now * (V)(1 - lr * terms.decay) - (V)lr * change);
    }
}

// Sums of squares of the variable and of its gradient, a pair per part.
template <class W, class G, class F, class A>
FN void norms(const W *w, const G *g, const F *factor, A *sums, i64 n, i64 parts, Terms terms,
              Part own = whole_blocks()) {
    typedef typename In<W>::type V;
    double scale = SCALE;
    i64 length = (n + parts - 1) / parts;
    EACH_OF(own, part, parts) {
        i64 stop = part * length + length < n ? part * length + length : n;
        A first = 0, second = 0;
        for (i64 i = part * length + threadIdx.x; i < stop; i += BLOCK) {
            V now = load(w + i), step = slope(g, now, i, scale, terms);
            first += (A)now * (A)now;
            second += (A)step * (A)step;
        }
        first = over_block<Sum>(first);
        second = over_block<Sum>(second);
        if (threadIdx.x == 0) {
            sums[2 * part] = first;
            sums[2 * part + 1] = second;
        }
    }
}

template <class A> FN A norm_of(const A *sums, i64 parts, int which) {
    A sum = 0;
    for (i64 i = 0; i < parts; i++) sum += sums[2 * i + which];
    return sqrt_(sum);
}

template <class W, class G, class S, class F, class A>
FN void lars(W *w, const G *g, S *m, const float *rate, const i64 *train_step, const F *factor,
             const i64 *skip, const A *sums, i64 n, i64 parts, Terms terms, double beta,
             double epsilon, double coefficient, double zero_ratio, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE, root = sqrt((double)(n > 1 ? n : 1));
    double model = norm_of(sums, parts, 0) / root, diff = norm_of(sums, parts, 1) / root;
    double below = epsilon + diff + (*train_step ? terms.decay * model : 0.0);
    double local = below != 0 ? *rate * coefficient * model / below : 0.0;
    if (zero_ratio != 0 && (model == 0 || diff == 0)) local = *rate * zero_ratio;
    EACH_OF(part, i, n) {
        V now = load(w + i), step = slope(g, now, i, scale, terms);
        V next = (V)load(m + i) * (V)beta - (V)local * step - (V)(local * terms.decay) * now;
        store(m + i, next);
        store(w + i, now + next);
    }
}

// The LAMB update of an element before scaling by the rate.
template <class V> struct Lamb {
    double grow1, grow2, epsilon;
    __device__ V change(V first, V second) const {
        return first * (V)grow1 / sqrt_(second * (V)grow2 + (V)epsilon);
    }
};
template <class V, class S>
FN Lamb<V> lamb_of(const S *power1, const S *power2, double beta1, double beta2, double epsilon) {
    Lamb<V> lamb = {1 / (1 - (double)load(power1) * beta1), 1 / (1 - (double)load(power2) * beta2),
                    epsilon};
    return lamb;
}

// Updates the moments; sums of squares of the variable and of its update, a pair per part.
template <class W, class G, class S, class F, class A>
FN void lamb_norms(const W *w, const G *g, S *m, S *v, const S *power1, const S *power2,
                   const F *factor, const i64 *skip, A *sums, i64 n, i64 parts, Terms terms,
                   double beta1, double beta2, double epsilon, Part own = whole_blocks()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    double scale = SCALE;
    Lamb<V> lamb = lamb_of<V>(power1, power2, beta1, beta2, epsilon);
    i64 length = (n + parts - 1) / parts;
    EACH_OF(own, part, parts) {
        i64 stop = part * length + length < n ? part * length + length : n;
        A squares = 0, changes = 0;
        for (i64 i = part * length + threadIdx.x; i < stop; i += BLOCK) {
            V now = load(w + i), step = slope(g, now, i, scale, terms);
            store(m + i, (V)load(m + i) * (V)beta1 + step * (V)(1 - beta1));
            store(v + i, (V)load(v + i) * (V)beta2 + step * step * (V)(1 - beta2));
            A change = (A)lamb.change((V)load(m + i), (V)load(v + i));
            squares += (A)now * (A)now;
            changes += change * change;
        }
        squares = over_block<Sum>(squares);
        changes = over_block<Sum>(changes);
        if (threadIdx.x == 0) {
            sums[2 * part] = squares;
            sums[2 * part + 1] = changes;
        }
    }
}

template <class W, class S, class A>
FN void lamb_step(W *w, const S *m, const S *v, const S *power1, const S *power2, const A *sums,
                  const float *rate, const i64 *skip, i64 n, i64 parts, double decay, double beta1,
                  double beta2, double epsilon, Part part = whole()) {
    typedef typename In<W>::type V;
    UNLESS_SKIPPED
    Lamb<V> lamb = lamb_of<V>(power1, power2, beta1, beta2, epsilon);
    double model = norm_of(sums, parts, 0), size = norm_of(sums, parts, 1);
    double lr = *rate * (model > 0 && size > 0 ? model / size : 1.0);
    EACH_OF(part, i, n) {
        V now = load(w + i), change = lamb.change((V)load(m + i), (V)load(v + i));
        store(w + i, now * (V)(1 - lr * decay) - (V)lr * change);
    }
}

template <class S>
FN void grow_powers(S *power1, S *power2, const i64 *skip, double beta1, double beta2,
                    Part part = whole()) {
    UNLESS_SKIPPED
    if (part.first) return;
    store(power1, (double)load(power1) * beta1);
    store(power2, (double)load(power2) * beta2);
}

// --- per-step scalars

FN void advance(i64 *step) {
    if (first_item() == 0) *step += 1;
}

template <class T>
FN void correct_rate(const T *rate, const i64 *step, T *out, double beta1, double beta2) {
    if (first_item()) return;
    double now = *step < 0 ? 1 : (double)*step + 1;  // steps count from 1
    store(out, (double)load(rate) * sqrt(1 - pow(beta2, now)) / (1 - pow(beta1, now)));
}

FN void adapt_scale(const i64 *bad, float *scale, i64 *good_steps, i64 period, double multiplier) {
    if (first_item()) return;
    if (*bad) {
        *good_steps = 0;
        double less = (double)*scale / multiplier;
        *scale = (float)(less < 1 ? 1 : less);
        return;
    }
    i64 count = *good_steps + 1;
    if (count >= period) {
        double more = (double)*scale * multiplier, most = 3.4028234663852886e38;
        *scale = (float)(more > most ? most : more);
        count = 0;
    }
    *good_steps = count;
}

template <class T> FN void clip_factor(const T *square_sum, T *out, double most) {
    typedef typename In<T>::type V;
    if (first_item()) return;
    store(out, min_((V)most / sqrt_(load(square_sum)), (V)1));
}
