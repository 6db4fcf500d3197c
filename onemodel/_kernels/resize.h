/* Loops that move elements by index: resizing of planes, gathers and their scatters, running sums. Must not contain threads or strides of
 * tensors: those are in resize.pyx.
 *
 * A resize is separable. Along each axis an output is either a copy of one pixel or a mix of two neighbours, and om_taps says which:
 * outputs before `lead` and from `tail` on have one neighbour (they lie at or beyond an end, or the mode is nearest), the others two.
 *   row      t[ow] = fl(fl(w0 x[i]) + fl(w1 x[i+1])), or x[i]
 *   y[oh]    fl(fl(h0 t_i) + fl(h1 t_i+1)), or t_i
 *   dx[i,j]  from +0, in output scan order, + fl(h fl(w g[oh,ow])) of every output that has this pixel as a neighbour
 * The backward collects, per row of g, what each column gets in order (`slots` numbers, missing ones as +0, which changes no sum that began
 * at +0), and adds whole rows of that to the two rows of dx: a gather whose sums are those of the scatter. */
#ifndef OM_RESIZE_H
#define OM_RESIZE_H

#define OM_RESIZE(ROW) \
    ROW(resize_taps, resize_taps, "neighbours and weights of each output along one axis") \
    ROW(resize_ranges, resize_ranges, "per pixel the outputs it is a neighbour of: begin and end; returns the most of them") \
    ROW(resize_slots, resize_slots, "per slot and pixel the output and the weight that its gradient takes") \
    ROW(resize_row, resize_row, "one row resized along its length") \
    ROW(resize_mix, resize_mix, "wa a + wb b, NaN canonical in exact mode") \
    ROW(resize_keep, resize_keep, "x, NaN canonical in exact mode") \
    ROW(resize_row_bwd, resize_row_bwd, "what each column gets from one row of g, by slots") \
    ROW(resize_add_bwd, resize_add_bwd, "a += wa c, b += wb c, slot after slot") \
    ROW(outside, outside, "the first index that is not in [0, size), or -1") \
    ROW(gather, gather_1, "y[i] = x[i a + index[i] b], 1 byte each") \
    ROW(gather, gather_4, "the same, 4 bytes each") \
    ROW(gather, gather_8, "the same, 8 bytes each") \
    ROW(gather_bwd, gather_bwd, "dx[i a + index[i] b] += g[i], i increasing") \
    ROW(rows_bwd, rows_bwd, "dx[id[i]] += g[i] for rows, i increasing, one id skipped") \
    ROW(cumsum, cumsum, "running sums in double along one of two dimensions, each rounded")

enum { OM_NEAREST, OM_NEAREST_EXACT, OM_HALF_PIXEL, OM_ALIGN_CORNERS };

typedef struct om_taps {
    ptrdiff_t in, out, lead, tail;
    int doubled;          /* out = 2 in with the weights of that: loops without tables */
    const int32_t *index; /* per output its first neighbour */
    const float *w0, *w1; /* per output the weights of index and index + 1 */
    ptrdiff_t slots;
    const int32_t *source; /* [slots][in]: an output, or `out` for none */
    const float *share;    /* [slots][in] */
} om_taps;

/* factor: the size the user asked for relative to in, or 0 for out / in. Fills index, w0, w1 and the struct's first five members but in, out. */
typedef void om_resize_taps_fn(om_taps *t, int how, double factor, int32_t *index, float *w0, float *w1);
typedef ptrdiff_t om_resize_ranges_fn(const om_taps *t, int32_t *begin, int32_t *end);
typedef void om_resize_slots_fn(const om_taps *t, const int32_t *begin, const int32_t *end, int32_t *source, float *share);
typedef void om_resize_row_fn(const om_taps *t, const float *x, float *y);
typedef void om_resize_mix_fn(const float *a, const float *b, float wa, float wb, float *y, ptrdiff_t n);
/* room: out + 1 floats; c: slots · in floats */
typedef void om_resize_row_bwd_fn(const om_taps *t, const float *g, float *room, float *c);
/* b may be NULL */
typedef void om_resize_add_bwd_fn(const float *c, ptrdiff_t slots, ptrdiff_t n, float wa, float *a, float wb, float *b);
typedef ptrdiff_t om_outside_fn(const int64_t *index, ptrdiff_t n, int64_t size);
typedef void om_gather_fn(const void *x, ptrdiff_t a, ptrdiff_t b, const int64_t *index, void *y, ptrdiff_t n);
typedef void om_gather_bwd_fn(const float *g, ptrdiff_t a, ptrdiff_t b, const int64_t *index, float *dx, ptrdiff_t n);
/* Columns of rows that are `stride` apart in dx and in g; `skip` is an id that takes no part, -1 for none. */
typedef void om_rows_bwd_fn(const float *g, const int64_t *id, ptrdiff_t n, int64_t skip, float *dx, ptrdiff_t stride, ptrdiff_t cols);
/* y[i · along + c · across] = x summed over 0..i, for n steps and m lines; x and y have one layout */
typedef void om_cumsum_fn(const float *x, float *y, ptrdiff_t along, ptrdiff_t across, ptrdiff_t n, ptrdiff_t m);
#endif

#if defined(OM_VARIANT) && !defined(OM_RESIZE_LOOPS)
#define OM_RESIZE_LOOPS

/* Coordinates in plain float32 arithmetic, as torch has them; both sizes are below 2^31. A coordinate never decreases from one output to the
 * next, so outputs with one neighbour stand at the two ends. */
static void k_resize_taps(om_taps *t, int how, double factor, int32_t *index, float *w0, float *w1) {
    const ptrdiff_t in = t->in, out = t->out;
    const int nearest = how == OM_NEAREST || how == OM_NEAREST_EXACT;
    float scale;
    if (how == OM_ALIGN_CORNERS) scale = out > 1 ? (float)(in - 1) / (float)(out - 1) : 0.0f;
    else scale = factor > 0 ? (float)(1.0 / factor) : (float)in / (float)out;
    t->index = index, t->w0 = w0, t->w1 = w1;
    t->lead = nearest || in == out ? out : 0, t->tail = out;
    for (ptrdiff_t o = 0; o < out; o++) {
        float at = how == OM_NEAREST ? (float)o * scale : how == OM_NEAREST_EXACT ? ((float)o + 0.5f) * scale
                 : how == OM_HALF_PIXEL ? scale * ((float)o + 0.5f) - 0.5f : scale * (float)o;
        ptrdiff_t i = in - 1;
        w0[o] = 1.0f, w1[o] = 0.0f;
        if (in == out && how != OM_NEAREST_EXACT) i = o;
        else if (nearest) {
            if (out == 2 * in && how == OM_NEAREST) i = o / 2; /* whatever the factor rounds to */
            else if (at < (float)in && (ptrdiff_t)at < in) i = (ptrdiff_t)at;
        } else if (at <= 0.0f) {
            i = 0;
            t->lead = o + 1;
        } else if (at < (float)(in - 1)) {
            i = (ptrdiff_t)at;
            w1[o] = at - (float)i;
            w0[o] = 1.0f - w1[o];
        } else if (t->tail > o) {
            t->tail = o;
        }
        index[o] = (int32_t)i;
    }
    if (t->tail < t->lead) t->tail = t->lead;
    int doubled = in > 1 && out == 2 * in && how != OM_ALIGN_CORNERS;
    for (ptrdiff_t j = 0; doubled && nearest && j < in; j++) doubled = index[2 * j] == j && index[2 * j + 1] == j;
    if (!nearest) doubled = doubled && t->lead == 1 && t->tail == out - 1;
    for (ptrdiff_t j = 0; doubled && !nearest && j < in - 1; j++)
        doubled = index[2 * j + 1] == j && w1[2 * j + 1] == 0.25f && index[2 * j + 2] == j && w1[2 * j + 2] == 0.75f;
    t->doubled = doubled;
}

static ptrdiff_t k_resize_ranges(const om_taps *t, int32_t *begin, int32_t *end) {
    ptrdiff_t most = 0;
    memset(begin, 0, (size_t)t->in * sizeof *begin);
    memset(end, 0, (size_t)t->in * sizeof *end);
    for (ptrdiff_t o = 0; o < t->out; o++) {
        const int two = o >= t->lead && o < t->tail;
        for (ptrdiff_t j = t->index[o]; j <= t->index[o] + two; j++) {
            if (end[j] == 0) begin[j] = (int32_t)o;
            end[j] = (int32_t)(o + 1);
            if (end[j] - begin[j] > most) most = end[j] - begin[j];
        }
    }
    return most;
}

static void k_resize_slots(const om_taps *t, const int32_t *begin, const int32_t *end, int32_t *source, float *share) {
    for (ptrdiff_t k = 0; k < t->slots; k++, source += t->in, share += t->in)
        for (ptrdiff_t j = 0; j < t->in; j++) {
            const ptrdiff_t o = begin[j] + k;
            const int there = o < end[j];
            source[j] = (int32_t)(there ? o : t->out);
            share[j] = !there ? 0.0f : t->index[o] == j ? t->w0[o] : t->w1[o];
        }
}

/* Copies as integers, which keep every NaN's payload. Plain loops: the compiler's own shuffles serve strides of two. */
static void k_resize_row(const om_taps *t, const float *restrict x, float *restrict y) {
    const int32_t *restrict at = t->index;
    const int32_t *restrict xi = (const int32_t *)x;
    int32_t *restrict yi = (int32_t *)y;
    const ptrdiff_t in = t->in;
    if (t->doubled && t->lead == t->out) {
        for (ptrdiff_t j = 0; j < in; j++) yi[2 * j] = xi[j], yi[2 * j + 1] = xi[j];
        return;
    }
    if (t->doubled) {
        yi[0] = xi[0];
        for (ptrdiff_t j = 0; j < in - 1; j++) {
            y[2 * j + 1] = 0.75f * x[j] + 0.25f * x[j + 1];
            y[2 * j + 2] = 0.25f * x[j] + 0.75f * x[j + 1];
        }
        yi[2 * in - 1] = xi[in - 1];
        return;
    }
    for (ptrdiff_t o = 0; o < t->lead; o++) yi[o] = xi[at[o]];
    for (ptrdiff_t o = t->lead; o < t->tail; o++) y[o] = t->w0[o] * x[at[o]] + t->w1[o] * x[at[o] + 1];
    for (ptrdiff_t o = t->tail; o < t->out; o++) yi[o] = xi[at[o]];
}

static void k_resize_mix(const float *a, const float *b, float wa, float wb, float *y, ptrdiff_t n) {
    const vf va = vf_set(wa), vb = vf_set(wb);
    ptrdiff_t i = 0, m;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, vf_result(vf_add(vf_mul(va, vf_load(a + i)), vf_mul(vb, vf_load(b + i)))));
    if ((m = n - i) > 0)
        vf_store_tail(y + i, vf_result(vf_add(vf_mul(va, vf_load_tail(a + i, m)), vf_mul(vb, vf_load_tail(b + i, m)))), m);
}

static void k_resize_keep(const float *x, float *y, ptrdiff_t n) {
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, vf_result(vf_load(x + i)));
    if (i < n) vf_store_tail(y + i, vf_result(vf_load_tail(x + i, n - i)), n - i);
}

static void k_resize_row_bwd(const om_taps *t, const float *restrict g, float *restrict room, float *restrict c) {
    const ptrdiff_t in = t->in;
    if (t->doubled && t->lead == t->out) {
        for (ptrdiff_t j = 0; j < in; j++) c[j] = g[2 * j], c[in + j] = g[2 * j + 1];
        return;
    }
    if (t->doubled) { /* slots as the tables have them: columns at the ends have three outputs */
        float *restrict c1 = c + in, *restrict c2 = c1 + in, *restrict c3 = c2 + in;
        c[0] = g[0], c1[0] = 0.75f * g[1], c2[0] = 0.25f * g[2], c3[0] = 0.0f;
        for (ptrdiff_t j = 1; j < in - 1; j++) {
            c[j] = 0.25f * g[2 * j - 1], c1[j] = 0.75f * g[2 * j];
            c2[j] = 0.75f * g[2 * j + 1], c3[j] = 0.25f * g[2 * j + 2];
        }
        c[in - 1] = 0.25f * g[2 * in - 3], c1[in - 1] = 0.75f * g[2 * in - 2], c2[in - 1] = g[2 * in - 1], c3[in - 1] = 0.0f;
        return;
    }
    memcpy(room, g, (size_t)t->out * sizeof *g);
    room[t->out] = 0.0f;
    for (ptrdiff_t i = 0; i < t->slots * in; i++) c[i] = t->share[i] * room[t->source[i]];
}

OM_INLINE void resize_add(const float *c, const ptrdiff_t slots, ptrdiff_t n, float wa, float *a, float wb, float *b) {
    const vf va = vf_set(wa), vb = vf_set(wb);
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vf p = vf_load(a + j), q = b ? vf_load(b + j) : va;
        for (ptrdiff_t k = 0; k < slots; k++) {
            const vf v = vf_load(c + k * n + j);
            p = vf_add(p, vf_mul(va, v));
            if (b) q = vf_add(q, vf_mul(vb, v));
        }
        vf_store(a + j, p);
        if (b) vf_store(b + j, q);
    }
    for (; j < n; j++)
        for (ptrdiff_t k = 0; k < slots; k++) {
            a[j] += wa * c[k * n + j];
            if (b) b[j] += wb * c[k * n + j];
        }
}
static void k_resize_add_bwd(const float *c, ptrdiff_t slots, ptrdiff_t n, float wa, float *a, float wb, float *b) {
    if (slots == 4 && b) resize_add(c, 4, n, wa, a, wb, b); /* doubling: the loop over slots in registers */
    else if (b) resize_add(c, slots, n, wa, a, wb, b);
    else resize_add(c, slots, n, wa, a, wb, NULL);
}

/* Blocks first, by the sign of index | size - 1 - index, which lanes do; neither overflows where the sign is not set already. */
static ptrdiff_t k_outside(const int64_t *index, ptrdiff_t n, int64_t size) {
    enum { BLOCK_OF_INDICES = 512 };
    for (ptrdiff_t i = 0; i < n; i += BLOCK_OF_INDICES) {
        const ptrdiff_t end = n - i < BLOCK_OF_INDICES ? n : i + BLOCK_OF_INDICES;
        uint64_t wrong = 0;
        for (ptrdiff_t j = i; j < end; j++) wrong |= (uint64_t)index[j] | ((uint64_t)(size - 1) - (uint64_t)index[j]);
        if (wrong >> 63)
            for (ptrdiff_t j = i; j < end; j++)
                if (index[j] < 0 || index[j] >= size) return j;
    }
    return -1;
}

/* The index is read as volatile, so that compilers leave the gathers of AVX2 alone: on most processors they are slower than as many loads. */
#define OM_GATHER(size, type) \
    static void k_gather_##size(const void *from, ptrdiff_t a, ptrdiff_t b, const int64_t *index, void *to, ptrdiff_t n) { \
        const type *x = from; \
        type *y = to; \
        const volatile int64_t *at = index; \
        if (a == 0 && b == 1) \
            for (ptrdiff_t i = 0; i < n; i++) y[i] = x[at[i]]; \
        else \
            for (ptrdiff_t i = 0; i < n; i++) y[i] = x[i * a + at[i] * b]; \
    }
OM_GATHER(1, uint8_t)
OM_GATHER(4, int32_t)
OM_GATHER(8, int64_t)
#undef OM_GATHER

static void k_gather_bwd(const float *g, ptrdiff_t a, ptrdiff_t b, const int64_t *index, float *dx, ptrdiff_t n) {
    if (a == 0 && b == 1)
        for (ptrdiff_t i = 0; i < n; i++) dx[index[i]] = one_nan(dx[index[i]] + g[i]);
    else
        for (ptrdiff_t i = 0; i < n; i++) {
            float *at = dx + i * a + index[i] * b;
            *at = one_nan(*at + g[i]);
        }
}

/* Rows lie anywhere in a large table: the lines of a row some steps ahead are asked for now. */
static void k_rows_bwd(const float *g, const int64_t *id, ptrdiff_t n, int64_t skip, float *dx, ptrdiff_t stride, ptrdiff_t cols) {
    enum { AHEAD_ROWS = 2, FLOATS_OF_LINE = 16 };
    for (ptrdiff_t i = 0; i < n; i++, g += stride) {
        if (i + AHEAD_ROWS < n)
            for (ptrdiff_t c = 0; c < cols; c += FLOATS_OF_LINE) __builtin_prefetch(dx + id[i + AHEAD_ROWS] * stride + c, 1);
        if (id[i] == skip) continue;
        float *row = dx + id[i] * stride;
        ptrdiff_t c = 0;
        for (; c + LANES <= cols; c += LANES) vf_store(row + c, vf_result(vf_add(vf_load(row + c), vf_load(g + c))));
        if (c < cols) vf_store_tail(row + c, vf_result(vf_add(vf_load_tail(row + c, cols - c), vf_load_tail(g + c, cols - c))), cols - c);
    }
}

/* Each sum is a chain, so lines run side by side: lanes where they are neighbours in memory, else eight chains in turn. */
static void k_cumsum(const float *x, float *y, ptrdiff_t along, ptrdiff_t across, ptrdiff_t n, ptrdiff_t m) {
    enum { TOGETHER = 4, CHAINS = 8 };
    ptrdiff_t c = 0;
    for (; across == 1 && c + TOGETHER * LANES <= m; c += TOGETHER * LANES) {
        vw acc[TOGETHER];
        OM_UNROLL for (int v = 0; v < TOGETHER; v++) acc[v] = vw_set(0.0);
        for (ptrdiff_t i = 0; i < n; i++)
            OM_UNROLL for (int v = 0; v < TOGETHER; v++) {
                acc[v] = vw_add(acc[v], vw_from_vf(vf_load(x + i * along + c + v * LANES)));
                vf_store(y + i * along + c + v * LANES, vf_result(vf_from_vw(acc[v])));
            }
    }
    for (; c + CHAINS <= m; c += CHAINS) {
        double acc[CHAINS] = {0};
        for (ptrdiff_t i = 0; i < n; i++)
            OM_UNROLL for (int v = 0; v < CHAINS; v++) {
                const ptrdiff_t at = i * along + (c + v) * across;
                acc[v] += x[at];
                y[at] = one_nan((float)acc[v]);
            }
    }
    for (; c < m; c++) {
        double acc = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            acc += x[i * along + c * across];
            y[i * along + c * across] = one_nan((float)acc);
        }
    }
}
#endif
