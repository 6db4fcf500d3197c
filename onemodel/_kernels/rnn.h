/* The gates of LSTM and GRU, forward and backward, for one row of a batch at one step: lanes run over hidden units. Gates lie as torch stacks
 * them, i f g o (Hochreiter and Schmidhuber 1997, with forget gate) and r z n (Cho et al. 2014). Each operation is rounded by itself, in the
 * order written. Must not contain products, steps or threads. */
#ifndef OM_RNN_H
#define OM_RNN_H

/* gates [4n]: the input's part comes in, the activated gates go out; rec [4n]: the hidden state's part. c = f c_prev + i g, h = o tanh c. */
typedef void om_lstm_fn(const float *rec, float *gates, const float *c_prev, float *c, float *tanh_c, float *h, ptrdiff_t n,
                        ptrdiff_t count);
/* gy and dh: the gradient of h from the output and from the next step; dc goes in as the next step's and out as the previous one's; dgates [4n]:
 * before the activations. */
typedef void om_lstm_bwd_fn(const float *gates, const float *c_prev, const float *tanh_c, const float *gy, const float *dh, float *dc, float *dgates,
                            ptrdiff_t n, ptrdiff_t count);
/* gates [3n] as above; hidden_n [n] keeps the hidden part of n, which the reset gate scales. h = (1 - z) n + z h_prev. */
typedef void om_gru_fn(const float *rec, float *gates, float *hidden_n, const float *h_prev, float *h, ptrdiff_t n, ptrdiff_t count);
/* The gradient of h is gy + (dh + direct): dh came through the recurrent product, direct past it; direct goes out as the previous step's.
 * dx [3n] and dhid [3n]: of the input's and of the hidden part. */
typedef void om_gru_bwd_fn(const float *gates, const float *hidden_n, const float *h_prev, const float *gy, const float *dh, float *direct, float *dx,
                           float *dhid, ptrdiff_t n, ptrdiff_t count);

#define OM_RNN(ROW) \
    ROW(lstm, lstm_gates, "c = f c_prev + i g, h = o tanh c from the two parts of the gates i f g o") \
    ROW(lstm_bwd, lstm_gates_bwd, "the gradient of the gates before activation, and of the previous cell") \
    ROW(gru, gru_gates, "h = (1 - z) n + z h_prev from the two parts of the gates r z n") \
    ROW(gru_bwd, gru_gates_bwd, "the gradients of both parts of the gates, and of h_prev past them")
#endif

#if defined(OM_VARIANT) && !defined(OM_RNN_LOOPS)
#define OM_RNN_LOOPS

#define OM_RNN_INLINE static inline __attribute__((always_inline))
OM_RNN_INLINE vf rnn_load(const float *p, ptrdiff_t m) { return m == LANES ? vf_load(p) : vf_load_tail(p, m); }
OM_RNN_INLINE void rnn_store(float *p, vf v, ptrdiff_t m) {
    if (m == LANES) vf_store(p, v);
    else vf_store_tail(p, v, m);
}
/* y (1 - y), times d */
OM_RNN_INLINE vf sigmoid_slope(vf d, vf y) { return vf_mul(vf_mul(d, y), vf_sub(vf_set(1.0f), y)); }
OM_RNN_INLINE vf tanh_slope(vf d, vf y) { return vf_mul(d, vf_sub(vf_set(1.0f), vf_mul(y, y))); }

OM_RNN_INLINE void lstm_lanes(const float *rec, float *gates, const float *c_prev, float *c, float *tanh_c, float *h, ptrdiff_t n, ptrdiff_t j, ptrdiff_t m) {
    vf i = lane_sigmoid(vf_add(rnn_load(gates + j, m), rnn_load(rec + j, m)));
    vf f = lane_sigmoid(vf_add(rnn_load(gates + n + j, m), rnn_load(rec + n + j, m)));
    vf g = lane_tanh(vf_add(rnn_load(gates + 2 * n + j, m), rnn_load(rec + 2 * n + j, m)));
    vf o = lane_sigmoid(vf_add(rnn_load(gates + 3 * n + j, m), rnn_load(rec + 3 * n + j, m)));
    vf cell = vf_result(vf_add(vf_mul(f, rnn_load(c_prev + j, m)), vf_mul(i, g))), t = lane_tanh(cell);
    rnn_store(gates + j, i, m);
    rnn_store(gates + n + j, f, m);
    rnn_store(gates + 2 * n + j, g, m);
    rnn_store(gates + 3 * n + j, o, m);
    rnn_store(c + j, cell, m);
    rnn_store(tanh_c + j, t, m);
    rnn_store(h + j, vf_result(vf_mul(o, t)), m);
}
static void k_lstm_gates(const float *rec, float *gates, const float *c_prev, float *c, float *tanh_c, float *h, ptrdiff_t n, ptrdiff_t count) {
    ptrdiff_t j = 0;
    for (; j + LANES <= count; j += LANES) lstm_lanes(rec, gates, c_prev, c, tanh_c, h, n, j, LANES);
    if (j < count) lstm_lanes(rec, gates, c_prev, c, tanh_c, h, n, j, count - j);
}

OM_RNN_INLINE void lstm_bwd_lanes(const float *gates, const float *c_prev, const float *tanh_c, const float *gy, const float *dh, float *dc, float *dgates,
                                  ptrdiff_t n, ptrdiff_t j, ptrdiff_t m) {
    vf i = rnn_load(gates + j, m), f = rnn_load(gates + n + j, m), g = rnn_load(gates + 2 * n + j, m), o = rnn_load(gates + 3 * n + j, m);
    vf t = rnn_load(tanh_c + j, m), d = vf_add(rnn_load(gy + j, m), rnn_load(dh + j, m));
    vf cell = vf_add(rnn_load(dc + j, m), tanh_slope(vf_mul(d, o), t));
    rnn_store(dgates + j, sigmoid_slope(vf_mul(cell, g), i), m);
    rnn_store(dgates + n + j, sigmoid_slope(vf_mul(cell, rnn_load(c_prev + j, m)), f), m);
    rnn_store(dgates + 2 * n + j, tanh_slope(vf_mul(cell, i), g), m);
    rnn_store(dgates + 3 * n + j, sigmoid_slope(vf_mul(d, t), o), m);
    rnn_store(dc + j, vf_result(vf_mul(cell, f)), m);
}
static void k_lstm_gates_bwd(const float *gates, const float *c_prev, const float *tanh_c, const float *gy, const float *dh, float *dc, float *dgates,
                             ptrdiff_t n, ptrdiff_t count) {
    ptrdiff_t j = 0;
    for (; j + LANES <= count; j += LANES) lstm_bwd_lanes(gates, c_prev, tanh_c, gy, dh, dc, dgates, n, j, LANES);
    if (j < count) lstm_bwd_lanes(gates, c_prev, tanh_c, gy, dh, dc, dgates, n, j, count - j);
}

OM_RNN_INLINE void gru_lanes(const float *rec, float *gates, float *hidden_n, const float *h_prev, float *h, ptrdiff_t n, ptrdiff_t j, ptrdiff_t m) {
    vf r = lane_sigmoid(vf_add(rnn_load(gates + j, m), rnn_load(rec + j, m)));
    vf z = lane_sigmoid(vf_add(rnn_load(gates + n + j, m), rnn_load(rec + n + j, m)));
    vf part = rnn_load(rec + 2 * n + j, m), c = lane_tanh(vf_add(rnn_load(gates + 2 * n + j, m), vf_mul(r, part)));
    rnn_store(gates + j, r, m);
    rnn_store(gates + n + j, z, m);
    rnn_store(gates + 2 * n + j, c, m);
    rnn_store(hidden_n + j, part, m);
    rnn_store(h + j, vf_result(vf_add(vf_mul(vf_sub(vf_set(1.0f), z), c), vf_mul(z, rnn_load(h_prev + j, m)))), m);
}
static void k_gru_gates(const float *rec, float *gates, float *hidden_n, const float *h_prev, float *h, ptrdiff_t n, ptrdiff_t count) {
    ptrdiff_t j = 0;
    for (; j + LANES <= count; j += LANES) gru_lanes(rec, gates, hidden_n, h_prev, h, n, j, LANES);
    if (j < count) gru_lanes(rec, gates, hidden_n, h_prev, h, n, j, count - j);
}

OM_RNN_INLINE void gru_bwd_lanes(const float *gates, const float *hidden_n, const float *h_prev, const float *gy, const float *dh, float *direct, float *dx,
                                 float *dhid, ptrdiff_t n, ptrdiff_t j, ptrdiff_t m) {
    vf r = rnn_load(gates + j, m), z = rnn_load(gates + n + j, m), c = rnn_load(gates + 2 * n + j, m);
    vf d = vf_add(rnn_load(gy + j, m), vf_add(rnn_load(dh + j, m), rnn_load(direct + j, m)));
    vf dan = tanh_slope(vf_mul(d, vf_sub(vf_set(1.0f), z)), c);
    vf dar = sigmoid_slope(vf_mul(dan, rnn_load(hidden_n + j, m)), r);
    vf daz = sigmoid_slope(vf_mul(d, vf_sub(rnn_load(h_prev + j, m), c)), z);
    rnn_store(dx + j, dar, m);
    rnn_store(dx + n + j, daz, m);
    rnn_store(dx + 2 * n + j, dan, m);
    rnn_store(dhid + j, dar, m);
    rnn_store(dhid + n + j, daz, m);
    rnn_store(dhid + 2 * n + j, vf_mul(dan, r), m);
    rnn_store(direct + j, vf_mul(d, z), m);
}
static void k_gru_gates_bwd(const float *gates, const float *hidden_n, const float *h_prev, const float *gy, const float *dh, float *direct, float *dx,
                            float *dhid, ptrdiff_t n, ptrdiff_t count) {
    ptrdiff_t j = 0;
    for (; j + LANES <= count; j += LANES) gru_bwd_lanes(gates, hidden_n, h_prev, gy, dh, direct, dx, dhid, n, j, LANES);
    if (j < count) gru_bwd_lanes(gates, hidden_n, h_prev, gy, dh, direct, dx, dhid, n, j, count - j);
}
#endif
