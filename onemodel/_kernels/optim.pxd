# Optimiser steps, in place, over a list of contiguous parameters.
cdef extern from "kernels.h" nogil:
    ctypedef struct om_sgd:
        float lr
        float momentum
        float undamped
        float weight_decay
        int nesterov
        int maximize
        int first
    ctypedef struct om_adam:
        float rest1
        float beta2
        float rest2
        float step_size
        float root
        float eps
        float weight_decay
        float keep
        int maximize
    ctypedef struct om_rmsprop:
        float lr
        float alpha
        float rest
        float eps
        float weight_decay
        float momentum
        int maximize

cdef enum:
    STATES = 3          # state tensors of a parameter at most

cdef enum UpdateRule:
    SGD = 0             # hyper is an om_sgd; states: momentum
    ADAM = 1            # om_adam; mean, mean of squares, largest mean of squares
    RMSPROP = 2         # om_rmsprop; mean of squares, momentum, mean

# p, g and each of the states (NULL for a state that the rule does without) are lists of `count` arrays of sizes n. No array may overlap another.
cdef void step(int mode, int rule, const void *hyper, Py_ssize_t count, float **p, const float **g, float ***states, const Py_ssize_t *n) noexcept nogil
# The sum of squares over the arrays, in double, in an order that their sizes decide; -1 when memory is exhausted.
cdef double sum_squares(int mode, Py_ssize_t count, const float **x, const Py_ssize_t *n) noexcept nogil
