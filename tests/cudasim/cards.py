"""The simulated cards: what launch code asks a device for, and what a launch must keep to."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Card:
    """Limits of one GPU, named as in the CUDA programming guide's table of compute capabilities."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int
    shared_per_block: int = 48 * KIB
    threads_per_block: int = 1024
    registers_per_block: int = 65536

    @property
    def has_clusters(self) -> bool:
        return self.compute_capability >= (9, 0)

    def resident_blocks(self, threads: int, shared: int) -> int:
        """How many blocks of that size the card holds at a time (registers are not counted)."""
        by_threads = self.threads_per_multiprocessor // (-(-threads // 32) * 32)
        by_shared = self.shared_per_multiprocessor // (shared + KIB)
        return self.multiprocessors * max(1, min(by_threads, by_shared, self.blocks_per_multiprocessor))

    def properties(self) -> dict[str, object]:
        """As `cudaGetDeviceProperties` gives them through CuPy (those that launch code may want)."""
        major, minor = self.compute_capability
        return {
            "name": self.name.encode(),
            "major": major,
            "minor": minor,
            "multiProcessorCount": self.multiprocessors,
            "warpSize": 32,
            "maxThreadsPerBlock": self.threads_per_block,
            "maxThreadsDim": (1024, 1024, 64),
            "maxGridSize": (2**31 - 1, 65535, 65535),
            "maxThreadsPerMultiProcessor": self.threads_per_multiprocessor,
            "maxBlocksPerMultiProcessor": self.blocks_per_multiprocessor,
            "sharedMemPerBlock": self.shared_per_block,
            "sharedMemPerBlockOptin": self.shared_per_block_optin,
            "sharedMemPerMultiprocessor": self.shared_per_multiprocessor,
            "reservedSharedMemPerBlock": KIB,
            "regsPerBlock": self.registers_per_block,
            "regsPerMultiprocessor": self.registers_per_block,
            "l2CacheSize": self.l2_bytes,
            "persistingL2CacheMaxSize": self.l2_bytes * 5 // 8,
            "totalGlobalMem": self.memory_bytes,
            "totalConstMem": 64 * KIB,
            "memoryBusWidth": 5120,
            "clockRate": 1_980_000,
            "memoryClockRate": 2_619_000,
            "cooperativeLaunch": 1,
            "concurrentKernels": 1,
            "asyncEngineCount": 3,
            "integrated": 0,
            "ECCEnabled": 1,
            "pciBusID": 1,
            "pciDeviceID": 0,
            "pciDomainID": 0,
            "uuid": b"\0" * 16,
        }

    def attributes(self) -> dict[str, int]:
        """As `cupy.cuda.Device.attributes` gives them: the CUDA names without their prefix."""
        major, minor = self.compute_capability
        return {
            "MaxThreadsPerBlock": self.threads_per_block,
            "MaxBlockDimX": 1024,
            "MaxBlockDimY": 1024,
            "MaxBlockDimZ": 64,
            "MaxGridDimX": 2**31 - 1,
            "MaxGridDimY": 65535,
            "MaxGridDimZ": 65535,
            "MaxSharedMemoryPerBlock": self.shared_per_block,
            "MaxSharedMemoryPerBlockOptin": self.shared_per_block_optin,
            "MaxSharedMemoryPerMultiprocessor": self.shared_per_multiprocessor,
            "ReservedSharedMemoryPerBlock": KIB,
            "MaxThreadsPerMultiProcessor": self.threads_per_multiprocessor,
            "MaxBlocksPerMultiprocessor": self.blocks_per_multiprocessor,
            "MaxRegistersPerBlock": self.registers_per_block,
            "MaxRegistersPerMultiprocessor": self.registers_per_block,
            "MultiProcessorCount": self.multiprocessors,
            "ClockRate": 1_980_000,
            "WarpSize": 32,
            "L2CacheSize": self.l2_bytes,
            "TotalConstantMemory": 64 * KIB,
            "ComputeCapabilityMajor": major,
            "ComputeCapabilityMinor": minor,
            "CooperativeLaunch": 1,
            "ConcurrentKernels": 1,
        }


H100 = Card("Simulated H100", (9, 0), 132, 227 * KIB, 228 * KIB, 2048, 32, 50 * KIB**2, 80 * KIB**3)
RTX3090 = Card("Simulated RTX 3090", (8, 6), 82, 99 * KIB, 100 * KIB, 1536, 16, 6 * KIB**2, 24 * KIB**3)
T4 = Card("Simulated T4", (7, 5), 40, 64 * KIB, 64 * KIB, 1024, 16, 4 * KIB**2, 15 * KIB**3)

CARDS = {"h100": H100, "rtx3090": RTX3090, "t4": T4}
