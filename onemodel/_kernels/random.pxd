# Random numbers of one seed's stream from word `offset` on; the same bits in both modes, on every path, at every thread count.
from libc.stdint cimport int64_t, uint64_t

# One word per number. Normal numbers come in pairs: the one at an odd word is its even neighbour's twin.
cdef void philox_uniform(uint64_t seed, uint64_t offset, float *out, Py_ssize_t n) noexcept nogil
cdef void philox_normal(uint64_t seed, uint64_t offset, float *out, Py_ssize_t n) noexcept nogil
# Two words per number; low < high.
cdef void philox_integers(uint64_t seed, uint64_t offset, int64_t low, int64_t high, int64_t *out, Py_ssize_t n) noexcept nogil
# A random order of 0, ..., n - 1, two words per number.
cdef void philox_permutation(uint64_t seed, uint64_t offset, int64_t *out, Py_ssize_t n) noexcept nogil
# y = 0 where the element's word is below drop (1 to 2^32), else x scale; one word per element, y may be x.
cdef void dropout(uint64_t seed, uint64_t offset, uint64_t drop, float scale, const float *x, float *y, Py_ssize_t n) noexcept nogil
