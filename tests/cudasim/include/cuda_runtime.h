// Everything in it is there already: see cuda_sim.h.
#pragma once
