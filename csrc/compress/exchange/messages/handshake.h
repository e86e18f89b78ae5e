// Before anything else is exchanged of a bucket, every rank tells every other
// one what it is about to do. So lengths are known to agree when payloads
// travel, and one rank's non-finite gradients are known to all in time.
#pragma once

#include <span>
#include <vector>

#include "compress/exchange/messages/channel.h"
#include "compress/exchange/messages/wire.h"

namespace commprof::compress {

class Handshake {
 public:
  // All ranks' headers, by rank, valid until the next call. The channel must
  // have no checksums: ranks may disagree about them too. Throws
  // DisagreementError, PayloadError, TransportError.
  std::span<const Header> run(const Header& mine, Channel& channel);

 private:
  // Members, because a transfer that an exception leaves behind may write into
  // them still.
  HeaderBytes mine_{};
  std::vector<HeaderBytes> theirs_;
  std::vector<Header> headers_;
};

// Bytes that a rank sends for it.
inline uint64_t handshakeBytes(int world) {
  return kHeaderBytes * uint64_t(world - 1);
}

} // namespace commprof::compress
