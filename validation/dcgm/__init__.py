"""DCGM's diagnostic and health report, read and judged: ``python -m validation.dcgm FILE``.

``verdict``        judges a text that dcgmi printed, whatever it is
``document``       finds the JSON in it
``diag_reader``    the document of a diagnostic, DCGM 3 and 4, as values
``diag_verdict``   the verdict over it
``suites``         which tests a level has
``figures``        the rates and bandwidths that the tests measured
``health_report``  the verdict over a health report
``fault``          the numbers of an error object in words
``messages``       what dcgmi prints instead of a document
``exit_status``    what its exit code means
``command``        runs dcgmi

Nothing but ``command`` touches the machine.
"""

from validation.dcgm.command import diag, health, health_watch
from validation.dcgm.exit_status import ExitStatus, exit_status
from validation.dcgm.verdict import judge
from validation.judgement import Judgement

__all__ = ["ExitStatus", "Judgement", "diag", "exit_status", "health", "health_watch", "judge"]
