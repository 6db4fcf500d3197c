/* Builds one table: a stub in variants/ defines OM_ISA, OM_MODE, OM_EXACT, OM_LANE_HEADER and includes this file, nothing else. */
#define OM_VARIANT 1
#include OM_LANE_HEADER
#include "lane_math.h" /* before kernels.h, which opens the loops of every family */
#include "lane_pieces.h"
#include "kernels.h"
#include "elementwise.h"
#include "copy.h"
#include "reduce.h"
#include "softmax.h"
#include "loss.h"
#include "optim.h"
#include "philox.h"
#include "gemm.h"
#include "conv.h"
#include "conv_weight.h"
#include "conv_winners.h"
#include "depthwise.h"
#include "pooling.h"
#include "norm.h"
#include "resize.h"
#include "ctc.h"
#include "rnn.h"
#include "attention.h"

#define OM_PASTE_(a, b, c) om_table_##a##_##b
#define OM_PASTE(a, b) OM_PASTE_(a, b, )
#define OM_STRING_(s) #s
#define OM_STRING(s) OM_STRING_(s)

#define OM_TABLE_ROW(class, name, doc) (om_fn)k_##name,
const om_table OM_PASTE(OM_ISA, OM_MODE) = {OM_STRING(OM_ISA), OM_STRING(OM_MODE), OM_GEMM_INIT, {OM_ROWS(OM_TABLE_ROW)}};
