"""Private retrieval: a record of a server's database, and the server does not learn which.

    python -m polygpu.examples.pir serve FILE --record-size 256 [--protocol packed] [--port 8000]
    python -m polygpu.examples.pir get INDEX [--url http://127.0.0.1:8000]

Three protocols have the same server (`Service`) and the same client (`fetch`), which asks for the protocol.

    simple   SimplePIR: the server multiplies a matrix of bytes by the query, and does nothing else. A client
             first fetches a hint of 4096 bytes for each row of the matrix.
    packed   The same product without a hint: the server packs the result in a few ciphertexts of a ring, with
             keys that come with the query.
    folded   Records are polynomials. A query is one ciphertext. The server expands it, multiplies each
             polynomial by a part of it, and halves the result until the record is left.

An example, not a product: it is not constant time, nobody has reviewed it, and nothing proves that an answer
belongs to the database. Lengths and times show how many records a client asks for.
"""

from . import folded, packed, simple
from .common import Result
from .service import PROTOCOLS, Service, fetch

__all__ = ["PROTOCOLS", "Result", "Service", "fetch", "folded", "packed", "simple"]
