/* Optimiser steps, in place, one IEEE operation after the other (no fused step), so that every instruction set gives the same bits;
 * the list of parameters and threads belong to optim.pyx. */
#ifndef OM_OPTIM_H
#define OM_OPTIM_H

#define OM_OPTIM(ROW) \
    ROW(sgd, sgd, "p -= lr d, d = g (+ weight decay p), through the momentum buffer if there is one (Nesterov or classical)")

#endif

#if defined(OM_VARIANT) && !defined(OM_OPTIM_LOOPS)
#define OM_OPTIM_LOOPS

static void k_sgd(const om_sgd *h, float *restrict p, const float *restrict g, float *restrict momentum, ptrdiff_t n) {
    const float lr = h->lr, mu = h->momentum, undamped = h->undamped, decay = h->weight_decay, sign = h->maximize ? -1.0f : 1.0f;
    const int nesterov = h->nesterov, first = h->first;
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
#endif
