#include "threads.h"
static int threads = 1;
void om_parallel(om_task_fn *task, void *context, ptrdiff_t pieces) { for (ptrdiff_t p = 0; p < pieces; p++) task(context, p); }
void om_set_num_threads(int n) { threads = n; }
int om_get_num_threads(void) { return threads; }
int om_last_threads(void) { return 1; }
