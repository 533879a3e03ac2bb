"""What a person is told when something failed that is not ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JNetworkError
from tests.servers.process import free_port

from thermocline.cli.failure import Bug, explain
from thermocline.errors import EngineUnavailable


def test_a_jvm_that_is_gone_is_no_bug_of_ours(call_to_an_ended_jvm: Callable[[], None]) -> None:
    with pytest.raises(Exception) as raised:
        call_to_an_ended_jvm()
    told = explain(raised.value)
    assert isinstance(told, EngineUnavailable)
    assert told.cause == "Spark's JVM ended during the operation."


def test_nor_is_one_that_the_bridge_says_it_cannot_reach() -> None:
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port()))
    with pytest.raises(Py4JNetworkError) as raised:
        gateway.jvm.java.lang.System.currentTimeMillis()
    assert isinstance(explain(raised.value), EngineUnavailable)


def test_a_refused_connection_elsewhere_is_none_of_the_jvm() -> None:
    assert isinstance(explain(ConnectionRefusedError("a database")), Bug)
