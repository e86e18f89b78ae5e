"""Live capture inside the training process."""

from commprof.capture.attachment import Attachment, attach
from commprof.capture.profiler import Profiler, profile, step

__all__ = ["Attachment", "Profiler", "attach", "profile", "step"]
