#define OM_ISA scalar
#define OM_MODE fast
#define OM_EXACT 0
#define OM_LANE_HEADER "lane_scalar.h"
#include "../variant.h"
