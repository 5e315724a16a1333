"""Impairments of packets on a link, one per module, without clock or I/O. path.py combines them."""

from outrider_netsim.impairments.buffer import Buffer
from outrider_netsim.impairments.corrupt import Corrupt
from outrider_netsim.impairments.delay import Delay, DelayDraws
from outrider_netsim.impairments.duplicate import Duplicate
from outrider_netsim.impairments.impairment import DropReason, Impairment, PacketObserver
from outrider_netsim.impairments.loss import Loss
from outrider_netsim.impairments.outage import Holds, Outages
from outrider_netsim.impairments.packet import ETHERNET_BYTES, Packet
from outrider_netsim.impairments.queue import Queue
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.impairments.slots import Slots
from outrider_netsim.impairments.trace import ConditionChanges, DeliveryOpportunities

__all__ = [
    "ETHERNET_BYTES",
    "Buffer",
    "ConditionChanges",
    "Corrupt",
    "Delay",
    "DelayDraws",
    "DeliveryOpportunities",
    "DropReason",
    "Duplicate",
    "Holds",
    "Impairment",
    "Loss",
    "Outages",
    "Packet",
    "PacketObserver",
    "Queue",
    "Rate",
    "Sink",
    "Slots",
]
