/* softmax kernels. */
#ifndef OM_SOFTMAX_H
#define OM_SOFTMAX_H

#define OM_SOFTMAX(ROW)

#endif

#if defined(OM_VARIANT) && !defined(OM_SOFTMAX_LOOPS)
#define OM_SOFTMAX_LOOPS
#endif
