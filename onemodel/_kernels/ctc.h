/* Connectionist temporal classification (Graves et al. 2006) of one sequence: the recursions over the frames, in the logarithm, in double.
 *
 * The extended target is blank, label, blank, ..., label, blank: labels + 1 blanks and `labels` labels, kept apart so that lanes run over
 * either. A row of `width` blanks, CTC_GAP doubles and `width` labels holds one frame; the last double of the gap is the label before the first
 * one. Forwards nothing flows from a higher place to a lower one, and backwards places that do not exist stay near CTC_NEVER, as their
 * probability is, so no lane needs a mask. Both modes share every bit. Must not contain checks, threads or reductions over sequences. */
#ifndef OM_CTC_H
#define OM_CTC_H

/* log 0. Finite, so that a difference of two of them is no NaN; below every sum of log-probabilities that float32 can hold. */
#define OM_CTC_NEVER (-1e300)
enum { OM_CTC_GAP = 8, OM_CTC_LANES = 16 }; /* a row is the same in every variant: whole vectors of the widest one */

typedef struct om_ctc {
    ptrdiff_t frames, labels, width;
    const float *log_p; /* [frames][classes], rows log_p_step apart */
    ptrdiff_t log_p_step, classes;
    const int64_t *label; /* [labels] */
    int64_t blank;
    double *skip;   /* [width + 1], scratch: 0 where label i may follow label i - 1 without a blank, else CTC_NEVER */
    double *emit;   /* [width], scratch: a frame's log-probability of each label */
} om_ctc;

/* Fills alpha, frames rows of 2 width + CTC_GAP doubles; returns minus the log-likelihood, at least 0, +inf if no path exists. */
typedef double om_ctc_alpha_fn(const om_ctc *t, double *alpha);
/* dx[frame][class] = -(posterior of the class at the frame) * scale, rows dx_step apart; other frames are the caller's. first[i]: the first place
 * in the target with the label of place i. beta: two rows and one more of scratch. */
typedef void om_ctc_bwd_fn(const om_ctc *t, const double *alpha, double loss, double scale, const int64_t *first, double *beta, float *dx, ptrdiff_t dx_step);

#define OM_CTC(ROW) \
    ROW(ctc_alpha, ctc_alpha, "forward variables of one sequence, and its loss") \
    ROW(ctc_bwd, ctc_bwd, "backward variables of one sequence, and the gradient of its log-probabilities")
#endif

#if defined(OM_VARIANT) && !defined(OM_CTC_LOOPS)
#define OM_CTC_LOOPS

/* log(e^a + e^b + e^c). The largest one is subtracted, so that the sum is between 1 and 3; what is 700 below it counts nothing in double
 * (and exp's range ends at -708). A NaN in the sum stays: log's reduction would lose it. */
static inline vw ctc_less(vw a, vw m) { return vw_exp(vw_max(vw_set(-700.0), vw_sub(a, m)), 1); }
static inline vw ctc_sum(vw m, vw s) { return vw_add(vw_add(m, vw_log(s)), vw_sub(s, s)); }
static inline vw ctc_or(vw a, vw b) {
    vw m = vw_max(vw_max(a, b), vw_set(OM_CTC_NEVER));
    return ctc_sum(m, vw_add(ctc_less(a, m), ctc_less(b, m)));
}
static inline vw ctc_or_3(vw a, vw b, vw c) {
    vw m = vw_max(vw_max(vw_max(a, b), c), vw_set(OM_CTC_NEVER));
    return ctc_sum(m, vw_add(vw_add(ctc_less(a, m), ctc_less(b, m)), ctc_less(c, m)));
}

static void ctc_fill(double *p, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) p[i] = OM_CTC_NEVER;
}

/* One probability. Of -inf CTC_NEVER is made: in a posterior it is added twice and subtracted once. */
static inline double ctc_log_p(float p) { return p == -__builtin_inff() ? OM_CTC_NEVER : p; }
static void ctc_emit(const om_ctc *t, const float *log_p) {
    for (ptrdiff_t i = 0; i < t->labels; i++) t->emit[i] = ctc_log_p(log_p[t->label[i]]);
}

static void ctc_begin(const om_ctc *t) {
    ctc_fill(t->emit, t->width);
    ctc_fill(t->skip, t->width + 1);
    for (ptrdiff_t i = 1; i < t->labels; i++)
        if (t->label[i] != t->label[i - 1]) t->skip[i] = 0.0;
}

static double k_ctc_alpha(const om_ctc *t, double *alpha) {
    const ptrdiff_t w = t->width, row = 2 * w + OM_CTC_GAP, used = t->labels + 1;
    ctc_begin(t);
    if (t->frames == 0) return t->labels ? __builtin_inf() : 0.0;
    ctc_fill(alpha, row);
    alpha[0] = ctc_log_p(t->log_p[t->blank]);
    if (t->labels) alpha[w + OM_CTC_GAP] = ctc_log_p(t->log_p[t->label[0]]);
    for (ptrdiff_t frame = 1; frame < t->frames; frame++) {
        const double *blank = alpha, *label = alpha + w + OM_CTC_GAP;
        alpha += row;
        const float *log_p = t->log_p + frame * t->log_p_step;
        const vw silence = vw_set(ctc_log_p(log_p[t->blank]));
        ctc_emit(t, log_p);
        for (ptrdiff_t i = 0; i < OM_CTC_GAP; i++) alpha[w + i] = OM_CTC_NEVER;
        for (ptrdiff_t i = 0; i < used; i += LANES) {
            vw before = vw_load(label + i - 1), b = vw_load(blank + i), l = vw_load(label + i);
            vw_store(alpha + i, vw_add(silence, ctc_or(b, before)));
            vw_store(alpha + w + OM_CTC_GAP + i, vw_add(vw_load(t->emit + i), ctc_or_3(l, b, vw_add(before, vw_load(t->skip + i)))));
        }
    }
    double ends[2 * LANES];
    vw last = vw_set(alpha[t->labels]), label = vw_set(alpha[w + OM_CTC_GAP - 1 + t->labels]); /* the gap's last without labels */
    vw_store(ends, ctc_or(last, label));
    double loss = 0.0 - ends[0];
    return loss >= 1e299 ? __builtin_inf() : loss < 0.0 ? 0.0 : loss;
}

/* The posterior of place s at a frame: e^(alpha + beta - log p + loss), as both variables count the frame's own probability. */
static inline vw ctc_posterior(vw alpha, vw beta, vw log_p, vw loss) {
    vw e = vw_add(vw_sub(vw_add(alpha, beta), log_p), loss);
    return vw_exp(vw_max(vw_set(-700.0), e), 1);
}

static inline float ctc_gradient(double posterior, double scale) {
    float d = (float)(0.0 - posterior * scale);
    return d != d ? f4_bits(0x7FC00000) : d;
}

static void k_ctc_bwd(const om_ctc *t, const double *alpha, double loss, double scale, const int64_t *first, double *beta, float *dx, ptrdiff_t dx_step) {
    const ptrdiff_t w = t->width, row = 2 * w + OM_CTC_GAP, used = t->labels + 1;
    double *next = beta, *now = beta + row, *posterior = now + row;
    ctc_begin(t);
    ctc_fill(beta, 2 * row);
    for (ptrdiff_t frame = t->frames - 1; frame >= 0; frame--) {
        const double *a = alpha + frame * row;
        const float *log_p = t->log_p + frame * t->log_p_step;
        const double silence = ctc_log_p(log_p[t->blank]);
        ctc_emit(t, log_p);
        if (frame == t->frames - 1) {
            now[t->labels] = silence;
            if (t->labels) now[w + t->labels - 1] = t->emit[t->labels - 1];
        } else {
            for (ptrdiff_t i = 0; i < used; i += LANES) {
                vw b = vw_load(next + i), l = vw_load(next + w + i), after = vw_add(vw_load(next + w + i + 1), vw_load(t->skip + i + 1));
                vw_store(now + i, vw_add(vw_set(silence), ctc_or(b, l)));
                vw_store(now + w + i, vw_add(vw_load(t->emit + i), ctc_or_3(l, vw_load(next + i + 1), after)));
            }
        }
        for (ptrdiff_t i = 0; i < used; i += LANES) {
            vw_store(posterior + i, ctc_posterior(vw_load(a + i), vw_load(now + i), vw_set(silence), vw_set(loss)));
            vw_store(posterior + w + i, ctc_posterior(vw_load(a + w + OM_CTC_GAP + i), vw_load(now + w + i), vw_load(t->emit + i), vw_set(loss)));
        }
        double sum = 0.0;
        for (ptrdiff_t i = 0; i < used; i++) sum = sum + posterior[i];
        float *d = dx + frame * dx_step;
        d[t->blank] = ctc_gradient(sum, scale);
        for (ptrdiff_t i = 0; i < t->labels; i++)
            if (first[i] != i) posterior[w + first[i]] = posterior[w + first[i]] + posterior[w + i];
        for (ptrdiff_t i = 0; i < t->labels; i++)
            if (first[i] == i) d[t->label[i]] = ctc_gradient(posterior[w + i], scale);
        double *swap = next;
        next = now;
        now = swap;
    }
}
#endif
