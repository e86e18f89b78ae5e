// The checksum of a trace's blocks and of compressors' messages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof {

// CRC-32 (IEEE 802.3, reflected), the same as zlib.crc32 in Python.
uint32_t crc32(const void* data, size_t bytes) noexcept;

} // namespace commprof
