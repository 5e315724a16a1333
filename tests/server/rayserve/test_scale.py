import pytest

from outrider_proto.errors import UsageError
from outrider_server.rayserve.scale import Scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "replicas=0: need at least 1"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas=2: need at least replicas=3"),
        ({"streams_per_replica": 0.0}, "streams_per_replica=0.0: need more than 0"),
        ({"streams_per_replica": float("nan")}, "streams_per_replica=nan"),
        ({"cpus": -1.0}, "cpus=-1.0"),
        ({"http_port": 70000}, "http_port=70000"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Scale(**fields)


def test_grows():
    assert Scale(2, 2).max_replicas == 2


@pytest.mark.parametrize(
    ("scale", "machines", "share"),
    [
        (Scale(), 1, "50%"),
        (Scale(3), 1, "16.7%"),
        (Scale(2, 5, surge=True), 1, "5%"),
        (Scale(6), 4, "25%"),
        (Scale(6, gpus=1.0), 1, "50%"),
        (Scale(6, gpus=0.5), 1, "25%"),
        (Scale(2, gpus=0.1), 1, "25%"),
    ],
)
def test_replicas_divide_what_they_may_share(scale, machines, share):
    assert scale.kv_memory(machines) == share


def test_replicas_on_gpus_divide_their_machines_memory_too():
    assert Scale(6, gpus=0.5).kv_swap(2) == "8.33%"
    assert Scale(6).kv_swap(2) == "0"
