"""A processor: tell everybody who listens to a vehicle's topic when it drives too fast for a while."""

import msgspec

from nearcast import Message, SpoolView, processor

LIMIT_KMH = 80


class Position(msgspec.Struct):
    """What a vehicle publishes; anything else becomes a dead letter, and is left out of the spool."""

    kmh: float


@processor("gps.*", spool=10, type=Position)
def speeding(message: Message[Position], spool: SpoolView) -> dict[str, float] | None:
    """Warn when the mean of this and the last speeds is above the limit."""
    speeds = [past.data.kmh for past in spool] + [message.data.kmh]
    mean = sum(speeds) / len(speeds)
    return {"mean_kmh": round(mean, 1)} if mean > LIMIT_KMH else None
