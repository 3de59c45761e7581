"""Writes tests/data/openfhe with openfhe-python: python tests/data/make_openfhe.py.

Keys are secret nowhere: parameters are far too small to hide anything.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import openfhe

TARGET = Path(__file__).parent / "openfhe"

# What is encrypted, known to tests/test_interop.py.
CKKS = ([0.5, -1.25, 3.0, 2.0], [4.0, 0.25, -1.0, 1.5])
BFV = [1, 2, -3, 4, 5, -6, 7, 8]


def save(name: str, text: str) -> None:
    """The text as the library wrote it; compressed with no time in it, so that the file repeats."""
    (TARGET / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def context(parameters: Any) -> Any:
    parameters.SetSecurityLevel(openfhe.HEStd_NotSet)
    parameters.SetRingDim(128)
    parameters.SetBatchSize(8)
    found = openfhe.GenCryptoContext(parameters)
    for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE):
        found.Enable(feature)
    return found


def serialised(value: Any) -> str:
    text: str = openfhe.Serialize(value, openfhe.JSON)
    return text


def ckks() -> None:
    parameters = openfhe.CCParamsCKKSRNS()
    parameters.SetMultiplicativeDepth(2)
    parameters.SetScalingModSize(50)
    parameters.SetNumLargeDigits(2)
    parameters.SetScalingTechnique(openfhe.FIXEDMANUAL)
    cc = context(parameters)
    keys = cc.KeyGen()
    cc.EvalMultKeyGen(keys.secretKey)
    cc.EvalRotateKeyGen(keys.secretKey, [1, -2])
    a, b = (cc.Encrypt(keys.publicKey, cc.MakeCKKSPackedPlaintext(values)) for values in CKKS)
    save("ckks_secret", serialised(keys.secretKey))
    save("ckks_public", serialised(keys.publicKey))
    save("ckks_a", serialised(a))
    save("ckks_b", serialised(b))
    save("ckks_product", serialised(cc.EvalMultNoRelin(a, b)))
    save("ckks_relinearised", serialised(cc.EvalMult(a, b)))
    save("ckks_relin", openfhe.SerializeEvalMultKeyString(openfhe.JSON, keys.secretKey.GetKeyTag()))
    save("ckks_turned", serialised(cc.EvalRotate(a, 1)))
    save(
        "ckks_rotations", openfhe.SerializeEvalAutomorphismKeyString(openfhe.JSON, keys.secretKey.GetKeyTag())
    )


def bfv() -> None:
    parameters = openfhe.CCParamsBFVRNS()
    parameters.SetPlaintextModulus(65537)
    parameters.SetMultiplicativeDepth(1)
    cc = context(parameters)
    keys = cc.KeyGen()
    save("bfv_secret", serialised(keys.secretKey))
    save("bfv_a", serialised(cc.Encrypt(keys.publicKey, cc.MakeCoefPackedPlaintext(BFV))))


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    ckks()
    bfv()
