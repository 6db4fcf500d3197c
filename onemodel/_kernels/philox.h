/* Random numbers from the counter-based generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
 * 3", 2011); seeds, offsets and threads belong to random.pyx.
 *
 * The stream of a seed is a sequence of 32-bit words: word w is word w % 4 of the block that the key (low and high half of the seed) makes
 * of the counter (w / 4, 0). What is drawn at a place depends on that place alone, so pieces and threads change nothing; both modes and
 * every instruction set give the same bits. */
#ifndef OM_PHILOX_H
#define OM_PHILOX_H

/* y[i] = 0 where word offset + i is below `drop` (1 to 2^32), else x[i] scale; y may be x. */
typedef void om_dropout_fn(uint64_t seed, uint64_t offset, uint64_t drop, float scale, const float *x, float *y, ptrdiff_t n);

#define OM_PHILOX(ROW) \
    ROW(philox, philox_words, "words of the stream") \
    ROW(philox, philox_uniform, "uniform in [0, 1), multiples of 2^-24, one word each") \
    ROW(philox, philox_normal, "standard normal (Box and Muller), a pair of words for a pair of numbers") \
    ROW(philox_integers, philox_integers, "integers in [low, low + span), two words each, no value off by more than 2^-64") \
    ROW(philox_integers, philox_permutation, "a random order of low, ..., low + n - 1 (Fisher and Yates), two words each; span is not used") \
    ROW(dropout, dropout, "x scale, 0 where the element's word is below the share to drop of 2^32")

#endif

#if defined(OM_VARIANT) && !defined(OM_PHILOX_LOOPS)
#define OM_PHILOX_LOOPS

enum { PHILOX_BLOCKS = 32, PHILOX_WORDS = 4 * PHILOX_BLOCKS };

/* PHILOX_BLOCKS blocks from counter `block` on, side by side. */
static void philox_blocks(uint64_t seed, uint64_t block, uint32_t *out) {
    uint32_t c0[PHILOX_BLOCKS], c1[PHILOX_BLOCKS], c2[PHILOX_BLOCKS], c3[PHILOX_BLOCKS], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < PHILOX_BLOCKS; i++) {
        uint64_t c = block + (uint64_t)i;
        c0[i] = (uint32_t)c;
        c1[i] = (uint32_t)(c >> 32);
        c2[i] = c3[i] = 0;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9, k1 += 0xBB67AE85)
        for (int i = 0; i < PHILOX_BLOCKS; i++) {
            uint64_t p = (uint64_t)0xD2511F53 * c0[i], q = (uint64_t)0xCD9E8D57 * c2[i];
            c0[i] = (uint32_t)(q >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)q;
            c3[i] = (uint32_t)p;
        }
    for (int i = 0; i < PHILOX_BLOCKS; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

/* Walks n elements of `per` words each from word `offset` on: at is the first element of a step, some their number, and `word` the words of
 * the step's first block on, of which the element's begin at `skip`. */
#define PHILOX_EACH(per) \
    uint32_t word[PHILOX_WORDS]; \
    for (ptrdiff_t at = 0, some = 0, skip = 0; at < n && (skip = (ptrdiff_t)((offset + (per) * (uint64_t)at) % 4), \
         some = (PHILOX_WORDS - skip) / (per) < n - at ? (PHILOX_WORDS - skip) / (per) : n - at, \
         philox_blocks(seed, (offset + (per) * (uint64_t)at) / 4, word), 1); at += some)

static void k_philox_words(uint64_t seed, uint64_t offset, void *out, ptrdiff_t n) {
    PHILOX_EACH(1) memcpy((uint32_t *)out + at, word + skip, (size_t)some * sizeof *word);
}

static void k_philox_uniform(uint64_t seed, uint64_t offset, void *out, ptrdiff_t n) {
    PHILOX_EACH(1)
        for (ptrdiff_t i = 0; i < some; i++) ((float *)out)[at + i] = (float)(int32_t)(word[skip + i] >> 8) * 0x1p-24f;
}

/* sqrt(-2 log u) times the cosine and the sine of a whole turn times v, with u = (w + 1/2) / 2^32 of the even word and v = w / 2^32 of the odd
 * one. log, cosine and sine are those of exact mode; the radius is rounded to float32 before the (correctly rounded) root. */
static void k_philox_normal(uint64_t seed, uint64_t offset, void *out, ptrdiff_t n) {
    PHILOX_EACH(1) {
        double u[PHILOX_WORDS / 2], turn[PHILOX_WORDS / 2], rest[PHILOX_WORDS / 2];
        float value[PHILOX_WORDS];
        for (int i = 0; i < PHILOX_WORDS / 2; i++) {
            uint32_t v = word[2 * i + 1], quarter = v + 0x20000000 < v ? 4 : (v + 0x20000000) >> 30;
            u[i] = ((double)word[2 * i] + 0.5) * 0x1p-32;
            rest[i] = ((double)v - (double)quarter * 0x1p30) * (1.5707963267948966 * 0x1p-30);
            turn[i] = SHIFT + (double)quarter;
        }
        for (int i = 0; i < PHILOX_WORDS / 2; i += LANES) {
            vw r = vw_load(rest + i), t = vw_load(turn + i);
            vf radius = vf_sqrt(vf_from_vw(vw_mul(vw_set(-2.0), vw_log(vw_load(u + i)))));
            vw d = vw_from_vf(radius);
            float cosine[LANES], sine[LANES];
            vf_store(cosine, vf_from_vw(vw_mul(d, trig_value(r, vw_iadd(t, vw_word(1))))));
            vf_store(sine, vf_from_vw(vw_mul(d, trig_value(r, t))));
            for (int k = 0; k < LANES; k++) {
                value[2 * (i + k)] = cosine[k];
                value[2 * (i + k) + 1] = sine[k];
            }
        }
        memcpy((float *)out + at, value + skip, (size_t)some * sizeof *value);
    }
}

/* The high half of draw * span; every value has floor or ceil of 2^64 / span draws. */
static inline uint64_t philox_below(const uint32_t *word, uint64_t span) {
    uint64_t draw = word[0] | (uint64_t)word[1] << 32;
    return (uint64_t)(((unsigned __int128)draw * span) >> 64);
}

static void k_philox_integers(uint64_t seed, uint64_t offset, int64_t low, uint64_t span, int64_t *out, ptrdiff_t n) {
    PHILOX_EACH(2)
        for (ptrdiff_t i = 0; i < some; i++) out[at + i] = (int64_t)((uint64_t)low + philox_below(word + skip + 2 * i, span));
}

static void k_philox_permutation(uint64_t seed, uint64_t offset, int64_t low, uint64_t span, int64_t *out, ptrdiff_t n) {
    (void)span;
    PHILOX_EACH(2)
        for (ptrdiff_t i = 0; i < some; i++) {
            ptrdiff_t j = (ptrdiff_t)philox_below(word + skip + 2 * i, (uint64_t)(at + i) + 1);
            out[at + i] = out[j]; /* j may be this place, which the next line fills */
            out[j] = low + at + i;
        }
}

/* The drop is a selection, not a product with 0: an infinity or a NaN that is dropped is gone. */
static void k_dropout(uint64_t seed, uint64_t offset, uint64_t drop, float scale, const float *x, float *y, ptrdiff_t n) {
    const uint32_t last = (uint32_t)(drop - 1); /* the greatest word that is dropped; the caller has drop > 0 */
    PHILOX_EACH(1) {
        const uint32_t *w = word + skip;
        const float *from = x + at;
        float *to = y + at;
        for (ptrdiff_t i = 0; i < some; i++) to[i] = w[i] <= last ? 0.0f : one_nan(from[i] * scale);
    }
}
#undef PHILOX_EACH
#endif
