"""A launch as data: the parameters of kernels mirror their C structs."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from cudasim import compiler

from polygpu import _cpu
from polygpu._backends import cuda, cuda_sources  # noqa: F401  (makes all structs)
from polygpu._backends.cuda import launch
from polygpu._backends.cuda.launch import POINTER, U32, U64, Struct

FOLDER = Path(cuda_sources())


def test_every_kernel_takes_one_struct_that_has_a_mirror():
    mirrored = {(s.file, s.name.partition("<")[0]) for s in Struct.made}
    for path in sorted(FOLDER.glob("*.cu")):
        text = path.read_text()
        kernels = re.findall(
            r"__global__ void[^{;]*?(\w+)\(const (?:__grid_constant__ )?(\w+)[^,()]*? p\) \{", text
        )
        assert len(kernels) == text.count("__global__"), path
        assert {(path.name, struct) for _, struct in kernels} <= mirrored


@pytest.mark.parametrize("file", sorted({one.file for one in Struct.made}))
def test_offsets_are_those_of_the_compiler(file):
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


def test_values_go_to_their_fields():
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


def test_kernels_number_the_quotients_as_the_core_does():
    (names,) = re.findall(r"enum Quotient : u32 \{ (.*?) \}", (FOLDER / "quotient.cuh").read_text())
    expected = {quotient.name.upper(): quotient.value for quotient in _cpu.Quotient}
    assert {name: number for number, name in enumerate(names.split(", "))} == expected


def test_kernels_and_launches_agree_on_early_starts():
    (blocks,) = re.findall(r"EARLY_BLOCKS = (.*?);", (FOLDER / "ptx.cuh").read_text())
    assert eval(blocks) == launch._EARLY_BLOCKS
    for path in FOLDER.glob("*.cu"):
        text = path.read_text()
        waits = "await_previous();" in text
        assert waits == ("start_next(" in text), path
        assert waits == (path.name in (*launch._EARLY, "ntt.cu", "ntt_rows.cu", "fft.cu")), path
