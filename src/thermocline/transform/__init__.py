"""Bronze → silver → gold: models, the plan of stale tables, and how they are computed and written.

A Python model is a function from DataFrames to a DataFrame, in models/<layer>/<table>.py:

    from thermocline.transform import changes, model

    @model(reads={"events": changes("bronze.raw_events")})
    def sessions(events): ...
"""

from thermocline.transform.model_decorator import Read, changes, lookup, model, table

__all__ = ["Read", "changes", "lookup", "model", "table"]
