"""The engine: walks records backwards, in an order that only the graph decides, and adds up gradients.

Knows no operator by name: a record's rule turns the gradient of its output into gradients of its inputs; shapes,
broadcast-undoing sums, accumulation and the checks of saved tensors are done here, once for all of them.

  order     iterative depth-first post-order over input edges, inputs in input order; processed in reverse
  record    runs once, when every consumer of its output has run, with the sum of what they emitted
  emission  the first stores the gradient as it is, each further one is added element by element, in order of arrival
"""

from cpython.object cimport PyObject

from onemodel._kernels.elementwise cimport MAP2, MAX_DIMS, Operand, map_flat, map_strided
from onemodel._kernels.reduce cimport SUM, reduce as reduce_kernel
from onemodel._kernels.table cimport current_mode, om_fp_enter, om_fp_leave, row_index, table_of
from onemodel._pool.pool cimport pin, raise_closed, resume_scopes, suspend_scopes, unpin
from onemodel.arrays cimport as_tensor
from onemodel.arguments cimport flag
from onemodel.tensor cimport (FLOAT32, MAX_NDIM, Record, Tensor, alias, attach, check_saved, copy_into, data_of, edge_of, new_like,
                              new_tensor, recording, release, same_shape, set_recording, shape_tuple)

from onemodel.errors import GraphReleasedError, ShapeError

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)

cdef Py_ssize_t ADD = row_index("map2", "add")
cdef Py_ssize_t passes = 0          # identities of backward passes


cdef class _Pass:
    """One walk over the graph: what it may touch, and what it collects instead of `.grad`."""
    cdef Py_ssize_t identity
    cdef bint retain_graph
    cdef dict collected              # id of a leaf or record -> its gradient, for om.grad; None: leaves take their own
    cdef list order
    cdef list stack

    def __cinit__(self):
        global passes
        passes += 1
        self.identity = passes
        self.order = []
        self.stack = []


# ---- recording ----

def is_grad_enabled():
    """Whether operators of this thread record for backward."""
    return bool(recording())


def set_grad_enabled(bint on):
    """Set this thread's grad mode; returns the old one. `no_grad` and `enable_grad` are the public doors."""
    cdef bint old = recording()
    set_recording(on)
    return bool(old)


# ---- order ----

cdef int enter(_Pass walk, Record r) except -1:
    """Checks a record before any work and puts it on the stack."""
    cdef Py_ssize_t i
    if r.released:
        raise GraphReleasedError(
            f"backward: the record of {r.name} was released by an earlier backward pass; pass retain_graph=True to that one, "
            "or run the forward pass again")
    if r.run != 0:
        raise RuntimeError(f"backward: the record of {r.name} is being walked by another backward pass; give each pass its own graph")
    check_saved(r)
    r.run = walk.identity
    r.cursor = 0
    r.wanted = -1
    walk.stack.append(r)
    return 0


cdef int find_order(_Pass walk, list roots) except -1:
    cdef Record r, child
    cdef object edge
    for root in roots:
        if (<Record>root).run != walk.identity:
            enter(walk, <Record>root)
        while walk.stack:
            r = <Record>walk.stack[len(walk.stack) - 1]
            if r.cursor < len(r.edges):
                edge = r.edges[r.cursor]
                r.cursor += 1
                if type(edge) is Record:
                    child = <Record>edge
                    if child.run != walk.identity:
                        enter(walk, child)
            else:
                walk.order.append(walk.stack.pop())
    return 0


cdef void find_wanted(_Pass walk) noexcept:
    """om.grad: a record works only for inputs on a way to something asked for. Post-order: inputs are decided before consumers."""
    cdef Record r
    cdef Py_ssize_t i, wanted
    cdef dict reaching = {}
    for item in walk.order:
        r = <Record>item
        wanted = 0
        for i in range(min(len(r.edges), 62)):
            edge = r.edges[i]
            if edge is not None and (id(edge) in walk.collected or id(edge) in reaching):
                wanted |= <Py_ssize_t>1 << i
        for i in range(62, len(r.edges)):
            edge = r.edges[i]
            if edge is not None and (id(edge) in walk.collected or id(edge) in reaching):
                wanted |= ~(((<Py_ssize_t>1) << 62) - 1)
        r.wanted = wanted
        if wanted:
            reaching[id(r)] = True


cdef void leave(_Pass walk) noexcept:
    """Takes the pass's marks off every record that still carries them: none after success, all that are left after an error."""
    cdef Record r
    for item in walk.order:
        r = <Record>item
        r.run = 0
        r.pending = None
    for item in walk.stack:
        r = <Record>item
        r.run = 0
        r.pending = None


# ---- sums of gradients ----

cdef Tensor sum_to(Tensor g, int rank, const Py_ssize_t *dims, int mode, str op):
    cdef Py_ssize_t[MAX_NDIM] kept
    cdef unsigned long long axes = 0
    cdef int lead = g.rank - rank, i, status
    cdef Tensor out
    if g.code != FLOAT32:
        raise TypeError(f"backward of {op}: a gradient must be float32, got {g.dtype}")
    if lead == 0 and same_shape(g, rank, dims):
        return g
    if lead < 0:
        raise ShapeError(f"backward of {op}: gradient of shape {g.shape} for an input of shape {shape_tuple(rank, dims)}")
    for i in range(g.rank):
        if i < lead or (dims[i - lead] == 1 and g.dims[i] != 1):
            axes |= <unsigned long long>1 << i
        elif dims[i - lead] != g.dims[i]:
            raise ShapeError(f"backward of {op}: gradient of shape {g.shape} for an input of shape {shape_tuple(rank, dims)}")
    out = new_tensor(FLOAT32, rank, dims, False)
    cdef const float *x = <const float *>data_of(g, op)
    pin(g.storage)
    with nogil:
        status = reduce_kernel(mode, SUM, g.rank, g.dims, g.steps, x, axes, <float *>out.storage.data)
    unpin(g.storage)
    if status < 0:
        raise MemoryError(f"backward of {op}: no memory to sum a gradient of shape {g.shape}")
    return out


cdef bint owned(Tensor g, Py_ssize_t references) noexcept:
    """Whether nobody but the caller's `references` can see g's memory, so that it may be written or kept."""
    return (Py_REFCNT(<PyObject *>g) <= references and Py_REFCNT(<PyObject *>g.storage) == 1 and g.storage.scope == NULL
            and g.storage.owner is None and not g.wants_grad)


cdef int add_tensors(Tensor out, Tensor a, Tensor b, int mode) except -1:
    """out = a + b, one IEEE addition per element; out is contiguous and may be a."""
    cdef Operand[2] operands
    cdef int i
    cdef char *to = data_of(out, "backward")
    operands[0].data = data_of(a, "backward")
    operands[1].data = data_of(b, "backward")
    if a.dense and b.dense:
        operands[0].steps[0] = 1
        operands[1].steps[0] = 1
        map_flat(MAP2, table_of(mode).row[ADD], out.count, operands, to)
    else:
        for i in range(out.rank):
            operands[0].steps[i] = a.steps[i]
            operands[1].steps[i] = b.steps[i]
        map_strided(MAP2, table_of(mode).row[ADD], out.rank, out.dims, operands, to)
    out.storage.version += 1
    return 0


cdef Tensor own(Tensor g, Py_ssize_t references):
    """g if it is contiguous and only the caller's `references` see it, else a contiguous copy."""
    if g.dense and owned(g, references):
        return g
    cdef Tensor out = new_tensor(FLOAT32, g.rank, g.dims, False)
    copy_into(out, g, "backward")
    return out


cdef Tensor added(Tensor acc, Tensor g, int mode):
    """acc + g, in acc's own memory where nobody else can see it. The caller's variable must be the only other reference."""
    cdef Tensor out = acc
    if not (acc.dense and owned(acc, 2)):
        out = new_tensor(FLOAT32, acc.rank, acc.dims, False)
    add_tensors(out, acc, g, mode)
    return out


cdef int emit(_Pass walk, object edge, Tensor g, Py_ssize_t references, int mode, str op) except -1:
    """Adds g to what the input behind `edge` has; `references` to g are the caller's own and end with this pass."""
    cdef Record target
    cdef Tensor leaf, acc
    if type(edge) is Record:
        target = <Record>edge
        if target.run != walk.identity:
            raise RuntimeError(f"backward of {op}: the graph changed while a backward pass walked it")
        g = sum_to(g, target.rank, target.dims, mode, op)
        if target.pending is None:
            target.pending = g
        else:
            acc = target.pending
            target.pending = None
            target.pending = added(acc, g, mode)
        return 0
    leaf = <Tensor>edge
    if walk.collected is not None:
        if id(leaf) not in walk.collected:
            return 0
        g = sum_to(g, leaf.rank, leaf.dims, mode, op)
        acc = walk.collected[id(leaf)]
        if acc is None:
            walk.collected[id(leaf)] = g
        else:
            walk.collected[id(leaf)] = None
            walk.collected[id(leaf)] = added(acc, g, mode)
        return 0
    if not leaf.wants_grad:  # requires_grad_(False) came after forward
        return 0
    g = sum_to(g, leaf.rank, leaf.dims, mode, op)
    if leaf.gradient is None:
        leaf.gradient = own(g, references + 1)  # this function's variable is one more
    elif leaf.gradient.storage.readonly:
        raise RuntimeError(f"backward of {op}: the .grad of a leaf is read-only memory; assign None to it first")
    else:
        add_tensors(leaf.gradient, leaf.gradient, g, mode)
    return 0


# ---- the walk ----

cdef int run_record(_Pass walk, Record r, Tensor g) except -1:
    cdef Py_ssize_t i, n = len(r.edges)
    cdef str op = r.rule.name
    cdef tuple edges = r.edges
    cdef object result
    check_saved(r)
    result = r.rule.backward(r, g)
    if not walk.retain_graph:
        release(r)
    if isinstance(result, list):
        result = tuple(result)
    if type(result) is not tuple:
        if n == 1:
            if result is not None and edges[0] is not None:
                check_gradient(result, op)
                emit(walk, edges[0], <Tensor>result, 1 + (result is g), r.mode, op)
            return 0
        result = (result,)
    if len(<tuple>result) != n:
        raise ValueError(f"backward of {op}: expected {n} gradients, one per tensor input (None where there is none), got {len(<tuple>result)}")
    for i in range(n):
        edge = edges[i]
        item = (<tuple>result)[i]
        if edge is not None and item is not None:
            check_gradient(item, op)
            emit(walk, edge, <Tensor>item, 2 + (item is g), r.mode, op)
    return 0


cdef inline int check_gradient(object g, str op) except -1:
    """Returns nothing: a reference more would look like another owner of g, and each leaf would copy its gradient."""
    if not isinstance(g, Tensor):
        raise TypeError(f"backward of {op}: expected a Tensor or None as gradient, got {type(g).__name__}")
    return 0


cdef int walk_back(_Pass walk) except -1:
    cdef Record r
    cdef Tensor g, kept
    cdef bint was_recording = recording()
    cdef void *scopes = suspend_scopes()     # the engine's temporaries and the leaves' gradients belong to no scope
    set_recording(False)
    try:
        while walk.order:
            r = <Record>walk.order.pop()
            g = r.pending
            r.pending = None
            r.run = 0   # every consumer has run: nothing more is emitted to it, and an error below leaves no mark
            if g is not None:
                if r.keeps_grad and walk.collected is None:
                    kept = new_tensor(FLOAT32, g.rank, g.dims, False)
                    copy_into(kept, g, "backward")
                    if r.retained is not None:
                        add_tensors(kept, r.retained, g, r.mode)
                    r.retained = kept
                if walk.collected is not None and id(r) in walk.collected:
                    walk.collected[id(r)] = g
                if r.wanted != 0:
                    run_record(walk, r, g)
                g = None
            if not walk.retain_graph:
                release(r)
    finally:
        set_recording(was_recording)
        resume_scopes(scopes)
    return 0


cdef Tensor seed_of(Tensor y, object gradient, str op):
    cdef Tensor seed
    if not y.wants_grad:
        raise RuntimeError(f"{op}: the output does not require a gradient; no input of its operators had requires_grad, or recording was off")
    data_of(y, op)
    if gradient is None:
        if y.count != 1:
            raise RuntimeError(f"{op}: an output of shape {y.shape} needs an explicit gradient of that shape; only one element has the implicit 1")
        seed = new_tensor(FLOAT32, y.rank, y.dims, False)
        (<float *>seed.storage.data)[0] = 1.0
        return seed
    seed = as_tensor(gradient, FLOAT32, op)
    if seed.code != FLOAT32:
        raise TypeError(f"{op}: the gradient must be float32, got {seed.dtype}")
    if not same_shape(seed, y.rank, y.dims):
        raise ShapeError(f"{op}: expected a gradient of the output's shape {y.shape}, got {seed.shape}")
    data_of(seed, op)
    if seed.dense:
        return seed     # only read: what the engine keeps or writes is `owned`, and this is the caller's too
    cdef Tensor copy = new_tensor(FLOAT32, y.rank, y.dims, False)
    copy_into(copy, seed, op)
    return copy


cdef int run_pass(_Pass walk, list outputs, list seeds, str op) except -1:
    cdef list roots = [(<Tensor>y).record for y in outputs if (<Tensor>y).record is not None]
    cdef Tensor y
    try:
        find_order(walk, roots)
        if walk.collected is not None:
            find_wanted(walk)
        for y, seed in zip(outputs, seeds):
            emit(walk, edge_of(y), <Tensor>seed, 0, current_mode(), op)
        walk_back(walk)
    except BaseException:
        leave(walk)
        raise
    return 0


def backward(Tensor y not None, gradient=None, retain_graph=False, create_graph=False):
    """Accumulate dy/dleaf into the `.grad` of every leaf that y was computed from.

    y must require a gradient; `gradient` (y's shape, only read) may be left out for one element, where it is 1. Unless
    `retain_graph`, every record is released after it ran. Errors before any work: GraphReleasedError, ScopeClosedError,
    TensorVersionError (a saved tensor was changed in place), ShapeError.
    """
    if flag("backward", "create_graph", create_graph):
        raise ValueError("backward: create_graph=True is not supported: backward runs with recording off, so there are no higher derivatives")
    cdef _Pass walk = _Pass.__new__(_Pass)
    walk.retain_graph = flag("backward", "retain_graph", retain_graph)
    run_pass(walk, [y], [seed_of(y, gradient, "backward")], "backward")


def grad(outputs, inputs, grad_outputs=None, retain_graph=False, create_graph=False, allow_unused=False):
    """Gradients of `outputs` with respect to `inputs`, as a tuple; no `.grad` is touched.

    outputs, inputs: a tensor or a sequence of tensors; inputs may be results of operators. grad_outputs: one gradient per
    output (None: 1 for one element). An input that no output depends on raises RuntimeError, or gives None with allow_unused.
    """
    cdef bint unused = flag("grad", "allow_unused", allow_unused)
    if flag("grad", "create_graph", create_graph):
        raise ValueError("grad: create_graph=True is not supported: backward runs with recording off, so there are no higher derivatives")
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    elif isinstance(grad_outputs, Tensor):
        grad_outputs = [grad_outputs]
    if len(grad_outputs) != len(outputs):
        raise ValueError(f"grad: {len(outputs)} outputs but {len(grad_outputs)} grad_outputs")
    for t in (*outputs, *inputs):
        if not isinstance(t, Tensor):
            raise TypeError(f"grad: expected tensors, got {type(t).__name__}")
    for i, t in enumerate(inputs):
        if not (<Tensor>t).wants_grad:
            raise RuntimeError(f"grad: input {i} does not require a gradient")
    cdef _Pass walk = _Pass.__new__(_Pass)
    walk.retain_graph = flag("grad", "retain_graph", retain_graph)
    walk.collected = {id(edge_of(<Tensor>t)): None for t in inputs}
    run_pass(walk, outputs, [seed_of(<Tensor>y, g, "grad") for y, g in zip(outputs, grad_outputs)], "grad")
    result = []
    for i, t in enumerate(inputs):
        g = walk.collected[id(edge_of(<Tensor>t))]
        if g is None and not unused:
            raise RuntimeError(f"grad: no output depends on input {i}; pass allow_unused=True to get None for it")
        result.append(None if g is None else own(<Tensor>g, 2))
    return tuple(result)
