"""Torture test: send known events through the real pipeline while it is being killed.

`workload` generates the events, `lanes` bring them to the sources, `sender` sends them gradually.
`chaos_plan` plans by a seed what is done to the pipeline and when, `stream_process` is the tortured
process, `chaos_actions` affect its catalog, servers and tables, and `trial` runs the whole test.
`expected` derives the required contents of the tables, and `verdict` compares.
"""

from thermocline.torture.trial import TrialOptions, torture
from thermocline.torture.verdict import LaneVerdict, Verdict

__all__ = ["LaneVerdict", "TrialOptions", "Verdict", "torture"]
