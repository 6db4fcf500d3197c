# Strided copies and casts, and the simplification of dimensions that other kernels share.
# Dimensions with two sets of element strides. Size 1 never appears; neighbours that walk both sets as one are joined.
cdef struct Dims:
    int n
    Py_ssize_t size[64]
    Py_ssize_t a[64]
    Py_ssize_t b[64]

# Element types in the order of the public contract.
cdef enum Kind:
    F4 = 0
    I4 = 1
    I8 = 2
    U1 = 3
    B1 = 4

# Fills d; returns the number of elements. reorder: the order of elements does not matter, so dimensions are sorted by |b|.
cdef Py_ssize_t simplify(Dims *d, int ndim, const Py_ssize_t *shape, const Py_ssize_t *a, const Py_ssize_t *b, bint reorder) noexcept nogil
cdef void contiguous_strides(int ndim, const Py_ssize_t *shape, Py_ssize_t *strides) noexcept nogil
cdef bint is_contiguous(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides) noexcept nogil

# dst and src must not overlap; item sizes 1, 4 and 8; element strides of any sign, 0 in src broadcasts. All return 0 (they take no memory).
cdef int strided_copy(int ndim, const Py_ssize_t *shape, int itemsize, const void *src, const Py_ssize_t *src_strides,
                      void *dst, const Py_ssize_t *dst_strides) noexcept nogil
# One value of itemsize bytes into every element.
cdef int fill(int ndim, const Py_ssize_t *shape, int itemsize, void *dst, const Py_ssize_t *dst_strides, const void *value) noexcept nogil
# dst contiguous; the kinds may be the same.
cdef int cast(int ndim, const Py_ssize_t *shape, int src_kind, const void *src, const Py_ssize_t *src_strides, int dst_kind, void *dst) noexcept nogil

# A NumPy array's layout for the test entries: checks the type, fills shape and element strides, returns ndim and the address in data.
cdef int array_layout(object array, str dtype, Py_ssize_t *shape, Py_ssize_t *strides, void **data) except -1
