/* Copies of strided blocks, casts, and the 8 x 8 transpose that reductions use too; shapes, threads and types belong to copy.pyx.
 *
 * Copies move bits, so a NaN keeps its payload in both modes. A cast of a float to an integer truncates, saturates and makes NaN 0. */
#ifndef OM_COPY_H
#define OM_COPY_H

#define OM_COPY(ROW) \
    ROW(copy, copy_1, "strided block of 1-byte elements, through blocks where it is a transpose") \
    ROW(copy, copy_4, "strided block of 4-byte elements, through blocks where it is a transpose") \
    ROW(copy, copy_8, "strided block of 8-byte elements, through blocks where it is a transpose") \
    ROW(cast, cast_f4_i4, "float32 to int32") \
    ROW(cast, cast_f4_i8, "float32 to int64") \
    ROW(cast, cast_f4_u1, "float32 to uint8") \
    ROW(cast, cast_f4_b1, "float32 to bool: x != 0, so NaN is true") \
    ROW(cast, cast_i4_f4, "int32 to float32, nearest even") \
    ROW(cast, cast_i4_i8, "int32 to int64") \
    ROW(cast, cast_i4_u1, "int32 to uint8, low bits") \
    ROW(cast, cast_i4_b1, "int32 to bool: x != 0") \
    ROW(cast, cast_i8_f4, "int64 to float32, nearest even") \
    ROW(cast, cast_i8_i4, "int64 to int32, low bits") \
    ROW(cast, cast_i8_u1, "int64 to uint8, low bits") \
    ROW(cast, cast_i8_b1, "int64 to bool: x != 0") \
    ROW(cast, cast_u1_f4, "uint8 or bool to float32") \
    ROW(cast, cast_u1_i4, "uint8 or bool to int32") \
    ROW(cast, cast_u1_i8, "uint8 or bool to int64") \
    ROW(cast, cast_u1_b1, "uint8 to bool: x != 0")

#endif

#if defined(OM_VARIANT) && !defined(OM_COPY_LOOPS)
#define OM_COPY_LOOPS
#include <string.h>

/* Compiler vectors, not lanes: a transpose is the same eight rows on every instruction set, and the compiler splits it as needed. */
typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
#if defined(__clang__) || __GNUC__ >= 12
#define OM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

/* f8 anywhere in memory: one load, where a memcpy in a loop goes by halves over the stack. */
typedef float f8_any __attribute__((vector_size(32), aligned(4), may_alias));

/* t[c] = column c of the 8 x 8 block at x. */
static inline __attribute__((always_inline)) void transpose_8x8(const float *const row[8], f8 t[8]) {
    f8 a[8] = {*(const f8_any *)row[0], *(const f8_any *)row[1], *(const f8_any *)row[2], *(const f8_any *)row[3],
               *(const f8_any *)row[4], *(const f8_any *)row[5], *(const f8_any *)row[6], *(const f8_any *)row[7]}, b[8];
    for (int r = 0; r < 8; r += 2) {
        b[r] = OM_SHUFFLE(a[r], a[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[r + 1] = OM_SHUFFLE(a[r], a[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int h = 0; h < 8; h += 4)
        for (int k = 0; k < 2; k++) {
            a[h + 2 * k] = OM_SHUFFLE(b[h + k], b[h + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[h + 2 * k + 1] = OM_SHUFFLE(b[h + k], b[h + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int c = 0; c < 4; c++) {
        t[c] = OM_SHUFFLE(a[c], a[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[c + 4] = OM_SHUFFLE(a[c], a[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* A tile of a transpose: the source runs along r, the destination along c. */
static inline void tile_4(const uint32_t *src, ptrdiff_t src_col, uint32_t *dst, ptrdiff_t dst_row) {
    const float *row[8];
    f8 t[8];
    for (int c = 0; c < 8; c++) row[c] = (const float *)(src + c * src_col);
    transpose_8x8(row, t);
    for (int r = 0; r < 8; r++) memcpy(dst + r * dst_row, &t[r], sizeof t[r]);
}
static inline void tile_8(const uint64_t *src, ptrdiff_t src_col, uint64_t *dst, ptrdiff_t dst_row) {
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) dst[r * dst_row + c] = src[r + c * src_col];
}
static inline void tile_1(const uint8_t *src, ptrdiff_t src_col, uint8_t *dst, ptrdiff_t dst_row) {
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) dst[r * dst_row + c] = src[r + c * src_col];
}

/* Three to seven rows or columns, as the channels of pixels: whole tiles of which some is dropped. What a load takes too much lies
 * between the source's first element and its last; what a store writes too much is of later rows, which come next. The number of columns
 * or rows that were copied; 0 where the strides do not allow it. */
static inline ptrdiff_t few_rows_4(const uint32_t *src, ptrdiff_t src_col, uint32_t *dst, ptrdiff_t dst_row, ptrdiff_t rows, ptrdiff_t cols) {
    ptrdiff_t c = 0;
    for (; rows > 2 && src_col > 0 && (cols - c - 8) * src_col + rows >= 8 && c + 8 <= cols; c += 8) {
        const float *row[8];
        f8 t[8];
        for (int i = 0; i < 8; i++) row[i] = (const float *)(src + (c + i) * src_col);
        transpose_8x8(row, t);
        for (ptrdiff_t r = 0; r < rows; r++) memcpy(dst + r * dst_row + c, &t[r], sizeof t[r]);
    }
    return c;
}
static inline ptrdiff_t few_cols_4(const uint32_t *src, ptrdiff_t src_col, uint32_t *dst, ptrdiff_t dst_row, ptrdiff_t rows, ptrdiff_t cols) {
    ptrdiff_t r = 0;
    for (; cols > 2 && dst_row == cols && (rows - r - 7) * cols >= 8 && r + 8 <= rows; r += 8) {
        const float *row[8];
        f8 t[8];
        for (ptrdiff_t i = 0; i < 8; i++) row[i] = (const float *)(src + r + (i < cols ? i : 0) * src_col);
        transpose_8x8(row, t);
        for (int i = 0; i < 8; i++) memcpy(dst + (r + i) * cols, &t[i], sizeof t[i]);
    }
    return r;
}

/* Blocks of a transpose go through a buffer, whose rows are an odd number of lines apart: the source is read in runs of whole lines and the
 * destination written in runs, however many rows of either share a set of the caches or need a page of their own. A last tile, or block,
 * of fewer than eight begins earlier and copies some again. The destination is asked for some rows ahead: a run is too short for the processor
 * to foresee the next. Few elements stay in the caches wherever they lie, and single bytes cost their moves, so these go straight. */
enum { BLOCK_BYTES = 16384, LINE_BYTES = 64, FEW = 512, SOON = 4 };
#define OM_TRANSPOSE(size, type) \
    static inline void turn_##size(const type *restrict src, ptrdiff_t src_col, type *restrict dst, ptrdiff_t dst_row, ptrdiff_t rows, \
                                   ptrdiff_t cols) { \
        for (ptrdiff_t i = 0; i < cols; i += 8) { \
            const ptrdiff_t c = i < cols - 8 ? i : cols - 8; \
            for (ptrdiff_t j = 0; j < rows; j += 8) { \
                const ptrdiff_t r = j < rows - 8 ? j : rows - 8; \
                tile_##size(src + r + c * src_col, src_col, dst + r * dst_row + c, dst_row); \
            } \
        } \
    } \
    static void transpose_##size(const type *restrict src, ptrdiff_t src_col, type *restrict dst, ptrdiff_t dst_row, ptrdiff_t rows, \
                                 ptrdiff_t cols) { \
        enum { LINE = LINE_BYTES / size, MOST = BLOCK_BYTES / (size == 1 ? 2 : size), WIDE = size == 8 ? 64 : size == 4 ? 128 : 256, HIGH = MOST / WIDE }; \
        type room[MOST + 2 * HIGH * LINE] __attribute__((aligned(LINE_BYTES))); \
        const ptrdiff_t high = cols > WIDE / 2 ? HIGH : 2 * HIGH, wide = MOST / high, ld = wide + LINE; \
        for (ptrdiff_t r0 = 0; r0 < rows; r0 += high) \
            for (ptrdiff_t c0 = 0; c0 < cols; c0 += wide) { \
                const ptrdiff_t top = r0 < rows - 8 ? r0 : rows - 8, left = c0 < cols - 8 ? c0 : cols - 8; \
                const ptrdiff_t nr = rows - top < high ? rows - top : high, nc = cols - left < wide ? cols - left : wide; \
                type *to = dst + top * dst_row + left; \
                const int direct = size == 1 || nr * nc <= FEW; \
                turn_##size(src + top + left * src_col, src_col, direct ? to : room, direct ? dst_row : ld, nr, nc); \
                if (direct) continue; \
                for (ptrdiff_t r = 0; r < nr; r++) { \
                    for (ptrdiff_t i = 0; i < nc; i += LINE) __builtin_prefetch(to + (r + SOON) * dst_row + i, 1); \
                    if (nc == WIDE) memcpy(to + r * dst_row, room + r * ld, WIDE * sizeof(type)); \
                    else if (nc >= 64) memcpy(to + r * dst_row, room + r * ld, (size_t)nc * sizeof(type)); \
                    else \
                        for (ptrdiff_t i = 0; i < nc; i += 8) { \
                            const ptrdiff_t c = i < nc - 8 ? i : nc - 8; \
                            memcpy(to + r * dst_row + c, room + r * ld + c, 8 * sizeof(type)); \
                        } \
                } \
            } \
    }
OM_TRANSPOSE(1, uint8_t)
OM_TRANSPOSE(4, uint32_t)
OM_TRANSPOSE(8, uint64_t)
#undef OM_TRANSPOSE

/* One element a turn, a strided loop waits for its own counting. */
#if defined(__clang__)
#define OM_BY_FOUR _Pragma("clang loop unroll_count(4)")
#else
#define OM_BY_FOUR _Pragma("GCC unroll 4")
#endif
#define OM_COPY_LOOP(size, type) \
    static inline void plain_##size(const type *src, ptrdiff_t src_row, ptrdiff_t src_col, type *dst, ptrdiff_t dst_row, ptrdiff_t dst_col, \
                                    ptrdiff_t rows, ptrdiff_t cols) { \
        for (ptrdiff_t r = 0; r < rows; r++) \
            OM_BY_FOUR for (ptrdiff_t c = 0; c < cols; c++) dst[r * dst_row + c * dst_col] = src[r * src_row + c * src_col]; \
    } \
    static void k_copy_##size(const void *src_, ptrdiff_t src_row, ptrdiff_t src_col, void *dst_, ptrdiff_t dst_row, ptrdiff_t dst_col, \
                              ptrdiff_t rows, ptrdiff_t cols) { \
        const type *restrict src = (const type *)src_; \
        type *restrict dst = (type *)dst_; \
        if (dst_col != 1) { \
            plain_##size(src, src_row, src_col, dst, dst_row, dst_col, rows, cols); \
        } else if (src_col == 1) { \
            if (cols >= 16) \
                for (ptrdiff_t r = 0; r < rows; r++) memcpy(dst + r * dst_row, src + r * src_row, (size_t)cols * sizeof(type)); \
            else plain_##size(src, src_row, 1, dst, dst_row, 1, rows, cols); \
        } else if (src_col == 0) { \
            for (ptrdiff_t r = 0; r < rows; r++) { \
                type value = src[r * src_row]; \
                for (ptrdiff_t c = 0; c < cols; c++) dst[r * dst_row + c] = value; \
            } \
        } else if (src_row == 1 && rows >= 8 && cols >= 8) { \
            transpose_##size(src, src_col, dst, dst_row, rows, cols); \
        } else if (src_row == 1) { \
            ptrdiff_t r = 0, c = 0; \
            if (size == 4 && rows < 8) c = few_rows_4((const uint32_t *)src_, src_col, (uint32_t *)dst_, dst_row, rows, cols); \
            else if (size == 4) r = few_cols_4((const uint32_t *)src_, src_col, (uint32_t *)dst_, dst_row, rows, cols); \
            plain_##size(src + r + c * src_col, 1, src_col, dst + r * dst_row + c, dst_row, 1, rows - r, cols - c); \
        } else { \
            plain_##size(src, src_row, src_col, dst, dst_row, 1, rows, cols); \
        } \
    }
OM_COPY_LOOP(1, uint8_t)
OM_COPY_LOOP(4, uint32_t)
OM_COPY_LOOP(8, uint64_t)
#undef OM_COPY_LOOP
#undef OM_BY_FOUR

/* The comparisons come first, so the conversion that C leaves undefined is never the one chosen. */
static inline int32_t i4_from_f4(float x) {
    return x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : x != x ? 0 : (int32_t)x;
}
static inline int64_t i8_from_f4(float x) {
    return x >= 9223372036854775808.0f ? INT64_MAX : x < -9223372036854775808.0f ? INT64_MIN : x != x ? 0 : (int64_t)x;
}
static inline uint8_t u1_from_f4(float x) { return x >= 255.0f ? 255 : x > 0.0f ? (uint8_t)(int32_t)x : 0; }

#define OM_CAST(name, from, to, expression) \
    static void k_cast_##name(const void *src_, ptrdiff_t stride, void *dst_, ptrdiff_t n) { \
        const from *restrict src = (const from *)src_; \
        to *restrict dst = (to *)dst_; \
        if (stride == 1) \
            for (ptrdiff_t i = 0; i < n; i++) { \
                from x = src[i]; \
                dst[i] = (expression); \
            } \
        else \
            for (ptrdiff_t i = 0; i < n; i++) { \
                from x = src[i * stride]; \
                dst[i] = (expression); \
            } \
    }
OM_CAST(f4_i4, float, int32_t, i4_from_f4(x))
OM_CAST(f4_i8, float, int64_t, i8_from_f4(x))
OM_CAST(f4_u1, float, uint8_t, u1_from_f4(x))
OM_CAST(f4_b1, float, uint8_t, x != 0.0f)
OM_CAST(i4_f4, int32_t, float, (float)x)
OM_CAST(i4_i8, int32_t, int64_t, x)
OM_CAST(i4_u1, int32_t, uint8_t, (uint8_t)x)
OM_CAST(i4_b1, int32_t, uint8_t, x != 0)
OM_CAST(i8_f4, int64_t, float, (float)x)
OM_CAST(i8_i4, int64_t, int32_t, (int32_t)x)
OM_CAST(i8_u1, int64_t, uint8_t, (uint8_t)x)
OM_CAST(i8_b1, int64_t, uint8_t, x != 0)
OM_CAST(u1_f4, uint8_t, float, (float)x)
OM_CAST(u1_i4, uint8_t, int32_t, x)
OM_CAST(u1_i8, uint8_t, int64_t, x)
OM_CAST(u1_b1, uint8_t, uint8_t, x != 0)
#undef OM_CAST
#endif
