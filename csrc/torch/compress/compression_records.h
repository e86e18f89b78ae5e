// What became of a compressed bucket, as records of the trace.
#pragma once

#include <cstdint>
#include <string>

#include "compress/bucket.h"

namespace commprof {

// Records the spans, one kCompression and, where it was measured, one kQuality,
// all with the bucket's op_id; nothing for op_id 0 or while capture is off.
//   kSpan         aux = Stage, timestamp_ns = begin, value = end
//   kCompression  aux = bucket index, bytes_in = payload, bytes_out = sent,
//                 value = first 8 characters of the scheme's name, the first
//                 in the lowest byte, flags kNonFinite
//   kQuality      bytes_in, bytes_out, value = bits of relative error, cosine,
//                 residual ratio as double; seq = zeroed, aux = saturated, both
//                 at most 2^32 - 1
void recordReport(
    const compress::BucketReport& report,
    const std::string& scheme,
    uint32_t index,
    uint64_t op_id);

} // namespace commprof
