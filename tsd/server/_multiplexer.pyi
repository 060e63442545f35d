from collections.abc import Sequence

from tsd.server.multiplexer import PacketBatch, Slot
from tsd.server.packet_batches import Packet

def read_batch(ready: list[tuple[int, int]], slots: dict[int, Slot], _buffer: bytearray) -> PacketBatch: ...
def credit_batch(packets: Sequence[Packet], position: int, now_s: float, now_ms: int) -> int: ...
