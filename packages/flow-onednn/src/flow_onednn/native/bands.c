// Convolutions that run one after another on bands of rows, so that the images between them stay in a
// core's cache. Each lane has bands of its own, because the memory of a primitive's arguments is set
// before it runs.

typedef int (*set_handle)(void *memory, void *handle);

// A primitive for a number of rows, and its arguments; `added` is null without a residual.
typedef struct { void *primitive, *arguments; long count; void *from, *to, *added; } Band;

// A convolution: see run_bounded for the bound of its result. `image` are the bytes of its result.
typedef struct {
    const Bounded *ends;
    long count;
    const float *norms;
    double most;
    float *bound;
    char *residual;
    long image;
    float low, high;
    int limited, half;
} Stage;

// Run a band of a stage, or, if `stage` is negative, move `size` bytes in the memory of the lane.
// Offsets are in bytes, of the first image or in the memory of the lane; `size` is in elements.
typedef struct { long stage, band, from, to, added, size; } Step;

// The images of a chain, and the memory of its lanes.
typedef struct { char *x, *y, *lanes; long x_bytes, y_bytes, lane_bytes; } Memory;

enum { MOST_STAGES = 8 };

// Run the steps of each part of each image. `bands` has two rows for each band of each lane, of which
// the second one does not limit its result.
long run_bands(void *run, void *set, void *stream, const Stage *stages, long count,
               const Band *bands, long per_lane, const Step *steps, const long *starts, long parts,
               const Memory *memory, long images, long lanes) {
    int exact[MOST_STAGES];
    for (long k = 0; k < count; k++) {
        const Stage *s = stages + k;
        exact[k] = !finite_bound(s->ends, s->count, s->norms, s->bound, s->most);
    }
    long status = 0, tasks = images * parts;
#pragma omp parallel for num_threads(lanes) schedule(static, 1) reduction(| : status)
    for (long lane = 0; lane < lanes; lane++) {
        char *own = memory->lanes + lane * memory->lane_bytes;
        for (long task = tasks * lane / lanes; task < tasks * (lane + 1) / lanes; task++) {
            long n = task / parts, part = task % parts;
            for (long i = starts[part]; i < starts[part + 1]; i++) {
                const Step *step = steps + i;
                if (step->stage < 0) {
                    memmove(own + step->to, own + step->from, step->size);
                    continue;
                }
                const Stage *s = stages + step->stage;
                int unlimited = s->limited && exact[step->stage];
                const Band *b = bands + 2 * (lane * per_lane + step->band) + unlimited;
                char *x = step->stage ? own : memory->x + n * memory->x_bytes;
                char *y = step->stage < count - 1 ? own : memory->y + n * memory->y_bytes;
                ((set_handle)set)(b->from, x + step->from);
                ((set_handle)set)(b->to, y + step->to);
                if (b->added) ((set_handle)set)(b->added, s->residual + n * s->image + step->added);
                status |= ((execute)run)(b->primitive, stream, (int)b->count, b->arguments);
                if (!unlimited) continue;
                if (s->half) clip_inplace_bf16((uint16_t *)(y + step->to), step->size, s->low, s->high);
                else clip_inplace((float *)(y + step->to), step->size, s->low, s->high);
            }
        }
    }
    return status;
}
