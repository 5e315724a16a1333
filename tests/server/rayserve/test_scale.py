import pytest

from outrider_proto.errors import UsageError
from outrider_server.rayserve.scale import Scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "replicas=0: need at least 1"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas=2: need at least replicas=3"),
        ({"streams": 0.0}, "streams_per_replica=0.0: need more than 0"),
        ({"streams": float("nan")}, "streams_per_replica=nan"),
        ({"cpus": -1.0}, "cpus=-1.0"),
        ({"http_port": 70000}, "http_port=70000"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Scale(**fields)


def test_grows():
    assert Scale(2, 2).max_replicas == 2
