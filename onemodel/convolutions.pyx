"""Convolutions of tensors and their rules: conv1d, conv2d, conv_transpose2d and conv_relu_pool2d on the engines of `_kernels/conv.pyx`.

Owns what an argument may be, the shapes, and which engine makes which gradient; a transposed convolution is the adjoint of a convolution,
with the same weight. Holds no loop over elements.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t
from libc.string cimport memcpy

from onemodel._kernels.conv cimport Conv, conv_forward, conv_input
from onemodel._kernels.conv_pool cimport conv_pool_backward, conv_pool_bytes, conv_pool_forward
from onemodel._kernels.conv_weight cimport conv_weight
from onemodel._kernels.pooling cimport MAX, Pooling
from onemodel._kernels.reduce cimport SUM, reduce as reduce_kernel
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.arguments cimport integer, plain, read_integers
from onemodel.arrays cimport require
from onemodel.pooling cimport read_windows
from onemodel.rules cimport edge_shape
from onemodel.tensor cimport FLOAT32, INT32, MAX_NDIM, Record, Rule, Tensor, attach, data_of, densely, edge_of, new_tensor, recording

from onemodel.errors import ShapeError

cdef enum:
    WITHOUT_GIL = 32768         # multiplications from which the lock is let go
    FORWARD = 0
    INPUT = 1
    WEIGHT = 2

# No size and no parameter is larger: products of two then fit 63 bits. And no padded image has more elements: that is a thousand terabytes.
cdef Py_ssize_t LARGEST = 2**31 - 1
cdef tuple PLANES = ("an integer, (h, w) or (top, left, bottom, right)", "an integer, (h, w), (top, left, bottom, right), same or valid")
cdef tuple ROWS = ("an integer, (l,) or (left, right)", "an integer, (l,), (left, right), same or valid")
cdef double LARGEST_IMAGE = 2.0**48


# ---- what an argument may be ----

cdef str sizes(Tensor t):
    return "[" + ",".join([str(t.dims[i]) for i in range(t.rank)]) + "]"


cdef str given(Tensor x, Tensor w):
    return f"(x {sizes(x)}, w {sizes(w)})"


cdef int read(object value, int spatial, Py_ssize_t least, str op, str what, Py_ssize_t *out) except -1:
    """One number per spatial dimension, or one for all, into (height, width); the height of a one-dimensional call is left as it is."""
    cdef Py_ssize_t n = plain(value, least, LARGEST)
    if n < least:
        return read_integers(op, what, value, spatial, least, LARGEST, out + 2 - spatial)
    out[1] = n
    if spatial == 2:
        out[0] = n
    return 0


cdef int read_padding(object value, int spatial, const Conv *c, bint named, str op, Py_ssize_t *out) except -1:
    """(top, left, bottom, right) from an int, one number per dimension, two per dimension, or, where `named`, "same" or "valid"."""
    cdef str forms = PLANES[named] if spatial == 2 else ROWS[named]
    cdef Py_ssize_t[2] pair
    cdef tuple parts = None
    cdef Py_ssize_t total = plain(value, 0, LARGEST)
    if total >= 0:
        out[1] = out[3] = total
        out[0] = out[2] = total if spatial == 2 else 0
        return 0
    out[0] = out[1] = out[2] = out[3] = 0
    if isinstance(value, str):
        if not named or value not in ("same", "valid"):
            raise ValueError(f"{op}: padding must be {forms}, got {value[:20]!r}")
        if value == "same":
            if c.sh != 1 or c.sw != 1:
                raise ValueError(f"{op}: padding 'same' needs a stride of 1, got {(c.sh, c.sw)[2 - spatial:]}; write the padding as numbers")
            total = c.dh * (c.kh - 1)
            out[0], out[2] = total // 2, total - total // 2
            total = c.dw * (c.kw - 1)
            out[1], out[3] = total // 2, total - total // 2
        return 0
    if isinstance(value, (tuple, list)):
        parts = tuple(value)
        if len(parts) == 2 * spatial:
            if spatial == 2:
                out[0] = integer(op, "padding", parts[0], 0, LARGEST, forms)
                out[2] = integer(op, "padding", parts[2], 0, LARGEST, forms)
            out[1] = integer(op, "padding", parts[spatial - 1], 0, LARGEST, forms)
            out[3] = integer(op, "padding", parts[2 * spatial - 1], 0, LARGEST, forms)
            return 0
        if len(parts) != spatial and len(parts) != 1:
            raise ValueError(f"{op}: padding must be {forms}, got {len(parts)} numbers")
    pair[0] = 0
    if parts is None:  # also what no form takes: the error names them all
        pair[1] = integer(op, "padding", value, 0, LARGEST, forms)
        if spatial == 2:
            pair[0] = pair[1]
    else:
        read(parts, spatial, 0, op, "padding", pair)
    out[0], out[1], out[2], out[3] = pair[0], pair[1], pair[0], pair[1]
    return 0


cdef int check_float(Tensor t, str op, str what) except -1:
    if t.code != FLOAT32:
        raise TypeError(f"{op}: {what} must be float32, got {t.dtype}; write .cast(om.float32)")
    return 0


cdef int check_tensors(Tensor x, Tensor w, Tensor bias, int spatial, str op, str layout) except -1:
    """Types, ranks and sizes as far as they do not depend on the parameters; memory that went back to its scope."""
    cdef int i
    check_float(x, op, "x")
    check_float(w, op, "the weight")
    if bias is not None:
        check_float(bias, op, "the bias")
    if w.rank != spatial + 2 or (x.rank != spatial + 2 and x.rank != spatial + 1):
        images = "[N,C,H,W] or [C,H,W]" if spatial == 2 else "[N,C,L] or [C,L]"
        raise ShapeError(f"{op}: expected x {images} and w {layout}, got x {sizes(x)}, w {sizes(w)}; add or remove dimensions with reshape")
    for i in range(w.rank):
        if w.dims[i] > LARGEST:
            raise ShapeError(f"{op}: a size of the weight is beyond {LARGEST} {given(x, w)}")
        if i > 1 and w.dims[i] == 0:
            raise ShapeError(f"{op}: the kernel is empty {given(x, w)}; its sizes must be 1 or more")
    for i in range(x.rank - spatial - 1, x.rank):
        if x.dims[i] > LARGEST:
            raise ShapeError(f"{op}: a size of x is beyond {LARGEST} {given(x, w)}")
        if i > x.rank - spatial - 1 and x.dims[i] == 0 and (x.rank == spatial + 1 or x.dims[0] != 0):
            raise ShapeError(f"{op}: the image is empty {given(x, w)}; only the batch and the channels may have size 0")
    data_of(x, op)
    data_of(w, op)
    if bias is not None:
        data_of(bias, op)
    return 0


cdef int check_bias(Tensor bias, Py_ssize_t channels, Tensor x, Tensor w, str op) except -1:
    if bias is not None and (bias.rank != 1 or bias.dims[0] != channels):
        raise ShapeError(f"{op}: expected a bias [{channels}], got {sizes(bias)} {given(x, w)}; one value per output channel")
    return 0


cdef int check_groups(Py_ssize_t rows, Py_ssize_t groups, Tensor x, Tensor w, str op) except -1:
    """The first dimension of the weight is dealt to the groups."""
    if rows == 0:
        raise ShapeError(f"{op}: the weight's first dimension is 0 {given(x, w)}; it must be {groups} or more")
    if rows % groups:
        raise ShapeError(f"{op}: the weight's first dimension is {rows}, which {groups} groups do not divide {given(x, w)}; set groups or change w")
    return 0


# ---- memory ----

cdef Tensor laid(Tensor t, int spatial, Conv *c, str op):
    """The tensor in the place of the engine's x, as it lies where its rows are contiguous, else a copy; its strides go to c."""
    if c.iw != 1 and t.steps[t.rank - 1] != 1:
        t = densely(t, op)
    cdef int channel = t.rank - spatial - 1
    # The stride of a size of 1 means nothing; the engine gets the one that makes x contiguous, if that is possible.
    c.xh = t.steps[channel + 1] if spatial == 2 and c.ih != 1 else c.iw
    c.xc = t.steps[channel] if c.ic != 1 else c.ih * c.xh
    c.xn = t.steps[0] if c.n != 1 else c.ic * c.xc
    return t


cdef int engine(int which, int mode, const Conv *c, const float *a, const float *b, const float *bias, float *out) noexcept nogil:
    if which == FORWARD:
        return conv_forward(mode, c, a, b, bias, out)
    if which == INPUT:
        return conv_input(mode, c, a, b, bias, out)
    return conv_weight(mode, c, a, b, out)


cdef int convolve(int which, int mode, const Conv *c, Tensor a, Tensor b, Tensor bias, Tensor out, str op) except -1:
    """Runs an engine: FORWARD (x, w) -> y, INPUT (g, w) -> dx, WEIGHT (x, g) -> dw; out is fresh."""
    cdef Py_ssize_t k = c.ic // c.groups * c.kh * c.kw
    cdef int status
    cdef const float *pa = <const float *>data_of(a, op)
    cdef const float *pb = <const float *>data_of(b, op)
    cdef const float *pbias = NULL if bias is None else <const float *>data_of(bias, op)
    cdef float *to = <float *>out.storage.data
    if out.count == 0:
        return 0
    if <double>c.n * c.oc * c.oh * c.ow * k < WITHOUT_GIL:
        status = engine(which, mode, c, pa, pb, pbias, to)
    else:
        pin(a.storage)
        pin(b.storage)
        pin(out.storage)
        if bias is not None:
            pin(bias.storage)
        with nogil:
            status = engine(which, mode, c, pa, pb, pbias, to)
        if bias is not None:
            unpin(bias.storage)
        unpin(out.storage)
        unpin(b.storage)
        unpin(a.storage)
    if status < 0:
        raise_no_memory(c.oc * k * 4)
    return 0


cdef Tensor gradient(Record r, int which, const Conv *c, Tensor a, Tensor b, int edge, str op):
    """What an engine makes in the shape of one of the inputs."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = edge_shape(r.edges[edge], dims)
    cdef Tensor out = new_tensor(FLOAT32, rank, dims, False)
    convolve(which, r.mode, c, a, b, None, out, op)
    return out


cdef Tensor bias_gradient(Record r, Tensor g, int spatial, str op):
    """One double sum per channel over images and positions."""
    cdef int channel = g.rank - spatial - 1, status
    cdef Tensor out = new_tensor(FLOAT32, 1, &g.dims[channel], False)
    cdef const float *p = <const float *>data_of(g, op)
    cdef unsigned long long axes = (((<unsigned long long>1) << g.rank) - 1) & ~((<unsigned long long>1) << channel)
    pin(g.storage)
    with nogil:
        status = reduce_kernel(r.mode, SUM, g.rank, g.dims, g.steps, p, axes, <float *>out.storage.data)
    unpin(g.storage)
    if status < 0:
        raise_no_memory(out.count * 8)
    return out


cdef inline bint wanted(Record r, int edge) noexcept:
    return len(r.edges) > edge and r.edges[edge] is not None and r.wanted >> edge & 1


cdef int record(Tensor out, Rule rule, Tensor x, Tensor w, Tensor bias, const Conv *c, int mode) except -1:
    """The geometry travels as bytes: nothing can change them."""
    if not recording() or not (x.wants_grad or w.wants_grad or (bias is not None and bias.wants_grad)):
        return 0
    cdef tuple edges = (edge_of(x), edge_of(w)) if bias is None else (edge_of(x), edge_of(w), edge_of(bias))
    return attach(out, rule, edges, (x if w.wants_grad else None, w if x.wants_grad else None),
                  PyBytes_FromStringAndSize(<const char *>c, sizeof(Conv)), mode)


# ---- conv1d and conv2d ----

cdef class ConvRule(Rule):
    """saved: x if w needs a gradient, w if x does; attributes: the geometry."""
    cdef int spatial

    cdef object backward(self, Record r, Tensor g):
        cdef Conv c
        cdef Tensor dx = None, dw = None, db = None
        memcpy(&c, PyBytes_AS_STRING(r.attributes), sizeof(Conv))
        g = densely(g, self.name)
        if wanted(r, 0):
            dx = gradient(r, INPUT, &c, g, densely(<Tensor>r.saved[1], self.name), 0, self.name)
        if wanted(r, 1):
            dw = gradient(r, WEIGHT, &c, laid(<Tensor>r.saved[0], self.spatial, &c, self.name), g, 1, self.name)
        if wanted(r, 2):
            db = bias_gradient(r, g, self.spatial, self.name)
        return (dx, dw) if len(r.edges) == 2 else (dx, dw, db)


cdef int read_geometry(int spatial, Tensor x, Tensor w, Tensor bias, object stride, object padding, object dilation, object groups, str op,
                       Conv *c) except -1:
    """Everything but the strides of x, checked."""
    cdef int channel = x.rank - spatial - 1
    cdef Py_ssize_t[2] numbers
    cdef Py_ssize_t[4] pad
    cdef Py_ssize_t height, width, reach_h, reach_w
    check_tensors(x, w, bias, spatial, op, "[O,C/groups,kH,kW]" if spatial == 2 else "[O,C/groups,k]")
    c.groups = plain(groups, 1, LARGEST)
    if c.groups < 1:
        c.groups = integer(op, "groups", groups, 1, LARGEST)
    c.n = x.dims[0] if channel else 1
    c.ic, c.iw, c.oc, c.kw = x.dims[channel], x.dims[x.rank - 1], w.dims[0], w.dims[w.rank - 1]
    c.ih = c.kh = 1
    if spatial == 2:
        c.ih, c.kh = x.dims[channel + 1], w.dims[2]
    numbers[0] = 1
    read(stride, spatial, 1, op, "stride", numbers)
    c.sh, c.sw = numbers[0], numbers[1]
    numbers[0] = 1
    read(dilation, spatial, 1, op, "dilation", numbers)
    c.dh, c.dw = numbers[0], numbers[1]
    read_padding(padding, spatial, c, True, op, pad)
    c.pt, c.pl = pad[0], pad[1]
    check_groups(c.oc, c.groups, x, w, op)
    if c.ic != w.dims[1] * c.groups:
        raise ShapeError(f"{op}: weight has {w.dims[1]} input channels{f' in each of {c.groups} groups' if c.groups > 1 else ''}, "
                         f"input has {c.ic} {given(x, w)}; set groups or change w")
    check_bias(bias, c.oc, x, w, op)
    height, width = c.ih + pad[0] + pad[2], c.iw + pad[1] + pad[3]
    reach_h, reach_w = c.dh * (c.kh - 1) + 1, c.dw * (c.kw - 1) + 1
    if reach_h > height or reach_w > width:
        raise ShapeError(f"{op}: the kernel spans {f'{reach_h} by {reach_w}' if spatial == 2 else reach_w}, the padded input "
                         f"{f'{height} by {width}' if spatial == 2 else width} {given(x, w)}; pad more or use a smaller kernel")
    if <double>c.ic * height * width > LARGEST_IMAGE:
        raise ShapeError(f"{op}: the padded input is {height} by {width}, which no memory holds {given(x, w)}; pad less")
    c.oh, c.ow = (height - reach_h) // c.sh + 1, (width - reach_w) // c.sw + 1
    return 0


cdef Tensor output(int rank, int spatial, const Conv *c, Py_ssize_t height, Py_ssize_t width):
    """Room for c.oc planes an image, of a batch where the rank says so."""
    cdef Py_ssize_t[4] dims
    cdef int i = rank - spatial - 1
    dims[0] = c.n
    dims[i] = c.oc
    dims[i + 1], dims[i + spatial] = height, width
    return new_tensor(FLOAT32, rank, dims, True)


cdef Tensor convolution(ConvRule rule, Tensor x, Tensor w, Tensor bias, object stride, object padding, object dilation, object groups):
    cdef int mode = current_mode()
    cdef str op = rule.name
    cdef Conv c
    cdef Tensor out, source
    read_geometry(rule.spatial, x, w, bias, stride, padding, dilation, groups, op, &c)
    source = laid(x, rule.spatial, &c, op)
    out = output(x.rank, rule.spatial, &c, c.oh, c.ow)
    convolve(FORWARD, mode, &c, source, densely(w, op), None if bias is None else densely(bias, op), out, op)
    record(out, rule, x, w, bias, &c, mode)
    return out


cdef ConvRule CONV1D = ConvRule(), CONV2D = ConvRule()
CONV1D.name, CONV1D.spatial = "conv1d", 1
CONV2D.name, CONV2D.spatial = "conv2d", 2


def conv1d(input, weight, bias, stride, padding, dilation, groups):
    return convolution(CONV1D, require(input, "conv1d"), require(weight, "conv1d"), None if bias is None else require(bias, "conv1d"),
                       stride, padding, dilation, groups)


def conv2d(input, weight, bias, stride, padding, dilation, groups):
    return convolution(CONV2D, require(input, "conv2d"), require(weight, "conv2d"), None if bias is None else require(bias, "conv2d"),
                       stride, padding, dilation, groups)


# ---- conv_relu_pool2d ----

cdef struct Stage:
    Conv conv
    Pooling pooling


cdef class ConvPoolRule(Rule):
    """saved: x if w needs a gradient, w if x does, and where each window's maximum stands; attributes: the Stage."""
    cdef object backward(self, Record r, Tensor g):
        cdef Stage s
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef str op = self.name
        cdef Tensor index = <Tensor>r.saved[2], x = None, w = None, dx = None, dw = None, db = None
        cdef const float *px = NULL
        cdef const float *pw = NULL
        cdef float *pdx = NULL
        cdef float *pdw = NULL
        cdef float *pdb = NULL
        cdef int status
        memcpy(&s, PyBytes_AS_STRING(r.attributes), sizeof(Stage))
        g = densely(g, op)
        cdef const float *pg = <const float *>data_of(g, op)
        cdef const int32_t *found = <const int32_t *>data_of(index, op)
        if wanted(r, 0):
            w = densely(<Tensor>r.saved[1], op)
            pw = <const float *>data_of(w, op)
            dx = new_tensor(FLOAT32, edge_shape(r.edges[0], dims), dims, False)
            pdx = <float *>dx.storage.data
        if wanted(r, 1):
            x = laid(<Tensor>r.saved[0], 2, &s.conv, op)
            px = <const float *>data_of(x, op)
            dw = new_tensor(FLOAT32, edge_shape(r.edges[1], dims), dims, False)
            pdw = <float *>dw.storage.data
        if wanted(r, 2):
            db = new_tensor(FLOAT32, edge_shape(r.edges[2], dims), dims, False)
            pdb = <float *>db.storage.data
        pin(g.storage)
        pin(index.storage)
        if x is not None:
            pin(x.storage)
        if w is not None:
            pin(w.storage)
        with nogil:
            status = conv_pool_backward(r.mode, &s.conv, &s.pooling, pg, found, px, pw, pdx, pdw, pdb)
        if w is not None:
            unpin(w.storage)
        if x is not None:
            unpin(x.storage)
        unpin(index.storage)
        unpin(g.storage)
        if status < 0:
            raise_no_memory(conv_pool_bytes(&s.conv))
        return (dx, dw) if len(r.edges) == 2 else (dx, dw, db)


cdef ConvPoolRule CONV_RELU_POOL2D = ConvPoolRule()
CONV_RELU_POOL2D.name = "conv_relu_pool2d"


def conv_relu_pool2d(input, weight, bias, stride, padding, dilation, groups, kernel_size, pool_stride, pool_padding, pool_dilation, ceil_mode):
    cdef str op = "conv_relu_pool2d"
    cdef Tensor x = require(input, op), w = require(weight, op), b = None if bias is None else require(bias, op), y, index = None
    cdef Tensor source, kernels, shifts
    cdef Stage s
    cdef int mode = current_mode(), status
    cdef bint recorded = recording() and (x.wants_grad or w.wants_grad or (b is not None and b.wants_grad))
    read_geometry(2, x, w, b, stride, padding, dilation, groups, op, &s.conv)
    read_pooling(kernel_size, pool_stride, pool_padding, pool_dilation, ceil_mode, x, op, &s)
    source, kernels, shifts = laid(x, 2, &s.conv, op), densely(w, op), None if b is None else densely(b, op)
    cdef const float *px = <const float *>data_of(source, op)
    cdef const float *pw = <const float *>data_of(kernels, op)
    cdef const float *pb = NULL if b is None else <const float *>data_of(shifts, op)
    y = output(x.rank, 2, &s.conv, s.pooling.oh, s.pooling.ow)
    cdef float *py = <float *>y.storage.data
    cdef int32_t *found = NULL
    if recorded:
        index = new_tensor(INT32, y.rank, y.dims, True)
        found = <int32_t *>index.storage.data
    pin(source.storage)
    pin(kernels.storage)
    pin(y.storage)
    if b is not None:
        pin(shifts.storage)
    if recorded:
        pin(index.storage)
    with nogil:
        status = conv_pool_forward(mode, &s.conv, &s.pooling, px, pw, pb, py, found)
    if recorded:
        unpin(index.storage)
    if b is not None:
        unpin(shifts.storage)
    unpin(y.storage)
    unpin(kernels.storage)
    unpin(source.storage)
    if status < 0:
        raise_no_memory(conv_pool_bytes(&s.conv))
    if recorded:
        attach(y, CONV_RELU_POOL2D, (edge_of(x), edge_of(w)) if b is None else (edge_of(x), edge_of(w), edge_of(b)),
               (x if w.wants_grad else None, w if x.wants_grad else None, index),
               PyBytes_FromStringAndSize(<const char *>&s, sizeof(Stage)), mode)
    return y


cdef int read_pooling(object kernel_size, object stride, object padding, object dilation, object ceil_mode, Tensor x, str op, Stage *s) except -1:
    cdef Pooling *p = &s.pooling
    cdef const Conv *c = &s.conv
    if c.oh * c.ow > LARGEST:
        raise ShapeError(f"{op}: planes must have fewer than 2**31 elements, since indices within them are int32, got {c.oh} by {c.ow} "
                         f"(x {sizes(x)})")
    if <double>c.oc * c.oh * c.ow > LARGEST_IMAGE:
        raise ShapeError(f"{op}: an image's convolution would be {c.oc} by {c.oh} by {c.ow}, which no memory holds (x {sizes(x)}); use fewer channels")
    p.kind, p.include_pad, p.divisor = MAX, False, 0
    p.n, p.c, p.h, p.w = c.n, c.oc, c.oh, c.ow
    p.xw, p.xh, p.xc, p.xn = 1, c.ow, c.oh * c.ow, c.oc * c.oh * c.ow
    return read_windows(True, kernel_size, stride, padding, dilation, ceil_mode, op, x, "the convolution's outputs", p)


# ---- conv_transpose2d: the geometry is that of the convolution it is the adjoint of, from its output to its input ----

cdef class ConvTransposeRule(Rule):
    """saved: x if w needs a gradient, w if x does; attributes: the geometry."""
    cdef object backward(self, Record r, Tensor g):
        cdef Conv c
        cdef Tensor dx = None, dw = None, db = None
        memcpy(&c, PyBytes_AS_STRING(r.attributes), sizeof(Conv))
        g = laid(g, 2, &c, self.name)
        if wanted(r, 0):
            dx = gradient(r, FORWARD, &c, g, densely(<Tensor>r.saved[1], self.name), 0, self.name)
        if wanted(r, 1):
            dw = gradient(r, WEIGHT, &c, g, densely(<Tensor>r.saved[0], self.name), 1, self.name)
        if wanted(r, 2):
            db = bias_gradient(r, g, 2, self.name)
        return (dx, dw) if len(r.edges) == 2 else (dx, dw, db)


cdef ConvTransposeRule CONV_TRANSPOSE2D = ConvTransposeRule()
CONV_TRANSPOSE2D.name = "conv_transpose2d"


def conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation):
    cdef str op = "conv_transpose2d"
    return transposed(require(input, op), require(weight, op), None if bias is None else require(bias, op), stride, padding, output_padding, groups,
                      dilation)


cdef Tensor transposed(Tensor x, Tensor w, Tensor bias, object stride, object padding, object output_padding, object groups, object dilation):
    cdef str op = "conv_transpose2d"
    cdef int channel = x.rank - 3, i, mode = current_mode()
    cdef Conv c
    cdef Py_ssize_t[2] numbers
    cdef Py_ssize_t[4] pad
    cdef Py_ssize_t[4] dims
    cdef Py_ssize_t height, width
    cdef Tensor out
    check_tensors(x, w, bias, 2, op, "[C,O/groups,kH,kW]")
    c.groups = plain(groups, 1, LARGEST)
    if c.groups < 1:
        c.groups = integer(op, "groups", groups, 1, LARGEST)
    c.n = x.dims[0] if channel else 1
    c.oc, c.oh, c.ow = x.dims[channel], x.dims[channel + 1], x.dims[channel + 2]
    c.kh, c.kw = w.dims[2], w.dims[3]
    read(stride, 2, 1, op, "stride", numbers)
    c.sh, c.sw = numbers[0], numbers[1]
    read(dilation, 2, 1, op, "dilation", numbers)
    c.dh, c.dw = numbers[0], numbers[1]
    read_padding(padding, 2, &c, False, op, pad)
    c.pt, c.pl = pad[0], pad[1]
    read(output_padding, 2, 0, op, "output_padding", numbers)
    if numbers[0] >= max(c.sh, c.dh) or numbers[1] >= max(c.sw, c.dw):
        raise ValueError(f"{op}: output_padding {(numbers[0], numbers[1])} must be smaller than the stride {(c.sh, c.sw)} or the dilation {(c.dh, c.dw)}; "
                         "more rows would receive nothing")
    check_groups(w.dims[0], c.groups, x, w, op)
    if w.dims[0] != c.oc:
        raise ShapeError(f"{op}: weight has {w.dims[0]} input channels, input has {c.oc} {given(x, w)}; the weight is [C,O/groups,kH,kW]")
    if w.dims[1] == 0:
        raise ShapeError(f"{op}: the weight has no output channels {given(x, w)}")
    c.ic = w.dims[1] * c.groups
    check_bias(bias, c.ic, x, w, op)
    height, width = (c.oh - 1) * c.sh + c.dh * (c.kh - 1) + numbers[0] + 1, (c.ow - 1) * c.sw + c.dw * (c.kw - 1) + numbers[1] + 1
    c.ih, c.iw = height - pad[0] - pad[2], width - pad[1] - pad[3]
    if c.ih < 1 or c.iw < 1:
        raise ShapeError(f"{op}: the output would be {c.ih} by {c.iw} {given(x, w)}; pad less")
    if <double>c.ic * height * width > LARGEST_IMAGE:
        raise ShapeError(f"{op}: the output would be {c.ih} by {c.iw}, which no memory holds {given(x, w)}; use a smaller stride or dilation")
    i = 0
    if channel:
        dims[0] = c.n
        i = 1
    dims[i], dims[i + 1], dims[i + 2] = c.ic, c.ih, c.iw
    out = new_tensor(FLOAT32, i + 3, dims, True)
    c.xh, c.xc, c.xn = c.iw, c.ih * c.iw, c.ic * c.ih * c.iw
    convolve(INPUT, mode, &c, densely(x, op), densely(w, op), None if bias is None else densely(bias, op), out, op)
    record(out, CONV_TRANSPOSE2D, x, w, bias, &c, mode)
    return out


RULES = {"conv1d": CONV1D, "conv2d": CONV2D, "conv_transpose2d": CONV_TRANSPOSE2D, "conv_relu_pool2d": CONV_RELU_POOL2D}
