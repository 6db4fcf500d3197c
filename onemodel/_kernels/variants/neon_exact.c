#define OM_ISA neon
#define OM_MODE exact
#define OM_EXACT 1
#define OM_LANE_HEADER "lane_neon.h"
#include "../variant.h"
