/* Optimiser steps, in place, one IEEE operation after the other (no fused step), so that every instruction set gives the same bits in both
 * modes; and the sum of squares that clipping needs. The list of parameters and threads belong to optim.pyx, options and the powers of
 * the betas to onemodel/optim. */
#ifndef OM_OPTIM_H
#define OM_OPTIM_H

/* One step on n elements of a parameter; hyper is the struct of the rule, a, b and c its state, NULL where it has none. */
typedef void om_update_fn(const void *hyper, float *p, const float *g, float *a, float *b, float *c, ptrdiff_t n);
/* out = the sum of squares of up to OM_SQUARES_WINDOW elements in 16 sums, element i in sum i mod 16, which are then added in order */
enum { OM_SQUARES_WINDOW = 32768 };
typedef void om_squares_fn(const float *x, ptrdiff_t n, double *out);

/* a: the momentum buffer */
typedef struct om_sgd {
    float lr, momentum, undamped, weight_decay; /* undamped: 1 - dampening */
    int nesterov, maximize, first;              /* first: the momentum buffer starts as the gradient */
} om_sgd;
/* a: the mean of gradients, b: of their squares, c: the largest of these (amsgrad). step_size: lr / (1 - beta1^t); root: sqrt(1 - beta2^t);
 * keep: 1 - lr weight_decay where the decay is decoupled from the gradient (AdamW), else 1 */
typedef struct om_adam {
    float rest1, beta2, rest2, step_size, root, eps, weight_decay, keep; /* rest1, rest2: 1 - beta1, 1 - beta2 */
    int maximize;
} om_adam;
/* a: the mean of squares, b: the momentum buffer, c: the mean of gradients (centered) */
typedef struct om_rmsprop {
    float lr, alpha, rest, eps, weight_decay, momentum; /* rest: 1 - alpha */
    int maximize;
} om_rmsprop;

#define OM_OPTIM(ROW) \
    ROW(update, sgd, "p -= lr d, d = g (+ weight decay p), through the momentum buffer if there is one (Nesterov or classical)") \
    ROW(update, adam, "a += (g - a)(1 - beta1), b = b beta2 + (1 - beta2) g g, p -= step a / (sqrt(b) / root + eps)") \
    ROW(update, rmsprop, "a = a alpha + (1 - alpha) g g, p -= lr g / (sqrt(a) + eps), through the momentum buffer if there is one") \
    ROW(squares, squares, "the sum of squares in double, 16 sums side by side")

#endif

#if defined(OM_VARIANT) && !defined(OM_OPTIM_LOOPS)
#define OM_OPTIM_LOOPS

static void k_sgd(const void *hyper, float *restrict p, const float *restrict g, float *restrict momentum, float *b, float *c, ptrdiff_t n) {
    const om_sgd *h = (const om_sgd *)hyper;
    const float lr = h->lr, mu = h->momentum, undamped = h->undamped, decay = h->weight_decay, sign = h->maximize ? -1.0f : 1.0f;
    const int nesterov = h->nesterov, first = h->first;
    (void)b, (void)c;
    if (!momentum)
        for (ptrdiff_t i = 0; i < n; i++) {
            float d = sign * g[i];
            if (decay != 0.0f) d = d + decay * p[i];
            p[i] = one_nan(p[i] - lr * d);
        }
    else
        for (ptrdiff_t i = 0; i < n; i++) {
            float d = sign * g[i];
            if (decay != 0.0f) d = d + decay * p[i];
            float b = first ? d : mu * momentum[i] + undamped * d;
            momentum[i] = one_nan(b);
            p[i] = one_nan(p[i] - lr * (nesterov ? d + mu * b : b));
        }
}

/* g, or -g, plus the decay */
static inline vf update_gradient(vf g, vf p, int maximize, float decay) {
    if (maximize) g = vf_neg(g);
    return decay != 0.0f ? vf_add(g, vf_mul(vf_set(decay), p)) : g;
}

static void k_adam(const void *hyper, float *p, const float *g, float *a, float *b, float *c, ptrdiff_t n) {
    const om_adam h = *(const om_adam *)hyper;
    OM_EACH_VECTOR(i, m, n) {
        vf q = vf_mul(vf_some(p + i, m), vf_set(h.keep)), d = update_gradient(vf_some(g + i, m), q, h.maximize, h.weight_decay);
        vf mean = vf_some(a + i, m), square = vf_some(b + i, m), top;
        mean = vf_add(mean, vf_mul(vf_set(h.rest1), vf_sub(d, mean)));
        square = vf_add(vf_mul(square, vf_set(h.beta2)), vf_mul(vf_mul(vf_set(h.rest2), d), d));
        vf_put(a + i, mean, m);
        vf_put(b + i, square, m);
        top = square;
        if (c) { /* a NaN stays */
            vf old = vf_some(c + i, m);
            top = vf_select(vf_unord(square, old), vf_add(square, old), vf_max(square, old));
            vf_put(c + i, top, m);
        }
        vf below = vf_add(vf_div(vf_sqrt(top), vf_set(h.root)), vf_set(h.eps));
        vf_put(p + i, vf_sub(q, vf_div(vf_mul(vf_set(h.step_size), mean), below)), m);
    }
}

static void k_rmsprop(const void *hyper, float *p, const float *g, float *a, float *b, float *c, ptrdiff_t n) {
    const om_rmsprop h = *(const om_rmsprop *)hyper;
    OM_EACH_VECTOR(i, m, n) {
        vf q = vf_some(p + i, m), d = update_gradient(vf_some(g + i, m), q, h.maximize, h.weight_decay), square = vf_some(a + i, m), spread;
        square = vf_add(vf_mul(square, vf_set(h.alpha)), vf_mul(vf_mul(vf_set(h.rest), d), d));
        vf_put(a + i, square, m);
        spread = square;
        if (c) {
            vf mean = vf_some(c + i, m);
            mean = vf_add(mean, vf_mul(vf_set(h.rest), vf_sub(d, mean)));
            vf_put(c + i, mean, m);
            spread = vf_sub(square, vf_mul(mean, mean));
        }
        vf below = vf_add(vf_sqrt(spread), vf_set(h.eps));
        if (b) {
            vf buffer = vf_add(vf_mul(vf_some(b + i, m), vf_set(h.momentum)), vf_div(d, below));
            vf_put(b + i, buffer, m);
            vf_put(p + i, vf_sub(q, vf_mul(vf_set(h.lr), buffer)), m);
        } else
            vf_put(p + i, vf_sub(q, vf_div(vf_mul(vf_set(h.lr), d), below)), m);
    }
}

static void k_squares(const float *x, ptrdiff_t n, double *out) {
    double sum[16] = {0}, total = 0.0;
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) sum[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++) sum[j] += (double)x[i] * (double)x[i];
    for (int j = 0; j < 16; j++) total += sum[j];
    *out = total;
}
#undef OM_EACH_VECTOR
#endif
