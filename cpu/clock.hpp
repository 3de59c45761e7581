// Measures the clock frequency of the core that runs the calling thread.
#pragma once

namespace pg {

// Returns the measured frequency in GHz. Takes about 10 ms.
double clock_ghz();

}  // namespace pg
