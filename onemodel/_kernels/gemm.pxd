# Matrix products for every other compiled module: raw pointers, strides in elements (any sign, 0 for expanded operands), no lock needed.

# C[m][n] = sum over k of A[m][k]·B[k][n] (+ bias[n]); C has contiguous rows rsc apart and must overlap no operand. 0, or -1 if memory ran out
# (C is then unspecified).
cdef int gemm(int mode, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b, Py_ssize_t rsb,
              Py_ssize_t csb, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil

# The same without a bias; where A is packed, as a weight's gradient has it, the sums of its rows (over k, in order, in double) are taken from the same
# lines, and 1 comes back. 0: sums is as it was.
cdef int gemm_summing(int mode, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b,
                      Py_ssize_t rsb, Py_ssize_t csb, float *c, Py_ssize_t rsc, float *sums) noexcept nogil

# One product for each index of ndim batch dimensions (at most 64); sa and sb are the operands' strides there, 0 where one is broadcast.
# c is contiguous: [batch..., m, n].
cdef int gemm_batched(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *sa, const Py_ssize_t *sb, Py_ssize_t m, Py_ssize_t n,
                      Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b, Py_ssize_t rsb, Py_ssize_t csb,
                      float *c) noexcept nogil
