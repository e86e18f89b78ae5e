// Queries CUDA's runtime for streams that are captured into a graph, which
// torch's device guards before 2.12 cannot report. To be removed when torch
// before 2.12 is no longer supported.
#pragma once

#include <c10/core/Stream.h>

namespace commprof {

// True if this process has the functions that `isCapturedByCuda` calls.
bool cudaReportsCapture(c10::DeviceType type) noexcept;

// True if the stream is being captured, or if CUDA refuses the query because
// another thread captures. Only for devices for which `cudaReportsCapture` is
// true. Throws c10::Error for an invalid stream.
bool isCapturedByCuda(c10::Stream stream);

} // namespace commprof
