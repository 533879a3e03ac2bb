"""Does it keep its promise here? Known events through the real pipeline, while it is being killed.

`workload` knows every event, `lanes` bring them to the sources, `plan` decides by a seed what is
done to the pipeline and when, `worker` is the process it is done to, `trial` joins them, and
`verdict` compares what was sent with what the tables hold.
"""

from thermocline.torture.trial import Order, torture
from thermocline.torture.verdict import LaneVerdict, Verdict

__all__ = ["LaneVerdict", "Order", "Verdict", "torture"]
