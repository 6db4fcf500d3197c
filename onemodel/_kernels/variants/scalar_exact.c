#define OM_ISA scalar
#define OM_MODE exact
#define OM_EXACT 1
#define OM_LANE_HEADER "lane_scalar.h"
#include "../variant.h"
