"""Kernels called with tensors, for operator classes that are written in Python: shapes to pointers, nothing recorded."""

from libc.stdint cimport int64_t
from libc.string cimport memset

from onemodel._kernels.copy cimport add_rows as add_rows_kernel, take_rows as take_rows_kernel
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.tensor cimport FLOAT32, itemsize, MAX_NDIM, Tensor, data_of, densely, new_tensor, read_shape


cdef Py_ssize_t product_of(const Py_ssize_t *dims, int first, int end) noexcept:
    cdef Py_ssize_t n = 1
    cdef int i
    for i in range(first, end):
        n *= dims[i]
    return n


def take_rows(Tensor x not None, const int64_t[::1] index, int axis):
    """x at `index` (checked by the caller) along one dimension."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Tensor source = densely(x, "index")
    cdef int i
    for i in range(x.rank):
        dims[i] = x.dims[i]
    dims[axis] = index.shape[0]
    cdef Tensor out = new_tensor(x.code, x.rank, dims, True)
    if out.count:
        take_rows_kernel(product_of(x.dims, 0, axis), x.dims[axis], product_of(x.dims, axis + 1, x.rank), itemsize(x.code),
                         data_of(source, "index"), &index[0], index.shape[0], out.storage.data)
    return out


def add_rows(Tensor g not None, const int64_t[::1] index, int axis, tuple shape):
    """Zeros of `shape` with g added at `index` along one dimension, in index order."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, "index")
    cdef Tensor dx = new_tensor(FLOAT32, rank, dims, True)
    g = densely(g, "index")
    memset(dx.storage.data, 0, dx.count * 4)
    if g.count:
        add_rows_kernel(current_mode(), product_of(dims, 0, axis), dims[axis], product_of(dims, axis + 1, rank), <const float *>data_of(g, "index"),
                        &index[0], index.shape[0], <float *>dx.storage.data)
    return dx
