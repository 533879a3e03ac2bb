"""Does it keep its promise here? Known events through the real pipeline, while it is being killed.

`workload` knows every event, `lanes` bring them to the sources, `sender` does so little by little.
`plan` decides by a seed what is done to the pipeline and when, `worker` is the process it is done
to, `deeds` are what is done around it, and `trial` joins them. `expected` says what the tables must
hold, and `verdict` compares.
"""

from thermocline.torture.trial import Order, torture
from thermocline.torture.verdict import LaneVerdict, Verdict

__all__ = ["LaneVerdict", "Order", "Verdict", "torture"]
