"""Launches as data: parameters that mirror C structs, and launches by the native core."""

import ctypes
import itertools
import re
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from cudasim import compiler

from polygpu import _cpu
from polygpu._backends import cuda, cuda_sources  # noqa: F401  (makes all structs)
from polygpu._backends.base import Op
from polygpu._backends.cuda import launch, rns, sources, words
from polygpu._backends.cuda.launch import POINTER, U32, U64, Struct
from polygpu._core.plans.rns import Estimate
from polygpu._core.plans.sampling import Shape

FOLDER = Path(cuda_sources())


def test_every_kernel_parameter_struct_has_a_mirror():
    mirrored = {(s.file, s.name.partition("<")[0]) for s in Struct.made}
    for path in sorted(FOLDER.glob("*.cu")):
        text = path.read_text()
        kernels = re.findall(
            r"__global__ void[^{;]*?(\w+)\(const (?:__grid_constant__ )?(\w+)[^,()]*? p\) \{", text
        )
        assert len(kernels) == text.count("__global__"), path
        assert {(path.name, struct) for _, struct in kernels} <= mirrored


@pytest.mark.parametrize("file", sorted({one.file for one in Struct.made}))
def test_struct_offsets_match_the_compiler(file):
    asserts = []
    for one in Struct.made:
        if one.file == file:
            name = f"S{len(asserts)}"
            asserts.append(f"using {name} = {one.name};")
            asserts.append(f'static_assert(sizeof({name}) == {one.dtype.itemsize}, "{one.name}");')
            for field, (dtype, offset) in one.dtype.fields.items():
                asserts.append(f'static_assert(offsetof({name}, {field}) == {offset}, "{one.name}");')
                asserts.append(f'static_assert(sizeof({name}::{field}) == {dtype.itemsize}, "{field}");')
    code = (
        f'#include "{file}"\n#include <cstddef>\n'
        + "\n".join(asserts)
        + '\nextern "C" __global__ void none() {}'
    )
    compiler.compile_module(code, (f"-I{FOLDER}",), (), (9, 0))
    wrong = code.replace("offsetof(S0, ", "1 + offsetof(S0, ", 1)
    with pytest.raises(compiler.CompileError, match="static assertion"):
        compiler.compile_module(wrong, (f"-I{FOLDER}",), (), (9, 0))


def test_struct_packs_values_into_fields():
    inner = Struct("x", "Inner", ("a", U32), ("b", U64))
    outer = Struct(
        "x", "Outer", ("p q", POINTER), ("inner", inner), ("table", (U32, 3)), ("last", np.dtype("i8"))
    )
    try:
        assert inner.dtype.itemsize == 16  # as C aligns
        table = np.arange(3, dtype=np.uint32)
        packed = outer(p=1, q=2**64 - 1, inner=inner(a=3, b=4), table=table.tobytes(), last=-5)
        (value,) = np.frombuffer(packed, outer.dtype)
        assert (value["p"], value["q"], value["last"]) == (1, 2**64 - 1, -5)
        assert value["inner"].tolist() == (3, 4) and value["table"].tolist() == [0, 1, 2]
        for wrong in ({"a": 1}, {"a": 1, "b": 2, "c": 3}):
            with pytest.raises(TypeError, match="Inner"):
                inner(**wrong)
        with pytest.raises(KeyError):
            inner(a=1, c=2)
        for value in (-1, 2**32):
            with pytest.raises(struct.error):
                inner(a=value, b=0)
    finally:
        del Struct.made[-2:]


def test_constants_agree_between_python_core_and_kernels():
    """The same names have the same values in Python, the core and the kernels."""
    assert sources.enumeration("quotient.cuh", "Quotient") == {x.name: x.value for x in _cpu.Quotient}
    assert sources.enumeration("pointwise.cu", "Op") == {x: i for i, x in enumerate(_cpu.OPS)}
    assert set(_cpu.OPS) == set(get_args(Op))
    assert sources.enumeration("sampling.cu", "Shape") == {x: i for i, x in enumerate(_cpu.SHAPES)}
    assert tuple(_cpu.SHAPES) == get_args(Shape)
    assert set(sources.enumeration("rns.cu", "Way")) == set(get_args(Estimate))
    with pytest.raises(LookupError, match="one constant NOTHING, but it has 0"):
        sources.constant("rows.cuh", "NOTHING")


def test_python_does_not_copy_constants_of_the_sources():
    """Python reads constants by name; a number next to a file name would be a copy."""
    for path in Path(launch.__file__).parent.glob("*.py"):
        for line in path.read_text().splitlines():
            assert not re.match(r"_?[A-Z_]+ = [\d <]+ *#.*\.cuh?\b", line), f"{path.name}: {line}"
    for path in FOLDER.iterdir():
        for line in path.read_text().splitlines():
            assert not re.search(r"= [\d <]+;.*\.py\b", line), f"{path.name}: {line}"


def test_conversion_tables_match_the_words_of_kernels():
    sums = {s.name: s for s in vars(words).values() if isinstance(s, words.Sum)}
    sums |= {s.name: s for s in (*words._NARROW, *words._HALVES)}
    asserts = []
    for name, of in sums.items():
        for rows, way, *flags in itertools.product((1, 3, 8), ("none", "nearest"), *[(0, 1)] * 3):
            scales, adds, own = flags
            conversion = SimpleNamespace(
                source=SimpleNamespace(moduli=(0,) * rows),
                estimate=way,
                scales=scales,
                accumulate=adds,
                own=0 if own else None,
            )
            row = f"{name}, {rows}, {way.upper()}, {'FLOOR' if scales else 'NONE'}, {adds}, {own}"
            asserts.append(f'static_assert(TargetRow<{row}>::WORDS == {rns.row_words(conversion, of)}, "");')
    asserts.append(f'static_assert(sizeof(Modulus) == {launch.MODULUS_BYTES}, "");')
    code = '#include "rns.cu"\n' + "\n".join(asserts) + '\nextern "C" __global__ void none() {}'
    compiler.compile_module(code, (f"-I{FOLDER}",), (), (9, 0))


def test_kernels_and_launches_agree_on_early_starts():
    for path in FOLDER.glob("*.cu"):
        text = path.read_text()
        kernels = text.split("__global__")[1:]
        assert sources.waits(path.name) == ("start_next(" in text), path
        for kernel in kernels:  # all or none
            assert ("await_previous();" in kernel.split("__global__")[0]) == sources.waits(path.name), kernel


# ---- the core's launches, by a driver of the test's ----


ARGUMENTS = {  # how many the driver's functions have
    "cuLaunchKernelEx": 4,
    "cuMemsetD32Async": 4,
    "cuGetErrorName": 2,
    "cuGetErrorString": 2,
    "cuCtxGetCurrent": 1,
    "cuCtxSetCurrent": 1,
    "cuThreadExchangeStreamCaptureMode": 1,
    "cuGraphCreate": 2,
    "cuGraphAddKernelNode_v2": 5,
    "cuGraphAddDependencies_v2": 5,
    "cuGraphInstantiateWithFlags": 3,
    "cuGraphExecKernelNodeSetParams_v2": 3,
    "cuGraphLaunch": 2,
    "cuGraphExecDestroy": 1,
    "cuGraphDestroy": 1,
}


class FakeDriver:
    """Functions of libcuda that note their calls; those named in `statuses` fail."""

    def __init__(self, **statuses: int) -> None:
        self.calls: list[str] = []
        self.statuses, self.context = statuses, 1
        made = ("cuCtxGetCurrent", "cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags")
        self.functions = {}
        for name, arguments in ARGUMENTS.items():

            def call(*given: int, name: str = name) -> int:
                self.calls.append(name)
                status = self.statuses.get(name, 0)
                if name in made and not status:
                    handle = self.context if name == "cuCtxGetCurrent" else len(self.calls)
                    ctypes.cast(given[0], ctypes.POINTER(ctypes.c_void_p))[0] = handle
                return status

            self.functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * arguments)(call)
        self.addresses = {
            name: ctypes.cast(function, ctypes.c_void_p).value for name, function in self.functions.items()
        }

    def noted(self, call: Callable[[], object]) -> list[str]:
        """What a call makes of launches and graphs."""
        self.calls.clear()
        call()
        return [x.removeprefix("cu") for x in self.calls if "Launch" in x or "Graph" in x]


PLAIN, GRAPH, SET = ["LaunchKernelEx"] * 2, ["GraphLaunch"], "GraphExecKernelNodeSetParams_v2"
MADE = ["GraphCreate", *["GraphAddKernelNode_v2"] * 2, "GraphAddDependencies_v2", "GraphInstantiateWithFlags"]


def repeated(
    driver: FakeDriver, counters: int = 0, kernels: int = 2, graphs: bool = True
) -> Callable[..., object]:
    """A call of two kernels, the first on the operand alone, on arrays that begin at an address."""
    steps = [
        ("kernel", 1, (1, 1), 32, 0, counters, True, (0,), (0,), bytes(8)),
        ("kernel", 1, (1, 1), 32, 0, 0, True, (0, 1), (0, 0), bytes(16)),
    ][:kernels]
    known = {name: x for name, x in driver.addresses.items() if graphs or "Graph" not in name}
    launches = _cpu.Launches(known, steps)

    def array(address: int) -> SimpleNamespace:
        return SimpleNamespace(data=SimpleNamespace(ptr=address))

    def call(at: int = 16, result: int = 32, stream: int = 0) -> list[str]:
        return driver.noted(lambda: launches.on(stream, (array(at),), array(result), 0))

    return call


def test_repeated_launches_become_an_updated_graph() -> None:
    call = repeated(driver := FakeDriver())
    assert [call(), call()] == [PLAIN, PLAIN]
    assert call() == [*MADE, *GRAPH]
    assert [call(), call(result=48), call(result=48)] == [GRAPH, [SET, *GRAPH], GRAPH]
    assert call(at=64, result=48) == [SET, SET, *GRAPH]
    assert [call(stream=1), call(stream=1)] == [PLAIN, PLAIN] and call(stream=1)[-1:] == GRAPH
    for stream in (2, 3):
        assert [call(stream=stream) for _ in range(3)][-1][-1:] == GRAPH
    assert [call(stream=4) for _ in range(5)] == [PLAIN] * 5  # on four streams at most
    driver.calls.clear()
    del call
    assert Counter(driver.calls)["cuGraphExecDestroy"] == Counter(driver.calls)["cuGraphDestroy"] == 4


def test_launches_without_a_graph() -> None:
    for one, plain in (
        (repeated(FakeDriver(), kernels=1), PLAIN[:1]),
        (repeated(FakeDriver(), counters=1), PLAIN),
        (repeated(FakeDriver(), graphs=False), PLAIN),
    ):
        assert [one() for _ in range(5)] == [plain] * 5


@pytest.mark.parametrize("name", [x for x in ARGUMENTS if x[2:] in MADE or "CaptureMode" in x])
def test_graph_creation_that_fails_is_tried_once(name: str) -> None:
    call = repeated(FakeDriver(**{name: 801}))
    assert [call()[-2:] for _ in range(3)] == [PLAIN] * 3
    assert [call() for _ in range(5)] == [PLAIN] * 5


@pytest.mark.parametrize("name", ["cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"])
def test_graph_launch_that_fails_is_replaced(name: str) -> None:
    call = repeated(driver := FakeDriver())
    assert [call(), call()] == [PLAIN, PLAIN] and call()[-1:] == GRAPH
    driver.statuses[name] = 1
    assert call(result=48)[-2:] == PLAIN
    driver.statuses.clear()
    assert [call(), call()] == [PLAIN, PLAIN] and call()[-1:] == GRAPH


def test_thread_without_a_context_launches_nothing() -> None:
    """CUDA's graph functions crash in a thread without a context."""
    call = repeated(driver := FakeDriver())
    for _ in range(4):
        call()
    driver.context = 0
    for _ in range(5):
        with pytest.raises(_cpu.NoContext, match="kernel"):
            call(at=64)
        assert driver.calls == ["cuCtxGetCurrent", "cuGetErrorName", "cuGetErrorString"]
    driver.context = 1
    assert call(at=64) == [SET, SET, *GRAPH]
