"""Types of the public names of commprof, for type checkers; the names are imported when used."""

from commprof._version import __version__ as __version__
from commprof.capture.attachment import Attachment as Attachment
from commprof.capture.attachment import attach as attach
from commprof.capture.profiler import Profiler as Profiler
from commprof.capture.profiler import profile as profile
from commprof.capture.profiler import step as step
from commprof.commands.showing.loaded import LoadedRun as LoadedRun
from commprof.commands.showing.loaded import load as load
from commprof.tune import compressors as compressors
from commprof.tune.trials.live import Trial as Trial
from commprof.tune.trials.live import trial as trial
