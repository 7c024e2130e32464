"""A mock cluster of Kafka's for each test."""

from __future__ import annotations

import pytest

from tests.bridge.mock_kafka import MockKafka


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MockKafka:
    # The mock never tells what a topic's settings are.
    monkeypatch.setattr("txnlog.bridge.source._CONFIG_WAIT_S", 0.1)
    return MockKafka()
