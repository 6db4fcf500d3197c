/* Statistics, normalisation and its gradients (batch, layer, group, rms). Must not contain threads. */
#ifndef OM_NORM_H
#define OM_NORM_H

#define OM_NORM(ROW)
#endif

#if defined(OM_VARIANT) && !defined(OM_NORM_LOOPS)
#define OM_NORM_LOOPS
#endif
