/* loss kernels. */
#ifndef OM_LOSS_H
#define OM_LOSS_H

#define OM_LOSS(ROW)

#endif

#if defined(OM_VARIANT) && !defined(OM_LOSS_LOOPS)
#define OM_LOSS_LOOPS
#endif
