// Asks CUDA's runtime whether a stream is captured into a graph. Only needed
// for torch before 2.12, whose device guards cannot report captures.
#pragma once

#include <c10/core/Stream.h>

namespace commprof {

// True if this process has the functions that `isCapturedByCuda` calls.
bool cudaReportsCapture(c10::DeviceType type) noexcept;

// True if the stream is being captured. Also true if CUDA refuses the query
// because another thread captures. `cudaReportsCapture` must be true for the
// device. Throws c10::Error for an invalid stream.
bool isCapturedByCuda(c10::Stream stream);

} // namespace commprof
