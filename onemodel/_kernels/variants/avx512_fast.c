#define OM_ISA avx512
#define OM_MODE fast
#define OM_EXACT 0
#define OM_LANE_HEADER "lane_avx512.h"
#include "../variant.h"
