// The clock frequency of the core that runs.
#pragma once

namespace pg {

// In GHz, measured; takes about 10 ms.
double clock_ghz();

}  // namespace pg
