"""ML-KEM and ML-DSA against NIST's known answers; transforms against kyber-py, dilithium-py."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import cryptography_vectors
import numpy as np
import pytest
from dilithium_py.polynomials.polynomials import PolynomialRing as DilithiumRing
from kyber_py.polynomials.polynomials import PolynomialRing as KyberRing

import polygpu as pg
from polygpu.examples import demo, ml_dsa, ml_kem

ML_KEM = {"512": ml_kem.ML_KEM_512, "768": ml_kem.ML_KEM_768, "1024": ml_kem.ML_KEM_1024}
ML_DSA = {"44": ml_dsa.ML_DSA_44, "65": ml_dsa.ML_DSA_65, "87": ml_dsa.ML_DSA_87}

Answers = dict[str, list[bytes]]


def known_answers(path: str, fields: set[str]) -> Answers:
    """All values of the given fields of a vector file, by field."""
    answers: Answers = defaultdict(list)
    with cryptography_vectors.open_vector_file(path, "r") as lines:
        for line in lines:
            field, _, value = line.strip().partition(" = ")
            if field in fields:
                answers[field].append(bytes.fromhex(value))
    assert answers.keys() == fields
    assert len({len(values) for values in answers.values()}) == 1
    return answers


@pytest.fixture(scope="module", params=ML_KEM)
def kem(request: pytest.FixtureRequest) -> tuple[ml_kem.ParameterSet, Answers]:
    fields = {"d", "z", "msg", "pk", "sk", "ct", "ss", "ct_n", "ss_n"}
    path = f"asymmetric/MLKEM/kat_MLKEM_{request.param}.rsp"
    return ML_KEM[request.param], known_answers(path, fields)


def test_ml_kem_keygen(kem: tuple[ml_kem.ParameterSet, Answers]) -> None:
    p, known = kem
    assert len(known["d"]) == 1000
    assert ml_kem.keygen(p, known["d"], known["z"]) == (known["pk"], known["sk"])


def test_ml_kem_encaps(kem: tuple[ml_kem.ParameterSet, Answers]) -> None:
    p, known = kem
    assert ml_kem.encaps(p, known["pk"], known["msg"]) == (known["ss"], known["ct"])


def test_ml_kem_decaps(kem: tuple[ml_kem.ParameterSet, Answers]) -> None:
    p, known = kem
    assert ml_kem.decaps(p, known["sk"], known["ct"]) == known["ss"]


def test_ml_kem_implicit_rejection(kem: tuple[ml_kem.ParameterSet, Answers]) -> None:
    p, known = kem
    assert ml_kem.decaps(p, known["sk"], known["ct_n"]) == known["ss_n"]


def test_ml_kem_single_case_equals_batch_entry(
    kem: tuple[ml_kem.ParameterSet, Answers],
) -> None:
    p, known = kem
    assert ml_kem.keygen(p, known["d"][7:8], known["z"][7:8]) == (
        known["pk"][7:8],
        known["sk"][7:8],
    )
    assert ml_kem.decaps(p, known["sk"][7:8], known["ct"][7:8]) == known["ss"][7:8]


def test_ml_kem_empty_batch() -> None:
    p = ml_kem.ML_KEM_512
    assert ml_kem.keygen(p, [], []) == ([], [])
    assert ml_kem.encaps(p, [], []) == ([], [])
    assert ml_kem.decaps(p, [], []) == []


def test_ml_kem_refuses_bad_input(kem: tuple[ml_kem.ParameterSet, Answers]) -> None:
    """These are the input checks of FIPS 203, sections 7.2 and 7.3."""
    p, known = kem
    pk, sk, ct, msg = (known[field][0] for field in ("pk", "sk", "ct", "msg"))
    with pytest.raises(ValueError, match="31 bytes, but it must have 32"):
        ml_kem.keygen(p, [bytes(31)], [bytes(32)])
    with pytest.raises(ValueError, match="33 bytes, but it must have 32"):
        ml_kem.keygen(p, [bytes(32)], [bytes(33)])
    with pytest.raises(ValueError, match="must have 32"):
        ml_kem.encaps(p, [pk], [msg[:-1]])
    with pytest.raises(ValueError, match=f"must have {len(pk)}"):
        ml_kem.encaps(p, [pk + b"\0"], [msg])
    with pytest.raises(ValueError, match="ek contains a value of at least 3329"):
        ml_kem.encaps(p, [(3329).to_bytes(2, "little") + b"\0" + pk[3:]], [msg])
    with pytest.raises(ValueError, match=f"must have {len(sk)}"):
        ml_kem.decaps(p, [sk[:-1]], [ct])
    with pytest.raises(ValueError, match=f"must have {len(ct)}"):
        ml_kem.decaps(p, [sk], [ct[:-1]])
    with pytest.raises(ValueError, match="The hash in dk"):
        ml_kem.decaps(p, [sk[:-33] + bytes([sk[-33] ^ 1]) + sk[-32:]], [ct])


def test_rejection_sampling_of_too_short_a_stream_raises() -> None:
    candidates = np.zeros((2, 300))
    candidates[1, : 300 - ml_kem.N + 1] = ml_kem.Q
    with pytest.raises(RuntimeError, match="too short"):
        ml_kem.first_accepted(candidates, below=ml_kem.Q)


@pytest.mark.parametrize("name", ML_DSA)
def test_ml_dsa_keygen(name: str) -> None:
    known = known_answers(f"asymmetric/MLDSA/kat_MLDSA_{name}_det_pure.rsp", {"xi", "pk", "sk"})
    assert len(known["xi"]) == 100
    assert ml_dsa.keygen(ML_DSA[name], known["xi"]) == (known["pk"], known["sk"])


def test_ml_dsa_refuses_bad_input() -> None:
    with pytest.raises(ValueError, match="31 bytes, but it must have 32"):
        ml_dsa.keygen(ml_dsa.ML_DSA_44, [bytes(31)])
    assert ml_dsa.keygen(ml_dsa.ML_DSA_44, []) == ([], [])


PEERS = [("ml-kem", KyberRing), ("ml-dsa", DilithiumRing)]


def samples(ring: pg.Ring) -> pg.Poly:
    """Random polynomials and the extremes: 0, 1, X^(N-1), and q - 1 in every coefficient."""
    extremes = [[0], [1], [0] * (ring.n - 1) + [1], [ring.modulus - 1] * ring.n]
    return pg.concatenate([*(ring([x]) for x in extremes), ring.random((28,), seed=1)])


@pytest.mark.parametrize(("preset", "peer"), PEERS)
def test_transform_equals_peer(preset: str, peer: Callable[[], Any]) -> None:
    ring, theirs = pg.Ring.preset(preset), peer()
    a = samples(ring)
    rows = a.data[:, 0].tolist()
    # kyber-py transforms the list it is given in place
    assert a.ntt().data[:, 0].tolist() == [theirs(list(row)).to_ntt().coeffs for row in rows]
    assert a.ntt().intt().data[:, 0].tolist() == rows


@pytest.mark.parametrize(("preset", "peer"), PEERS)
def test_evaluation_products_equal_peer(preset: str, peer: Callable[[], Any]) -> None:
    ring, theirs = pg.Ring.preset(preset), peer()
    a = samples(ring)
    b = ring.random(a.shape, seed=2)
    expected = [
        (theirs(x).to_ntt() * theirs(y).to_ntt()).coeffs
        for x, y in zip(a.data[:, 0].tolist(), b.data[:, 0].tolist(), strict=True)
    ]
    assert (a.ntt() * b.ntt()).data[:, 0].tolist() == np.remainder(expected, ring.modulus).tolist()


def test_demo_known_answers_match_nist() -> None:
    """The answers shipped with the package equal the vector file."""
    cases = json.loads(demo.KNOWN_ANSWERS.read_text("ascii"))["cases"]
    path = "asymmetric/MLKEM/kat_MLKEM_768.rsp"
    known = known_answers(path, {"d", "z", "msg", "pk", "sk", "ct", "ss", "ct_n", "ss_n"})
    for i, case in enumerate(cases):
        for field, value in case.items():
            name = field.removeprefix("sha256_")
            original = known[name][i]
            assert bytes.fromhex(value) == (original if name == field else hashlib.sha256(original).digest())


def test_demo_reports_every_step() -> None:
    steps: list[str] = []
    rows = demo.run(steps.append)
    assert steps == [f"{row.name} {row.what}" for row in rows]
    assert all(row.ok and row.count >= 20 and row.seconds > 0 for row in rows)


def test_demo_raises_for_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml_kem, "decaps", lambda p, dk, c: [bytes(32)] * len(c))
    with pytest.raises(demo.CheckFailed, match="ML-KEM-768 decapsulation") as caught:
        demo.run()
    wrong = [row.what for row in caught.value.rows if not row.ok]
    assert wrong == ["decapsulation", "implicit rejection"] and len(caught.value.rows) > 4
