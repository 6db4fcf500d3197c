/* Element-wise kernels, forward and backward neighbours. */
#ifndef OM_ELEMENTWISE_H
#define OM_ELEMENTWISE_H

#define OM_ELEMENTWISE(ROW) ROW(map2, add, "a + b")

#endif

#if defined(OM_VARIANT) && !defined(OM_ELEMENTWISE_LOOPS)
#define OM_ELEMENTWISE_LOOPS
static void k_add(const float *a, const float *b, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}
#endif
