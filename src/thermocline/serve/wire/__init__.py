"""The protocol between the processes of a server: frames over a Unix socket.

A frame is a JSON header and bytes (`frame`). `address` is where a process listens, `protocol` the
handshake and the clients: the router speaks to all workers by `Channel` (asyncio, many requests in
flight), the replicator to hot nodes by `BlockingChannel`. `worker` is the loop of every process
that answers: hot nodes, the direct DuckDB worker, the Spark worker and the replicator; `connection`
and `jobs` are its connections and its queue of queries.
"""
