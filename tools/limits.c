/* What one core of this machine can do at best, for tools/bench.py: fused multiply-adds in registers, memory copied, memory read.
 * Compiled by the benchmark for the machine it runs on; must not contain anything of the package. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
enum { LANES = BYTES / 4, CHAINS = 12 }; /* enough independent chains to hide the latency of any processor's multiply-add */
typedef float vector __attribute__((vector_size(BYTES)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* free of what other processes take */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Floating-point operations per second, for about so many seconds. The chains are variables, not an array, which gcc keeps in memory. */
double fma_rate(double seconds) {
    vector x, y;
    const int rounds = 100000;
    for (int l = 0; l < LANES; l++) x[l] = 0.999f, y[l] = 1e-3f; /* the chains' limit is 1 */
    /* Each its own start: equal chains are computed once. */
    vector a = y, b = a + y, c = b + y, d = c + y, e = d + y, f = e + y, g = f + y, h = g + y, i = h + y, j = i + y, k = j + y, m = k + y;
    double start = now(), end, operations = 0;
    do {
        for (int r = 0; r < rounds; r++) {
            a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y, e = e * x + y, f = f * x + y;
            g = g * x + y, h = h * x + y, i = i * x + y, j = j * x + y, k = k * x + y, m = m * x + y;
        }
        operations += 2.0 * LANES * CHAINS * rounds;
        end = now();
    } while (end - start < seconds);
    vector all = a + b + c + d + e + f + g + h + i + j + k + m;
    volatile float kept = all[0];
    (void)kept;
    return operations / (end - start);
}

/* Bytes read plus bytes written per second, by the C library's own choice of loads and stores. */
double copy_rate(const char *from, char *to, size_t nbytes, double seconds) {
    double start = now(), end, moved = 0;
    do {
        memcpy(to, from, nbytes);
        moved += 2.0 * (double)nbytes;
        end = now();
    } while (end - start < seconds);
    return moved / (end - start);
}

double read_rate(const char *from, size_t nbytes, double seconds) {
    double start = now(), end, moved = 0;
    volatile float kept = 0;
    do {
        vector s[8] = {0};
        for (size_t i = 0; i + 8 * BYTES <= nbytes; i += 8 * BYTES)
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) s[k] += *(const vector *)(from + i + (size_t)k * BYTES);
        for (int k = 0; k < 8; k++) kept = kept + s[k][0];
        moved += (double)nbytes;
        end = now();
    } while (end - start < seconds);
    return moved / (end - start);
}
