"""What `python tests/nvrtc.py` compiles and reports; .ci/run runs it."""

import re

import nvrtc
import pytest

from polygpu._backends.cuda.words import WORDS

pytestmark = pytest.mark.tools

needs_nvrtc = pytest.mark.skipif(
    nvrtc.library_path() is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)

H100 = nvrtc.CARDS[90]


def test_every_kernel_template_is_launched():
    """Over all sizes, the launch code uses every kernel of the sources and no other.

    Clusters need compute capability 9.0.
    """
    before_name = r"(?:__(?:cluster_dims|launch_bounds)__\([^\n]*\)\s+)*"
    defined = {
        (file, name)
        for file, code in nvrtc.sources(".cu").items()
        for name in re.findall(rf"__global__\s+void\s+{before_name}(\w+)\s*\(", code)
    }
    assert len(defined) > 10
    for card in nvrtc.CARDS.values():
        found = {(kernel.file, kernel.template) for kernel in nvrtc.kernels_of(card)}
        no_clusters = {("torus.cu", "torus_rotation_split")} if card.capability < (9, 0) else set()
        assert found == defined - no_clusters


@pytest.mark.parametrize("arch", nvrtc.CARDS)
def test_launches_fit_the_card(arch):
    card = nvrtc.CARDS[arch]
    kernels = nvrtc.kernels_of(card)
    assert len({kernel.expression for kernel in kernels}) == len(kernels) > 500
    for kernel in kernels:
        assert 32 <= kernel.threads <= 1024 and kernel.shared <= card.shared_bytes
    words = {kernel.word for kernel in kernels if kernel.template == "ntt_forward"}
    integers = {word.name for word in WORDS if not word.needs_doubles} - {"Goldilocks"}
    words = {word for word in words if not word.startswith("Grouped<")}
    trinomial = {f"Trinomial<{name}>" for name in integers}
    assert words - {"Float64", "Trinomial<Float64>"} == integers | trinomial | {
        "Complex128",
        "Goldilocks<5, NEGACYCLIC>",
        "Goldilocks<5, CYCLIC>",
    }
    assert ("Float64" in words) == card.fast_doubles


def test_allowed_spills_name_existing_kernels():
    known = {(k.template, k.word) for card in nvrtc.CARDS.values() for k in nvrtc.kernels_of(card)}
    assert set(nvrtc.SPILLED) <= known


def test_violations_of_resource_limits():
    kernel = nvrtc.Kernel("pointwise.cu", "permute<u32, false, 1>", 1024, 0)
    assert nvrtc.violations(kernel, nvrtc.Usage(64, 0, 0)) == []
    assert nvrtc.violations(kernel, nvrtc.Usage(65, 4, 8)) == [
        "65 registers of 1024 threads, a card has 65536",
        "4 bytes spilled, allowed 0",
    ]
    kernel = nvrtc.Kernel("ntt.cu", "ntt_forward<Lazy32, ...>", 256, 0)
    allowed = nvrtc.SPILLED["ntt_forward", "Lazy32"]
    assert nvrtc.violations(kernel, nvrtc.Usage(64, allowed, 0)) == []
    assert nvrtc.violations(kernel, nvrtc.Usage(64, allowed + 1, 0)) != []
    assert nvrtc.violations(kernel, nvrtc.Usage(64, allowed + 1, 0), (12, 9)) == []


def test_ends_contain_every_template_and_word():
    kernels = nvrtc.kernels_of(H100, nvrtc.PART)
    chosen = nvrtc.ends(kernels)
    assert set(chosen) < set(kernels) and len(set(chosen)) == len(chosen)
    assert {(k.template, k.word) for k in chosen} == {(k.template, k.word) for k in kernels}


@needs_nvrtc
def test_compile_error_contains_compiler_output():
    with pytest.raises(RuntimeError, match=r"pointwise\.cu, sm_90: .*error"):
        nvrtc.Compiler().compile("pointwise.cu", ["permute<int, int, 1>"], 90)
