// Handshake before a bucket's exchange. Every rank sends every other rank a
// 32-byte little-endian header. Ranks compare the fields that must be equal on
// all ranks, and learn whether any rank's gradients are not finite.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tune/compress/exchange/messages/channel.h"
#include "tune/compress/scheme_table.h"

namespace commprof::compress {

// Name as in Options::scheme; "unknown" for an invalid code.
const char* schemeName(SchemeCode code);

struct Header {
  SchemeCode scheme = SchemeCode::kNone;
  // True if this rank's gradients are not finite; then no payload follows.
  bool nonfinite = false;
  int8_t exponent = 0; // 16-bit values are x * 2^exponent
  uint16_t options = 0; // hash of the options that must be equal, and the seed
  uint32_t n = 0; // number of values in the bucket
  // Number of values to send, or rank of the factors; see Scheme::k().
  uint32_t k = 0;
  uint64_t signature = 0;
  uint32_t step = 0; // low 32 bits
  uint16_t index = 0; // low 16 bits
};

inline constexpr size_t kHeaderBytes = 32;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes pack(const Header& header);

// `rank` sent the bytes, for bucket `index`. Throws PayloadError if the bytes
// are not an intact header, and DisagreementError if the header has another
// version.
Header unpack(std::span<const std::byte> bytes, int rank, uint32_t index);

// Throws DisagreementError for the first field that differs.
void checkAgreement(
    const Header& mine,
    int my_rank,
    const Header& theirs,
    int their_rank);

class Handshake {
 public:
  // Returns the headers of all ranks, valid until the next call. The channel
  // must not use checksums, because ranks may disagree about their use. Throws
  // DisagreementError, PayloadError, TransportError.
  std::span<const Header> run(const Header& mine, Channel& channel);

 private:
  // Not local variables: after an exception, a transfer may go on writing to
  // them.
  HeaderBytes mine_{};
  std::vector<HeaderBytes> theirs_;
  std::vector<Header> headers_;
};

// Bytes that a rank sends for the handshake.
inline uint64_t handshakeBytes(int world) {
  return kHeaderBytes * uint64_t(world - 1);
}

} // namespace commprof::compress
