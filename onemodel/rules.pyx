"""Map: the compiled rule of element-wise operators, so that no Python frame runs for them, forward or backward.

An operator class states its kernels in words, `Map("div a b", a="div g b", b="div_bwd_b a b g")`: the first string names the
forward row and its inputs, each keyword the row that makes the gradient of that input from the inputs, the output `y` and the
incoming gradient `g` (a bare "g" passes it on; `zero` is the number 0). What must be saved follows from the operands the needed gradients name.
Holds no shapes beyond broadcasting and no loops.
"""

import inspect

import numpy as np

from cpython.object cimport PyObject

from onemodel._kernels.elementwise cimport COMPARE, MAP1, MAP2, MAP3, MAP4, SELECT, Operand, map_flat, map_strided
from onemodel._kernels.table cimport current_mode, om_fn, row_index, table_of
from onemodel._pool.pool cimport pin, unpin
from onemodel.arrays cimport as_tensor
from onemodel.autograd cimport owned
from onemodel.named cimport name_errors
from onemodel.tensor cimport (BOOL, FLOAT32, MAX_NDIM, itemsize, Record, Rule, Tensor, alias, attach, data_of, edge_of, new_tensor, recording,
                              same_shape, shape_tuple)

from onemodel._kernels.table import rows
from onemodel.arrays import array_view
from onemodel.errors import ShapeError

cdef enum:
    OUTPUT = 4              # operand code of y; inputs are 0 to 3
    GRADIENT = 5            # operand code of g
    ZERO = 6                # operand code of the number 0
    NO_GRADIENT = 0
    PASS_ON = 1
    KERNEL = 2
    WITHOUT_GIL = 16384     # elements from which other Python threads may run meanwhile

cdef Tensor zero = as_tensor(0.0, FLOAT32, "where")

SIGNATURES = {"map1": MAP1, "map2": MAP2, "map3": MAP3, "map4": MAP4, "compare": COMPARE, "select": SELECT}
ARITY = {MAP1: 1, MAP2: 2, MAP3: 3, MAP4: 4, COMPARE: 2, SELECT: 3}


cdef int edge_shape(object edge, Py_ssize_t *dims) noexcept:
    cdef int i
    if type(edge) is Record:
        for i in range((<Record>edge).rank):
            dims[i] = (<Record>edge).dims[i]
        return (<Record>edge).rank
    for i in range((<Tensor>edge).rank):
        dims[i] = (<Tensor>edge).dims[i]
    return (<Tensor>edge).rank


cdef tuple edges_of(tuple tensors):
    return tuple([edge_of(<Tensor>t) for t in tensors])


cdef bint any_wants(tuple tensors) noexcept:
    for t in tensors:
        if (<Tensor>t).wants_grad:
            return True
    return False


cdef int broadcast_shape(tuple tensors, Py_ssize_t *dims, str op) except -1:
    cdef int rank = 0, i, lead
    cdef Tensor t
    for t in tensors:
        rank = max(rank, t.rank)
    for i in range(rank):
        dims[i] = 1
    for t in tensors:
        lead = rank - t.rank
        for i in range(t.rank):
            if t.dims[i] == 1 or t.dims[i] == dims[lead + i]:
                continue
            if dims[lead + i] != 1:
                shapes = " and ".join([str((<Tensor>s).shape) for s in tensors])
                raise ShapeError(f"{op}: shapes {shapes} do not broadcast: sizes {dims[lead + i]} and {t.dims[i]} in dimension {lead + i - rank}")
            dims[lead + i] = t.dims[i]
    return rank


cdef class Map(Rule):
    """Element-wise operator as kernel rows; see the module's docstring. `integer` computes other types than float32 with NumPy
    (called with arrays and out=); without it they raise TypeError."""
    def __init__(self, str forward, *, integer=None, **backward):
        name, *inputs = forward.split()
        kernels = rows()
        self.words = forward
        self.integer = integer
        self.signature = SIGNATURES[kernels[name][0]]
        self.row = row_index(kernels[name][0], name)
        self.inputs = <int>len(inputs)
        if self.inputs != ARITY[self.signature]:
            raise ValueError(f"Map({forward!r}): kernel {name} takes {ARITY[self.signature]} inputs")
        operand_codes = {word: i for i, word in enumerate(inputs)} | {"y": OUTPUT, "g": GRADIENT, "zero": ZERO}
        for word, rule in backward.items():
            if word not in inputs:
                raise ValueError(f"Map({forward!r}): no input is named {word!r}")
            self.slopes[<int>inputs.index(word)] = read_slope(rule, operand_codes, kernels)

    def __call__(self, *tensors):
        """Run the operator on tensors or scalars (which adopt the first tensor's type)."""
        if len(tensors) != self.inputs:
            raise TypeError(f"{self.name}: expected {self.inputs} operands, got {len(tensors)}")
        cdef int code = FLOAT32, i
        for t in tensors[self.signature == SELECT:]:
            if isinstance(t, Tensor):
                code = (<Tensor>t).code
                break
        cdef list operands = [as_tensor(t, BOOL if self.signature == SELECT and i == 0 else code, self.name) for i, t in enumerate(tensors)]
        cdef PyObject *inputs[MAX_INPUTS]
        for i in range(self.inputs):
            inputs[i] = <PyObject *>operands[i]
        return forward(self, inputs)

    cdef object backward(self, Record r, Tensor g):
        cdef int i
        if self.inputs == 1:
            return slope(self, r, g, 0)
        cdef list gradients = []
        for i in range(self.inputs):
            gradients.append(slope(self, r, g, i) if r.edges[i] is not None and r.wanted >> i & 1 else None)
        return tuple(gradients)


cdef Slope read_slope(str rule, dict operand_codes, dict kernels) except *:
    cdef Slope s
    cdef int i
    name, *operands = rule.split()
    s.uses = 0
    if name == "g" and not operands:
        s.kind = PASS_ON
        return s
    s.kind = KERNEL
    s.signature = SIGNATURES[kernels[name][0]]
    s.row = row_index(kernels[name][0], name)
    s.operands = <int>len(operands)
    if s.operands != ARITY[s.signature]:
        raise ValueError(f"Map: kernel {name} takes {ARITY[s.signature]} operands, {rule!r} names {s.operands}")
    for i in range(s.operands):
        s.operand[i] = operand_codes[operands[i]]
        if s.operand[i] <= OUTPUT:
            s.uses |= 1 << s.operand[i]
    return s


cdef object mismatch(Map rule, PyObject **inputs):
    types = [(<Tensor>inputs[i]).dtype.name for i in range(rule.inputs)]
    for i in range(rule.inputs):
        if rule.signature == SELECT and i == 0:
            if types[0] != "bool":
                return TypeError(f"{rule.name}: the condition must be bool, got {types[0]}; write a comparison or .cast(om.bool_)")
        elif types[i] != types[rule.inputs - 1]:
            return TypeError(f"{rule.name}: {' and '.join(types)} do not mix; write .cast(om.{types[rule.inputs - 1]}) or .cast(om.{types[i]}) on one")
    return TypeError(f"{rule.name}: not defined for {types[rule.inputs - 1]}; write .cast(om.float32)")


cdef Tensor forward_integer(Map rule, PyObject **inputs, int rank, const Py_ssize_t *dims):
    """Other types than float32: NumPy computes into memory of ours."""
    cdef int i, first = 1 if rule.signature == SELECT else 0, code = (<Tensor>inputs[first]).code
    for i in range(first, rule.inputs):
        if (<Tensor>inputs[i]).code != code:
            raise mismatch(rule, inputs)
    if rule.integer is None or (first and (<Tensor>inputs[0]).code != BOOL):
        raise mismatch(rule, inputs)
    cdef Tensor out = new_tensor(BOOL if rule.signature == COMPARE else code, rank, dims, True)
    arrays = [array_view((<Tensor>inputs[i]), rule.name) for i in range(rule.inputs)]
    try:
        rule.integer(*arrays, out=array_view(out, rule.name))
    except TypeError:
        raise TypeError(f"{rule.name}: not defined for {arrays[first].dtype}; write .cast(om.float32)") from None
    return out


cdef Tensor forward(Map rule, PyObject **inputs, Tensor into=None):
    """The operator on `rule.inputs` tensors; recorded, unless the result goes `into` contiguous memory of an in-place operation."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Operand[MAX_INPUTS] operands
    cdef Tensor t, whole = None, out
    cdef int i, d, lead, rank, mode = current_mode()
    cdef bint flat = True, floats = True, wants = False
    for i in range(rule.inputs):
        t = <Tensor>inputs[i]
        wants = wants or t.wants_grad
        if t.code != (BOOL if rule.signature == SELECT and i == 0 else FLOAT32):
            floats = False
        if t.rank == 0:
            operands[i].steps[0] = 0
            continue
        operands[i].steps[0] = 1
        if whole is None:
            whole = t
        flat = flat and t.dense and (whole is t or same_shape(t, whole.rank, whole.dims))
    if flat:
        rank = 0 if whole is None else whole.rank
        for d in range(rank):
            dims[d] = whole.dims[d]
    else:
        rank = broadcast_shape(tuple([<Tensor>inputs[i] for i in range(rule.inputs)]), dims, rule.name)
    if not floats:
        return forward_integer(rule, inputs, rank, dims)
    for i in range(rule.inputs):
        t = <Tensor>inputs[i]
        operands[i].data = data_of(t, rule.name)
        if not flat:
            lead = rank - t.rank
            for d in range(rank):
                operands[i].steps[d] = 0 if d < lead or (t.dims[d - lead] == 1 and dims[d] != 1) else t.steps[d - lead]
    out = into if into is not None else new_tensor(BOOL if rule.signature == COMPARE else FLOAT32, rank, dims, True)
    run(rule.signature, table_of(mode).row[rule.row], flat, out, operands, inputs, rule.inputs)
    if wants and into is None and rule.signature != COMPARE and recording():
        attach_map(rule, inputs, out, mode)
    return out


cdef void run(int signature, om_fn kernel, bint flat, Tensor out, Operand *operands, PyObject **held, int holders) noexcept:
    """The kernel, without the GIL where it is long; then the operands are pinned, so that a closing scope cannot take their memory."""
    cdef int i
    cdef char *to = out.storage.data + out.offset * itemsize(out.code)  # an in-place target may begin inside its storage
    if out.count < WITHOUT_GIL:
        if flat:
            map_flat(signature, kernel, out.count, operands, to)
        else:
            map_strided(signature, kernel, out.rank, out.dims, operands, to)
        return
    for i in range(holders):
        pin((<Tensor>held[i]).storage)
    pin(out.storage)
    with nogil:
        if flat:
            map_flat(signature, kernel, out.count, operands, to)
        else:
            map_strided(signature, kernel, out.rank, out.dims, operands, to)
    unpin(out.storage)
    for i in range(holders):
        unpin((<Tensor>held[i]).storage)


cdef int attach_map(Map rule, PyObject **inputs, Tensor out, int mode) except -1:
    cdef int i, need = 0
    cdef tuple edges, saved = None
    cdef list kept
    cdef bint reaches = False
    for i in range(rule.inputs):
        if (<Tensor>inputs[i]).wants_grad and rule.slopes[i].kind != NO_GRADIENT:
            reaches = True
            need |= rule.slopes[i].uses
    if not reaches:
        return 0
    if rule.inputs == 1:
        edges = (edge_of(<Tensor>inputs[0]),)
    elif rule.inputs == 2:
        edges = (edge_of(<Tensor>inputs[0]), edge_of(<Tensor>inputs[1]))
    else:
        edges = tuple([edge_of(<Tensor>inputs[i]) if rule.slopes[i].kind != NO_GRADIENT else None for i in range(rule.inputs)])
    if need:
        kept = [None] * (OUTPUT + 1 if need >> OUTPUT & 1 else rule.inputs)
        for i in range(rule.inputs):
            if need >> i & 1:
                kept[i] = <Tensor>inputs[i]
        if need >> OUTPUT & 1:
            kept[OUTPUT] = alias(out)  # not `out` itself: that would be a cycle
        saved = tuple(kept)
    return attach(out, rule, edges, saved, None, mode)


cdef Tensor slope(Map rule, Record r, Tensor g, int i):
    cdef Slope *s = &rule.slopes[i]
    cdef Operand[MAX_INPUTS] operands
    cdef PyObject *held[MAX_INPUTS]
    cdef Tensor t, out
    cdef int k, d, lead
    cdef bint flat = True
    # The gradient of the only input may take the place of a g that only the engine's variable refers to: a pass over memory less.
    cdef bint in_place = rule.inputs == 1 and g.dense and owned(g, 1)
    if s.kind == PASS_ON:
        return g
    for k in range(s.operands):
        if s.operand[k] == GRADIENT:
            t = g
        elif s.operand[k] == ZERO:
            t = zero
        else:
            t = <Tensor>r.saved[s.operand[k]]
        held[k] = <PyObject *>t
        operands[k].data = data_of(t, rule.name)
        if t.dense and same_shape(t, g.rank, g.dims):
            operands[k].steps[0] = 1
        elif t.rank == 0:
            operands[k].steps[0] = 0
        else:
            flat = False
    if not flat:
        for k in range(s.operands):
            t = <Tensor>held[k]
            lead = g.rank - t.rank
            for d in range(g.rank):
                operands[k].steps[d] = 0 if d < lead or (t.dims[d - lead] == 1 and g.dims[d] != 1) else t.steps[d - lead]
    out = g if in_place and flat else new_tensor(FLOAT32, g.rank, g.dims, False)
    run(s.signature, table_of(r.mode).row[s.row], flat, out, operands, held, s.operands)
    return out


cdef object number_of(object value):
    """What integers and bool are compared with: a Python or NumPy number as a Python one, a whole float as an integer, because NumPy would round
    int64 to meet a float. None for anything else."""
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        value = float(value) if value.dtype.kind == "f" else int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, float)) else None


cdef Tensor compared(Map rule, Tensor t, object number, bint reverse):
    """A comparison of integers or bool with a number of any size or with a fraction, which needs no common type."""
    cdef Tensor out = new_tensor(BOOL, t.rank, t.dims, True)
    array = array_view(t, rule.name)
    if t.code == BOOL:
        array = array.view(np.uint8)  # NumPy's bool meets no integer beyond int64
    rule.integer(*((number, array) if reverse else (array, number)), out=array_view(out, rule.name))
    return out


# ---- public functions that are C all the way ----

def function_of(Map rule, documented):
    """A callable that runs `rule`, with the name, signature and docstring of the Python function `documented`."""
    cdef str name = documented.__name__
    if rule.inputs == 1:
        def call(x):
            cdef PyObject *inputs = <PyObject *>x
            cdef Tensor kept
            if not isinstance(x, Tensor):
                kept = as_tensor(x, FLOAT32, rule.name)
                inputs = <PyObject *>kept
            return forward(rule, &inputs)
    elif rule.inputs == 2:
        def call(a, b):
            cdef PyObject *inputs[2]
            cdef Tensor kept = None
            if isinstance(a, Tensor):
                if not isinstance(b, Tensor):
                    if rule.signature == COMPARE and (<Tensor>a).code != FLOAT32 and number_of(b) is not None:
                        return compared(rule, <Tensor>a, number_of(b), False)
                    kept = as_tensor(b, (<Tensor>a).code, rule.name)
            elif isinstance(b, Tensor):
                if rule.signature == COMPARE and (<Tensor>b).code != FLOAT32 and number_of(a) is not None:
                    return compared(rule, <Tensor>b, number_of(a), True)
                kept = as_tensor(a, (<Tensor>b).code, rule.name)
            else:
                return rule(a, b)
            inputs[0] = <PyObject *>a if isinstance(a, Tensor) else <PyObject *>kept
            inputs[1] = <PyObject *>b if isinstance(b, Tensor) else <PyObject *>kept
            return forward(rule, inputs)
    else:
        def call(a, b, c):
            return rule(a, b, c)
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(call, attribute, getattr(documented, attribute))
    call.__signature__ = inspect.signature(documented)
    name_errors(call)
    return call
