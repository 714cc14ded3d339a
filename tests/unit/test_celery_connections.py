"""The connections that doorbells are rung over: each keeps one client, and nobody else's transport changes."""

import kombu
import pytest
from kombu.transport import redis

from sagsite.celery import SteadyConnection, ThriftyTransport, app


@pytest.mark.parametrize("url", ["redis://localhost:1/0", "rediss://localhost:1/0", "redis+socket:///nowhere.sock"])
def test_a_pooled_connection_and_a_copy_have_the_thrifty_transport(url: str) -> None:
    connection = SteadyConnection(url)
    found = [connection, connection.clone(), connection.Pool(limit=1).new()]
    assert [one.get_transport_cls() for one in found] == [ThriftyTransport] * 3


def test_the_pool_of_the_app_is_made_of_them() -> None:
    assert app.pool.new().get_transport_cls() is ThriftyTransport


def test_another_transport_and_another_connection_stay_as_they_are() -> None:
    assert SteadyConnection("memory://").Pool(limit=1).new().get_transport_cls() is not ThriftyTransport
    assert kombu.Connection("redis://localhost:1/0").Pool(limit=1).new().get_transport_cls() is redis.Transport


def test_all_that_a_channel_publishes_goes_over_one_client() -> None:
    channel = ThriftyTransport.Channel
    with app.pool.acquire(block=True) as connection:
        opened = connection.default_channel
        assert isinstance(opened, channel)
        with opened.conn_or_acquire() as first, opened.conn_or_acquire() as second:
            assert first is second
