/* The thread pool: runs numbered pieces of one job on the caller and the workers. The cut into pieces is the caller's, by shape
 * alone, so the number of threads never changes a result. */
#ifndef OM_THREADS_H
#define OM_THREADS_H

#include <stddef.h>

typedef void om_task_fn(void *context, ptrdiff_t piece);

/* Runs task(context, p) once for every p in [0, pieces), on up to om_get_num_threads() threads; returns when all are done. Callable
 * from any thread without the interpreter lock; nested calls and calls while another thread's job runs are safe (they may run on
 * the caller alone). Sets the floating-point control state for each thread. Never fails: with no workers the caller does all. */
void om_parallel(om_task_fn *task, void *context, ptrdiff_t pieces);

/* Runs task(context, group, step, part) once for every group, step and part. Within a group all parts of a step are done before the next
 * step's begin; parts of a step, and groups, run side by side. At most so many parts, and so many of all groups. */
enum { OM_MOST_STEPPERS = 64, OM_MOST_PARTS = 8 };
typedef void om_step_fn(void *context, ptrdiff_t group, ptrdiff_t step, ptrdiff_t part);
void om_parallel_steps(om_step_fn *task, void *context, ptrdiff_t groups, ptrdiff_t steps, ptrdiff_t parts);

/* Upper bound on threads of one job, the caller included; n >= 1. Exported for threadpoolctl, which looks them up by name. */
__attribute__((visibility("default"))) void om_set_num_threads(int n);
__attribute__((visibility("default"))) int om_get_num_threads(void);
/* The number of threads that ran at least one piece of the last job of this thread (for tests). */
int om_last_threads(void);

#endif
