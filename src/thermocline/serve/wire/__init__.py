"""The protocol between the processes of a server: frames over a Unix socket.

A frame is a JSON header and bytes (`frame`). `address` is where a process listens, `protocol` the
handshake and the clients: the router speaks to all workers by `Channel` (asyncio, many requests in
flight), the replicator to hot nodes by `BlockingChannel`. `worker` is the loop of every process
that answers: hot nodes, the direct DuckDB worker, the Spark worker and the replicator; `connection`
and `jobs` are its connections and its queue of queries.

Why not Arrow Flight or HTTP? A cached or hot answer takes about a millisecond, so the cost of a
request counts, and most of all the router's CPU. `python -m benchmarks.wire` compares the three
over Unix sockets. Two runs on two cores that were busy with other work measured, per request:

| body of 4 KB                            | frames   | Arrow Flight | HTTP           |
|-----------------------------------------|----------|--------------|----------------|
| p50, one in flight, µs                  | 60–85    | 175–200      | 677–703        |
| client CPU, sixteen in flight, µs       | 19–20    | 65–72        | 1,223–1,418    |
| server CPU, sixteen in flight, µs       | 15       | 60–70        | 105–125        |

With 1 MB bodies the client's CPU was 321–524, 583–1,024 and 2,268–2,790 µs; throughput varied too
much on that machine to rank frames and Flight (with sixteen in flight, Flight won the first run and
frames the second). The HTTP client is httpx, which accounts for most of its cost. Besides, Flight's
Python client blocks: it needs a thread and a stream per request in flight, and Arrow in the router,
which otherwise imports none. HTTP/1.1 needs a connection per request in flight.
"""
