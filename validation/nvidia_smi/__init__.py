"""What nvidia-smi says of the GPUs, read and judged: ``python -m validation.nvidia_smi FILE``.

``verdict``      judges a text that nvidia-smi printed, whatever it is
``reader``       the csv of a query as values
``rules``        what each field must say
``words``        the statuses that stand in the place of values
``messages``     the lines that are no rows
``fields``       which fields are asked, and what a version offers
``exit_status``  what the exit code means
``command``      runs nvidia-smi

Nothing but ``command`` touches the machine.
"""

from validation.judgement import Judgement
from validation.nvidia_smi.command import command, offered, query
from validation.nvidia_smi.exit_status import ExitStatus, exit_status
from validation.nvidia_smi.fields import OLDEST, QUERY, choose, fields_offered
from validation.nvidia_smi.reader import Gpu, Query, parse
from validation.nvidia_smi.verdict import judge
from validation.tools import Output

__all__ = [
    "OLDEST", "QUERY", "ExitStatus", "Gpu", "Judgement", "Output", "Query", "choose", "command",
    "exit_status", "fields_offered", "judge", "offered", "parse", "query",
]  # fmt: skip
