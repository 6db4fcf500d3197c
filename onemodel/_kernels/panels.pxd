# Products with a right operand that is packed once and used many times: the recurrent weights of a layer, step after step; the keys of a head, block
# after block of queries. Same bits as gemm's.
from onemodel._kernels.table cimport om_gemm

cdef struct Panels:
    const om_gemm *g
    Py_ssize_t n
    Py_ssize_t k
    Py_ssize_t width
    float *data

# Packs B[k][n] for products of about `rows` rows; the caller ends with give(w.data). 0, or -1 if memory ran out.
cdef int pack_panels(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, Panels *w) noexcept nogil
# The same into panels_size() floats of the caller's.
cdef Py_ssize_t panels_size(int mode, Py_ssize_t n, Py_ssize_t k) noexcept nogil
cdef void pack_into(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, float *room,
                    Panels *w) noexcept nogil
# C[m][n] = A[m][k]·B[k][n] (+ bias[n]), on this thread; rows of A and C are contiguous.
cdef void multiply_panels(const Panels *w, Py_ssize_t m, const float *a, Py_ssize_t rsa, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil
# Steps k0 to k1 - 1 of it; without OM_GEMM_FIRST in the flags they go on from what is in C.
cdef void multiply_steps(const Panels *w, Py_ssize_t m, Py_ssize_t k0, Py_ssize_t k1, const float *a, Py_ssize_t rsa, Py_ssize_t csa, float *c,
                         Py_ssize_t rsc, const float *bias, int flags) noexcept nogil
