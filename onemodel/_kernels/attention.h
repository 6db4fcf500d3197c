/* The weights of attention from the scores of some query rows, each with all its keys. Must not contain products or threads.
 *
 * A weight is e^(s - m) / sum e^(s - m) with s = scale (q·k) + mask, each operation rounded by itself, m the true maximum of the row and the sum
 * a double chain over the keys (softmax.h). A key that is out of sight, by a boolean mask or behind a causal row's end, has the score -inf: it adds +0
 * to the sum. A row that sees no key has weights 0, as torch has from 2.5 on. */
#ifndef OM_ATTENTION_H
#define OM_ATTENTION_H

typedef struct om_scores {
    float scale;
    const float *add;    /* mask of the first row: added, or */
    const uint8_t *keep; /* 1 where the key is seen; at most one of both */
    ptrdiff_t mask_row, mask_col;
    ptrdiff_t seen; /* causal: keys that the first row sees, one more in each further row; -1: all of them */
} om_scores;
/* In place; rows of s are stride apart. */
typedef void om_attention_fn(float *s, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const om_scores *o);
typedef void om_scale_fn(float *x, float scale, ptrdiff_t n);

#define OM_ATTENTION(ROW) \
    ROW(attention, attention_weights, "softmax(scale s + mask) of each row; 0 where a row sees no key") \
    ROW(scale, scale_in_place, "x scale")
#endif

#if defined(OM_VARIANT) && !defined(OM_ATTENTION_LOOPS)
#define OM_ATTENTION_LOOPS

static void attention_masked(float *s, ptrdiff_t n, const om_scores *o, ptrdiff_t row) {
    enum { PIECE = 256 };
    const vf scale = vf_set(o->scale);
    float piece[PIECE];
    for (ptrdiff_t c = 0; c < n; c += PIECE) {
        ptrdiff_t length = n - c < PIECE ? n - c : PIECE, at = row * o->mask_row + c * o->mask_col;
        const float *mask = o->add + (o->add ? at : 0);
        if (o->keep || o->mask_col != 1) {
            for (ptrdiff_t i = 0; i < length; i++)
                piece[i] = o->add ? o->add[at + i * o->mask_col] : o->keep[at + i * o->mask_col] ? 0.0f : -__builtin_inff();
            mask = piece;
        }
        for (ptrdiff_t i = 0; i < length; i += LANES) {
            vf v = vf_mul(load_part(s + c + i, length - i), scale), m = load_part(mask + i, length - i);
            /* what a boolean mask hides is -inf whatever it was; what it shows stays as it is, -0 too */
            if (o->keep) v = vf_select(vf_eq(m, vf_set(0.0f)), v, m);
            else v = vf_add(v, m);
            store_part(s + c + i, v, length - i);
        }
    }
}

static void k_scale_in_place(float *x, float scale, ptrdiff_t n) {
    const vf k = vf_set(scale);
    for (ptrdiff_t i = 0; i < n; i += LANES) store_part(x + i, vf_result(vf_mul(load_part(x + i, n - i), k)), n - i);
}

static void k_attention_weights(float *s, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const om_scores *o) {
    OM_EACH_8(rows) {
        int blind[8];
        for (ptrdiff_t r = 0; r < some; r++) {
            float *row = s + (r0 + r) * stride;
            ptrdiff_t seen = o->seen < 0 || o->seen + r0 + r > cols ? cols : o->seen + r0 + r;
            if (o->add || o->keep) attention_masked(row, seen, o, r0 + r);
            else
                for (ptrdiff_t i = 0; i < seen; i += LANES) store_part(row + i, vf_mul(load_part(row + i, seen - i), vf_set(o->scale)), seen - i);
            for (ptrdiff_t i = seen; i < cols; i++) row[i] = -__builtin_inff();
            blind[r] = (o->add || o->keep) && row_max(row, cols) == -__builtin_inff();
        }
        k_softmax_rows(s + r0 * stride, s + r0 * stride, stride, some, cols);
        for (ptrdiff_t r = 0; r < some; r++)
            if (blind[r]) memset(s + (r0 + r) * stride, 0, (size_t)cols * sizeof *s);
    }
}
#endif
