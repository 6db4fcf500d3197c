/* optim kernels. */
#ifndef OM_OPTIM_H
#define OM_OPTIM_H

#define OM_OPTIM(ROW)

#endif

#if defined(OM_VARIANT) && !defined(OM_OPTIM_LOOPS)
#define OM_OPTIM_LOOPS
#endif
