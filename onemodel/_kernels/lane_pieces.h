/* sigmoid, tanh and gelu by pieces: a polynomial of its own for each of sixteen intervals, whose coefficients a permutation fetches, so that
 * there is neither a division nor a power of e. Must not contain loops over arrays. The bounds are in docs/exact-transcendentals.md, the
 * coefficients come from tools/fit_poly.py; fast_*, exact_* and lane_* mean what they mean in lane_math.h. */
#ifndef OM_LANE_PIECES_H
#define OM_LANE_PIECES_H

/* Column i: f(i w + h) = high + (low + h (c1 + h (c2 + ...))), |h| <= w / 2; high is a float and low what it lacks */
enum { PIECE_TOP, PIECE_REST };
/* Phi(-t), w = 1/4; relative error 2^-27.7 */
enum { NORMAL_DEGREE = 6 };
static const float NORMAL_PIECES[][16] = {
    {0.5f, 0.401293665f, 0.308537543f, 0.22662735f, 0.158655256f, 0.105649777f, 0.066807203f, 0.0400591567f,
     0.0227501318f, 0.0122244731f, 0.00620966544f, 0.00297976332f, 0.00134989806f, 0.000577025057f, 0.000232629085f, 8.84172841e-05f},
    {7.18419261e-14f, 9.14567622e-09f, -4.09417167e-09f, 2.52391286e-09f, -2.1003459e-09f, -3.08863601e-09f, -1.72505021e-09f, 1.48230442e-10f,
     1.61998831e-10f, -4.04774492e-10f, -1.18636073e-10f, -8.32763858e-11f, -2.37962774e-11f, -1.49235815e-11f, -5.96373688e-12f, 1.17617363e-12f},
    {-0.398942292f, -0.386668116f, -0.352065325f, -0.301137418f, -0.241970718f, -0.182649091f, -0.1295176f, -0.086277321f,
     -0.0539909676f, -0.0317396522f, -0.0175283011f, -0.00909356214f, -0.00443184841f, -0.00202904805f, -0.000872682722f, -0.0003525957f},
    {1.02911326e-06f, 0.0483335145f, 0.0880163312f, 0.112926498f, 0.120985337f, 0.114155695f, 0.0971382111f, 0.0754926652f,
     0.0539909713f, 0.0357071124f, 0.0219103806f, 0.0125036472f, 0.00664777309f, 0.00329720299f, 0.00152719475f, 0.000661116792f},
    {0.0664575696f, 0.0604165792f, 0.0440077186f, 0.0219549835f, -1.26132977e-06f, -0.0171221159f, -0.0269818809f, -0.0296573602f,
     -0.0269952789f, -0.021490356f, -0.0153371692f, -0.00994618144f, -0.00590914115f, -0.00323379948f, -0.00163627183f, -0.000767622725f},
    {0.000477290392f, -0.0118315546f, -0.0201701764f, -0.0229301881f, -0.0201590806f, -0.0136783253f, -0.00607414078f, 0.000390926201f,
     0.00449824613f, 0.00613637082f, 0.00593308127f, 0.00475425832f, 0.00332380342f, 0.00207794877f, 0.00117720442f, 0.0006094852f},
    {-0.0132270344f, -0.00844011735f, -0.0045580077f, 0.000276296108f, 0.0040771747f, 0.00591626158f, 0.00581534021f, 0.00428629993f,
     0.00224227249f, 0.000464906159f, -0.000666173466f, -0.00111514144f, -0.00110603368f, -0.00086514384f, -0.000579357613f, -0.000342827407f},
    {0.00858690869f, 0.00192185096f, 0.00305248867f, 0.00266854512f, 0.0017817273f, 0.000734385569f, -0.000516782398f, -0.00120453362f,
     -0.00130168966f, -0.000955946627f, -0.000469808379f, -0.000132547459f, 0.000113720693f, 0.000190286257f, 0.000180798277f, 0.000131718203f}};
/* 1 / (1 + e^t), w = 1; relative error 2^-27.6 */
enum { SIGMOID_DEGREE = 7 };
static const float SIGMOID_PIECES[][16] = {
    {0.5f, 0.268941432f, 0.119202919f, 0.0474258736f, 0.0179862101f, 0.00669285096f, 0.00247262325f, 0.000911051175f,
     0.000335350138f, 0.00012339458f, 4.53978682e-05f, 1.67014223e-05f, 6.14417468e-06f, 2.26032421e-06f, 8.31528041e-07f, 3.05902233e-07f},
    {5.51622333e-12f, -1.04004414e-08f, 2.34513209e-09f, -3.48618884e-10f, -7.80681353e-11f, -3.58871821e-11f, -9.53981755e-11f, 1.93063291e-11f,
     -7.64097292e-12f, -4.53523243e-12f, 4.37980517e-13f, -4.45527594e-13f, -7.84826509e-14f, 8.77002464e-14f, -1.39819771e-14f, -6.60090065e-15f},
    {-0.25f, -0.196611926f, -0.104993589f, -0.0451766588f, -0.0176627059f, -0.00664805667f, -0.00246650935f, -0.000910221192f,
     -0.000335237681f, -0.000123379345f, -4.53958091e-05f, -1.67011422e-05f, -6.14413693e-06f, -2.26031921e-06f, -8.31527359e-07f, -3.05902148e-07f},
    {1.36398617e-08f, 0.0454288125f, 0.0399813019f, 0.0204457808f, 0.00851366483f, 0.0032795337f, 0.00122715603f, 0.000454281399f,
     0.000167506441f, 6.16744583e-05f, 2.26958473e-05f, 8.35029368e-06f, 3.07203118e-06f, 1.13015471e-06f, 4.15763054e-07f, 1.52951003e-07f},
    {0.0208329447f, 0.0058874567f, -0.00647518178f, -0.00548854005f, -0.00263182237f, -0.00106381287f, -0.000404999824f, -0.000150874737f,
     -5.57603162e-05f, -2.05481138e-05f, -7.56387317e-06f, -2.78326138e-06f, -1.0239828e-06f, -3.76714297e-07f, -1.38586643e-07f, -5.09832461e-08f},
    {3.88314584e-06f, -0.00514488108f, -0.000867041526f, 0.000780282135f, 0.00055916229f, 0.000251496589f, 9.92338901e-05f, 3.74419287e-05f,
     1.39021358e-05f, 5.13174109e-06f, 1.89020307e-06f, 6.95691199e-07f, 2.55972793e-07f, 9.41724636e-08f, 3.46449838e-08f, 1.2745268e-08f},
    {-0.00210166653f, 0.000425682316f, 0.00072298717f, 4.17739029e-05f, -7.46468504e-05f, -4.46447921e-05f, -1.90576502e-05f, -7.38081053e-06f,
     -2.76726519e-06f, -1.02364379e-06f, -3.78013624e-07f, -1.38999141e-07f, -5.12078913e-08f, -1.88377882e-08f, -6.93299196e-09f, -2.55150923e-09f},
    {4.31045046e-05f, 0.000385722989f, -0.000141153956f, -5.63593167e-05f, 8.24618439e-07f, 5.58646252e-06f, 2.92514346e-06f, 1.2020588e-06f,
     4.5972115e-07f, 1.7141393e-07f, 6.3429809e-08f, 2.33645103e-08f, 8.60382166e-09f, 3.16735216e-09f, 1.16510135e-09f, 4.28677288e-10f},
    {0.000167447215f, -0.000108106477f, -9.30324768e-06f, 1.49483049e-05f, 2.4778883e-06f, -3.02501093e-07f, -3.22966628e-07f, -1.56315437e-07f,
     -6.0444961e-08f, -2.55899408e-08f, -8.51418314e-09f, -3.53258423e-09f, -1.18792531e-09f, -4.43721559e-10f, -1.57802119e-10f, -5.61114176e-11f}};
/* tanh t, w = 5/8; relative error 2^-27.4 */
enum { TANH_DEGREE = 7 };
static const float TANH_PIECES[][16] = {
    {0.0f, 0.554599702f, 0.848283648f, 0.954045236f, 0.986614287f, 0.99614656f, 0.998894453f, 0.999683142f,
     0.999909222f, 0.999974012f, 0.999992549f, 0.999997854f, 0.999999404f, 0.999999821f, 0.99999994f, 1.0f},
    {0.0f, 2.25163976e-08f, -7.775947e-09f, 2.36114239e-08f, 1.12225811e-08f, -2.90328277e-08f, -1.03182369e-08f, -1.41451952e-08f,
     -1.78630035e-08f, -2.66316924e-08f, -2.69793743e-09f, 1.03614815e-08f, -1.57580029e-08f, 3.52898599e-09f, 9.38466282e-09f, -1.43882657e-08f},
    {1.0f, 0.692419171f, 0.28041485f, 0.0897976458f, 0.0265922267f, 0.0076920893f, 0.00220989226f, 0.000633644464f,
     0.000181583237f, 5.20278372e-05f, 1.49065017e-05f, 4.27080704e-06f, 1.22360848e-06f, 3.50569877e-07f, 1.00439962e-07f, 2.87765314e-08f},
    {-1.71905413e-07f, -0.384016305f, -0.237871587f, -0.0856708661f, -0.0262362622f, -0.00766245136f, -0.00220745057f, -0.000633444113f,
     -0.00018156688f, -5.20265239e-05f, -1.49064017e-05f, -4.27080113e-06f, -1.22360871e-06f, -3.50570048e-07f, -1.00440005e-07f, -2.87765687e-08f},
    {-0.333323032f, -0.0178344604f, 0.108312219f, 0.05180116f, 0.0170209967f, 0.00506889913f, 0.00146837987f, 0.000422028505f,
     0.000121022204f, 3.46825218e-05f, 9.93743834e-06f, 2.84717976e-06f, 8.15741089e-07f, 2.33712584e-07f, 6.69599203e-08f, 1.91843785e-08f},
    {-0.000204508397f, 0.137938946f, -0.0125755481f, -0.0208715573f, -0.00804820843f, -0.0024950509f, -0.000730865053f, -0.000210724029f,
     -6.04823617e-05f, -1.73374301e-05f, -4.9680034e-06f, -1.42341389e-06f, -4.07821119e-07f, -1.16843601e-07f, -3.34766774e-08f, -9.59075752e-09f},
    {0.135165602f, -0.0550293103f, -0.0192348789f, 0.00464083115f, 0.00285768905f, 0.000966758525f, 0.000289735297f, 8.40747962e-05f,
     2.41825037e-05f, 6.93394531e-06f, 1.98734665e-06f, 5.69513361e-07f, 1.63076578e-07f, 4.67498431e-08f, 1.33921825e-08f, 3.83626242e-09f},
    {-0.00791154988f, -0.0246896055f, 0.0149990013f, 0.000755102432f, -0.000711799657f, -0.000304263202f, -9.60565449e-05f, -2.82601322e-05f,
     -8.16009197e-06f, -2.34314462e-06f, -6.71668488e-07f, -1.92493658e-07f, -5.51439747e-08f, -1.57962834e-08f, -4.52354021e-09f, -1.29876798e-09f},
    {-0.0396814942f, 0.0280731414f, -0.00422754092f, -0.00125068473f, 7.30535758e-05f, 7.54153152e-05f, 2.65098206e-05f, 7.99387726e-06f,
     2.28639487e-06f, 6.66638812e-07f, 1.90433752e-07f, 5.41495453e-08f, 1.60233835e-08f, 4.44625847e-09f, 1.28382638e-09f, 3.71374625e-10f}};

/* c[from] + h (c[from + 1] + h (...)) of column i, c[0] being low */
static inline vf piece_rest(vf h, vi i, const float (*rows)[16], int from, int degree) {
    vf p = vf_lookup(rows[PIECE_REST + degree], i);
    for (int k = degree - 1; k >= from; k--) p = vf_madd(p, h, vf_lookup(rows[PIECE_REST + k], i));
    return p;
}

/* A lane beyond the pieces takes the longer way; the function is called where a vector has one. */
OM_RARE vf far_sigmoid(vf x) { return exact_sigmoid(x); }
static inline vf fast_sigmoid(vf x) {
    vf t = vf_abs(x), s = vf_add(t, vf_set(FLOAT_SHIFT)), h = vf_sub(t, vf_sub(s, vf_set(FLOAT_SHIFT)));
    vi i = vi_bits(s);
    vf tail = vf_add(vf_lookup(SIGMOID_PIECES[PIECE_TOP], i), piece_rest(h, i, SIGMOID_PIECES, 0, SIGMOID_DEGREE));
    vf y = vf_select(vf_lt(x, vf_set(0.0f)), tail, vf_sub(vf_set(1.0f), tail));
    vm far = vf_nle(t, vf_set(15.5f));
    return OM_IN_DOUBT(far) ? vf_select(far, far_sigmoid(x), y) : y;
}
/* From 9.1 on the result is 1, so the last piece serves. */
static inline vf fast_tanh(vf x) {
    vf t = vf_min(vf_set(9.6f), vf_abs(x)), s = vf_madd(t, vf_set(1.6f), vf_set(FLOAT_SHIFT));
    vf h = vf_madd(vf_sub(s, vf_set(FLOAT_SHIFT)), vf_set(-0.625f), t); /* exact, fused or not */
    vi i = vi_bits(s);
    return vf_with_sign(vf_add(vf_lookup(TANH_PIECES[PIECE_TOP], i), piece_rest(h, i, TANH_PIECES, 0, TANH_DEGREE)), x);
}

/* gelu of the erf form, max(x, 0) - t Phi(-t) with t = |x|, in floats in exact mode too: double lanes take more than twice torch's time */
OM_RARE vf far_gelu_erf(vf x) { return OM_EXACT || HAS_FMA ? float_gelu_erf(x) : exact_gelu_erf(x); }
static inline vf lane_gelu_erf(vf x) {
    vf t = vf_abs(x), base = vf_max(vf_set(-0.0f), x), s = vf_add(vf_mul(t, vf_set(4.0f)), vf_set(FLOAT_SHIFT));
    vf h = vf_madd(vf_sub(s, vf_set(FLOAT_SHIFT)), vf_set(-0.25f), t), y; /* exact, fused or not */
    vi i = vi_bits(s);
    vf top = vf_lookup(NORMAL_PIECES[PIECE_TOP], i);
#if OM_EXACT
    /* Every step is one IEEE operation, the fused ones included. Phi(-t) = lead + m, where m is at most a sixth of it, and t lead = a + its
     * rest are exact but for m's roundings; so is what y lost. */
    vf c1 = vf_lookup(NORMAL_PIECES[PIECE_REST + 1], i), lead = vf_fma(h, c1, top), m = vf_lookup(NORMAL_PIECES[PIECE_REST + NORMAL_DEGREE], i);
    for (int k = NORMAL_DEGREE - 1; k >= 2; k--) m = vf_fma(m, h, vf_lookup(NORMAL_PIECES[PIECE_REST + k], i));
    m = vf_fma(vf_mul(h, h), m, vf_add(vf_lookup(NORMAL_PIECES[PIECE_REST], i), vf_fma(h, c1, vf_sub(top, lead))));
    vf a = vf_mul(t, lead), v = vf_fma(t, m, vf_fma(t, lead, vf_neg(a)));
    y = vf_sub(base, a);
    y = vf_with_sign(vf_abs(vf_sub(y, vf_sub(v, vf_sub(vf_sub(base, y), a)))), x);
#else
    vf minus_t = vf_neg(t);
    y = vf_madd(minus_t, top, vf_madd(minus_t, piece_rest(h, i, NORMAL_PIECES, 0, NORMAL_DEGREE), base));
#endif
    vm far = vf_nle(t, vf_set(3.875f));
    return OM_IN_DOUBT(far) ? vf_select(far, far_gelu_erf(x), y) : y;
}

static inline vf lane_sigmoid(vf x) { return OM_EXACT ? exact_sigmoid(x) : fast_sigmoid(x); }
static inline vf lane_tanh(vf x) { return OM_EXACT ? exact_tanh(x) : fast_tanh(x); }

#endif
