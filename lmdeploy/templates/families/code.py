"""Models that complete code, and have no conversation."""

from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout

builtin(
    "starcoder2",
    {},
    capability="completion",
    layout=Layout(infilling="<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"),
)
