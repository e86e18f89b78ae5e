// Handshake before a bucket's exchange: every rank sends every other rank a
// 32-byte little-endian header, and all fields that must be the same on all
// ranks are compared. So lengths of payloads are known to agree before payloads
// are sent, and all ranks know in time if a rank's gradients are not finite.
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
  uint16_t options = 0; // hash of all options and the seed
  uint32_t n = 0; // number of values in the bucket
  // Number of values or blocks sent, or rank of the factors; 0 where the scheme
  // has none.
  uint32_t k = 0;
  uint64_t signature = 0; // signature of the slots
  uint32_t step = 0; // low 32 bits
  uint16_t index = 0; // low 16 bits
};

inline constexpr size_t kHeaderBytes = 32;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes pack(const Header& header);

// Throws PayloadError if the bytes are not a header or are damaged, and
// DisagreementError for another version. `rank` sent the bytes, for bucket
// `index`.
Header unpack(std::span<const std::byte> bytes, int rank, uint32_t index);

// Throws DisagreementError for the first field that differs.
void checkAgreement(
    const Header& mine,
    int my_rank,
    const Header& theirs,
    int their_rank);

class Handshake {
 public:
  // Returns all ranks' headers, by rank, valid until the next call. The channel
  // must not use checksums, because ranks may disagree about them too. Throws
  // DisagreementError, PayloadError, TransportError.
  std::span<const Header> run(const Header& mine, Channel& channel);

 private:
  // Members, because a transfer abandoned by an exception may still write to
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
