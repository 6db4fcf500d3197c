/* GEMM micro-kernels and their parameters. */
#ifndef OM_GEMM_H
#define OM_GEMM_H
typedef struct om_gemm { int mr, nr; } om_gemm;
#endif
#if defined(OM_VARIANT) && !defined(OM_GEMM_LOOPS)
#define OM_GEMM_LOOPS
#define OM_GEMM_INIT {1, 1}
#endif
