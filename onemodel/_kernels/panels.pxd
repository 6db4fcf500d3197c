# Products with a right operand that is packed once and used many times: the recurrent weights of a layer, step after step. Same bits as gemm's.
from onemodel._kernels.table cimport om_gemm

cdef struct Panels:
    const om_gemm *g
    Py_ssize_t n
    Py_ssize_t k
    Py_ssize_t width
    float *data

# Packs B[k][n] for products of about `rows` rows; the caller ends with give(w.data). 0, or -1 if memory ran out.
cdef int pack_panels(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, Panels *w) noexcept nogil
# C[m][n] = A[m][k]·B[k][n] (+ bias[n]), on this thread; rows of A and C are contiguous.
cdef void multiply_panels(const Panels *w, Py_ssize_t m, const float *a, Py_ssize_t rsa, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil
