"""What a person is told when something failed that is not ours."""

from __future__ import annotations

import socket

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

from thermocline.cli.failure import Bug, explain
from thermocline.errors import EngineUnavailable


def test_a_jvm_that_is_gone_is_no_bug_of_ours() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.raises(Exception) as raised:
        gateway.jvm.java.lang.System.currentTimeMillis()
    told = explain(raised.value)
    assert isinstance(told, EngineUnavailable)
    assert told.cause == "Spark's JVM has ended in the middle of the work."


def test_a_refused_connection_elsewhere_is_none_of_the_jvm() -> None:
    assert isinstance(explain(ConnectionRefusedError("a database")), Bug)
