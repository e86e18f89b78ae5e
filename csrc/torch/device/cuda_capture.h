// Whether a stream is captured into a graph, by CUDA's own runtime: the device
// guards of torch before 2.12 do not tell. Can go when these are dropped.
#pragma once

#include <c10/core/Stream.h>

namespace commprof {

// True if this process has what `isCapturedByCuda` calls.
bool cudaTellsCapture(c10::DeviceType type) noexcept;

// True, too, if CUDA refuses the question, as while another thread captures.
// For devices of which `cudaTellsCapture` is true. Throws c10::Error for a
// stream that is none.
bool isCapturedByCuda(c10::Stream stream);

} // namespace commprof
