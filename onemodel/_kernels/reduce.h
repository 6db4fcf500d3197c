/* reduce kernels. */
#ifndef OM_REDUCE_H
#define OM_REDUCE_H

#define OM_REDUCE(ROW)

#endif

#if defined(OM_VARIANT) && !defined(OM_REDUCE_LOOPS)
#define OM_REDUCE_LOOPS
#endif
