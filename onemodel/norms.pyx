"""Normalisation of tensors and its rules: batch, layer, rms and group norm; checks, memory and the update of running statistics.

An input is read where it lies if its images, channels or rows are whole pieces of memory, else through one contiguous copy. Holds no
loop over elements.
"""

from libc.string cimport memset

from onemodel._kernels cimport norm as kernels
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport give, pin, raise_no_memory, take, unpin
from onemodel.arguments cimport flag, index_of
from onemodel.arrays cimport require
from onemodel.inplace cimport overlap, shares_elements
from onemodel.tensor cimport (FLOAT32, MAX_NDIM, Record, Rule, Tensor, attach, copy_into, data_of, densely, edge_of, new_like, new_tensor,
                              recording, same_shape, shape_tuple)

from onemodel.errors import ShapeError
from onemodel.ops.parameters import real


# ---- arguments ----

cdef Tensor float_of(object value, str op, str what):
    cdef Tensor t
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {what} must be a Tensor, got {type(value).__name__}; wrap arrays and lists with om.tensor(...)")
    t = <Tensor>value
    if t.code != FLOAT32:
        raise TypeError(f"{op}: {what} must be float32, got {t.dtype}; write .cast(om.float32)")
    data_of(t, op)
    return t


cdef Tensor parameter_of(object value, str op, str what, int rank, const Py_ssize_t *dims, Tensor x):
    """A parameter of this shape, contiguous; None stays None."""
    cdef Tensor t
    if value is None:
        return None
    t = float_of(value, op, what)
    if not same_shape(t, rank, dims):
        raise ShapeError(f"{op}: {what} has shape {t.shape}, input {x.shape} needs {shape_tuple(rank, dims)}; reshape {what}")
    return t


cdef double eps_of(object value, str op) except? -1.0:
    return real(op, "eps", value, "a finite number, not negative", 0.0)


cdef const float *data_or_null(Tensor t, str op) except? NULL:
    return NULL if t is None else <const float *>data_of(t, op)


cdef void pin_all(tuple tensors) noexcept:
    for t in tensors:
        if t is not None:
            pin((<Tensor>t).storage)


cdef void unpin_all(tuple tensors) noexcept:
    for t in tensors:
        if t is not None:
            unpin((<Tensor>t).storage)


cdef bint wanted(Record r, int i):
    return r.edges[i] is not None and r.wanted >> i & 1


cdef bint wants(Tensor x, Tensor weight, Tensor bias):
    return recording() and (x.wants_grad or (weight is not None and weight.wants_grad) or (bias is not None and bias.wants_grad))


cdef object edge_or_none(Tensor t):
    return None if t is None else edge_of(t)


# ---- batch norm ----

cdef struct Planes:             # [n, c, p] with contiguous positions
    Py_ssize_t n
    Py_ssize_t c
    Py_ssize_t p
    Py_ssize_t image
    Py_ssize_t channel


cdef bint inner_is_dense(Tensor t, int first) noexcept:
    """Whether the dimensions from `first` on are one piece of memory."""
    cdef Py_ssize_t step = 1
    cdef int i
    for i in range(t.rank - 1, first - 1, -1):
        if t.dims[i] != 1:
            if t.steps[i] != step:
                return False
            step *= t.dims[i]
    return True


cdef Planes planes_of(Tensor t) noexcept:
    """Strides of sizes of 1 mean nothing and are set to those of contiguous memory."""
    cdef Planes s
    cdef int i
    s.n, s.c, s.p = t.dims[0], t.dims[1], 1
    for i in range(2, t.rank):
        s.p *= t.dims[i]
    s.channel = t.steps[1] if s.c != 1 else s.p
    s.image = t.steps[0] if s.n != 1 else s.c * s.p
    return s


cdef Tensor as_planes(Tensor t, str op):
    """t, or a contiguous copy of it where positions are scattered, or channels of one position are."""
    if t.count == 0 or (inner_is_dense(t, 2) and (planes_of(t).p != 1 or planes_of(t).channel == 1)):
        return t
    return densely(t, op)


cdef Tensor running_of(object value, Tensor x, bint written, str what):
    cdef Tensor t = parameter_of(value, "batch_norm", what, 1, x.dims + 1, x)
    if t.wants_grad:
        raise ValueError(f"batch_norm: {what} gets no gradient; pass {what}.detach()")
    if written:
        if t.storage.readonly:
            raise RuntimeError(f"batch_norm: {what} is read-only memory and is updated in training; clone() it first")
        if shares_elements(t):
            raise RuntimeError(f"batch_norm: elements of {what} overlap (strides {t.strides}), as after expand; clone() it first")
        if overlap(t, x):
            raise ValueError(f"batch_norm: {what} lies in the memory of the input; clone() it first")
    return t


cdef bint same_memory(Tensor a, Tensor b) noexcept:
    """Whether two vectors share an element; every second one of a buffer and the others between them do not."""
    cdef Py_ssize_t apart
    if not overlap(a, b):
        return False
    apart = (<float *>a.storage.data + a.offset) - (<float *>b.storage.data + b.offset)
    return a.steps[0] != b.steps[0] or a.steps[0] == 0 or apart % a.steps[0] == 0


cdef class BatchNormRule(Rule):
    """saved: x, weight, mean, 1/sigma; attributes: whether the statistics are x's own."""
    cdef object backward(self, Record r, Tensor g):
        cdef Tensor x = as_planes(<Tensor>r.saved[0], self.name), weight = <Tensor>r.saved[1], mean = <Tensor>r.saved[2], rstd = <Tensor>r.saved[3]
        cdef Tensor dx = None, dweight = None, dbias = None
        cdef Planes s = planes_of(x), t
        cdef const float *pw
        cdef float *to[3]
        cdef bint own = r.attributes
        cdef int mode = r.mode, status
        g = as_planes(g, self.name)
        t = planes_of(g)
        if weight is not None:
            weight = densely(weight, self.name)
        if wanted(r, 0):
            dx = new_like(x, False)
        if wanted(r, 1):
            dweight = new_like(mean, False)
        if wanted(r, 2):
            dbias = new_like(mean, False)
        cdef const float *px = <const float *>data_of(x, self.name)
        cdef const float *pg = <const float *>data_of(g, self.name)
        pw = data_or_null(weight, self.name)
        cdef const float *pm = <const float *>data_of(mean, self.name)
        cdef const float *ps = <const float *>data_of(rstd, self.name)
        to[0], to[1], to[2] = <float *>data_or_null(dx, self.name), <float *>data_or_null(dweight, self.name), <float *>data_or_null(dbias, self.name)
        cdef tuple used = (x, g, weight, mean, rstd, dx, dweight, dbias)
        pin_all(used)
        with nogil:
            status = kernels.batch_norm_bwd(mode, s.n, s.c, s.p, px, s.image, s.channel, pg, t.image, t.channel, pw, pm, ps, own, to[0], to[1], to[2])
        unpin_all(used)
        if status < 0:
            raise_no_memory(x.count * 4)
        return dx, dweight, dbias


cdef BatchNormRule BATCH_NORM = BatchNormRule()
BATCH_NORM.name = "batch_norm"


def batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps):
    """Each channel of [N, C, ...] minus its mean, divided by its deviation; see `onemodel.batch_norm`."""
    cdef str op = "batch_norm"
    cdef Tensor x = float_of(input, op, "input"), w, b, means = None, variances = None
    cdef Py_ssize_t per_channel
    cdef int i
    training = flag("batch_norm", "training", training)
    if x.rank < 2:
        raise ShapeError(f"batch_norm: expected an input [N, C] or [N, C, ...], got shape {x.shape}; use unsqueeze")
    cdef double blend = real(op, "momentum", momentum), small = eps_of(eps, op)
    cdef bint own = training
    w = parameter_of(weight, op, "weight", 1, x.dims + 1, x)
    b = parameter_of(bias, op, "bias", 1, x.dims + 1, x)
    if (running_mean is None) != (running_var is None):
        raise ValueError("batch_norm: running_mean and running_var belong together; pass both or None for both")
    if running_mean is not None:
        means = running_of(running_mean, x, own, "running_mean")
        variances = running_of(running_var, x, own, "running_var")
        if own and same_memory(means, variances):
            raise ValueError("batch_norm: running_mean and running_var share memory; clone() one of them")
    elif not own:
        raise ValueError("batch_norm: evaluation needs running_mean and running_var; pass them, or training=True")
    if own:
        if small == 0.0:
            raise ValueError("batch_norm: eps must be positive in training: a constant channel would be 0 / 0")
        per_channel = x.dims[0]
        for i in range(2, x.rank):
            per_channel *= x.dims[i]
        if per_channel == 1:
            raise ValueError(f"batch_norm: training needs more than one value per channel, got input {x.shape}; use training=False or a larger batch")
    return batch_norm_of(x, means, variances, w, b, own, blend, small)


cdef Tensor batch_norm_of(Tensor x, Tensor means, Tensor variances, Tensor weight, Tensor bias, bint own, double momentum, double eps):
    cdef str op = "batch_norm"
    cdef Tensor source = as_planes(x, op), w = weight, b = bias, y, mean, rstd
    cdef Planes s = planes_of(source)
    cdef int mode = current_mode(), status
    cdef double *moments = NULL
    cdef double count = <double>s.n * <double>s.p
    if weight is not None:
        w = densely(weight, op)
    if bias is not None:
        b = densely(bias, op)
    y, mean, rstd = new_like(x, True), new_tensor(FLOAT32, 1, x.dims + 1, True), new_tensor(FLOAT32, 1, x.dims + 1, True)
    cdef const float *px = <const float *>data_of(source, op)
    cdef const float *pw = data_or_null(w, op)
    cdef const float *pb = data_or_null(b, op)
    cdef float *py = <float *>data_of(y, op)
    cdef float *pm = <float *>data_of(mean, op)
    cdef float *ps = <float *>data_of(rstd, op)
    cdef tuple used = (source, w, b, y, mean, rstd)
    if x.count == 0 and own:  # no statistic: the running ones stay, and gradients of parameters are 0
        memset(pm, 0, s.c * sizeof(float))
        memset(ps, 0, s.c * sizeof(float))
    elif own:
        moments = <double *>take(2 * s.c * sizeof(double))
        if moments == NULL:
            raise_no_memory(2 * s.c * sizeof(double))
        pin_all(used)
        with nogil:
            status = kernels.batch_norm(mode, s.n, s.c, s.p, px, s.image, s.channel, pw, pb, eps, py, pm, ps, moments)
        unpin_all(used)
    else:
        copy_into(mean, means, op)
        kernels.rstd_of(mode, s.c, <const float *>data_of(variances, op), variances.steps[0], eps, ps)
        pin_all(used)
        with nogil:
            status = kernels.batch_norm_apply(mode, s.n, s.c, s.p, px, s.image, s.channel, pw, pb, pm, ps, py)
        unpin_all(used)
    try:
        if wants(x, weight, bias):
            attach(y, BATCH_NORM, (edge_of(x), edge_or_none(weight), edge_or_none(bias)), (x, weight, mean, rstd), own, mode)
        if moments != NULL and means is not None:  # the one place where running statistics move
            kernels.update_running(mode, s.c, moments, 1.0, momentum, <float *>data_of(means, op), means.steps[0])
            kernels.update_running(mode, s.c, moments + s.c, count / (count - 1.0), momentum, <float *>data_of(variances, op), variances.steps[0])
            means.storage.version += 1
            variances.storage.version += 1
    finally:
        give(moments)
    return y


# ---- layer norm and rms norm: rows of the last dimensions ----

cdef Tensor as_rows(Tensor t, int lead, Py_ssize_t cols, Py_ssize_t *stride, str op):
    """t as rows of its dimensions from `lead` on, at one stride, or a contiguous copy."""
    cdef Py_ssize_t next_step = 0
    cdef int i
    cdef bint even = t.count == 0 or inner_is_dense(t, lead), first = True
    stride[0] = cols
    if not even:
        return densely(t, op)
    for i in range(lead - 1, -1, -1):
        if t.dims[i] == 1 or t.count == 0:
            continue
        if first:
            stride[0], first = t.steps[i], False
        elif t.steps[i] != next_step:
            stride[0] = cols
            return densely(t, op)
        next_step = t.steps[i] * t.dims[i]
    return t


cdef class LayerNormRule(Rule):
    """saved: x, weight, mean (none for rms norm), 1/sigma; attributes: how many dimensions come before the rows."""
    cdef bint centred

    cdef object backward(self, Record r, Tensor g):
        cdef int lead = r.attributes, mode = r.mode, status, i
        cdef Tensor x = <Tensor>r.saved[0], weight = <Tensor>r.saved[1], mean = <Tensor>r.saved[2], rstd = <Tensor>r.saved[3]
        cdef Tensor dx = None, dweight = None, dbias = None
        cdef Py_ssize_t rows = rstd.count, cols = 1, stride, g_stride
        cdef float *to[3]
        for i in range(lead, x.rank):
            cols *= x.dims[i]
        x, g = as_rows(x, lead, cols, &stride, self.name), as_rows(g, lead, cols, &g_stride, self.name)
        if weight is not None:
            weight = densely(weight, self.name)
        if wanted(r, 0):
            dx = new_like(x, False)
        if wanted(r, 1):
            dweight = new_tensor(FLOAT32, x.rank - lead, x.dims + lead, False)
        if self.centred and wanted(r, 2):
            dbias = new_tensor(FLOAT32, x.rank - lead, x.dims + lead, False)
        cdef const float *px = <const float *>data_of(x, self.name)
        cdef const float *pg = <const float *>data_of(g, self.name)
        cdef const float *pw = data_or_null(weight, self.name)
        cdef const float *pm = data_or_null(mean, self.name)
        cdef const float *ps = <const float *>data_of(rstd, self.name)
        to[0], to[1], to[2] = <float *>data_or_null(dx, self.name), <float *>data_or_null(dweight, self.name), <float *>data_or_null(dbias, self.name)
        cdef tuple used = (x, g, weight, mean, rstd, dx, dweight, dbias)
        cdef bint centred = self.centred
        pin_all(used)
        with nogil:
            status = kernels.layer_norm_bwd(mode, rows, cols, px, stride, pg, g_stride, pw, centred, pm, ps, to[0], to[1], to[2])
        unpin_all(used)
        if status < 0:
            raise_no_memory(cols * 16)
        return (dx, dweight, dbias) if self.centred else (dx, dweight)


cdef LayerNormRule LAYER_NORM = LayerNormRule(), RMS_NORM = LayerNormRule()
LAYER_NORM.name, LAYER_NORM.centred = "layer_norm", True
RMS_NORM.name, RMS_NORM.centred = "rms_norm", False


cdef int lead_of(Tensor x, object normalized_shape, str op) except -1:
    """How many dimensions come before the normalised ones, which must be the last of x."""
    if not isinstance(normalized_shape, (tuple, list)):
        normalized_shape = (normalized_shape,)
    if len(normalized_shape) == 0:
        raise ShapeError(f"{op}: normalized_shape must name at least one dimension, got ()")
    normalized_shape = tuple([index_of(op, "normalized_shape", size, "an integer or a tuple of them") for size in normalized_shape])
    cdef int lead = x.rank - <int>min(len(normalized_shape), 64), i
    if lead < 0 or any([normalized_shape[i] != x.dims[lead + i] for i in range(x.rank - lead)]):
        raise ShapeError(f"{op}: normalized_shape {normalized_shape if len(normalized_shape) <= 16 else '(...)'} must be the last sizes of the "
                         f"input, which has shape {x.shape}")
    return lead


def layer_norm(input, normalized_shape, weight, bias, eps):
    """The last dimensions minus their mean, divided by their deviation; see `onemodel.layer_norm`."""
    return rows_normalised(LAYER_NORM, input, normalized_shape, weight, bias, eps)


def rms_norm(input, normalized_shape, weight, eps):
    """The last dimensions divided by their root mean square; see `onemodel.rms_norm`."""
    return rows_normalised(RMS_NORM, input, normalized_shape, weight, None, 2.0**-23 if eps is None else eps)


cdef Tensor rows_normalised(LayerNormRule rule, object input, object normalized_shape, object weight, object bias, object eps):
    cdef str op = rule.name
    cdef Tensor x = float_of(input, op, "input"), w, b, source, y, mean = None, rstd = None
    cdef int lead = lead_of(x, normalized_shape, op), mode = current_mode(), status, i
    cdef double small = eps_of(eps, op)
    cdef Py_ssize_t rows[1]
    cdef Py_ssize_t cols = 1, stride
    cdef bint recorded, centred = rule.centred
    weight = parameter_of(weight, op, "weight", x.rank - lead, x.dims + lead, x)
    bias = parameter_of(bias, op, "bias", x.rank - lead, x.dims + lead, x)
    recorded = wants(x, weight, bias)
    rows[0] = 1
    for i in range(x.rank):
        if i < lead:
            rows[0] *= x.dims[i]
        else:
            cols *= x.dims[i]
    source = as_rows(x, lead, cols, &stride, op)
    w = None if weight is None else densely(<Tensor>weight, op)
    b = None if bias is None else densely(<Tensor>bias, op)
    y = new_like(x, True)
    if recorded:
        rstd = new_tensor(FLOAT32, 1, rows, True)
        if centred:
            mean = new_tensor(FLOAT32, 1, rows, True)
    cdef const float *px = <const float *>data_of(source, op)
    cdef const float *pw = data_or_null(w, op)
    cdef const float *pb = data_or_null(b, op)
    cdef float *py = <float *>data_of(y, op)
    cdef float *pm = <float *>data_or_null(mean, op)
    cdef float *ps = <float *>data_or_null(rstd, op)
    cdef Py_ssize_t n = rows[0]
    cdef tuple used = (source, w, b, y, mean, rstd)
    pin_all(used)
    with nogil:
        status = kernels.layer_norm(mode, n, cols, px, stride, pw, pb, small, centred, py, pm, ps)
    unpin_all(used)
    if status < 0:
        raise_no_memory(x.count * 4)
    if recorded:
        attach(y, rule, (edge_of(x), edge_or_none(weight), edge_or_none(bias)) if centred else (edge_of(x), edge_or_none(weight)),
               (x, weight, mean, rstd), lead, mode)
    return y


# ---- group norm ----

cdef class GroupNormRule(Rule):
    """saved: x, weight, mean, 1/sigma of each image's groups; attributes: how many groups."""
    cdef object backward(self, Record r, Tensor g):
        cdef Tensor x = densely(<Tensor>r.saved[0], self.name), weight = <Tensor>r.saved[1], mean = <Tensor>r.saved[2], rstd = <Tensor>r.saved[3]
        cdef Tensor dx = None, dweight = None, dbias = None
        cdef Planes s = planes_of(x)
        cdef Py_ssize_t groups = r.attributes
        cdef float *to[3]
        cdef int mode = r.mode, status
        g = densely(g, self.name)
        if weight is not None:
            weight = densely(weight, self.name)
        if wanted(r, 0):
            dx = new_like(x, False)
        if wanted(r, 1):
            dweight = new_tensor(FLOAT32, 1, x.dims + 1, False)
        if wanted(r, 2):
            dbias = new_tensor(FLOAT32, 1, x.dims + 1, False)
        cdef const float *px = <const float *>data_of(x, self.name)
        cdef const float *pg = <const float *>data_of(g, self.name)
        cdef const float *pw = data_or_null(weight, self.name)
        cdef const float *pm = <const float *>data_of(mean, self.name)
        cdef const float *ps = <const float *>data_of(rstd, self.name)
        to[0], to[1], to[2] = <float *>data_or_null(dx, self.name), <float *>data_or_null(dweight, self.name), <float *>data_or_null(dbias, self.name)
        cdef tuple used = (x, g, weight, mean, rstd, dx, dweight, dbias)
        pin_all(used)
        with nogil:
            status = kernels.group_norm_bwd(mode, s.n, s.c, s.p, groups, px, pg, pw, pm, ps, to[0], to[1], to[2])
        unpin_all(used)
        if status < 0:
            raise_no_memory(s.n * s.c * 32)
        return dx, dweight, dbias


cdef GroupNormRule GROUP_NORM = GroupNormRule()
GROUP_NORM.name = "group_norm"


def group_norm(input, num_groups, weight, bias, eps):
    """Groups of channels minus their mean, divided by their deviation; see `onemodel.group_norm`."""
    cdef str op = "group_norm"
    cdef Tensor x = float_of(input, op, "input"), w, b, source, y, mean, rstd
    cdef Py_ssize_t[2] dims
    cdef int mode = current_mode(), status
    num_groups = index_of("group_norm", "num_groups", num_groups)
    if x.rank < 2:
        raise ShapeError(f"group_norm: expected an input [N, C] or [N, C, ...], got shape {x.shape}; use unsqueeze")
    if num_groups < 1 or x.dims[1] % num_groups != 0 or num_groups >= 1 << 62:
        raise ValueError(f"group_norm: num_groups must be positive and divide the channels, got {num_groups} for {x.dims[1]} channels (input {x.shape})")
    cdef Py_ssize_t groups = num_groups
    cdef double small = eps_of(eps, op)
    weight = parameter_of(weight, op, "weight", 1, x.dims + 1, x)
    bias = parameter_of(bias, op, "bias", 1, x.dims + 1, x)
    source = densely(x, op)
    w = None if weight is None else densely(<Tensor>weight, op)
    b = None if bias is None else densely(<Tensor>bias, op)
    dims[0], dims[1] = x.dims[0], groups
    y, mean, rstd = new_like(x, True), new_tensor(FLOAT32, 2, dims, True), new_tensor(FLOAT32, 2, dims, True)
    cdef Planes s = planes_of(source)
    cdef const float *px = <const float *>data_of(source, op)
    cdef const float *pw = data_or_null(w, op)
    cdef const float *pb = data_or_null(b, op)
    cdef float *py = <float *>data_of(y, op)
    cdef float *pm = <float *>data_of(mean, op)
    cdef float *ps = <float *>data_of(rstd, op)
    cdef tuple used = (source, w, b, y, mean, rstd)
    pin_all(used)
    with nogil:
        status = kernels.group_norm(mode, s.n, s.c, s.p, groups, px, pw, pb, small, py, pm, ps)
    unpin_all(used)
    if status < 0:
        raise_no_memory(s.n * s.c * 8)
    if wants(x, weight, bias):
        attach(y, GROUP_NORM, (edge_of(x), edge_or_none(weight), edge_or_none(bias)), (x, weight, mean, rstd), groups, mode)
    return y


RULES = {"batch_norm": BATCH_NORM, "layer_norm": LAYER_NORM, "rms_norm": RMS_NORM, "group_norm": GROUP_NORM}
