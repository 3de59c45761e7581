"""Private information retrieval: a client reads a record, and the server does not learn which one.

    python -m polygpu.examples.pir serve FILE --record-size 256 [--protocol packed] [--port 8000]
    python -m polygpu.examples.pir get INDEX [--url http://127.0.0.1:8000]

Three protocols share one HTTP server (`Service`) and one client (`fetch`). The client asks the server which
protocol it uses:

    simple   SimplePIR: the server multiplies a matrix of bytes by the query, and does nothing else. A client
             first fetches a hint of 4096 bytes for each row of the matrix.
    packed   The same product without a hint: the server packs the result into a few RLWE ciphertexts, with
             keys that the client sends in each query.
    folded   The database is a matrix of polynomials, and a query is one ciphertext. The server expands the
             query to one ciphertext for each column, multiplies the columns by these ciphertexts, and adds
             the products. Then each bit of the row's index, which is encrypted too, selects one half of the
             rows that are left, until there is only one.

This is an example, not a product: it is not constant time, nobody has reviewed it, and nothing proves to a
client that an answer comes from the database. Whoever watches the network sees from lengths and times how
many records a client asks for.
"""

from . import folded, packed, simple
from .common import Result
from .service import PROTOCOLS, Service, fetch

__all__ = ["PROTOCOLS", "Result", "Service", "fetch", "folded", "packed", "simple"]
