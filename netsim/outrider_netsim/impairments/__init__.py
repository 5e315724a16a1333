"""What a link does to packets, one impairment a file, without clock or I/O; path.py puts them together."""

from outrider_netsim.impairments.delay import Delay
from outrider_netsim.impairments.impairment import Impairment
from outrider_netsim.impairments.loss import Loss
from outrider_netsim.impairments.outage import Outages
from outrider_netsim.impairments.packet import ETHERNET_BYTES, Packet
from outrider_netsim.impairments.queue import Queue
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Exit
from outrider_netsim.impairments.trace import Changes, Opportunities

__all__ = [
    "ETHERNET_BYTES",
    "Changes",
    "Delay",
    "Exit",
    "Impairment",
    "Loss",
    "Opportunities",
    "Outages",
    "Packet",
    "Queue",
    "Rate",
]
