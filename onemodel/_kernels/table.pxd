# The active kernel table and the thread pool, for cimport by every other compiled module.
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "kernels.h" nogil:
    ctypedef void om_map1_fn(const float *x, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_map2_fn(const float *a, const float *b, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_map3_fn(const float *a, const float *b, const float *c, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_map4_fn(const float *a, const float *b, const float *c, const float *d, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_compare_fn(const float *a, const float *b, uint8_t *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_select_fn(const uint8_t *c, const float *a, const float *b, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_copy_fn(const void *src, Py_ssize_t src_row, Py_ssize_t src_col, void *dst, Py_ssize_t dst_row, Py_ssize_t dst_col, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
    ctypedef void om_cast_fn(const void *src, Py_ssize_t stride, void *dst, Py_ssize_t n) noexcept nogil
    ctypedef void om_sum_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, double *acc) noexcept nogil
    enum:
        OM_SUM_WINDOW
        OM_WIDE
        OM_BINADE
        OM_SUM_WAYS
    ctypedef struct om_window:
        pass
    ctypedef void om_windows_fn(const float *x, Py_ssize_t windows, int way, double spacing, om_window *found) noexcept nogil
    ctypedef Py_ssize_t om_joined_fn(const om_window *found, Py_ssize_t windows, int way, double spacing, double *acc) noexcept nogil
    ctypedef void om_extremum_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, float *acc) noexcept nogil
    ctypedef void om_arg_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, int64_t *index) noexcept nogil
    ctypedef void om_round_fn(const double *acc, double divisor, float *out, Py_ssize_t stride, Py_ssize_t n) noexcept nogil
    ctypedef void om_ties_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, const float *y, double *count) noexcept nogil
    ctypedef void om_quotient_fn(const float *g, const double *count, float *share, Py_ssize_t n) noexcept nogil
    ctypedef void om_share_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, const float *y, const float *share, float *dx) noexcept nogil
    ctypedef void om_softmax_fn(const float *x, float *y, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
    ctypedef void om_softmax_bwd_fn(const float *y, const float *g, float *dx, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
    ctypedef void om_softmax_stats_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, float *m, float *log_sum) noexcept nogil
    ctypedef void om_logsumexp_bwd_fn(const float *x, const float *lse, const float *g, float *dx, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
    ctypedef void om_cross_entropy_bwd_fn(const float *x, const float *m, const float *log_sum, const float *scale, const int64_t *target, float *dx,
                                          Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
    ctypedef struct om_targets:
        const int64_t *target
        const float *weight
        int64_t ignore
        Py_ssize_t classes
        Py_ssize_t inner
    ctypedef void om_nll_pick_fn(const om_targets *t, const float *x, const float *m, const float *log_sum, float *loss, float *weight, Py_ssize_t lo, Py_ssize_t hi) noexcept nogil
    ctypedef void om_nll_scale_fn(const om_targets *t, const float *g, Py_ssize_t g_stride, double total, float *scale, Py_ssize_t lo, Py_ssize_t hi) noexcept nogil
    ctypedef void om_nll_scatter_fn(const om_targets *t, const float *scale, float *dx, Py_ssize_t lo, Py_ssize_t hi) noexcept nogil
    ctypedef void om_philox_fn(uint64_t seed, uint64_t offset, void *out, Py_ssize_t n) noexcept nogil
    ctypedef void om_philox_integers_fn(uint64_t seed, uint64_t offset, int64_t low, uint64_t span, int64_t *out, Py_ssize_t n) noexcept nogil
    ctypedef void (*om_fn)() noexcept nogil
    ctypedef void om_tile_fn(Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b,
                             Py_ssize_t rsb, float *c, Py_ssize_t rsc, const float *bias, int flags) noexcept nogil
    ctypedef void om_pack_fn(const float *src, Py_ssize_t ks, Py_ssize_t ws, Py_ssize_t k, Py_ssize_t w, Py_ssize_t width,
                             float *dst) noexcept nogil
    ctypedef void om_thin_fn(Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, const float *b, Py_ssize_t csb,
                             float *c, Py_ssize_t rsc, const float *bias, int flags) noexcept nogil
    ctypedef Py_ssize_t om_width_fn(Py_ssize_t m, Py_ssize_t columns) noexcept nogil
    ctypedef struct om_gemm:
        Py_ssize_t lanes
        Py_ssize_t mr
        Py_ssize_t nr
        om_width_fn *width
        om_tile_fn *tile
        om_pack_fn *pack
        Py_ssize_t thin_rows
        om_thin_fn *thin
    ctypedef struct om_table:
        const char *isa
        const char *mode
        om_gemm gemm
        om_fn row[1]

cdef extern from "cpu.h" nogil:
    uint64_t om_fp_enter() noexcept
    void om_fp_leave(uint64_t old) noexcept

ctypedef void task_fn(void *context, Py_ssize_t piece) noexcept nogil
ctypedef void step_fn(void *context, Py_ssize_t group, Py_ssize_t step, Py_ssize_t part) noexcept nogil

cdef extern from "threads.h" nogil:
    enum:
        OM_MOST_STEPPERS
        OM_MOST_PARTS

cpdef enum Mode:
    FAST = 0
    EXACT = 1

# The mode of the calling thread: its own override if a context manager set one, else the process default.
cdef int current_mode() noexcept nogil
# The table of the active instruction set for a mode; a record keeps its mode, not its table.
cdef const om_table *table_of(int mode) noexcept nogil
cdef void parallel(task_fn *task, void *context, Py_ssize_t pieces) noexcept nogil
cdef void parallel_steps(step_fn *task, void *context, Py_ssize_t groups, Py_ssize_t steps, Py_ssize_t parts) noexcept nogil
# Index of a row by name; raises KeyError for an unknown name, ValueError if the row's signature class is another.
cdef Py_ssize_t row_index(str signature, str name) except -1
# Upper bound on the threads of one job: for choices that change no bit.
cdef int thread_count() noexcept nogil
# How many elements one parallel piece should have at least; tests set it to 1.
cdef Py_ssize_t smallest_piece() noexcept nogil
